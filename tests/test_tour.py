"""The tour, typed: every block of docs/tour.md in order, by a shell, in an empty folder.

What it trains takes half a minute, so it is a step of its own in `.ci/run`: `pytest -m tour`.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import REPOSITORY
from pages import PAGES
from tex import compiled

pytestmark = [pytest.mark.tour, pytest.mark.timeout(1200)]
PAGE = PAGES["docs/tour.md"]
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def typed(line: str, folder: Path, **options) -> subprocess.Popen:
    with (folder / "printed.txt").open("ab") as file:  # a pipe stays open while a worker lives
        return subprocess.Popen(
            ["bash", "-ec", line],
            cwd=folder,
            env={**os.environ, "PATH": PATH, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            **options,
        )


def interrupted(line: str, folder: Path) -> None:
    """Type a line and press Ctrl-C once a run has finished."""
    sweep = typed(f"exec {line}", folder, process_group=0)
    printed, deadline = folder / "printed.txt", time.monotonic() + 300
    while "finished: " not in printed.read_text() and sweep.poll() is None:
        assert time.monotonic() < deadline, printed.read_text()
        time.sleep(0.02)
    os.killpg(sweep.pid, signal.SIGINT)
    assert sweep.wait(300) == 130, printed.read_text()
    assert re.search(r"stopped after \d+ of 20; the same command goes on", printed.read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where the whole tour was typed, its files written as they come."""
    home = tmp_path_factory.mktemp("tour")
    pattern = r"(?:<!-- file: (\S+) -->\n)?```(\w+)\n(.*?)```"
    for name, language, text in re.findall(pattern, PAGE, re.DOTALL):
        if name:
            (home / name).parent.mkdir(exist_ok=True)
            (home / name).write_text(text)
        elif language == "sh":
            for line in text.splitlines():
                if line == "ablate sweep textures" and not list(home.glob("runs/runs/*")):
                    interrupted(line, home)
                else:
                    ended = typed(line, home).wait(600)
                    assert ended == 0, (line, (home / "printed.txt").read_text())
    return home


def test_every_command_works_and_the_sweep_ends_as_the_page_says(folder):
    printed = (folder / "printed.txt").read_text()
    assert "20 runs: 20 planned" not in printed  # of its status, which follows a finished run
    assert len(list(folder.glob("runs/runs/*/result.json"))) == 20 + 6
    begins = "On imagefolder, against 8x8 patches, over 5 seeds: "
    (said,) = re.findall(rf"^{begins}(.*?) \(", PAGE, re.M)
    assert said == "4x4 patches helps"
    assert f"{begins}{said} (" in printed
    assert "nothing wrong" in printed
    assert "the second training gave the same bits" in printed


def test_the_paper_has_its_figure_and_its_table(folder):
    assert (folder / "gain.pdf").read_bytes().startswith(b"%PDF")
    assert r"\label{tab:textures}" in (folder / "table.tex").read_text()
    assert "Overfull" not in compiled(folder, (folder / "paper.tex").read_text())


def test_the_notebook_shows_the_same_numbers(folder):
    nbclient = pytest.importorskip("nbclient")
    import nbformat

    notebook = nbformat.read(REPOSITORY / "docs" / "tour.ipynb", as_version=4)
    client = nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(folder)}})
    client.execute()
    texts = [
        output["data"]["text/plain"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "data" in output
    ]
    table = (folder / "table.tex").read_text()
    (gain,) = re.findall(r"4x4 patches &.*?(\+[\d.]+)", table)
    assert any(f"'4x4 patches': '{gain}'" in text for text in texts), texts
