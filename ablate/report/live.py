"""Shows a running sweep: progress bars on a terminal, plain lines elsewhere. Below them are the
runs that are trained now: how far each is, its newest loss and metric, and the course of its loss,
in the width of the terminal.

Used by api/training.py (`ablate sweep`, Python) and by other commands that take long; `status.py`,
`notebook.py` and watch/answers.py take cells and lines. What it draws is kept in
tests/golden/screens, which `python tests/test_screens.py` writes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleRenderable, Group, RenderableType
from rich.control import Control
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import ControlType, Segment
from rich.table import Table
from rich.text import Text

from ablate.analysis import GOES_ON
from ablate.planning import PlannedRun, Standing
from ablate.report.text import (
    ASCII_BARS,
    BARS,
    duration,
    gate_output,
    make_console,
    phase_of,
    rate,
    sparkline,
)
from ablate.run import Metric, RunDir
from ablate.shared import Notes, is_number
from ablate.store import SweepProgress, Worker

WIDE = 110  # characters: from here on there is room for a bar
NAMED_ROWS = 3  # rows that a line on looks names
HEADINGS = ("on", "run", "", "step", "left", "loss", "")  # and the metric
SLOT, LABEL, BAR, TIME_LEFT, LOSS, SPARK, METRIC = 0, 1, 2, 4, 5, 6, 7  # places of columns
DROPPED = (SPARK, TIME_LEFT, LOSS, SLOT, METRIC)  # where a window is narrow, in this order
LEAST_LABEL = 8  # characters


def first_metric(run: PlannedRun) -> Metric:
    """Return the metric that live views show of a run's validations: the first of its task."""
    return run.cell.spec.task.metrics[0]


def curve(lines: Iterable[Mapping[str, Any]], key: str) -> list[float]:
    """Return the values of a key of `metrics.jsonl`, without the lines that don't have it."""
    return [line[key] for line in lines if is_number(line.get(key))]


def workers_table(workers: Sequence[Worker], console: Console) -> Table | None:
    """Return a table with a line for each worker, in the width of the console; None for no
    workers."""
    if not workers:
        return None
    width, ascii_only = console.width, console.options.ascii_only
    bar = 20 if width >= WIDE else 0
    spark = 8 if width < WIDE else min(40, width // 5)
    headings, lines = _texts(workers, spark, ASCII_BARS if ascii_only else BARS)
    widths = [max(len(text) for text in texts) for texts in zip(headings, *lines, strict=True)]
    widths[BAR] = bar
    gap = 2 if bar else 1
    places = [place for place in range(len(headings)) if widths[place]]
    for place in DROPPED:
        if _label_room(widths, places, gap, width) < LEAST_LABEL and place in places:
            places.remove(place)
    if ascii_only:
        table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    else:  # the box leaves a place between columns, too
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, gap - 1, 0, 0))
    room = max(LEAST_LABEL, _label_room(widths, places, gap, width))
    ellipsis = ".." if ascii_only else "…"
    for place in places:
        justify: Any = "right" if place > 2 and place != SPARK else "left"
        table.add_column(headings[place], justify=justify, no_wrap=True)
    for worker, line in zip(workers, lines, strict=True):
        cells: list[Any] = [Text(text) for text in line]  # labels hold brackets, no markup
        cells[LABEL] = Text(_shortened(line[LABEL], room, ellipsis))
        total = worker.notes.total
        if total:
            cells[BAR] = ProgressBar(total=total, completed=worker.notes.step or 0, width=bar)
        else:
            cells[BAR] = ProgressBar(total=1, completed=0, width=bar)
        table.add_row(*(cells[place] for place in places))
    return table


def _label_room(widths: Sequence[int], places: Sequence[int], gap: int, width: int) -> int:
    """Count the characters that the other columns leave for the label."""
    return width - 2 - sum(widths[place] + gap for place in places if place != LABEL)


def worker_cells(workers: Sequence[Worker]) -> tuple[list[str], list[list[str]]]:
    """Return the texts of `workers_table` without bars and curves: headings, and a line for each
    worker."""
    headings, lines = _texts(workers)
    places = [place for place in range(METRIC + 1) if place not in (BAR, SPARK)]
    shown_headings = [headings[place] for place in places]
    shown_lines = [[line[place] for place in places] for line in lines]
    return shown_headings, shown_lines


def _texts(
    workers: Sequence[Worker], spark: int = 0, bars: str = BARS
) -> tuple[list[str], list[list[str]]]:
    """Headings, the last of which is the metric that most workers have, and the texts of each
    worker, by place."""
    counts = Counter(first_metric(worker.run).key for worker in workers)
    common = max(counts, key=counts.__getitem__, default="")
    lines = []
    for worker in workers:
        metrics = metrics_lines(worker.folder)
        metric = first_metric(worker.run)
        losses = curve(metrics, "train_loss")
        scores = curve(metrics, f"val_{metric.key}")
        score = metric.printed(scores[-1]) if scores else ""
        if score and metric.key != common:
            score = f"{metric.key} {score}"
        lines.append(
            [
                worker.slot,
                worker.run.label,
                "",  # the bar
                _step(worker.notes),
                _time_left(worker.notes),
                f"{losses[-1]:#.4g}" if losses else "",
                sparkline(losses, spark, bars),
                score,
            ]
        )
    return [*HEADINGS, common], lines


def _step(notes: Notes) -> str:
    """Write the step of a worker, "124/155", and its phase, unless it trains or validates."""
    phase = phase_of(notes)
    if notes.step is None:
        return phase
    text = f"{notes.step:,}" if notes.total is None else f"{notes.step:,}/{notes.total:,}"
    return text if phase in ("train", "validation") else f"{phase} {text}"


def _time_left(notes: Notes) -> str:
    per_s = rate(notes)
    if not per_s or notes.step is None or notes.total is None:
        return ""
    return duration((notes.total - notes.step) / per_s)


def _shortened(text: str, room: int, mark: str) -> str:
    """Cut out of the middle: a label ends with its seed."""
    if cell_len(text) <= room:
        return text
    end = (room - len(mark)) // 2
    start = room - len(mark) - end
    return f"{text[:start]}{mark}{text[-end:]}"


# --- Rows that looks give seeds to --------------------------------------------------------------


def standing_cell(columns: Mapping[str, tuple[int, str]]) -> str:
    """Write the decisions on a row: "helps, at 5 seeds" for one column; for several columns, how
    many are decided: "2 of 3 columns"."""
    if len(columns) > 1:
        decided_count = sum(word != GOES_ON for _, word in columns.values())
        return f"{decided_count} of {len(columns)} columns"
    return "; ".join(_decision(*look) for look in columns.values())


def standing_line(standing: Standing) -> str:
    """Write the decisions so far in a line: "decided: 2 of 5 rows: dpn helps, at 5 seeds; ...". The
    text is empty before the first look."""
    total = 0
    decisions = []  # (seeds, word, name of the row)
    for row, columns in standing.items():
        total += len(columns)
        for column, (seeds, word) in columns.items():
            if word != GOES_ON:
                decisions.append((seeds, word, f"{row}@{column}" if column else row))
    if not total:
        return ""
    decisions.sort(key=lambda decision: -decision[0])  # the newest first
    texts = [f"decided: {len(decisions)} of {total}"]
    for seeds, word, name in decisions[:NAMED_ROWS]:
        texts.append(f"{name}: {_decision(seeds, word)}")
    surplus = len(decisions) - NAMED_ROWS
    if surplus > 0:
        texts.append(f"{surplus} more")
    return "; ".join(texts)


def _decision(seeds: int, word: str) -> str:
    """Write a decision without the explanation in brackets, which stays in the table."""
    return f"{word.partition(' (')[0]}, at {seeds} seeds"


def metrics_lines(folder: RunDir) -> list[dict[str, Any]]:
    """Read every whole line of `metrics.jsonl`, in the order of steps; [] without a file. The file
    is read again once it has grown, or a worker that resumes has put another one in its place."""
    try:
        stat = os.stat(folder.metrics)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return _as_it_was(folder.path, stat.st_ino, stat.st_size)


@functools.lru_cache(maxsize=1024)
def _as_it_was(folder: Path, inode: int, size: int) -> list[dict[str, Any]]:
    return RunDir(folder).read_metrics()


PLAIN_EVERY_S = 30.0
DRAWN_EVERY_S = 0.5


def parts_done(progress: SweepProgress) -> float:
    """Count the runs that are done, running ones in part."""
    parts: float = progress.ended_count
    for worker in progress.workers:
        step, total = worker.notes.step, worker.notes.total
        if step is not None and total:
            parts += step / total
    return parts


def counts_line(progress: SweepProgress) -> str:
    """Write the states of runs in a line: "12 of 30 done, 2 running, 1 failed"."""
    counts = progress.counts
    words = [f"{progress.ended_count} of {progress.total} done"]
    if progress.workers:
        words.append(f"{len(progress.workers)} running")
    for state in ("diverged", "failed", "oom", "hung", "skipped"):
        if counts.get(state):
            words.append(f"{counts[state]} {state}")
    return ", ".join(words)


class PlainView:
    """Prints a line for each event, and the progress now and then: for files, pipes and CI."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._printed_at = time.monotonic()

    def say(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def show(self, progress: SweepProgress) -> None:
        if time.monotonic() - self._printed_at >= PLAIN_EVERY_S:
            self._printed_at = time.monotonic()
            self.say(f"{counts_line(progress)}; time left: {duration(progress.left_s)}")

    def reading(self, name: str, images_done: int, total: int) -> None:
        if time.monotonic() - self._printed_at >= PLAIN_EVERY_S / 3 or images_done == total:
            self._printed_at = time.monotonic()
            self.say(f"decoding data={name}: {images_done:,} of {total:,} images")


class RichView:
    """Draws a bar for the sweep, and a line for each worker. Events scroll above them."""

    def __init__(self, drawing: Live) -> None:
        self._drawing = drawing
        self._due = 0.0

    def say(self, text: str) -> None:
        self._drawing.console.print(Text(text))

    def show(self, progress: SweepProgress) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + DRAWN_EVERY_S
            self._drawing.update(self._render(progress), refresh=True)

    def reading(self, name: str, images_done: int, total: int) -> None:
        width = self._drawing.console.width
        images = f"{images_done:,}/{total:,} images"
        line = _bar_line(f"decoding data={name}", images_done, total, images, width)
        self._drawing.update(line, refresh=True)  # twice a second at most, and the last one counts

    def _render(self, progress: SweepProgress) -> Group:
        done_parts, total = parts_done(progress), progress.total
        end_text = progress.waiting or f"time left: {duration(progress.left_s)}"
        width = self._drawing.console.width
        parts = [_bar_line(counts_line(progress), done_parts, total, end_text, width)]
        decided = standing_line(progress.standing)
        if decided:
            parts.append(Text(decided))
        table = workers_table(progress.workers, self._drawing.console)
        if table:
            parts.append(table)
        return Group(*parts)


BAR_WIDTH = 30
LEAST_BAR = 8


def _bar_line(
    label: str, completed: float, total: int, end_text: str, width: int
) -> RenderableType:
    """Lay a bar between `label` and `end_text` in one line of `width` characters; where they leave
    too little room, `label` has a line of its own."""
    room = width - cell_len(end_text) - 2  # a space at each end of the bar
    bar_room = room - cell_len(label)
    bar_width = min(BAR_WIDTH, max(LEAST_BAR, bar_room))
    bar = ProgressBar(total=total, completed=completed, width=bar_width)
    line = Table.grid(padding=(0, 1))
    if bar_room >= LEAST_BAR:
        line.add_row(Text(label), bar, Text(end_text))
        return line
    line.add_row(bar, Text(end_text))
    return Group(Text(label), line)


# --- Drawing in place -----------------------------------------------------------------------------


class LiveDrawing(Live):
    """Draws in place on a window that may become narrower. Nearly every terminal then breaks the
    lines on the screen, so the old drawing takes more rows than it had lines, which rich does not
    know: these rows are erased, too."""

    _last_frame: tuple[RenderableType, int, int] | None = None  # drawing, width, height

    def stop(self) -> None:
        """End the drawing; a terminal that was closed meanwhile keeps no command from its end."""
        with contextlib.suppress(OSError):
            super().stop()

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Put the commands that erase those rows before the ones of rich."""
        width, height = self.console.size
        broken = 0
        if self._last_frame is not None:
            broken = self._broken_rows(*self._last_frame, width)
        self._last_frame = self.get_renderable(), width, height
        erase_row = (ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)
        erase_rows = Control(*erase_row * broken)
        return [erase_rows, *super().process_renderables(renderables)]

    def _broken_rows(self, frame: RenderableType, old_width: int, height: int, width: int) -> int:
        """Count the rows that lines drawn in `old_width` take beyond one each in `width`."""
        if width >= old_width:
            return 0
        options = self.console.options.update(width=old_width)
        lines = self.console.render_lines(frame, options, pad=False)[:height]
        return sum(max(0, Segment.get_line_length(line) - 1) // width for line in lines)


def draws_in_place() -> bool:
    """Return whether standard output is a terminal that can move its cursor, whatever FORCE_COLOR
    says."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


@contextmanager
def drawing_in_place(transient: bool) -> Iterator[LiveDrawing]:
    """Draw in place on the terminal that standard output is. Whatever is printed meanwhile passes
    the gate and scrolls above the drawing. `transient`: erase the drawing at the end."""
    drawing = LiveDrawing(
        console=make_console(force_terminal=True),
        auto_refresh=False,
        transient=transient,
        redirect_stderr=sys.stderr.isatty(),
    )
    with drawing, gate_output():
        try:
            yield drawing
        finally:
            if transient:  # at its end rich draws all lines, more than a small window can erase
                with contextlib.suppress(OSError):  # of a terminal that was closed
                    drawing.update(Text(""), refresh=True)


@contextmanager
def progress_view() -> Iterator[PlainView | RichView]:
    """Choose the view: bars where standard output can be drawn on in place."""
    if not draws_in_place():
        yield PlainView(sys.stdout)
        return
    with drawing_in_place(transient=True) as drawing:
        yield RichView(drawing)
