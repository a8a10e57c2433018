"""TAB in a real shell: what the installed script inserts, and what it offers."""

import contextlib
import json
import os
import pty
import re
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import typer
from conftest import ABLATE, REPOSITORY

from ablate import cli
from ablate.cli.completing import offers

GROUP = typer.main.get_command(cli.app)
GOLDEN = REPOSITORY / "tests" / "golden" / "store-3"
LONG_S = 120.0
BASH = shutil.which("bash") or ""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """With a golden store, a sweep whose labels have spaces and columns, and an own sweep file."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(GOLDEN, "runs")
    cells = [
        {"row": row, "column": "mu/4", "ids": {"0": f"{n}" * 16, "1": f"{n}{n}f{n}" * 4}}
        for n, row in enumerate(("plain ViT", "Dual PatchNorm"))
    ]
    rows = [{"label": cell["row"]} for cell in cells]
    plan = {"name": "stored one", "rows": rows, "columns": [{"label": "mu/4"}], "cells": cells}
    Path("runs/sweeps/stored.json").write_text(json.dumps(plan))
    Path("sweeps").mkdir()
    Path("sweeps/mine.yaml").write_text(
        "variants: [a: {}, b: {stem: dpn}]\nscales: {small: {seeds: 3}, large: {seeds: 5}}\n"
    )
    return tmp_path


def tab(*words):
    """What is offered for the last word."""
    *before, last = words
    return [*offers(GROUP, before, last)]


# --- In a real bash -----------------------------------------------------------------------------


class Terminal:
    """An interactive bash with the script of `ablate --show-completion`, on a terminal."""

    def __init__(self, folder: Path) -> None:
        asked = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
        script = subprocess.run(
            [ABLATE, "--show-completion", "bash"],
            env={**os.environ, **asked},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        (folder / "complete.sh").write_text(script)
        path = f"{Path(ABLATE).parent}{os.pathsep}{os.environ['PATH']}"
        self.bash, self.ours = pty.fork()
        if self.bash == 0:
            os.chdir(folder)
            env = {**os.environ, "PATH": path, "PS1": "$ ", "TERM": "dumb", "HISTFILE": ""}
            os.execve(BASH, [BASH, "--norc", "--noprofile", "-i"], env)
        self.type("bind 'set bell-style none'; source complete.sh; echo re''ady\n")
        self.read("ready")

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def read(self, pattern: str) -> str:
        """Read until a text; what the shell runs or completes takes as long as it takes."""
        said, until = "", time.monotonic() + LONG_S
        while not re.search(pattern, said):
            assert time.monotonic() < until, said
            if select.select([self.ours], [], [], 1)[0]:
                said += os.read(self.ours, 65536).decode(errors="replace")
        return said

    def line(self, text: str) -> list[str]:
        """The words that bash would run after these keys."""
        self.type(f"{text}\x01printf '<%s>' \x05 'en''d'\n")  # at the line's start, and its end
        said = self.read("<end>")
        return re.findall(r"<(.*?)>", said[said.rindex("<ablate>") :])[1:-1]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.ours)  # it hangs up
        os.waitpid(self.bash, 0)


@pytest.mark.skipif(not BASH, reason="needs bash")
def test_a_tab_in_bash(folder):
    terminal = Terminal(folder)
    try:
        for keys, words in (
            ("ablate swe\tmi\t", ["sweep", "mine"]),
            ("ablate sweep norm=lay\t", ["sweep", "norm=layernorm"]),
            ("ablate sweep norm=layernorm,rm\t", ["sweep", "norm=layernorm,rmsnorm"]),
            ("ablate sweep model.dep\t3", ["sweep", "model.depth=3"]),  # no space behind `=`
            ("ablate sweep analysis.f\tt\t", ["sweep", "analysis.family=table"]),
            ("ablate table --format=la\t", ["table", "--format=latex"]),
            ("ablate table --form\tla\t", ["table", "--format", "latex"]),
            ("ablate table paper:T1L\t", ["table", "paper:T1L"]),
            ("ablate table stor\t", ["table", "stored one"]),
            ("ablate show Dual\t1\t", ["show", "Dual PatchNorm@mu/4#1"]),
            ('ablate show "Dual\t0\t', ["show", "Dual PatchNorm@mu/4#0"]),
            ("ablate table analysis.metric=epochs_to:0.9 --tr\t", None),
        ):
            found = terminal.line(keys)
            assert found == (words or ["table", "analysis.metric=epochs_to:0.9", "--transpose"])
    finally:
        terminal.close()
