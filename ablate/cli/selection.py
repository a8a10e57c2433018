"""Which sweep a command means: the words and options that select it, declared once for all."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from ablate.cli import completing
from ablate.cli.mistakes import number, whole
from ablate.shared.errors import UserError

if TYPE_CHECKING:
    from ablate.planning.overrides import Word
    from ablate.planning.plan import Plan
    from ablate.planning.recall import Recall
    from ablate.store.ledger import Ledger
    from ablate.store.store import Store

Scale = Annotated[
    str | None,
    typer.Option(
        "--scale", help="Scale of the sweep file to use.", autocompletion=completing.scales
    ),
]
StoreDir = Annotated[
    Path, typer.Option("--store", envvar="ABLATE_STORE", help="Folder of runs and results.")
]
RUNS = Path("runs")


@dataclass(frozen=True)
class Selection:
    """A sweep as the command line names it. The fields are the arguments, in the order of --help.

    A command takes one as a parameter; `flat` is how typer sees it.
    """

    words: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME KEY=VALUE",
            help="Name of a sweep, and settings.",
            autocompletion=completing.words,
        ),
    ] = field(default_factory=list)
    scale: Scale = None
    name: Annotated[
        str | None, typer.Option("--as", help="Name for the sweep (default: its words).")
    ] = None
    across: Annotated[list[str], typer.Option(help="Key whose values become columns.")] = field(
        default_factory=list
    )
    each: Annotated[
        bool, typer.Option("--each", help="Vary one factor at a time instead of all combinations.")
    ] = False
    change: Annotated[
        list[str],
        typer.Option(
            metavar="'NAME: K=V ...'",
            help="A change of a design, by its settings; twice or more.",
        ),
    ] = field(default_factory=list)
    design: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Combinations of the changes: one_at_a_time, leave_one_out, both (default), "
            "factorial or fractional.",
        ),
    ] = None
    until: Annotated[
        int | None,
        typer.Option(
            parser=whole,
            metavar="N",
            help="Add seeds up to N, at looks, to the rows that are undecided.",
        ),
    ] = None
    margin: Annotated[
        float | None,
        typer.Option(
            parser=number,
            metavar="POINTS",
            help="With --until: stop rows that surely gain less.",
        ),
    ] = None
    store: StoreDir = RUNS
    beside: list[str] = field(default_factory=list, init=False)  # see ablate.planning.logger

    def __post_init__(self) -> None:
        """What stands beside a sweep is no word of its plan, whichever command takes the words."""
        from ablate.planning.logger import words_apart

        words, beside = words_apart(self.words)
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "beside", beside)

    @property
    def has_options(self) -> bool:
        """Does more than words select it?"""
        return bool(
            self.scale
            or self.name
            or self.across
            or self.each
            or self.change
            or self.design
            or self.until
            or self.margin
        )

    def plan(
        self, recall: Recall | None = None, unseen: bool = False
    ) -> tuple[Plan, dict[str, Any]]:
        """(the plan that the words declare, the launcher's settings). `recall`: of the seeds that
        the sweep has already; `unseen`: known data may be missing. Raises UserError."""
        from ablate.planning.expand import plan
        from ablate.planning.logger import aside

        aside(self.beside)
        return plan(
            self.words,
            store=self.store,
            scale=self.scale,
            name=self.name,
            across=self.across,
            each=self.each,
            change=self.change,
            design=self.design,
            until=self.until,
            margin=self.margin,
            recall=recall,
            unseen=unseen,
        )


def flat(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer takes it: each field of a dataclass, such as a Selection, is a parameter
    of its own.

    --store and --debug stand last. `main` looks for --debug by itself, since words that can't be
    read reach no command.
    """
    selections: dict[str, Any] = {}
    params: dict[str, inspect.Parameter] = {}
    for name, param in inspect.signature(command, eval_str=True).parameters.items():
        if dataclasses.is_dataclass(param.annotation):
            selections[name] = param.annotation
            params |= _fields(param.annotation)
        else:
            params[name] = param.replace(kind=param.KEYWORD_ONLY)
    if "store" in params:
        params["store"] = params.pop("store")

    @functools.wraps(command)
    def run(debug: bool, **given: Any) -> None:
        for name, selection in selections.items():
            keys = [part.name for part in dataclasses.fields(selection) if part.init]
            given[name] = selection(**{key: given.pop(key) for key in keys})
        command(**given)

    run.__signature__ = inspect.Signature([*params.values(), DEBUG])  # type: ignore[attr-defined]
    run.__annotations__ = {}  # typer would evaluate them once more
    return run


def _param(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


DEBUG = _param(
    "debug",
    Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")],
    default=False,
)


def _fields(selection: Any) -> dict[str, inspect.Parameter]:
    hints = get_type_hints(selection, include_extras=True)
    return {
        part.name: _param(
            part.name,
            hints[part.name],
            part.default if part.default_factory is dataclasses.MISSING else part.default_factory(),
        )
        for part in dataclasses.fields(selection)
        if part.init
    }


def planned(
    store: Store, ledger: Ledger, selection: Selection, read: bool = False, sealed: bool = True
) -> Plan:
    """The driven plan that is selected: the last one for no words, else a name or its words.

    `analysis.KEY=VALUE` changes it for a command by which verdicts are `read`, which is a look;
    others refuse a value that is not the driven one. `sealed`: see `find.driven`. Raises UserError
    for any other word that says another sweep than the driven one.
    """
    from ablate.planning.compose import Composer
    from ablate.planning.declaration import change_analysis
    from ablate.planning.sweep_file import edit_notes
    from ablate.planning.sweep_paths import sweep_files
    from ablate.planning.words import analysis_apart, read_line
    from ablate.report.live import begin
    from ablate.store.find import computed, driven, instance, left_out, sweeps

    known = sweeps(store, ledger)
    words, analysis = analysis_apart(selection.words)
    name = selection.name
    options = replace(selection, name=None).has_options
    made, wanted = None, name
    if wanted is None and len(words) == 1 and not options:
        wanted = instance(words[0], known)
        if wanted is None and "=" not in words[0] and not words[0].endswith(".yaml"):
            wanted = words[0]  # a bare name, of no sweep driven here
    if (words or options) and (wanted is None or name is not None):
        first = words[0] if words else ""
        line = read_line(words, Composer(store.root).groups)
        if name is None and first in known and first not in sweep_files():
            raise _more_than_a_name(store, driven(store, ledger, known, first, sealed), words[1:])
        if name is None and line.file is None and not any(word.swept for word in line.settings):
            raise _more_than_a_name(store, driven(store, ledger, known, known[0], sealed), words)
        made, _ = replace(selection, words=words).plan()
        wanted = made.name
    plan = driven(store, ledger, known, wanted or known[0], sealed)
    if made is not None:
        _check_said(made, plan, store, line.crossed)
    if read:
        plan = left_out(computed(store, plan), ledger)
        for told in edit_notes(plan, store.command):
            begin(told)
    found = change_analysis(plan.analysis, analysis)
    for key in analysis:
        if getattr(found, key) == getattr(plan.analysis, key):
            continue
        if not read:
            raise UserError(
                f"analysis.{key}: {plan.name} was driven with another value; only `table`, "
                f"`report`, `plot` and `export` take a new one"
            )
        plan.design.check_change(plan, key)
    plan = replace(plan, analysis=found).with_own()
    plan.metric  # noqa: B018 - raises UserError where its task has none of this name
    return plan


def _more_than_a_name(store: Store, plan: Plan, others: list[str]) -> UserError:
    """The error for words beside the name of a driven sweep."""
    return UserError(
        f"{shlex.join(others) or 'options'}: {plan.name} is shown as it was driven, and its name "
        f"takes only analysis.KEY=VALUE; `{store.command(*plan.command)}` with more seeds "
        f"extends the sweep, and with other words and --as NAME makes another"
    )


def _check_said(made: Plan, plan: Plan, store: Store, crossed: Sequence[Word]) -> None:
    """Raises UserError where the words that `made` is of say other runs than the driven plan.
    `crossed`: those that cross a file."""
    from ablate.planning.words import alike
    from ablate.shared.spec import datasets_of

    if not alike(plan.words, made.words, store.root):  # by --as
        raise UserError(
            f"--as {plan.name}: the sweep was driven with other words, "
            f"`{store.command(*plan.command)}`; leave your words out to show the sweep"
        )
    said = {word.partition("=")[0]: word for word in made.words}
    both, wider = (made, plan), {*made.seeds} > {*plan.seeds}
    columns = [{column.label for column in each.columns} for each in both]
    looks = [(each.design, each.analysis.margin) for each in both]
    images = [{d["fingerprint"] for c in p.cells for d in datasets_of(c.spec)[:1]} for p in both]
    seeds = plan.design.other_seeds(made.seeds, plan.seeds)
    again = f"`{store.command('sweep', *made.words)}`"
    more, other = f"{again} trains more", f"with --as NAME, {again} is another sweep"
    for word, differ, what, goes_on in (
        (crossed[0].text if crossed else "", columns[0] != columns[1], "other columns", more),
        (said.get("seeds"), seeds, plan.seeds_said, more if wider else other),
        (said.get("--until"), looks[0] != looks[1], "other looks, or another margin", more),
        (said.get("data.path"), images[0] != images[1], "other images", other),
    ):
        if word and differ:
            raise UserError(
                f"{word}: {plan.name} was driven with {what}; leave it out to show the sweep as it "
                f"was driven, or {goes_on}"
            )
