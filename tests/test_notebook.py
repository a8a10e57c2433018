"""Training in a real kernel of Jupyter: the bar, an interrupt of the kernel, mistakes."""

import queue
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from support.planted_sweeps import golden

from ablate.report import notebook
from ablate.run import RunDir
from ablate.store import SweepProgress

SWEEP = """
import ablate
sweep = ablate.Sweep(
    recipe="quick", data="digits", stem="none", norm=("layernorm", "rmsnorm"), seeds=2,
    train={"epochs": 30}, name="norms",
)
"""


class Cell:
    """What a cell showed: the outputs that stand there at its end, and how often one of them was
    drawn again."""

    def __init__(self) -> None:
        self.outputs: list[dict[str, Any]] = []
        self.updates = 0
        self._by_display: dict[str, int] = {}

    def take(self, kind: str, content: dict[str, Any]) -> None:
        display = content.get("transient", {}).get("display_id")
        if kind == "update_display_data":
            self.updates += 1
            self.outputs[self._by_display[display]] = content
        elif kind in ("display_data", "execute_result", "stream", "error"):
            if display is not None:
                self._by_display[display] = len(self.outputs)
            self.outputs.append(content)

    @property
    def error(self) -> list[str]:
        return [line for output in self.outputs for line in output.get("traceback", ())]

    @property
    def texts(self) -> list[str]:
        return [o["data"]["text/plain"] for o in self.outputs if "data" in o]

    @property
    def streams(self) -> str:
        return "".join(output["text"] for output in self.outputs if "text" in output)


class Kernel:
    """A kernel of Jupyter in a folder."""

    def __init__(self, manager: Any, client: Any) -> None:
        self._manager, self._client = manager, client

    def run(self, code: str, interrupt_at: str | None = None) -> Cell:
        """Run a cell. `interrupt_at`: interrupt the kernel, as the button does, once an output of
        the cell matches."""
        request = self._client.execute(code)
        cell, deadline = Cell(), time.monotonic() + 240
        while time.monotonic() < deadline:
            try:
                message = self._client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            cell.take(kind, content)
            if kind == "status" and content["execution_state"] == "idle":
                return cell
            shown = content.get("data", {}).get("text/html", "")
            if interrupt_at is not None and re.search(interrupt_at, shown):
                interrupt_at = None
                self._manager.interrupt_kernel()
        raise TimeoutError(code)


@contextmanager
def kernel_in(folder: Path) -> Iterator[Kernel]:
    manager_of = pytest.importorskip("jupyter_client.manager")
    manager, client = manager_of.start_new_kernel(kernel_name="python3", cwd=str(folder))
    try:
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_kernel_that_is_interrupted_stops_at_a_checkpoint_and_goes_on(here):
    with kernel_in(here) as kernel:
        assert kernel.run(SWEEP).outputs == []
        stopped = kernel.run("sweep.train()", interrupt_at=r"<td>train</td>|\d/[\d,]+</td>")
        (line,) = stopped.error
        assert line.startswith("KeyboardInterrupt: ")
        assert re.search(r"\d of 4", line)
        assert stopped.streams == ""
        assert len(stopped.texts) == 1  # the bar, which replaced itself
        assert stopped.updates > 1
        states = kernel.run("print(sweep.status().sum().to_dict())").streams
        assert "'interrupted': " in states
        assert "failed" not in states

        again = kernel.run("sweep.train()")
        assert again.error == []
        assert again.streams == ""
        bar, sweep = again.texts
        assert re.findall(r"\d+", bar) == ["4", "4"]
        assert "norms" in sweep
        attempts = [RunDir(folder).read_attempts() for folder in here.glob("runs/runs/*")]
        assert {len(of_run) for of_run in attempts} == {1, 2}  # those that were stopped went on
        for mistake in ("sweep.table(margni=1)", "sweep.plot('gian')", "ablate.Sweep(sedes=3)"):
            (line,) = kernel.run(mistake).error
            assert line.startswith("UserError: ")


class Display:
    """A stand-in for IPython's display: what stands in the cell, and how often it was drawn."""

    def __init__(self) -> None:
        self.drawn: list[str] = []

    def display(self, drawing: object, display_id: bool) -> "Display":
        self.update(drawing)
        return self

    def update(self, drawing: object) -> None:
        self.drawn.append(repr(drawing))


def test_a_notebook_of_a_thousand_runs_is_drawn_twice_a_second_and_keeps_what_matters(monkeypatch):
    import IPython

    screen, now = Display(), 0.0
    monkeypatch.setattr(IPython, "display", screen)
    monkeypatch.setattr(notebook.time, "monotonic", lambda: now)
    view = notebook.NotebookView()
    for run in range(1, 1001):
        now += 0.01
        view.say(f"finished: a#{run}, validation 50.00 %, 1 s")
        view.show(SweepProgress("s", 1000, {"finished": run}, []))
        if run == 998:
            view.say("failed: a#998: no")
    view.close()
    assert len(screen.drawn) <= 10 / notebook.DRAWN_EVERY_S + 2
    bar, event = screen.drawn[-1].splitlines()
    assert bar.count("1000") == 2
    assert event.startswith("failed: a#998")


def test_what_matters_stays_however_early_it_was_and_much_of_it_is_counted(monkeypatch, capsys):
    import IPython

    screen, now = Display(), 0.0
    monkeypatch.setattr(IPython, "display", screen)
    monkeypatch.setattr(notebook.time, "monotonic", lambda: now)
    view = notebook.NotebookView()
    early = ("warning: a", "failed: b#1: no", "diverged at step 3: c#1", "died: d#1: no word")
    for event in early:
        view.say(event)
    for run in range(100):
        now += 1.0
        view.say(f"finished: a#{run}")
        view.say(f"pruned at step 10: a#{run}")
        view.show(SweepProgress("s", 100, {"finished": run}, []))
        assert set(early) <= set(screen.drawn[-1].splitlines())  # while it runs, too
    view.close()
    assert screen.drawn[-1].splitlines()[1:] == [*early]
    for run in range(notebook.LASTING_EVENTS):
        view.say(f"failed: e#{run}: no")
    view.close()
    events = screen.drawn[-1].splitlines()[1:]
    assert len(events) == notebook.LASTING_EVENTS + 1
    assert events[0].startswith(f"{len(early)} ")

    script = notebook.ScriptView()
    for event in (*early, "finished: a#1"):
        script.say(event)
    assert capsys.readouterr() == ("", "".join(f"{event}\n" for event in early))


def test_cells_of_a_table_stay_aligned_under_the_rules_of_jupyterlab(tmp_path):
    """Its rule has two classes, so it beats one of a class and an element."""
    rule = ":not(.jp-RenderedMarkdown).jp-RenderedHTMLCommon :is(td, th) { text-align: right }"
    page = tmp_path / "page.html"
    page.write_text(
        f"<!doctype html><style>{rule}</style>"
        f'<div class="jp-RenderedHTMLCommon">{golden("html")}<table><td id="any">a</table></div>'
    )
    browser = Browser(tmp_path / "chromium")
    try:
        tab = browser.open(page.as_uri(), width=1000)
        aligned = "getComputedStyle(document.querySelector('{}')).textAlign"
        assert tab.evaluate(aligned.format("#any")) == "right"
        assert tab.evaluate(aligned.format(".gains th[scope=row]")) == "left"
        assert tab.evaluate(aligned.format(".gains td.number")) == "right"
    finally:
        browser.close()
