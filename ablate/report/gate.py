"""The gate that every printed line passes: nothing of strangers' reaches a terminal as a command.

Keys, and what programs read, stay as they are; JSON writes such characters as escapes itself.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

from ablate.shared.errors import printable

if TYPE_CHECKING:
    from rich.console import Console


class Gate:
    """A stream that writes printable lines, and is the stream behind it in all else."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream  # a Console writes its own colours: see `console`
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._stream.write(_lines(text))
        return len(text)

    def writelines(self, lines: Iterator[str]) -> None:
        for line in lines:
            self.write(line)


@contextlib.contextmanager
def gate() -> Iterator[None]:
    """Standard output and standard error pass the gate."""
    out: Any = Gate(sys.stdout)
    err: Any = Gate(sys.stderr)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield


def console(**options: Any) -> Console:
    """A console of rich, which colours a terminal and lets no other escape through."""
    from rich.console import Console

    class Gated(Console):
        def render(self, *args: Any, **options: Any) -> Iterator[Any]:
            for segment in super().render(*args, **options):
                yield segment if segment.control else segment._replace(text=_lines(segment.text))

    return Gated(**options)


def _lines(text: str) -> str:
    return re.sub(r"[^\n\t]+", lambda part: printable(part[0]), text)


def begin(text: str) -> None:
    """Announce work that is silent for a while, on standard error: pipes read standard output."""
    print(text, file=sys.stderr, flush=True)
