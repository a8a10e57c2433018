"""What a sweep is called, and which words call it the same."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate.planning.compose import Composer
from ablate.planning.overrides import Word, show
from ablate.planning.parents import bare
from ablate.planning.words import TUNE, CommandLine, read_line


def alike(one: Sequence[str], other: Sequence[str], store: Path) -> bool:
    """Would plans of these `words` have one name but for `--as`? Then they differ in seeds,
    launcher, analysis and where their data lies at most. Raises UserError for words that can't be
    read any more."""
    if list(one) == list(other):
        return True
    groups = Composer(store).groups
    return _called(one, groups) == _called(other, groups)


def _called(words: Sequence[str], groups: Mapping[str, Sequence[str]]) -> str:
    own, options = apart(words)
    line = read_line(own, groups)
    return sweep_name(line, options["scale"], options["across"], options["each"])


def apart(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """The words of a plan without its options, and these as `expand.plan` takes them."""
    names = ("--scale", "--across", "--as", "--until", "--margin")
    given: dict[str, list[str]] = {name: [] for name in names}
    rest, own = list(words), list[str]()
    while rest:
        word = rest.pop(0)
        given.get(word, own).append(rest.pop(0) if word in given else word)

    def only(name: str, of: Callable[[str], Any]) -> Any:
        return next(map(of, given[name]), None)

    return [word for word in own if word != "--each"], {
        "scale": only("--scale", str),
        "name": only("--as", str),
        "across": given["--across"],
        "each": "--each" in own,
        "until": only("--until", int),
        "margin": only("--margin", float),
    }


def sweep_name(line: CommandLine, scale: str | None, across: Collection[str], each: bool) -> str:
    """What the sweep is called: its file, scale, and the words that change its results.

    Words that cross a file with values extend its sweep, as seeds do."""
    places = [word for word in line.settings if bare(word.key) == "data.path" and not word.swept]
    named = [word for word in line.settings if word not in (*places, *line.crossed)]
    words = sorted(map(_spelled, named))
    words += [_spelled(line.sweep[key]) for key in ("baseline", *TUNE) if key in line.sweep]
    words += sorted(f"across={key}" for key in across) + (["each"] if each else [])
    if line.file is None:
        return "+".join(words)
    stem = Path(line.file).stem if line.file.endswith(".yaml") else line.file
    return "+".join([f"{stem}@{scale}" if scale else stem, *words])


def _spelled(word: Word) -> str:
    """`key=a,b`, the same for every spelling of the same values."""
    texts = (
        repr(value) if isinstance(value, str) and "," in value else show(value)
        for value in word.values
    )
    return f"{word.key}={','.join(texts)}"
