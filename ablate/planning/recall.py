"""Seeds are state: those that a sweep was driven with stay, until `--replace` gives them up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ablate.planning.compose import Composer
from ablate.planning.declaration import Sweep, holds
from ablate.planning.design import spelled
from ablate.planning.overrides import Word, show
from ablate.planning.plan import Plan
from ablate.planning.tree import value_at
from ablate.planning.words import CommandLine, Options, apart, read_line
from ablate.shared.errors import UserError

# (name, words) -> the plan by which that sweep was driven last; None: it was not, or it is another.
Recall = Callable[[str, Sequence[str]], Plan | None]


@dataclass(frozen=True)
class Recalled:
    """A sweep with its seeds. `words`: the command line that makes it again; `notes`: a line where
    they are those of last time."""

    sweep: Sweep
    words: Sequence[str]
    notes: tuple[str, ...] = ()


def recall_crossed(line: CommandLine, before: Plan | None, composer: Composer) -> list[Word]:
    """The words that `before` was crossed with, and that the command line does not say."""
    if before is None or line.file is None:
        return []
    words = read_line(before.words, composer.groups).crossed
    said = {word.key for word in line.settings}
    return [word for word in words if word.key not in said]


def check_crossed(
    line: CommandLine, sweep: Sweep, before: Plan | None, composer: Composer, name: str, own: bool
) -> None:
    """Raises UserError where words that cross a file leave out a value that the sweep was driven
    with, or the file's own value of a key, by which the sweep is still its `own`."""
    if not line.crossed:
        return
    trees = [dict(cell.spec) for cell in before.cells] if before is not None else []
    if own:
        row, column = sweep.rows[0], sweep.columns[0]
        kept = {key: value for key, value in column.settings.items() if key not in sweep.crossed}
        plain = replace(sweep, crossed=())
        trees.append(composer.tree(plain.layers(row, replace(column, settings=kept))))
    for word in line.crossed:
        found = (value_at(tree, word.key) for tree in trees)
        had = [value.get("name") if isinstance(value, Mapping) else value for value in found]
        had = [value for value in had if value is not None]  # a recipe's name is in no tree
        lacking = {show(value): None for value in had if not holds([*word.values], value)}
        if lacking:
            every = ",".join(dict.fromkeys(map(show, [*had, *word.values])))
            raise UserError(
                f"{word.text}: {name} has {word.key}={','.join(lacking)}, too; "
                f"`{word.key}={every}` extends it, --as NAME makes another sweep"
            )


def recall_seeds(
    declared: Sweep, line: CommandLine, before: Plan | None, by_default: bool
) -> Recalled:
    """The declared sweep under what the command line says. Without such a word it has all seeds of
    `before`, by which it was driven last. `by_default`: does nobody declare its seeds?

    Raises UserError where the command line says seeds that lack some of those.
    """
    last = line.options.until
    design = declared.design if last is None else declared.design.extended(last)
    sweep = design.under(replace(declared, design=design), line.sweep, line.options.margin)
    if before is None or _covers(sweep, before, line.says_seeds):
        return Recalled(sweep, line.texts)
    if line.says_seeds:
        raise _lacking(sweep, before, line)
    who = "the default is" if by_default else "the file says"
    otherwise = f"as last time; {who} {sweep.design.spelled(sweep.seeds)}"
    sweep, what = before.design.recall(declared, before, line.sweep)
    looks = apart(before.words)[1]  # else a file declared them
    again = Options(until=looks.until, margin=looks.margin).texts
    words = [*sweep.design.words(line.texts, sweep.seeds), *again]
    return Recalled(sweep, words, (f"{what}, {otherwise}",))


def _covers(sweep: Sweep, before: Plan, said: bool) -> bool:
    """Has, or may get, the sweep all seeds that it was driven with? Without a word a drive goes on
    to all that its design reaches, and no other design follows it."""
    same = type(sweep.design) is type(before.design)
    has = sweep.design.reach(sweep.seeds) if said or same else sweep.seeds
    had = before.seeds if said else before.design.reach(before.seeds)
    return {*has} >= {*had}


def _lacking(sweep: Sweep, before: Plan, line: CommandLine) -> UserError:
    if (last := line.options.until) is not None:
        given, way = f"--until {last}", f"--until {max(before.seeds) + 1}"
    else:
        given = line.sweep["seeds"].text
        way = f"seeds={spelled(sorted({*sweep.seeds, *before.seeds}))}"
    return UserError(
        f"{given}: {before.name} was driven with seeds={spelled(before.seeds)}; `{way}` keeps all "
        f"of these, --replace gives up those that you leave out"
    )
