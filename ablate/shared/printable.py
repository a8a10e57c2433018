"""Text that others wrote (titles, file names, versions, exceptions), as a line may show it."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text on one line. What a terminal obeys instead of showing it (line ends, escapes, marks
    that turn the direction), and half a character, is written as Python writes it: \\x1b."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
