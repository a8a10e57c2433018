"""Writes values as short texts that several views share, and holds the gate that every printed line
passes: nothing of strangers' reaches a terminal as a command.

Keys, and what programs read, stay as they are; JSON writes such characters as escapes itself.

Used by report/ (but for formats/ and plot/), cli/, api/ and audit/.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from ablate.shared import Notes, amount_text, printable

if TYPE_CHECKING:
    from rich.console import Console


BARS = "▁▂▃▄▅▆▇█"
ASCII_BARS = "_.-~+=*#"


def sparkline(values: Sequence[float], width: int = 40, bars: str = BARS) -> str:
    """Draw one bar for each value, between the least and the greatest; with more than `width`
    values a bar is the mean of neighbours. "" for no values."""
    if not (values and width):
        return ""
    values = [value * 2.0**-40 for value in values]  # exact, and no sum of them overflows
    count = min(width, len(values))
    edges = [len(values) * bar // count for bar in range(count + 1)]
    parts = [values[a:b] for a, b in itertools.pairwise(edges)]
    means = [sum(part) / len(part) for part in parts]
    low, high = min(means), max(means)
    if high == low:
        return bars[0] * count
    return "".join(bars[round((mean - low) / (high - low) * (len(bars) - 1))] for mean in means)


def device_time(seconds: float) -> str:
    """2556000 -> "710 device-hours"; 20 -> "under 1 device-minute"."""
    return (
        "under 1 device-minute"
        if seconds < 60
        else amount_text(plain(seconds / 3600), "device-hours")
    )


def plain(value: float) -> str:
    """Write a number with two digits, or with all digits before the point, and no exponent: "710",
    "7.1", "0.013"; "under 0.01" for smaller ones."""
    if value < 0.01:
        return "under 0.01"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def two_figures(value: float) -> str:
    """Write a number with two significant digits and no exponent: "120", "1.2", "0.012"."""
    return f"{float(f'{value:.2g}'):.10g}"


def duration(seconds: float | None) -> str:
    """Write a number of seconds in words: 90 -> "1 min 30 s"; None -> "?"."""
    if seconds is None:
        return "?"
    if seconds < 48 * 3600:
        seconds = round(seconds)  # 119.7 is 2 min 0 s, not 1 min 60 s
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    if seconds < 48 * 3600:
        return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
    days = seconds / 86400
    return f"{days:.1f} days" if days < 100 else f"{days:,.0f} days"


def rate(notes: Notes) -> float | None:
    """Return the steps a second since its worker began; None while nobody can know."""
    step, begin, begin_time = notes.step, notes.from_step, notes.from_at
    if step is None or begin is None or begin_time is None:
        return None
    return (
        (step - begin) / (time.time() - begin_time)
        if step > begin and time.time() > begin_time
        else None
    )


def phase_of(notes: Notes) -> str:
    """Return the phase that a worker has noted, "start" as long as there is none."""
    return notes.phase or "start"


def activity(notes: Notes) -> str:
    """Write "train 12/40, 8.5 steps/s, 3 s left" of a worker's notes, as far as they go."""
    if notes.step is None or notes.total is None:
        return phase_of(notes)
    text = f"{phase_of(notes)} {notes.step}/{notes.total}"
    if per_s := rate(notes):
        time_left = duration((notes.total - notes.step) / per_s)
        text += f", {per_s:.3g} steps/s, {time_left} left"
    return text


class Gate:
    """A stream that writes printable lines, and is the stream behind it in all else."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream  # rich's name for the stream behind
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._stream.write(encodable(_lines(text), self._stream.encoding))
        return len(text)

    def writelines(self, lines: Iterator[str]) -> None:
        for line in lines:
            self.write(line)


@contextlib.contextmanager
def gate_output() -> Iterator[None]:
    """Let standard output and standard error pass the gate."""
    out: Any = Gate(sys.stdout)
    err: Any = Gate(sys.stderr)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield


def make_console(**options: Any) -> Console:
    """Make a console of rich, which colours a terminal and lets no other escape through. It writes
    to the stream behind every gate, where its colours and cursor movements are commands."""
    from rich.console import Console

    class Gated(Console):
        def render(self, *args: Any, **options: Any) -> Iterator[Any]:
            for segment in super().render(*args, **options):
                text = encodable(_lines(segment.text), self.encoding)
                yield segment if segment.control else segment._replace(text=text)

    return Gated(**{"file": _ungated(sys.stdout), **options})


def _ungated(stream: TextIO) -> TextIO:
    """Return the stream behind all gates: rich itself looks behind one alone, and while it draws in
    place it puts a stream of its own over ours."""
    while behind := getattr(stream, "rich_proxied_file", None):
        stream = behind
    return stream


def _lines(text: str) -> str:
    return re.sub(r"[^\n\t]+", lambda part: printable(part[0]), text)


# --- Streams without our signs --------------------------------------------------------------------

SPELLINGS = {
    **{"±": "+-", "−": "-", "–": "-", "—": "--", "×": "x", "·": "*", "…": "...", "→": "->"},
    **{"←": "<-", "≤": "<=", "≥": ">=", "≈": "~", "∞": "inf", "µ": "u", "’": "'", "─": "-"},
    **{"“": '"', "”": '"', "˒": ","},
    **dict(zip(BARS, ASCII_BARS, strict=True)),
}
MARKS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")  # of notes


def encodable(text: str, encoding: str | None) -> str:
    """Spell what the encoding of a stream lacks: a mark of a note as [1], our signs as ASCII has
    them, letters of names as Python writes them: \\xf6."""
    encoding = encoding or "utf-8"
    with contextlib.suppress(UnicodeEncodeError):
        text.encode(encoding)
        return text
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹]+", lambda mark: f"[{mark[0].translate(MARKS)}]", text)
    return "".join(_spell(character, encoding) for character in text)


def _spell(character: str, encoding: str) -> str:
    with contextlib.suppress(UnicodeEncodeError):
        character.encode(encoding)
        return character
    return SPELLINGS.get(character) or character.encode("ascii", "backslashreplace").decode()


def announce(text: str) -> None:
    """Announce work that is silent for a while, on standard error: pipes read standard output."""
    print(text, file=sys.stderr, flush=True)
