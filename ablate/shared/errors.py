"""What goes wrong, in one line. Both halves raise these, and the command line prints them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from ablate.version import FORMAT


class UserError(Exception):
    """A mistake of the user's: one line that names the place, the value and the remedy. Exit 2."""


class NotThere(UserError):
    """No such store or sweep, which may still come: whoever watches can wait for it."""


class Failure(Exception):
    """Something broke that the user did not do wrong: one line. Exit 1."""


class NoRoom(Failure):
    """The disk is full. `needed`: bytes that there would have to be; 0 where that is not known."""

    def __init__(self, line: str, needed: int = 0) -> None:
        super().__init__(line)
        self.needed = needed


LONGEST = 500  # characters of a stranger's exception


def short_error(line: str) -> str:
    """What is told of an exception, which may hold megabytes."""
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."


def other_format_error(place: object, written: int, instead: str) -> Failure:
    """Make the error for a store or a bundle in another format than FORMAT. `instead`: the remedy
    besides the ablate that wrote it."""
    return Failure(f"{place}: {format_words(written)}; use the ablate that wrote it, or {instead}")


def format_words(written: int) -> str:
    """Say that a file has a format other than FORMAT, without the place."""
    return f"has format {written}, and this ablate reads format {FORMAT} alone"


MANY = 20  # keys: behind as many nobody finds the guess


def unknown_value(
    place: str, value: object, choices: Iterable[object], what: str = "one of"
) -> UserError:
    """The error for a value outside its choices, with the nearest one where there is one."""
    return UserError(f"{place}: {expected_words(value, choices, what)}")


def expected_words(value: object, choices: Iterable[object], what: str = "one of") -> str:
    """What `unknown` says of the value, without the place."""
    names = [str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in choices]
    listed = ", ".join(names) or "(there is none)"
    if what != "one of" and len(names) > MANY and (guess := nearest_name(value, names)) is not None:
        return f"got {value!r} (did you mean {guess!r}?), expected {what} {listed}"
    return f"expected {what} {listed}, got {value!r}{did_you_mean(value, names)}"


def did_you_mean(value: object, names: Iterable[str]) -> str:
    """ " (did you mean 'name'?)" where one of the names is near."""
    found = nearest_name(value, names)
    return f" (did you mean {found!r}?)" if found else ""


def nearest_name(value: object, names: Iterable[str], share: float = 0.6) -> str | None:
    """The nearest of the names, itself if it is one; None where none has this share of it. A name
    with another number is another thing: fp64 is not near to fp16, though cifar10 is to cifar1."""
    if not isinstance(value, str):
        return None
    found = difflib.get_close_matches(value, names, 3, share)
    return next((name for name in found if not _of_another_number(value, name)), None)


def _of_another_number(value: str, name: str) -> bool:
    one, other = (re.sub(r"\D", "", text) for text in (value, name))
    begins = one.startswith(other) or other.startswith(one)
    return re.sub(r"\d", "", value) == re.sub(r"\d", "", name) and not begins


# --- Text of strangers ----------------------------------------------------------------------------


def printable(text: str) -> str:
    """The text on one line. What a terminal obeys instead of showing it (line ends, escapes, marks
    that turn the direction), and half a character, is written as Python writes it: \\x1b."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
