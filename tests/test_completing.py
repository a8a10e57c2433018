"""TAB in a real shell: what the installed script inserts, and what it offers."""

import contextlib
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
from conftest import ABLATE, REPOSITORY

from ablate.planning.compose import resolve_run
from ablate.report.listing import key_lines

GOLDEN = REPOSITORY / "tests" / "golden" / "store"
LONG_S = 120.0
BASH = shutil.which("bash") or ""


@pytest.fixture
def folder(here):
    """With a golden store, a plan that is torn, and a sweep file."""
    shutil.copytree(GOLDEN, "runs")
    Path("runs/sweeps/torn.json").write_text('{"name": "torn", "rows"')
    Path("mine.yaml").write_text(
        "variants: [a: {}, b: {stem: dpn}]\nscales: {small: {seeds: 3}, large: {seeds: 5}}\n"
    )
    return here


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


@pytest.mark.whole
@pytest.mark.skipif(not BASH, reason="needs bash")
def test_a_tab_in_bash(folder):
    with contextlib.closing(Terminal(folder)) as terminal:
        for keys, words in (
            ("ablate swe\tmi\t", ["sweep", "mine"]),
            ("ablate sweep norm=lay\t", ["sweep", "norm=layernorm"]),
            ("ablate sweep model.dep\t", ["sweep", "model.depth="]),
            ("ablate plan mine --scale sm\t", ["plan", "mine", "--scale", "small"]),
            ("ablate table fix\t --format la\t", ["table", "fixture", "--format", "latex"]),
        ):
            assert terminal.line(keys) == words


# --- What is offered ----------------------------------------------------------------------------


def tab(*words: str) -> list[str]:
    """What zsh's script is told for these words, of which the last is at the cursor."""
    text = "ablate " + " ".join(words)
    env = {**os.environ, "_ABLATE_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": text}
    done = subprocess.run([ABLATE], env=env, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return re.findall(r'"(.+?)"(?!:)(?=\s|\))', done.stdout)


@pytest.mark.whole
def test_names_of_sweeps_and_scales(folder):
    assert {"mine", "quickstart"} <= {*tab("sweep", "")}
    assert tab("table", "") == ["fixture"]
    assert tab("table", "--store", "elsewhere", "") == []
    assert tab("plan", "mine", "--scale", "") == ["small", "large"]
    assert tab("plan", "quickstart", "--scale", "") == []  # it has none
    assert tab("plan", "nope", "--scale", "") == []


@pytest.mark.whole
def test_keys_choices_and_kinds(folder):
    keys = {key.partition("=")[0] for key, *_ in key_lines(resolve_run([], Path("runs"))[0])}
    for section in ("optim.", "launcher.", "analysis.", "tune."):
        offered = {word.removesuffix("=") for word in tab("sweep", "mine", section)}
        assert len(offered) >= 3
        assert offered == {key for key in keys if key.startswith(section)}
    assert tab("sweep", "mine", "norm=r") == ["norm=rmsnorm"]
    assert tab("sweep", "seeds") == ["seeds="]
    assert tab("table", "fixture", "f") == []  # it takes no key of a run
    assert "analysis.alpha=" in tab("table", "fixture", "a")
    assert tab("status", "--format", "") == ["text", "json"]
    assert tab("plot", "fixture", "gradn") == ["gradnorm"]
    assert tab("list", "no") == ["norms"]


def test_a_tab_loads_nothing_heavy(folder):
    code = """
import os, sys
from ablate import cli
os.environ["_ABLATE_COMPLETE"] = "complete_bash"
for words in ("ablate sweep norm = lay", "ablate sweep optim.mo", "ablate table f"):
    os.environ |= {"COMP_WORDS": words.replace(" ", "\\n"), "COMP_CWORD": str(words.count(" "))}
    try:
        cli.main()
    except SystemExit as ended:
        assert ended.code == 0
print(*sys.modules, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["layernorm", "optim.momentum=", "fixture"]
    heavy = {"torch", "numpy", "scipy", "pandas", "hydra", "omegaconf", "optuna", "yaml"}
    assert not heavy & {module.partition(".")[0] for module in done.stderr.split()}
