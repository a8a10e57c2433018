"""Seeds are state: those that a sweep was driven with stay, until `--replace` gives them up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ablate.planning.compose import Composer
from ablate.planning.declaration import Sweep, holds
from ablate.planning.naming import apart
from ablate.planning.overrides import Word, show
from ablate.planning.plan import Plan
from ablate.planning.tree import value_at
from ablate.planning.until import with_until
from ablate.planning.words import CommandLine, read_line
from ablate.shared.errors import UserError

# (name, words) -> the plan by which that sweep was driven last; None: it was not, or it is another.
Recall = Callable[[str, Sequence[str]], Plan | None]


@dataclass(frozen=True)
class SeedWords:
    """What a command line says of seeds. `words`: those of the sweep itself, by key; `until` and
    `margin`: of --until and --margin."""

    words: Mapping[str, Word]
    until: int | None
    margin: float | None

    @property
    def any(self) -> bool:
        return "seeds" in self.words or self.until is not None


@dataclass(frozen=True)
class Recalled:
    """A sweep with its seeds. `words`: the command line that makes it again; `notes`: a line where
    they are those of last time."""

    sweep: Sweep
    words: Sequence[str]
    notes: tuple[str, ...] = ()


def crossed_again(line: CommandLine, before: Plan | None, composer: Composer) -> list[Word]:
    """The words that `before` was crossed with, and that the command line does not say."""
    if before is None or line.file is None:
        return []
    words = read_line(apart(before.words)[0], composer.groups).crossed
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


def recalled(
    declared: Sweep, said: SeedWords, before: Plan | None, words: Sequence[str], by_default: bool
) -> Recalled:
    """The declared sweep under what the command line says. Without such a word it has all seeds of
    `before`, by which it was driven last. `by_default`: does nobody declare its seeds?

    Raises UserError where the command line says seeds that lack some of those.
    """
    sweep = with_until(declared, said.words, said.until, said.margin)
    if before is None or _covers(sweep, before, said.any):
        return Recalled(sweep, words)
    if said.any:
        raise _lacking(sweep, before, said)
    otherwise = f"{'the default is' if by_default else 'the file says'} {_declared(sweep)}"
    if not before.until:
        kept = replace(declared, until=None, seeds=before.seeds)
        n = len(before.seeds)
        counted = f"{n:,} seed{'s' if n > 1 else ''}"
        what = counted if _is_count(before.seeds) else f"seeds {_list(before.seeds)}"
        return Recalled(
            kept, with_seeds_word(words, before.seeds), (f"{what}, as last time; {otherwise}",)
        )
    until = {**(declared.until or {}), "looks": before.until}
    until.pop("margin", None)
    analysis = declared.analysis
    if "analysis.margin" not in said.words:
        analysis = replace(analysis, margin=before.analysis.margin)
    kept = with_until(replace(declared, until=until, analysis=analysis), said.words, None, None)
    note = f"looks at {_list(before.until)} seeds, as last time; {otherwise}"
    return Recalled(kept, [*words, *_options(before)], (note,))


def _covers(sweep: Sweep, before: Plan, said: bool) -> bool:
    """Has, or may get, the sweep all seeds that it was driven with? Looks may give out all up to
    the last; those of last time go on to it unless the command line ends them."""
    looks = (sweep.until or {}).get("looks", ())
    has = range(looks[-1]) if looks and (said or before.until) else sweep.seeds
    had = range(before.until[-1]) if before.until and not said else before.seeds
    return {*has} >= {*had}


def _lacking(sweep: Sweep, before: Plan, said: SeedWords) -> UserError:
    if said.until is not None:
        given, way = f"--until {said.until}", f"--until {max(before.seeds) + 1}"
    else:
        given = said.words["seeds"].text
        way = f"seeds={spelled(sorted({*sweep.seeds, *before.seeds}))}"
    return UserError(
        f"{given}: {before.name} was driven with seeds={spelled(before.seeds)}; `{way}` keeps all "
        f"of these, --replace gives up those that you leave out"
    )


def _declared(sweep: Sweep) -> str:
    if sweep.until is not None:
        return f"looks at {_list(sweep.until['looks'])} seeds"
    return spelled(sweep.seeds)


def _options(before: Plan) -> list[str]:
    """`--until N --margin POINTS`, where its words had them: else a file declared its looks."""
    given = apart(before.words)[1]
    options = (("--until", given["until"]), ("--margin", given["margin"]))
    return [
        part for option, value in options if value is not None for part in (option, f"{value:g}")
    ]


def driven_with(plan: Plan) -> str:
    """What its seeds were: "seeds=8", "looks at 5, 8, 12 seeds"."""
    return f"looks at {_list(plan.until)} seeds" if plan.until else f"seeds={spelled(plan.seeds)}"


def with_seeds_word(words: Sequence[str], seeds: Sequence[int]) -> tuple[str, ...]:
    """The words of a sweep, for these seeds."""
    if not any(word.startswith("seeds=") for word in words):
        words = [*words[:1], "seeds=", *words[1:]]
    word = f"seeds={spelled(seeds)}"
    return tuple(word if other.startswith("seeds=") else other for other in words)


def spelled(seeds: Sequence[int]) -> str:
    """As `seeds=` takes them: "8", "[3,5,7]"."""
    return str(len(seeds)) if _is_count(seeds) else f"[{','.join(map(str, seeds))}]"


def _is_count(seeds: Sequence[int]) -> bool:
    return [*seeds] == [*range(len(seeds))]


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
