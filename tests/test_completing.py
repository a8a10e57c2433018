"""TAB in a real shell: what the installed script inserts, and what it offers."""

import contextlib
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from conftest import ABLATE, REPOSITORY

from ablate import cli
from ablate.cli.completing import answer, offers
from ablate.report.key_choices import key_choices
from ablate.report.key_listing import key_lines
from ablate.report.listing import KINDS

GROUP = typer.main.get_command(cli.app)
GOLDEN = REPOSITORY / "tests" / "golden" / "store"
LONG_S = 120.0
BASH = shutil.which("bash") or ""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """With a golden store, a sweep whose labels have spaces and columns, and an own sweep file."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(GOLDEN, "runs")
    cells = [
        {"row": row, "column": "mu/4", "ids": {"0": f"{n}" * 16}}
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
    """An interactive bash after `ablate --install-completion`, on a terminal."""

    def __init__(self, home: Path) -> None:
        path = f"{Path(ABLATE).parent}{os.pathsep}{os.environ['PATH']}"
        env = {**os.environ, "HOME": str(home), "PATH": path, "TERM": "dumb", "HISTFILE": ""}
        asked = {**env, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
        subprocess.run([ABLATE, "--install-completion", "bash"], env=asked, check=True)
        self.bash, self.ours = pty.fork()
        if self.bash == 0:
            os.execve(BASH, [BASH, "--noprofile", "--rcfile", str(home / ".bashrc"), "-i"], env)
        self.type("bind 'set bell-style none'; echo re''ady\n")
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
            ("ablate sweep model.dep\t3", ["sweep", "model.depth=3"]),  # no space behind `=`
            ("ablate table --format=la\t", ["table", "--format=latex"]),
            ("ablate table paper:T1L\t", ["table", "paper:T1L"]),
            ("ablate table stor\t", ["table", "stored one"]),
            ("ablate show Dual\t", ["show", "Dual PatchNorm@mu/4#0"]),
            ('ablate show "plain\t', ["show", "plain ViT@mu/4#0"]),
        ):
            assert terminal.line(keys) == words
    finally:
        terminal.close()


# --- What is offered ----------------------------------------------------------------------------


def test_commands_options_and_their_choices(folder):
    assert tab("") == list(GROUP.commands)
    assert tab("data", "") == ["prepare"]
    assert {"--quiet", "--retry", "--store", "--help"} <= {*tab("sweep", "--")}
    assert "--quiet" not in tab("sweep", "--quiet", "--")
    assert tab("table", "--format", "") == ["rich", "md", "latex", "html", "csv", "json"]
    assert tab("status", "--format=") == ["--format=text", "--format=json"]
    assert tab("plot", "--style", "p") == ["page", "paper"]
    assert tab("table", "--sort", "") == ["gain"]
    assert tab("table", "--show", "gain,ve") == ["gain,verdict"]
    assert tab("sweep", "--retry", "failed,") == ["failed,oom", "failed,hung"]
    assert tab("plan", "mine", "--scale", "") == ["small", "large"]
    assert tab("table", "stored one", "--rows", "plain ViT,") == ["plain ViT,Dual PatchNorm"]
    assert tab("table", "stored one", "--columns", "") == ["mu/4"]
    assert tab("sweep", "norm=layernorm,rmsnorm", "--across", "") == ["norm"]
    assert tab("sweep", "--store", "") == []  # the shell's own: files


def test_names_of_sweeps_and_runs(folder):
    assert {"mine", "quickstart"} <= {*tab("sweep", "")}
    assert "mine" not in tab("sweep", "quickstart", "")
    for command in ("status", "table", "trials", "plot", "report", "export", "verify"):
        assert {"stored one", "fixture"} <= {*tab(command, "")}, command
    assert tab("table", "fixture", "st")[0] == "stored one"  # beside it
    assert tab("show", "pre") == ["pre#0", "pre#1", "pre#2"]
    assert tab("show", "pre#0", "--against", "post#") == ["post#0", "post#1", "post#2"]
    for run in os.listdir("runs/runs"):
        assert tab("show", run[:6]) == [run]
    assert tab("export", "w.safetensors", "--weights", "pre#0") == ["pre#0"]
    assert tab("status", "--store", "elsewhere", "") == []


def test_keys_and_their_values(folder):
    listed = {key.partition("=")[0] for key, *_ in key_lines() if "=" in key}
    assert len(listed) > 80
    assert listed - {"seed"} <= key_choices().keys()
    assert "seed=" not in tab("sweep", "see")  # it is `seeds` there
    assert tab("sweep", "mine", "norm=r") == ["norm=rmsnorm"]
    assert tab("plan", "model.arch=S/")[:2] == ["model.arch=S/2", "model.arch=S/4"]
    assert tab("config", "stem=d") == ["stem=dpn"]
    assert tab("sweep", "recipe=augr") == ["recipe=augreg"]
    assert tab("sweep", "probe=[gradnorm,sc") == ["probe=[gradnorm,scales"]
    assert tab("sweep", "launcher=s") == ["launcher=slurm"]
    assert tab("sweep", "logger=t") == ["logger=tensorboard"]
    assert tab("sweep", "logger=jsonl,w") == ["logger=jsonl,wandb"]
    assert tab("sweep", "logger.mode=o") == ["logger.mode=online", "logger.mode=offline"]
    assert tab("sweep", "noti") == ["notify=", "notify=TEXT"]
    assert tab("table", "fixture", "analysis.spread=p") == ["analysis.spread=paired"]
    assert tab("sweep", "mine", "laun") == ["launcher=", "launcher."]
    assert tab("sweep", "seeds") == ["seeds=", "seeds=N"]  # two, so that no space follows
    assert "launcher.devices=" in tab("sweep", "launcher.")
    assert tab("sweep", "from.stem=d") == ["from.stem=dpn"]
    assert "norm=" not in tab("sweep", "norm=layernorm", "n")


def test_kinds(folder):
    assert tab("list", "") == ["sweeps", *KINDS, "keys"]
    assert {"norm", "sweep"} <= {*tab("new", "")}
    assert tab("plot", "fixture", "gradn") == ["gradnorm"]
    assert "cifar10" in tab("data", "prepare", "ci")


# --- Other shells, and what goes wrong ----------------------------------------------------------


@pytest.fixture
def asked(folder, capfd):
    """`asked(shell, ...)`: (exit code, what is printed) for that shell's script."""

    def asked(shell, **environment):
        code = answer(GROUP, {"_ABLATE_COMPLETE": f"complete_{shell}", **environment})
        return code, "".join(capfd.readouterr())

    return asked


def test_zsh_and_fish_are_answered_as_they_ask(asked):
    def zsh(text):
        return asked("zsh", _TYPER_COMPLETE_ARGS=text)[1]

    assert zsh("ablate show Dual") == "compadd -- 'Dual PatchNorm@mu/4#0'\n"
    assert zsh("ablate sweep model.dep") == "compadd -S '' -- model.depth=\n"
    assert zsh("ablate merge ") == "_files\n"
    fish = {"_TYPER_COMPLETE_ARGS": "ablate sweep seed"}
    assert asked("fish", _TYPER_COMPLETE_FISH_ACTION="get-args", **fish) == (0, "seeds=\n")
    assert asked("fish", _TYPER_COMPLETE_FISH_ACTION="is-args", **fish) == (0, "")
    none = {"_TYPER_COMPLETE_ARGS": "ablate merge "}
    assert asked("fish", _TYPER_COMPLETE_FISH_ACTION="is-args", **none) == (1, "")


def test_what_lies_in_the_folder_breaks_no_tab(asked):
    Path("runs/sweeps/torn.json").write_text('{"name": "torn", "rows"')
    Path("sweeps/mine.yaml").write_text("{")
    assert "torn" not in tab("table", "t")
    for words in ("ablate\nnope\n", "ablate\nplan\nmine\n--scale\n", "ablate\nsweep\n'un"):
        number = str(words.count("\n"))
        assert asked("bash", COMP_WORDS=words, COMP_CWORD=number) == (0, "\n")


def test_a_tab_loads_nothing_heavy(folder):
    code = """
import os, sys
from ablate import cli
os.environ["_ABLATE_COMPLETE"] = "complete_bash"
for words in ("ablate sweep norm = lay", "ablate show pre", "ablate plan mi", "ablate table f"):
    os.environ |= {"COMP_WORDS": words.replace(" ", "\\n"), "COMP_CWORD": str(words.count(" "))}
    try:
        cli.main()
    except SystemExit as ended:
        assert ended.code == 0
print(*sys.modules, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["layernorm", "pre#0", "pre#1", "pre#2", "mine", "fixture"]
    heavy = {"torch", "numpy", "scipy", "pandas", "hydra", "omegaconf", "rich", "optuna", "yaml"}
    assert not heavy & {module.partition(".")[0] for module in done.stderr.split()}
