"""The selection of a sweep: the words and options that say which sweep a command is about.

`report/selection.py` selects rows and columns of a table.

Used by every command that takes the name of a sweep, such as `ablate sweep` (cli/driving.py) and
`ablate table` (cli/looking.py). A new field that declares a sweep also needs its name in
`Selection.options`, in `Options` of planning/declared.py, and in docs/options.md, which
tests/options_page.py writes.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ablate.cli import options
from ablate.cli.options import RUNS, Scale, StoreDir, argument, flag, number, option, whole_number
from ablate.report import announce
from ablate.shared import UserError

if TYPE_CHECKING:
    from ablate.planning import Plan, Recall, Word
    from ablate.store import Ledger, Store


def store_at(folder: Path) -> Store:
    """Return the store in a folder; the module is imported late."""
    from ablate.store import Store

    return Store(folder)


@contextlib.contextmanager
def reading(folder: Path) -> Iterator[tuple[Store, Ledger]]:
    """Open a store and its ledger for a command that only reads. Raises UserError where there is
    none."""
    from ablate.store import Ledger

    store = store_at(folder)
    with Ledger.reading(store) as ledger:
        yield store, ledger


@contextlib.contextmanager
def changing(folder: Path, command: str) -> Iterator[tuple[Store, Ledger]]:
    """Open a store and its ledger for a command that changes them. Raises Failure where another
    process is changing them."""
    from ablate.running import hold_driver_lock
    from ablate.store import Ledger

    store = store_at(folder)
    with hold_driver_lock(store, command), Ledger.driving(store) as ledger:
        yield store, ledger


@dataclass(frozen=True)
class Selection:
    """A sweep as the command line names it. The fields are the arguments, in the order of --help.

    A command takes one as a parameter; `options.flat` is how typer sees it.
    """

    words: Annotated[
        list[str], argument("NAME KEY=VALUE", "Name of a sweep, and settings.", options.words)
    ] = field(default_factory=list)
    scale: Scale = None
    name: Annotated[
        str | None, option("NAME", "Name of the sweep (default: made from its settings).", "--as")
    ] = None
    across: Annotated[
        list[str], option("KEY", "Key whose values become columns; can be repeated.")
    ] = field(default_factory=list)
    each: Annotated[
        bool, flag("--each", "Vary one factor at a time instead of all combinations.")
    ] = False
    change: Annotated[
        list[str],
        option("'NAME: K=V ...'", "A change to test, by its settings; give two or more."),
    ] = field(default_factory=list)
    design: Annotated[
        str | None,
        option(
            "KIND",
            "Combinations of the changes: one_at_a_time, leave_one_out, both (default), factorial "
            "or fractional.",
        ),
    ] = None
    until: Annotated[
        int | None,
        option(
            "N",
            "Add seeds, up to N a row, while a row has no verdict at an interim look.",
            parser=whole_number,
        ),
    ] = None
    margin: Annotated[
        float | None,
        option(
            "POINTS", "With --until: stop rows that are unlikely to gain this much.", parser=number
        ),
    ] = None
    store: StoreDir = RUNS
    logger_words: list[str] = field(default_factory=list, init=False)  # see ablate.planning.logger
    contrasts: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        """Move the words for loggers and notices from `words` to `logger_words`, for every command:
        they are no words of the plan."""
        from ablate.planning import split_logger_words

        words, logger_words = split_logger_words(self.words)
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "logger_words", logger_words)

    @property
    def options(self) -> dict[str, Any]:
        """The options, by name, from which the plan is made, along with the words."""
        names = ("scale", "name", "across", "each", "change", "design", "until", "margin")
        return {name: getattr(self, name) for name in names}

    @property
    def has_options(self) -> bool:
        """True if options, and not words alone, select the sweep."""
        return any(self.options.values())

    def plan(
        self, recall: Recall | None = None, allow_missing: bool = False
    ) -> tuple[Plan, dict[str, Any]]:
        """Return the plan that the words declare, and the launcher's settings. `recall`: of the
        seeds that the sweep has already; `allow_missing`: known data may be missing. Raises
        UserError."""
        from ablate.planning import plan_from_words, read_logger_words

        read_logger_words(self.logger_words)
        return plan_from_words(
            self.words, store=self.store, recall=recall, allow_missing=allow_missing, **self.options
        )

    @contextlib.contextmanager
    def opened(
        self, is_look: bool = False, checks_seal: bool = True
    ) -> Iterator[tuple[Store, Ledger, Plan]]:
        """Return the store, its ledger, which stays open, and the driven plan: see `planned`."""
        with reading(self.store) as (store, ledger):
            yield store, ledger, planned(store, ledger, self, is_look, checks_seal)


@dataclass(frozen=True)
class ReadSelection(Selection):
    """A sweep, and what its table compares in addition, for commands by which verdicts are read."""

    contrasts: Annotated[
        list[str],
        option("'A - B'", "Also compare two rows: A minus B; can be repeated.", "--contrast"),
    ] = field(default_factory=list)


def planned(
    store: Store,
    ledger: Ledger,
    selection: Selection,
    is_look: bool = False,
    checks_seal: bool = True,
) -> Plan:
    """Return the plan of a sweep as it was driven: the last sweep where there are no words, else
    the one of this name or of these words.

    `analysis.KEY=VALUE` changes it for a command by which verdicts are read, which is a
    look (`is_look`); other commands refuse a value that is not the driven one. `checks_seal`: see
    `store.driven_plan`. Raises UserError for any other word that makes the sweep differ from the
    driven one."""
    from ablate.api import StoreRecall
    from ablate.planning import (
        Composer,
        change_analysis,
        edit_notes,
        read_line,
        split_analysis_words,
        sweep_files,
    )
    from ablate.store import (
        driven_plan,
        newest_plan,
        resolve_sweep_name,
        sweep_names,
        unedited_plan,
        without_skipped,
    )

    names = sweep_names(store, ledger)
    words, analysis = split_analysis_words(selection.words)
    name = selection.name
    options = replace(selection, name=None).has_options
    requested_plan, requested_name = None, name
    if requested_name is None and len(words) == 1 and not options:
        requested_name = resolve_sweep_name(words[0], names)
        if requested_name is None and "=" not in words[0] and not words[0].endswith(".yaml"):
            requested_name = words[0]  # a bare name, of no sweep driven here
    if (words or options) and (requested_name is None or name is not None):
        first_word = words[0] if words else ""
        line = read_line(words, Composer(store.root).groups)
        if name is None and first_word in names and first_word not in sweep_files():
            raise _more_than_a_name(
                store, driven_plan(store, ledger, names, first_word, checks_seal), words[1:]
            )
        if name is None and line.file is None and not any(word.swept for word in line.settings):
            raise _more_than_a_name(
                store, driven_plan(store, ledger, names, names[0], checks_seal), words
            )
        recall = StoreRecall(store, with_plans=False)
        requested_plan, _ = replace(selection, words=words).plan(recall)
        requested_name = requested_plan.name
    if requested_name is None and checks_seal and not is_look:
        plan, problems = newest_plan(store, ledger, names)
        for problem in problems:
            announce(f"left out: {problem}")
    else:
        plan = driven_plan(store, ledger, names, requested_name or names[0], checks_seal)
    if requested_plan is not None:
        _check_words(requested_plan, plan, store, line.crossed)
    if is_look:
        plan = without_skipped(unedited_plan(store, plan), ledger)
        for note in edit_notes(plan, store.command):
            announce(note)
    driven_analysis, plan = plan.analysis, change_analysis(plan, analysis)
    for key in analysis:
        if not is_look and getattr(plan.analysis, key) != getattr(driven_analysis, key):
            raise UserError(
                f"analysis.{key}: {plan.name} was driven with another value; only `table`, "
                f"`report`, `plot` and `export` take a new one"
            )
    if selection.contrasts and plan.analysis.target is not None:
        raise UserError(
            "--contrast: compares rows, and analysis.target judges means; leave one out"
        )
    plan = plan.with_contrasts(selection.contrasts, "--contrast")
    plan.metric  # noqa: B018 - raises UserError where its task has none of this name
    return plan


def _more_than_a_name(store: Store, plan: Plan, extra_words: list[str]) -> UserError:
    """Return the error for words that follow the name of a driven sweep."""
    return UserError(
        f"{shlex.join(extra_words) or 'options'}: {plan.name} is shown as it was driven, and its "
        f"name takes only analysis.KEY=VALUE; `{plan.repeat_command(store.command)}` with more "
        f"seeds extends the sweep, and with other words and --as NAME makes another"
    )


def _check_words(requested_plan: Plan, plan: Plan, store: Store, crossed: Sequence[Word]) -> None:
    """Raise UserError where the words of `requested_plan` declare other runs than the driven plan
    has. `crossed`: the words that cross a file."""
    from ablate.planning import Declared

    requested_line = requested_plan.declared
    assert isinstance(requested_line, Declared)  # of words, and so of no sheet
    if not requested_line.is_same_sweep(plan.declared):  # by --as
        raise UserError(
            f"--as {plan.name}: the sweep was driven with other words, "
            f"`{plan.repeat_command(store.command)}`; leave your words out to show the sweep"
        )
    texts = {word.key: word.text for word in requested_line.words}
    until = "--until" if requested_line.options.until is not None else ""
    both, wider = (requested_plan, plan), {*requested_plan.seeds} > {*plan.seeds}
    columns = [{column.label for column in sweep_plan.columns} for sweep_plan in both]
    looks = [(sweep_plan.design, sweep_plan.analysis.margin) for sweep_plan in both]
    images = [{d["fingerprint"] for c in p.cells for d in c.spec.datasets[:1]} for p in both]
    seeds = plan.design.other_seeds(requested_plan.seeds, plan.seeds)
    command = f"`{store.command('sweep', *requested_plan.words)}`"
    extension, alternative = f"{command} trains more", f"with --as NAME, {command} is another sweep"
    for word, differ, difference, goes_on in (
        (crossed[0].text if crossed else "", columns[0] != columns[1], "other columns", extension),
        (texts.get("seeds"), seeds, plan.seeds_said, extension if wider else alternative),
        (until, looks[0] != looks[1], "other looks, or another margin", extension),
        (texts.get("data.path"), images[0] != images[1], "other images", alternative),
    ):
        if word and differ:
            raise UserError(
                f"{word}: {plan.name} was driven with {difference}; leave it out to show the sweep "
                f"as it was driven, or {goes_on}"
            )
