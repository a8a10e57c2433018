"""The exceptions of ablate, each with a message of one line. Both halves raise them, and the
command line prints them.

Used by all rooms; cli/__init__.py prints the errors and maps them to exit codes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from ablate.version import FORMAT


class OneLine(Exception):
    """An error that one line explains, in notebooks too. Its text is "PLACE: FACT; REMEDY".

    `retry`: the same command may succeed later, although nothing is changed.
    `in_command`: the text with the options of the command, where the interface in Python has
    replaced them by arguments.
    """

    retry = False
    in_command: str | None = None

    @property
    def place(self) -> str | None:
        """The place that the line begins with; None for a line without one."""
        place, separator, _ = split_line(str(self), ": ")
        return place if separator else None

    @property
    def fix(self) -> str | None:
        """The remedy, with which the line ends, or what was expected; None where it has neither."""
        return remedy_in(str(self))

    @property
    def line(self) -> str:
        """The error with the name by which `except` catches it: "UserError: ..."."""
        name = next(kind.__name__ for kind in type(self).__mro__ if OneLine in kind.__bases__)
        return f"{name}: {self}"

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows of the error: no frames of ours."""
        return [self.line]


class UserError(OneLine):
    """A mistake of the user's: one line that names the place, the value and the remedy. Exit 2."""


class NotThere(UserError):
    """The error for a store or sweep that does not exist yet. Whoever watches can wait for it."""


class Failure(OneLine):
    """A failure that is no mistake of the user's: one line. Exit 1."""


class TryAgain(Failure):
    """A failure that may be over soon: another process holds a lock, a disk is full for now. Exit
    75, by which sysexits.h asks to try again."""

    retry = True


class NoRoom(TryAgain):
    """The error for a full disk. `bytes_needed`: the bytes that must be free; 0 where that is not
    known."""

    def __init__(self, line: str, bytes_needed: int = 0) -> None:
        super().__init__(line)
        self.bytes_needed = bytes_needed


# --- The parts of a line --------------------------------------------------------------------------

# What belongs together: commands, quoted values, brackets without brackets in them. An apostrophe
# within a word, as in "can't", is no quote.
_ENCLOSED = re.compile(r"`[^`]*`|(?<!\w)'[^']*'(?!\w)|\"[^\"]*\"|\([^()]*\)|\[[^\[\]]*\]")
_REMEDIES = ("`ablate ", "expected ", "must be ")
_GUESS = re.compile(r"did you mean .+", re.IGNORECASE)
_ORDER = re.compile(r"(?:add|choose|drop|give|leave|mend|name|start|take|use|wait|write)\b")


def split_line(line: str, separator: str, from_end: bool = False) -> tuple[str, str, str]:
    """Partition a line at the first separator, or the last, that no quotes or brackets enclose. The
    parts are those of `str.partition`."""
    masked = _ENCLOSED.sub(lambda match: "_" * len(match[0]), line)
    start = masked.rfind(separator) if from_end else masked.find(separator)
    if start < 0:
        return line, "", ""
    return line[:start], separator, line[start + len(separator) :]


def remedy_in(line: str) -> str | None:
    """Return what a line says to do: the part behind its last semicolon, or else, of the parts
    between colons, the first that is an order, names a command in backquotes or says what was
    expected, or else a guess at what was meant. None where there is none of these."""
    _, separator, remedy = split_line(line, "; ", from_end=True)
    if separator:
        return remedy
    rest = split_line(line, ": ")[2]
    while rest:
        part, _, behind = split_line(rest, ": ")
        if _ORDER.match(part) or any(words in part for words in _REMEDIES):
            return rest
        rest = behind
    guess = _GUESS.search(line)
    return guess[0] if guess else None


LONGEST = 500  # characters of a stranger's exception


def short_error(line: str) -> str:
    """Return the text of an exception, which may hold megabytes, cut to LONGEST characters."""
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."


def other_format_error(place: object, version: int, instead: str) -> Failure:
    """Make the error for a store or a bundle in another format than FORMAT. `instead`: the remedy
    other than the ablate that wrote it."""
    return Failure(f"{place}: {format_words(version)}; use the ablate that wrote it, or {instead}")


def format_words(version: int) -> str:
    """Say that a file has a format other than FORMAT, without the place."""
    return f"has format {version}, and this ablate reads format {FORMAT} alone"


SHORTEST_BEGINNING = 3  # letters that tell a name
VERY_NEAR = 0.75  # a similarity, by difflib, by which a name is meant rather than a longer one
MANY = 5  # choices: behind more of them nobody finds the guess


def unknown_value(
    place: str, value: object, choices: Iterable[object], expectation: str = "one of"
) -> UserError:
    """Make the error for a value outside its choices. It names the nearest choice where one is
    near."""
    return UserError(f"{place}: {expected_words(value, choices, expectation)}")


def expected_words(value: object, choices: Iterable[object], expectation: str = "one of") -> str:
    """Return the message of `unknown_value` without the place."""
    names = [str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in choices]
    if not names:
        return f"got {spelling(value)}, and there is nothing to choose from"
    has_commas = any("," in name for name in names)
    choice_list = ", ".join(map(repr, names) if has_commas else names)
    guess = did_you_mean(value, names)
    if guess and len(names) > MANY:
        return f"got {spelling(value)}{guess}, expected {expectation} {choice_list}"
    return f"expected {expectation} {choice_list}, got {spelling(value)}{guess}"


def spelling(value: object) -> str:
    """Return a value as a command line or a YAML file has it, a text in quotes: null, true, 'a'."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return repr(value)


def did_you_mean(value: object, names: Iterable[str]) -> str:
    """Return " (did you mean 'name'?)" with the nearest of the names; "" where none is near."""
    match = nearest_name(value, names)
    return f" (did you mean {match!r}?)" if match else ""


def nearest_name(value: object, names: Iterable[str], share: float = 0.65) -> str | None:
    """Return the name nearest to the value, the value itself if it is a name; None where no name
    has a similarity of `share` (0 to 1, by difflib), nor is the only one that begins with it.
    Names that differ only in their numbers are not near, as fp64 and fp16, unless one number begins
    with the other, as in cifar10 and cifar1; nor are names whose numbers alone are alike, as b300
    and mi300x."""
    if not isinstance(value, str):
        return None
    names = list(names)
    matches = difflib.get_close_matches(value, names, 3, share)
    longer_names = [name for name in names if name.startswith(value)]
    if len(value) >= SHORTEST_BEGINNING and len(longer_names) == 1:
        very_near = difflib.get_close_matches(value, matches, 1, VERY_NEAR)
        matches = [*very_near, *longer_names, *matches]
    return next(
        (
            name
            for name in matches
            if not _of_another_number(value, name) and _alike_letters(value, name)
        ),
        None,
    )


def _alike_letters(value: str, name: str) -> bool:
    value_letters, name_letters = (re.sub(r"\d", "", text) for text in (value, name))
    return difflib.SequenceMatcher(None, value_letters, name_letters).ratio() > 0


def _of_another_number(value: str, name: str) -> bool:
    value_digits, name_digits = (re.sub(r"\D", "", text) for text in (value, name))
    begins = value_digits.startswith(name_digits) or name_digits.startswith(value_digits)
    return re.sub(r"\d", "", value) == re.sub(r"\d", "", name) and not begins


# --- Text of strangers ----------------------------------------------------------------------------


def printable(text: str) -> str:
    """Return the text on one line. Characters that a terminal obeys instead of showing (line ends,
    escapes, marks that turn the direction), and half characters, are escaped as in Python:
    \\x1b."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in text
    )
