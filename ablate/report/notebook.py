"""Shows a running sweep in a notebook: a bar that is drawn again in its place, and below it the
runs that are trained now. It needs no widgets: an output of a cell replaces itself.

Used by `Sweep.train` (api/nouns.py). Its cells and lines are those of `live.py`.
"""

from __future__ import annotations

import html
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ablate.report.live import counts_line, parts_done, standing_line, worker_cells
from ablate.report.text import announce, duration
from ablate.store import SweepProgress

DRAWN_EVERY_S = 0.5
NEWEST_EVENTS = 4  # routine events that are shown while a sweep runs
LASTING_EVENTS = 40  # other events that are shown, the newest
ROUTINE = ("finished: ", "pruned ", "decoding ", "stopping: ")  # events without news at the end


def in_notebook() -> bool:
    """Return whether a kernel of Jupyter runs this code, so that an output can replace itself."""
    shells: Any = sys.modules.get("IPython")
    return shells is not None and hasattr(shells.get_ipython(), "kernel")


class CellOutput:
    """An output of a notebook's cell, as HTML, and as text for what shows no HTML."""

    def __init__(self, text: str, page: str) -> None:
        self._text, self._page = text, page

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return self._page


def is_routine(event: str) -> bool:
    """Return whether the end of a sweep makes an event superfluous: that a run finished, say."""
    return event.startswith(ROUTINE)


class NotebookView:
    """Draws a bar for the sweep, the runs that are trained, and events, in one output of the cell.
    At the end the bar stays, and the events that are no routine: a warning, a run that failed."""

    def __init__(self) -> None:
        self._due = 0.0
        self._routine: deque[str] = deque(maxlen=NEWEST_EVENTS)
        self._lasting: list[str] = []
        self._progress: SweepProgress | None = None
        self._decoding: tuple[str, int, int] | None = None  # a dataset, images done, of how many
        self._output: Any = None  # IPython's handle of the output

    def say(self, text: str) -> None:
        (self._routine if is_routine(text) else self._lasting).append(text)
        self._draw()

    def show(self, progress: SweepProgress) -> None:
        self._progress, self._decoding = progress, None
        self._draw()

    def reading(self, name: str, images_done: int, total: int) -> None:
        self._decoding = name, images_done, total
        self._draw()

    def close(self) -> None:
        """Draw what stays in the notebook."""
        if self._output is not None:
            self._output.update(self._drawing(at_end=True))

    def _draw(self) -> None:
        """Draw everything anew, unless that was done a moment ago: `show` is called again soon."""
        from IPython import display

        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + DRAWN_EVERY_S
        drawing = self._drawing()
        if self._output is None:
            show: Any = display.display
            self._output = show(drawing, display_id=True)
        else:
            self._output.update(drawing)

    def _drawing(self, at_end: bool = False) -> CellOutput:
        progress, events = self._progress, self._lasting[-LASTING_EVENTS:]
        if len(self._lasting) > LASTING_EVENTS:
            events.insert(0, f"{len(self._lasting) - LASTING_EVENTS:,} earlier events")
        if not at_end:
            events += self._routine
        lines, parts = [], []
        if self._decoding is not None:
            name, images_done, total = self._decoding
            lines.append(f"decoding data={name}: {images_done:,} of {total:,} images")
            parts.append(_bar(images_done, total, lines[0]))
        elif progress is not None:
            words = [counts_line(progress)]
            if not at_end:
                words.append(progress.waiting or f"time left: {self._time_left(progress)}")
            lines.append(", ".join(words))
            parts.append(_bar(parts_done(progress), progress.total, lines[0]))
            if decided := standing_line(progress.standing):
                lines.append(decided)
                parts.append(f"<div>{html.escape(decided)}</div>")
            if progress.workers and not at_end:
                parts.append(_grid(*worker_cells(progress.workers)))
        lines += events
        parts += [f"<div>{html.escape(event)}</div>" for event in events]
        return CellOutput("\n".join(lines), "".join(parts))

    def _time_left(self, progress: SweepProgress) -> str:
        return duration(progress.left_s)


def _bar(part: float, total: int, text: str) -> str:
    bar = f'<progress value="{part:.4g}" max="{total}" style="width: 20em"></progress>'
    return f"<div>{bar} {html.escape(text)}</div>"


def _grid(headings: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{html.escape(heading)}</th>" for heading in headings)
    rows = ("".join(f"<td>{html.escape(cell)}</td>" for cell in line) for line in lines)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


class ScriptView:
    """Shows no progress, as a script's output is its own; on standard error, each event that is no
    routine, as a warning."""

    def say(self, text: str) -> None:
        if not is_routine(text):
            announce(text)

    def show(self, progress: SweepProgress) -> None: ...

    def reading(self, name: str, images_done: int, total: int) -> None: ...


@contextmanager
def python_view() -> Iterator[Any]:
    """Choose the view of a drive that Python code starts: an output in a notebook, bars on a
    terminal, no progress elsewhere."""
    from ablate.report.live import draws_in_place, progress_view

    if in_notebook():
        view = NotebookView()
        try:
            yield view
        finally:
            view.close()
    elif draws_in_place():
        with progress_view() as bars:
            yield bars
    else:
        yield ScriptView()
