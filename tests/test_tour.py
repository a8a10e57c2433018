"""The tour, typed: every block of docs/tour.md in order, by a shell, in an empty folder.

What it trains takes half a minute, so it is a step of its own in `.ci/run`: `pytest -m tour`.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY
from pages import PAGES
from tex import compiled

pytestmark = [pytest.mark.tour, pytest.mark.timeout(1200), pytest.mark.xdist_group("tour")]
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


def type_the_page(home: Path) -> None:
    """Type the whole tour in an empty folder, its files written as they come."""
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where the whole tour was typed."""
    home = tmp_path_factory.mktemp("tour")
    type_the_page(home)
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


NOTEBOOK = REPOSITORY / "docs" / "tour.ipynb"


def executed(folder: Path) -> Any:
    """The notebook with the outputs that it has in a folder where the tour was typed."""
    nbclient = pytest.importorskip("nbclient")
    import nbformat

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, resources=resources, record_timing=False).execute()
    return notebook


def outputs_of(notebook: Any) -> list[list[tuple[str, list[str], str]]]:
    """The outputs of each cell: kind, formats, and the words of its text, unless it is tagged
    "estimates". Numbers, and the verdicts on them, depend on the machine in their last digits."""
    return [
        [
            (
                output["output_type"],
                sorted(output.get("data", ())),
                "" if "estimates" in cell["metadata"].get("tags", ()) else words_of(output),
            )
            for output in cell["outputs"]
        ]
        for cell in notebook.cells
        if cell["cell_type"] == "code"
    ]


def words_of(output: Any) -> str:
    text = output.get("data", {}).get("text/plain", output.get("evalue", ""))
    return " ".join(re.findall(r"[A-Za-z_]+", text))


def test_the_notebook_shows_the_same_numbers(folder):
    notebook = executed(folder)
    texts = [text for cell in notebook.cells for text in texts_of(cell)]
    table = (folder / "table.tex").read_text()
    (gain,) = re.findall(r"4x4 patches &.*?(\+[\d.]+)", table)
    assert any(f"'4x4 patches': '{gain}'" in text for text in texts), texts


def texts_of(cell: Any) -> list[str]:
    data = [output["data"] for output in cell.get("outputs", ()) if "data" in output]
    return [formats["text/plain"] for formats in data]


def test_the_notebook_is_kept_with_the_outputs_of_a_run(folder):
    import nbformat

    kept = nbformat.read(NOTEBOOK, as_version=4)
    assert all(outputs_of(kept))
    assert outputs_of(kept) == outputs_of(executed(folder))
    assert not re.search(r"/(tmp|home|root|Users)/|seconds", NOTEBOOK.read_text())


def rewrite_notebook() -> None:
    """Write the notebook with the outputs of a run: `python tests/test_tour.py`."""
    import nbformat

    with tempfile.TemporaryDirectory() as home:
        type_the_page(Path(home))
        notebook = executed(Path(home))
    for cell in notebook.cells:
        cell["metadata"].pop("execution", None)
    notebook["metadata"]["language_info"] = {"name": "python"}
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    rewrite_notebook()
