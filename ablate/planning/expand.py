"""Expansion of a declaration to a plan: every (row x column x seed), its spec and its id.

Used by `ablate sweep` and `ablate plan` (`cli/driving.py`), by all commands that name a sweep
(`cli/selection.py`), and by Python (`api/nouns.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ablate.planning.analysis_keys import Analysis
from ablate.planning.cell import Cell, PlannedRun, Row, Tune
from ablate.planning.changes import check_effective
from ablate.planning.compose import Composer, placed
from ablate.planning.data_section import NOT_SEEN
from ablate.planning.declaration import (
    CellRule,
    Item,
    Sweep,
    groups_of,
    matches_value,
    paper_of,
    show_settings,
)
from ablate.planning.declared import PART_KEYS, Declared
from ablate.planning.design import DESIGNS
from ablate.planning.part import part_of, with_labels
from ablate.planning.plan import Plan
from ablate.planning.recall import Recall, check_crossed, recall_crossed, recall_seeds
from ablate.planning.settings import (
    SettingsLayer,
    single_values,
    value_at,
    value_text,
    with_one_model,
)
from ablate.planning.short_name import base_name, unique_name
from ablate.planning.sweep_file import file_hashes, from_file, load_sweep_file
from ablate.planning.sweep_paths import (
    check_sweep_name,
    find_sweep_file,
    hidden_notes,
    sweep_files,
)
from ablate.planning.words import (
    check_values,
    from_words,
    is_single_run,
    read_line,
    read_options,
)
from ablate.run import CHOICES, OwnSpec, RunSpec, program
from ablate.shared import UserError, count_text, unknown_value

# A variant's key in one of these is a confound.
RECIPE = {"recipe", "optim", "train", "data", "augment", "eval", "from"}


def plan_from_words(
    words: Sequence[str],
    *,
    store: Path,
    recall: Recall | None = None,
    allow_missing: bool = False,
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[Plan, dict[str, Any]]:
    """Return the plan of `[NAME] k=v ...`, and the launcher's settings.

    Nothing is trained or recorded. `recall`: what the store remembers; without it, a name is free.
    `allow_missing`: see `data_section.complete`; the ids are then those of no run. `settings`:
    more of them, as values of Python. `options`: see `read_options`. Raises UserError, one line,
    for every mistake in words, values and files.
    """
    composer = Composer(store, allow_missing)
    line_options = read_options(composer.groups, **options)
    line = read_line(words, composer.groups, line_options, settings or {})
    return _plan_line(line, composer, recall)


def plan_declared(
    line: Declared, *, store: Path, recall: Recall | None = None, allow_missing: bool = False
) -> tuple[Plan, dict[str, Any]]:
    """Return the plan of a declaration, and the launcher's settings: see `plan_from_words`."""
    return _plan_line(line, Composer(store, allow_missing), recall)


def _plan_line(
    line: Declared, composer: Composer, recall: Recall | None
) -> tuple[Plan, dict[str, Any]]:
    line_options = line.options
    launcher = composer.launcher(line.launcher)
    if line.file is not None and any(key in line.sweep for key in PART_KEYS):
        place, content = load_sweep_file(find_sweep_file(line.file))
        line = with_labels(line, from_file(place, content, line, composer.groups))
    if recall is None:
        name, previous_plan = line_options.name or base_name(line), None
    else:
        name = line_options.name or unique_name(line, recall)
        previous_plan = recall.plan(name, line)
    if line_options.name is not None:
        is_new = recall is not None and previous_plan is None
        check_sweep_name(line_options.name, is_new, line.file)
    recalled_words = recall_crossed(line, previous_plan)
    line = replace(line, words=(*line.words, *recalled_words))
    if not name.isprintable():
        raise UserError(f"{name!r} can't be a sweep's name; call it by another with --as")
    if line.file is None:
        if line.settings and is_single_run(line):
            # A wrong key or value is named before the lack of a second value.
            check_values(line, composer.groups)
            composer.run(composer.tree([SettingsLayer("", single_values(line.settings))]))
        sweep, by_default = from_words(line, name, composer.groups), True
    else:
        place, content = load_sweep_file(find_sweep_file(line.file))
        for field in ("across", "each", "change"):
            if getattr(line_options, field):
                raise UserError(
                    f"--{field}: is for a sweep without a file; leave it out, since {place} "
                    f"declares the rows"
                )
        sweep = from_file(place, content, line, composer.groups)
        levels = content, content.get("scales", {}).get(line_options.scale, {})
        by_default = not any(key in level for level in levels for key in ("seeds", *DESIGNS))
    recollection = recall_seeds(sweep, line, previous_plan, by_default)
    plan = expand(recollection.sweep, composer, name, recollection.line)
    if line.crossed:
        has_own_name = line_options.name is None
        own_tree = _uncrossed_tree(sweep, composer) if has_own_name else None
        check_crossed(line, plan, previous_plan, own_tree)
    plan = part_of(plan, line)
    word_notes = (f"{word.text}, as last time" for word in recalled_words)
    plan = replace(plan, notes=(*plan.notes, *word_notes, *recollection.notes))
    if line.file is not None:
        notes = (*hidden_notes(line.file), *plan.notes)
        plan = replace(
            plan, notes=notes, file=file_hashes(find_sweep_file(line.file), line_options.scale)
        )
    return plan, launcher


def _uncrossed_tree(sweep: Sweep, composer: Composer) -> Mapping[str, Any] | None:
    """Return the spec of a run of the first row and column, without the words that cross them; None
    where the file alone declares no run, as without a `data.path`."""
    row, column = sweep.rows[0], sweep.columns[0]
    settings = {key: value for key, value in column.settings.items() if key not in sweep.crossed}
    uncrossed = replace(sweep, crossed=())
    layers = uncrossed.layers(row, replace(column, settings=settings))
    try:
        return composer.run(composer.tree(layers), sweep.seeds[0]).spec.tree
    except UserError:
        return None


def list_sweeps() -> list[tuple[str, str, Path]]:
    """Return (name, title, file) of every sweep that can be named.

    For a file that can't be read, the title is the error in parentheses.
    """
    listing = []
    for name, path in sweep_files().items():
        try:
            title = str(load_sweep_file(path)[1].get("title", ""))
        except UserError as error:
            title = f"({error})"
        listing.append((name, title, path))
    return listing


# --- Expansion ----------------------------------------------------------------------------------


def expand(sweep: Sweep, composer: Composer, name: str, line: Declared) -> Plan:
    """Return the plan of a sweep: every cell is composed once, seeds come last.

    Raises UserError for cells that can't be built, and for parts of the sweep that apply to no
    cell.
    """
    cells: list[Cell] = []
    identities: dict[tuple[str, str], str] = {}
    used: set[str] = set()  # places of the excludes and overrides that matched a cell
    for column in sweep.columns:
        for row in sweep.rows:
            built = _cell(sweep, composer, row, column, used)
            if built is not None:
                cell, identities[row.label, column.label] = built
                cells.append(cell)
    if not cells:
        raise UserError(f"{sweep.place}: exclude: leaves no cell")
    place = sweep.place_of("")
    _same_sets(cells, place)
    notes = [*composer.notes, *_unused(sweep, used, composer)]
    first_rows = _first_of_equals(sweep, identities)
    if sweep.changes is not None:
        check_effective(sweep.changes, first_rows)
    _columns_differ(sweep, first_rows, identities)
    cells = [cell for cell in cells if first_rows[cell.row] == cell.row]
    filled = {cell.column for cell in cells}
    columns = [column for column in sweep.columns if column.label in filled]
    baseline_place = "baseline" if "baseline" in line.sweep else sweep.place_of("baseline")
    baseline = _baseline(sweep, first_rows, identities, columns, baseline_place)
    rows = list(_rows(sweep, first_rows, baseline))
    notes += [f"{a!r} is {row.label!r} again: equal settings" for row in rows for a in row.aliases]
    plan = Plan(
        name=name,
        title=line.options.name or sweep.title or name,
        declared=line,
        rows=tuple(rows),
        columns=tuple(column.column for column in columns),
        cells=tuple(cells),
        baseline=baseline,
        seeds=sweep.seeds,
        analysis=_analysis(sweep, first_rows, notes),
        paper=paper_of(sweep, first_rows),
        groups=groups_of(sweep, columns, notes),
        notes=tuple(notes),
        tune=_searched(sweep),
        design=sweep.design,
        changes=sweep.changes,
        smoke=sweep.smoke,
    )
    plan.design.check_plan(plan, place)
    plan.check_analysis(f"{sweep.place_and_fit('analysis.contrasts')[0]}.")
    return _metric_said(plan, place)


def _same_sets(cells: Sequence[Cell], place: str) -> None:
    """Raise UserError where rows of a column are tested on different sets.

    Such sets belong into columns of their own.
    """
    first_cells: dict[str, Cell] = {}
    for cell in cells:
        first_cell = first_cells.setdefault(cell.column, cell)
        if cell.spec.also != first_cell.spec.also:
            rows = f"{first_cell.row!r} and {cell.row!r}"
            raise UserError(f"{place}eval.also: must be the same for all rows, not {rows}")


def _searched(sweep: Sweep) -> Tune | None:
    """Return the sweep's searches; None where it has none.

    Raises UserError where rows or columns set a key that is searched, where `tune: none` takes out
    every column, or a column of a search of parents, and where there are more searches than seeds.
    """
    space = {key for stage in sweep.tune.stages for key in stage.space} if sweep.tune else set()
    for item in (*sweep.rows, *sweep.columns):
        if both := space & item.settings.keys():
            raise UserError(
                f"{item.place}: {item.label}: sets {min(both)}, which `tune:` searches for every "
                f"variant; remove one of the two"
            )
    untuned = [column for column in sweep.columns if not column.tuned]
    if sweep.tune and untuned and (sweep.tune.parents or len(untuned) == len(sweep.columns)):
        section = "from.tune, which searches parents" if sweep.tune.parents else "tune"
        raise UserError(
            f"{untuned[0].place}: tune: none is for a column without searches in a sweep whose "
            f"other columns have some; here remove {section}"
        )
    repeats, seeds = sweep.tune.repeats if sweep.tune else None, len(sweep.seeds)
    if sweep.tune and repeats is not None and repeats > seeds:
        section = "from.tune" if sweep.tune.parents else "tune"
        raise UserError(
            f"{section}.repeats: {repeats} searches for {count_text(seeds, 'seed')}, and each "
            f"search needs a seed that takes its winner; give seeds={repeats}, or "
            f"{section}.repeats={seeds}"
        )
    return sweep.tune


def _cell(
    sweep: Sweep, composer: Composer, row: Item, column: Item, used: set[str]
) -> tuple[Cell, str] | None:
    """Return the cell and its identity, or None where it is excluded.

    The places of the excludes and overrides that match it are added to `used`.
    """
    label = f"{row.label}@{column.label}" if column.label else row.label
    otherwise = sweep.place_of(label)
    layers = sweep.layers(row, column)
    with placed(layers, otherwise):
        tree = composer.tree(layers)
    settings = {k: v for layer in with_one_model(layers) for k, v in layer.settings.items()}
    if "model.arch" in settings:  # for which `model: S/16` is another word
        settings.setdefault("model", settings["model.arch"])
    applied: list[CellRule] = []
    if sweep.excludes or sweep.overrides:
        values = {k: v for k, v in composer.defaults.items() if k in tree or k not in CHOICES}
        values |= settings  # a whole model has no norm, stem or block, not even by default
        hits = [ex.place for ex in sweep.excludes if _matches(ex, values, tree)]
        used.update(hits)
        if hits:
            return None
        applied = [o for o in sweep.overrides if _matches(o, values, tree)]
        used.update(override.place for override in applied)
    if applied:
        layers = sweep.layers(row, column, applied)
        with placed(layers, otherwise):
            tree = composer.tree(layers)
    with placed(layers, otherwise):
        unfinished_spec = RunSpec.of(tree)
        check_seeds(unfinished_spec, sweep.seeds)
        run = composer.run(tree, sweep.seeds[0])
    spec = run.spec.without_seed(unfinished_spec)
    cell = Cell(
        row=row.label,
        column=column.label,
        spec=spec,
        ids=spec.ids(sweep.seeds),
        overrides=tuple(
            dict.fromkeys(
                key
                for override in applied
                for key in override.settings
                if _of_recipe(key) and key not in (*sweep.command_settings, *sweep.crossed)
            )
        ),
        seeds=sweep.design.stored_seeds(sweep.seeds, sweep.tune if column.tuned else None),
    )
    return cell, spec.identity


def _matches(part: CellRule, settings: Mapping[str, Any], tree: Mapping[str, Any]) -> bool:
    """Return whether a cell has all values of `part.condition`, as it was set, or else by
    default."""
    return all(
        matches_value(expected, settings[key] if key in settings else value_at(tree, key))
        for key, expected in part.condition.items()
    )


def _of_recipe(key: str) -> bool:
    return key.partition(".")[0] in RECIPE


def _rows(sweep: Sweep, first_rows: Mapping[str, str], baseline: str) -> Iterator[Row]:
    """Yield the rows that have cells. Equal rows come once, with the others' labels as aliases."""
    aliases: dict[str, list[str]] = {}
    for label, first_label in first_rows.items():
        aliases.setdefault(first_label, []).extend([label] if label != first_label else [])
    items = {row.label: row for row in sweep.rows}
    for label, labels in aliases.items():
        row = items[label]
        yield Row(
            label=label,
            settings=row.settings,
            family=row.family,
            confounds=_confounds(row, items[baseline], sweep),
            aliases=tuple(labels),
        )


def _confounds(row: Item, baseline: Item, sweep: Sweep) -> tuple[str, ...]:
    """Return the recipe keys that the row sets and the baseline does not set to the same value.

    For the baseline itself, return those that at least one row does not set.
    """
    if sweep.changes is not None:  # a change may set recipe keys
        return ()
    keys = [key for key in row.settings if _of_recipe(key) and key not in sweep.command_settings]
    if row is baseline:
        return tuple(k for k in keys if not all(k in item.settings for item in sweep.rows))
    base = baseline.settings
    return tuple(k for k in keys if k not in base or base[k] != row.settings[k])


def _first_of_equals(sweep: Sweep, identities: Mapping[tuple[str, str], str]) -> dict[str, str]:
    """Return row label -> the first row that has the same specs in the same columns."""
    rows_by_specs: dict[tuple[tuple[str, str], ...], str] = {}
    first_rows = {}
    for row in sweep.rows:
        specs = tuple(
            (column.label, identities[row.label, column.label])
            for column in sweep.columns
            if (row.label, column.label) in identities
        )
        if specs:
            first_rows[row.label] = rows_by_specs.setdefault(specs, row.label)
    return first_rows


def _columns_differ(
    sweep: Sweep, first_rows: Mapping[str, str], identities: Mapping[tuple[str, str], str]
) -> None:
    columns_by_specs: dict[tuple[str | None, ...], Item] = {}
    for column in sweep.columns:
        specs = tuple(identities.get((row, column.label)) for row in first_rows)
        if not any(specs):
            continue
        twin = columns_by_specs.setdefault((f"{column.tuned}", *specs), column)
        if twin is not column:
            words = [key for key in column.settings if key in sweep.command_settings]
            remedy = f"remove {words[0]}=" if words else "give one of them"
            raise UserError(
                f"{column.place or 'columns'}: the columns {twin.label!r} and {column.label!r} "
                f"are the same runs; {remedy}"
            )


def _baseline(
    sweep: Sweep,
    first_rows: Mapping[str, str],
    identities: Mapping[tuple[str, str], str],
    columns: Sequence[Item],
    place: str,
) -> str:
    """Return the baseline's row. Raises UserError where there is none, or it lacks a column.

    `place`: the start of errors, where the baseline is declared.
    """
    labels = [row.label for row in sweep.rows]
    label = labels[0] if sweep.baseline is None else sweep.baseline
    if sweep.changes is not None:
        if sweep.baseline not in (None, sweep.changes.baseline):
            raise UserError(
                f"{place}: {label}: changes have {sweep.changes.baseline!r}; leave it out"
            )
        label = sweep.changes.baseline
    if label not in labels:
        raise unknown_value(place, label, labels)
    for column in columns:
        if (label, column.label) not in identities:
            raise UserError(
                f"{place}: {label!r} is excluded in column {column.label!r}: gains are taken "
                f"within a column, so exclude the whole column or keep its baseline"
            )
    return first_rows[label]


def _unused(sweep: Sweep, used: Collection[str], composer: Composer) -> list[str]:
    """Return notes on excludes that match no cell because of a scale or a word of the command line.

    Raises UserError for every other exclude or override that matches no cell.
    """
    notes = []
    for part in (*sweep.excludes, *sweep.overrides):
        if part.place in used:
            continue
        words = [
            f"{key}={value_text(value)}"
            for key, value in sweep.command_settings.items()
            if key in part.condition
            or (
                key in composer.groups and any(composer.sets(key, value, k) for k in part.condition)
            )
        ]
        if part.settings or (sweep.scale is None and not words):
            raise UserError(f"{part.place}: matches no cell: {show_settings(part.condition)}")
        reason = f"under {words[0]}" if words else "at this scale"
        notes.append(f"{part.place} matches no cell {reason}")
    return notes


def _analysis(sweep: Sweep, first_rows: Mapping[str, str], notes: list[str]) -> Analysis:
    """Return the analysis without contrasts that lack rows or columns at this scale.

    Contrasts are in a stored plan's order. `notes` names those that are left out. Raises UserError
    where no scale explains that the columns are missing. `first_rows`: see `_first_of_equals`.
    """
    place, must_fit = sweep.place_and_fit("analysis.contrasts")
    contrasts: dict[str, Mapping[str, Any]] = {}
    for contrast in sweep.analysis.row_contrasts:
        if must_fit or {contrast.row, contrast.base} <= {*first_rows}:
            ends = {"from": contrast.base, "to": contrast.row}
            contrasts[contrast.name] = {end: first_rows.get(row, row) for end, row in ends.items()}
        else:
            notes.append(f"contrast {contrast.name!r} has no rows at this scale")
    for name, across in sweep.analysis.column_contrasts.items():
        key = across["across"]
        values = [c.settings[key] for c in sweep.columns if key in c.settings]
        missing = [end for end in (across["from"], across["to"]) if end not in values]
        if not missing:
            contrasts[name] = across
        elif not must_fit:
            notes.append(f"contrast {name!r} has no columns at this scale")
        elif not values:
            raise UserError(f"{place}.{name}: across: no column sets {key!r}")
        else:
            raise unknown_value(
                f"{place}.{name}: {key}", missing[0], dict.fromkeys(map(value_text, values))
            )
    return replace(sweep.analysis, contrasts=dict(sorted(contrasts.items())))


def _metric_said(plan: Plan, place: str) -> Plan:
    """Return the plan with the name and declaration of its metric.

    The default is the first metric of its task. Raises UserError where its runs don't share a task,
    or their task has no such metric.
    """
    tasks = {cell.spec.task_name: cell.label for cell in plan.cells}
    if len(tasks) > 1:
        listing = ", ".join(f"{task} ({label})" for task, label in tasks.items())
        raise UserError(f"{place}task: the runs of a sweep have one task, got {listing}")
    name = plan.analysis.metric or plan.task.metrics[0].key
    plan = plan.with_own(place=f"{place}analysis.metric")
    plan.metric_named(name, f"{place}analysis.metric")
    return replace(plan, analysis=replace(plan.analysis, metric=name))


# --- One cell as it would be trained, for `ablate config` -----------------------------------------


def find_cell(plan: Plan, row: str | None, column: str | None) -> Cell:
    """Return the cell in this row and column.

    By default the row is the baseline, and the column the first that the row has. Raises UserError
    where there is no such cell.
    """
    headings = {plan_column.heading: plan_column.label for plan_column in plan.columns}
    label = plan.baseline if row is None else plan.row_names.get(row, row)
    if label not in (rows := [plan_row.label for plan_row in plan.rows]):
        raise unknown_value("--row", label, rows)
    of_row = {cell.column: cell for cell in plan.cells if cell.row == label}
    if column is None:
        return next(iter(of_row.values()))
    if [*headings] == [""]:
        raise UserError(f"--column: {plan.name} has one column, without a name; leave it out")
    place = headings.get(column, column)
    if place not in (columns := [plan_column.label for plan_column in plan.columns]):
        raise unknown_value("--column", column, columns)
    if place not in of_row:
        raise unknown_value(f"--column: {label!r}", column, of_row, "has a cell in")
    return of_row[place]


def first_run(plan: Plan, cell: Cell) -> tuple[dict[str, Any], str | None, Iterator[str]]:
    """Return the first seed's run of a cell, of a plan that was just made.

    It is (its whole plain tree; its id, or None where that is not known yet; the lines that `ablate
    config` prints above the tree).
    """
    seed = plan.seeds[0]
    run = PlannedRun(cell.ids[seed], cell, seed)
    specs = (run.spec, *run.spec.ancestors())
    data = [data["name"] for spec in specs for data in spec.datasets]
    prefixes = tuple(f"data={name} {NOT_SEEN}" for name in data)
    has_id = plan.tune is None and not any(note.startswith(prefixes) for note in plan.notes)
    return dict(run.spec.tree), run.id if has_id else None, _header_lines(plan, run, has_id)


def _header_lines(plan: Plan, run: PlannedRun, has_id: bool) -> Iterator[str]:
    yield f"run {run.id}: {run.label}" if has_id else f"{run.label}, whose id is not known yet"
    if plan.tune is not None:
        keys = dict.fromkeys(key for stage in plan.tune.stages for key in stage.space)
        yield f"note: a search will choose {', '.join(keys)}"
    for note in plan.notes:
        yield f"note: {note}"


def check_seeds(spec: RunSpec, seeds: Sequence[int]) -> None:
    """Raise UserError for several seeds of a command without {seed}: all would be one run."""
    if len(seeds) < 2 or not (isinstance(spec, OwnSpec) and spec.is_command):
        return
    if not program.takes_seed(spec):
        raise UserError(
            f"seeds: all would be one run, since the command has no {{seed}}; put it where the "
            f"program takes its seed, in `command` or `env` of the yaml, or give seeds=1: "
            f"{spec.trainer}"
        )
