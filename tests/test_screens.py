"""What stands on a terminal while commands work and once they have ended, as a terminal shows it.

The golden screens (`golden/screens/`) are written by `python tests/test_screens.py`; read what
changed before it is kept. Times and process ids are replaced by marks."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import ABLATE
from screen import Screen, steady

pytestmark = pytest.mark.whole

GOLDEN = Path(__file__).parent / "golden" / "screens"
COLOUR: Mapping[str, str] = {"FORCE_COLOR": "1"}
PLAIN: Mapping[str, str] = {"NO_COLOR": "1"}
TRAINER = """
import time
from pathlib import Path


def main(settings, run):
    level, here = settings["level"], Path(__file__).parent
    run.log(10, train_loss=2.0 - 0.1 * level)
    run.log(20, train_loss=1.0 - 0.1 * level, score=0.6 + 0.02 * level)
    while not (here / f"go{level}").exists():
        run.progress(20)
        time.sleep(0.05)
    run.result(score=0.5 + 0.01 * level)
"""
DECLARED = """
name: gauge:main
keys: {level: 0}
metrics:
  score: {direction: more, unit: "%", range: [0, 1]}
fork_safe: true
"""
LEVELS = range(6)
SWEEP = ("sweep", "trainer=gauge", "trainer.level=0,1,2,3,4,5", "seeds=1", "--as", "gauge")

Shots = dict[str, list[str]]


def write_trainer(folder: Path) -> None:
    (folder / "conf" / "trainer").mkdir(parents=True)
    (folder / "conf" / "trainer" / "gauge.yaml").write_text(DECLARED)
    (folder / "gauge.py").write_text(TRAINER)


def let_end(folder: Path, *levels: int) -> None:
    for level in levels:
        (folder / f"go{level}").touch()


def trains(level: int, lines: list[str]) -> bool:
    """Whether the run of a level is at its second step."""
    return any(f" level={level}#0 " in line and " 20 " in line for line in lines)


def up_to_notes(lines: list[str]) -> list[str]:
    """The lines up to the end of the table: its notes are compared elsewhere."""
    rule = max(at for at, line in enumerate(lines) if "───" in line)
    return lines[: lines.index("", rule)]


def sweep_and_watch(folder: Path, width: int, environment: Mapping[str, str]) -> dict[str, Shots]:
    """Drive a sweep in a low window, and watch it in another; the screens of both."""
    write_trainer(folder)
    look = dict(cwd=folder, width=width, **environment)
    shots: dict[str, Shots] = {"sweep": {}, "watch": {}}
    with (
        Screen(ABLATE, *SWEEP, height=12, **look) as driving,
        contextlib.ExitStack() as stack,
    ):
        shots["sweep"]["start"] = driving.wait_for(lambda lines: trains(0, lines))
        watching = stack.enter_context(Screen(ABLATE, "status", "--watch", height=24, **look))
        shots["watch"]["start"] = watching.wait_for(lambda lines: trains(0, lines))
        for level in range(3):
            let_end(folder, level)
            shots["sweep"]["middle"] = driving.wait_for(
                lambda lines, at=level + 1: trains(at, lines)
            )
        shots["watch"]["middle"] = watching.wait_for(lambda lines: trains(3, lines))
        if "NO_COLOR" in environment:
            assert not driving.colours | watching.colours
        else:
            assert driving.colours  # of its bar
        let_end(folder, *LEVELS)
        shots["sweep"]["end"] = up_to_notes(driving.end())
        shots["watch"]["end"] = watching.end()
    check_left(driving)
    check_left(watching)
    return shots


def check_left(screen: Screen) -> None:
    """What no command may leave at its end: a hidden cursor, and escapes as letters at any time."""
    assert screen.cursor_shown
    assert r"\x1b" not in screen.sent.decode()


def plan(folder: Path, width: int, environment: Mapping[str, str]) -> dict[str, Shots]:
    """Plan the same sweep."""
    write_trainer(folder)
    words = ("plan", *SWEEP[1:])
    return {"plan": planned(words, cwd=folder, width=width, **environment)}


def plan_vits(folder: Path, width: int, environment: Mapping[str, str]) -> dict[str, Shots]:
    """Plan a sweep of ViTs, whose speed is measured."""
    words = ("plan", "stem=none,dpn,whiten", "model.arch=mu/4", "data=digits", "train.steps=20")
    words += ("optim.warmup_steps=2", "seeds=2")
    return {"plan-vits": planned(words, cwd=folder, width=width, **environment)}


def planned(words: Sequence[str], **look: Any) -> Shots:
    with Screen(ABLATE, *words, **look) as planning:
        start = planning.wait_for(lambda lines: lines != [""])
        end = planning.end()
    check_left(planning)
    return {"start": start[:1], "end": end}


def golden(command: str, width: int, environment: Mapping[str, str]) -> Path:
    """The file of a screen: without colours what is left of a bar is not drawn."""
    kind = "plain" if "NO_COLOR" in environment else "colour"
    return GOLDEN / f"{command}-{width}-{kind}.txt"


def compare(commands: Mapping[str, Shots], width: int, environment: Mapping[str, str]) -> None:
    for command, shots in commands.items():
        assert as_text(shots) == golden(command, width, environment).read_text()


def as_text(shots: Shots) -> str:
    return "".join(
        f"--- {moment}\n" + "\n".join(steady(lines)) + "\n" for moment, lines in shots.items()
    )


QUICK = [(80, COLOUR), (120, PLAIN)]
LONGER = [(80, PLAIN), (120, COLOUR), (80, {}), (80, {"TERM": "tmux-256color"})]
LOOKS = [*QUICK, *(pytest.param(*look, marks=pytest.mark.slow) for look in LONGER)]


@pytest.mark.parametrize(("width", "environment"), LOOKS)
def test_a_sweep_and_who_watches_it(tmp_path, width, environment):
    compare(sweep_and_watch(tmp_path, width, environment), width, environment)


@pytest.mark.parametrize(("width", "environment"), LOOKS)
def test_a_plan(tmp_path, width, environment):
    compare(plan(tmp_path, width, environment), width, environment)


@pytest.mark.tour
@pytest.mark.parametrize(("width", "environment"), LOOKS)
def test_a_plan_of_vits(tmp_path, width, environment):
    compare(plan_vits(tmp_path, width, environment), width, environment)


@pytest.mark.tour
@pytest.mark.parametrize(("width", "environment"), LOOKS)
def test_the_doctor(tmp_path, width, environment):
    """Its findings are of the machine: they stand in three columns, and long texts wrap there."""
    with Screen(ABLATE, "doctor", cwd=tmp_path, width=width, height=50, **environment) as asking:
        asking.wait_for(lambda lines: any("decoding data=mnist5k" in line for line in lines))
        end = asking.end()
    check_left(asking)
    assert bool(asking.colours) == ("NO_COLOR" not in environment)
    levels = ("ok", "warning", "problem", "...", "")
    assert {line[:9].strip() for line in end} <= {*levels}
    checks = [line[9:19].strip() for line in end if line[:9].strip() in ("ok", "warning")]
    assert checks[:3] == ["versions", "gpu", "cpu"]
    assert checks[-3:] == ["data", "memory", "resume"]
    assert any(line[:19].isspace() and line[19:] for line in end)


def write_golden_screens() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for width, environment in [*QUICK, *LONGER[:2]]:
        for shoot in (sweep_and_watch, plan, plan_vits):
            with tempfile.TemporaryDirectory() as folder:
                for command, shots in shoot(Path(folder), width, environment).items():
                    golden(command, width, environment).write_text(as_text(shots))


if __name__ == "__main__":
    write_golden_screens()
