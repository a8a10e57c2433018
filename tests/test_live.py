"""The live views: a line a worker that fits, its newest loss and metric, what looks decided."""

from __future__ import annotations

import io
import json
import re
import sys

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ablate.planning.cell import Cell, PlannedRun
from ablate.report.live import (
    PlainView,
    RichView,
    _bar_line,
    metrics_lines,
    progress_view,
    standing_cell,
    standing_line,
    workers_table,
)
from ablate.report.status import show_grid
from ablate.run.rundir import RunDir
from ablate.run.spec import RunSpec
from ablate.shared.notes import Notes
from ablate.store.progress import SweepProgress, Worker

LOSSES = (8.0, 2.0, 1.0)
LONG = "a placement with a long name: post/post, [branch]"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def line(step: int, loss: float, top1: float) -> bytes:
    return json.dumps({"step": step, "train_loss": loss, "val_top1": top1}).encode() + b"\n"


@pytest.fixture
def workers(tmp_path) -> list[Worker]:
    """One in its third epoch, and one that has only begun."""
    notes = (Notes(phase="validation", step=1240, total=15500), Notes(phase="data"))
    made = []
    for i, row in enumerate((LONG, "plain")):
        folder = RunDir(tmp_path / "ab"[i])
        folder.path.mkdir()
        run = PlannedRun(folder.id, Cell(row, "", RunSpec.of({"task": "classify"}), {}), 12)
        made.append(Worker(run, f"cpu:{i}", notes[i], folder))
    losses = [line(10 * i, loss, 0.9 + i / 100) for i, loss in enumerate(LOSSES)]
    made[0].folder.metrics.write_bytes(b"".join(losses))
    return made


def drawn(workers, width: int, encoding: str = "utf-8") -> list[str]:
    """The lines that a terminal of this width and encoding is sent."""
    sent = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=sent, width=width, color_system=None)
    console.print(workers_table(workers, console))
    sent.flush()
    return sent.buffer.getvalue().decode(encoding).splitlines()


@pytest.mark.parametrize("width", [80, 200])
def test_a_worker_has_a_line_with_its_newest_loss_and_metric(workers, width):
    lines = [text for text in drawn(workers, width) if "cpu:" in text]
    assert [text.split()[0] for text in lines] == ["cpu:0", "cpu:1"]
    assert all(len(text) <= width for text in lines)
    assert "1,240/15,500" in lines[0]
    assert lines[0].split()[-4:] == ["1.000", "█▂▁", "92.00", "%"]
    assert lines[1].split() == ["cpu:1", "plain#12", "data"]
    assert (f"{LONG}#12" in lines[0]) == (width == 200)
    assert "]#12" in lines[0]  # where it is cut, its seed is left


def test_a_terminal_without_blocks_has_letters(workers):
    lines = [text for text in drawn(workers, 80, "ascii") if "cpu:0" in text]
    assert lines[0].split()[-4:] == ["1.000", "#._", "92.00", "%"]


def test_metrics_are_read_on_from_where_they_were(workers):
    folder = workers[0].folder
    assert [said["train_loss"] for said in metrics_lines(folder)] == list(LOSSES)
    with open(folder.metrics, "ab") as file:
        file.write(line(30, 0.5, 0.95)[:-5])
        file.flush()
        assert len(metrics_lines(folder)) == 3  # a torn line is none yet
        file.write(line(30, 0.5, 0.95)[-5:] + line(40, 0.25, 0.95))
    assert [said["step"] for said in metrics_lines(folder)] == [0, 10, 20, 30, 40]
    again = folder.path / "new"  # a worker that resumes drops what came after its checkpoint
    again.write_bytes(line(0, 3.0, 0.5))
    again.replace(folder.metrics)
    assert [said["train_loss"] for said in metrics_lines(folder)] == [3.0]
    assert metrics_lines(workers[1].folder) == []


def test_what_looks_decided_is_told_in_a_line_and_in_a_cell():
    word = "no verdict (a run diverged, collapsed or missed the threshold)"
    standing = {
        "dpn": {"S": (5, "helps"), "B": (8, "goes on")},
        "post": {"S": (5, "hurts"), "B": (8, word)},
        "pre": {"S": (5, "can't tell (a gain of the margin was unlikely)"), "B": (5, "hurts")},
    }
    assert standing_line(standing) == (
        "decided: 5 of 6; post@B: no verdict, at 8 seeds; dpn@S: helps, at 5 seeds; "
        "post@S: hurts, at 5 seeds; 2 more"
    )
    assert standing_line({}) == ""
    cells = [standing_cell(columns) for columns in standing.values()]
    assert cells == ["1 of 2 columns", "2 of 2 columns", "2 of 2 columns"]
    assert standing_cell({"": (5, "goes on")}) == "goes on, at 5 seeds"


def test_the_view_of_a_sweep_draws_less_often_than_it_is_told(workers):
    drawings = []

    class Live:
        console = Console(file=io.StringIO(), width=80)

        def update(self, renderable, refresh):
            assert refresh
            drawings.append(renderable)

    view = RichView(Live())
    progress = SweepProgress("s", 4, {"started": 2}, workers, standing={"dpn": {"": (5, "helps")}})
    for _ in range(50):
        view.show(progress)
    assert len(drawings) < 50  # one, but on a machine that stands still meanwhile
    Live.console.print(drawings[0])
    text = Live.console.file.getvalue()
    assert "0 of 4 done, 2 running" in text
    assert "decided: 1 of 1; dpn: helps, at 5 seeds" in text
    assert "92.00 %" in text


def test_a_narrow_window_keeps_the_labels_and_leaves_out_what_tells_least(workers):
    lines = drawn(workers, 40)
    assert max(map(len, lines)) <= 40
    assert lines[1].split() == ["on", "run", "step", "top1"]
    assert "#12" in lines[3]
    assert "1,240/15,500" in lines[3]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_line_with_the_bar_fits(width):
    """Else what stands before the bar has a line of its own."""
    sent = io.StringIO()
    line = _bar_line("48 of 96 done, 2 running", 48, 96, "time left: 1 min 29 s", width)
    Console(file=sent, width=width, color_system=None).print(line)
    lines = sent.getvalue().splitlines()
    assert len(lines) == (1 if width > 40 else 2)
    assert all(len(text) <= width for text in lines)
    assert re.search("━{4,}.* time left: 1 min 29 s$", lines[-1])


@pytest.mark.parametrize(("term", "kind"), [("dumb", PlainView), ("xterm", RichView)])
def test_a_terminal_that_moves_no_cursor_has_plain_lines(monkeypatch, term, kind):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stdout", Terminal())
    with progress_view() as chosen:
        assert isinstance(chosen, kind)


def test_a_long_label_leaves_numbers_whole_in_a_narrow_window(monkeypatch):
    sent = Terminal()
    monkeypatch.setattr(sys, "stdout", sent)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    label = "optim.weight_decay=0.05, norm=identity, block.attn=pre+post"
    show_grid(("variant", "planned", "finished"), [(label, "12,345", "67,890")])
    lines = sent.getvalue().splitlines()
    assert any("12,345" in line and "67,890" in line for line in lines)
    assert any("planned" in line and "finished" in line for line in lines)
    assert all(cell_len(Text.from_ansi(line).plain) <= 40 for line in lines)


def test_a_grid_that_fits_without_its_gaps_is_not_cut(monkeypatch):
    sent = Terminal()
    monkeypatch.setattr(sys, "stdout", sent)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "50")
    header = ("variant", "parameters", "multiply-adds", "a step")
    show_grid(header, [("Dual PatchNorm", "32,722", "151 k", "1.1x")])
    assert "…" not in sent.getvalue()
    assert len(sent.getvalue().splitlines()[-2]) <= 50
