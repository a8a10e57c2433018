"""Files that a power cut left short. Every reader on its file cut at every byte; the command on
whole run folders with any file cut: it recovers, or trains that run again and says so."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Shell
from support.looks import reading

from ablate.store.store import Store

pytestmark = pytest.mark.faults

WORDS = (
    *("sweep", "block.attn=pre,post", "seeds=2", "model.depth=1", "train.epochs=2"),
    *("launcher.checkpoint_s=0.1", "--as", "cut"),
)
FILES = ("run.json", "env.json", "metrics.jsonl", "result.json", "lock", "log.txt")
BINARY = ("predictions.npy", "weights.safetensors")


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    shell = Shell(tmp_path_factory.mktemp("calm"))
    shell(*WORDS, "launcher=inline")
    return shell


@pytest.fixture
def store(calm, tmp_path):
    return Store(shutil.copytree(calm.folder / "runs", tmp_path / "runs"))


def cut(path: Path, read: Callable[[], Any]) -> list[Any]:
    """What `read` gives for every length that the file may have been left with, whole last."""
    content = path.read_bytes()
    found = []
    step = 1 + len(content) // 2_000  # of a long file not at every byte
    lengths = {*range(0, len(content), step), len(content) - 1, len(content)}
    for length in sorted(lengths, reverse=True):  # writing each anew would wait for the disk
        os.truncate(path, length)
        found.append(read())
    path.write_bytes(content)
    return found[::-1]


def test_json_is_read_whole_or_not_at_all(store):
    folder = store.rundir(next((store.root / "runs").iterdir()).name)
    readers: dict[Path, Callable[[], Any]] = {
        folder.result: folder.read_result,
        folder.lock.path: lambda: folder.lock.notes().tree(),
        store.plan_path("cut"): lambda: store.read_plan("cut"),
    }
    for path, read in readers.items():
        *parts, whole = cut(path, read)
        assert whole
        assert all(part in (None, {}, whole) for part in parts)
        blank = len(path.read_bytes()) - len(path.read_bytes().rstrip())  # at the end
        assert sum(part == whole for part in parts) <= blank

    def spec():
        with contextlib.suppress(ValueError):  # says which file it is; `show` tells people
            return folder.read_spec()
        return None

    *parts, whole = cut(folder.run, spec)
    assert whole["data"]["name"] == "digits"
    assert all(part in (None, whole) for part in parts)


def test_lines_are_read_as_far_as_they_are_whole(store):
    folder = store.rundir(next((store.root / "runs").iterdir()).name)
    events = (reading("bx", n, "cut").event() for n in (2, 3))
    store.looks.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    for path, read in ((folder.metrics, folder.read_metrics), (store.looks, store.looks_view)):
        *parts, whole = cut(path, read)
        assert len(whole) == 2
        assert [len(part) for part in parts] == sorted(len(part) for part in parts)
        assert all(part == whole[: len(part)] for part in parts)


def mangle(store: Store, moment: random.Random) -> set[str]:
    """Cut one file of every run; returns the runs that lose their result by it."""
    lost = set()
    for folder in (store.root / "runs").iterdir():
        path = folder / moment.choice(FILES)
        length = path.stat().st_size
        os.truncate(path, moment.choice([0, 1, length // 2, max(length - 2, 0)]))
        if path.name == "result.json":
            lost.add(folder.name)
    return lost


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 30))]
)
def test_the_same_command_recovers_and_says_which_run_it_trains_again(store, calm, seed):
    shell = Shell(store.root.parent)
    lost = mangle(store, random.Random(seed))
    said = shell(*WORDS, "launcher=inline").out
    assert said.count("finished: ") == len(lost)
    shell(*WORDS, "launcher=inline", "--retry", "damaged")  # other files of finished runs
    for words in (("table", "cut", "--format", "tidy"), ("table", "cut")):
        assert shell(*words).out == calm(*words).out
    assert "4 finished" in shell("status").out


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2, 3))])
def test_a_sweep_cut_in_the_middle_with_torn_files_goes_on(calm, tmp_path, seed):
    """Stopped, then every file of every run cut somewhere: trained on, or from the beginning."""
    moment = random.Random(seed)
    shell = Shell(tmp_path)
    shutil.copytree(calm.folder / "runs" / "cache", tmp_path / "runs" / "cache")
    driver = shell.start(*WORDS)
    while not list(tmp_path.glob("runs/runs/*/checkpoint-*")) and driver.poll() is None:
        pass
    driver.kill()
    driver.wait()
    shell("stop")
    for path in tmp_path.glob("runs/runs/*/*"):
        if path.name not in BINARY and moment.random() < 0.7:
            os.truncate(path, moment.randrange(path.stat().st_size + 1))
    shell(*WORDS, "launcher=inline")
    shell(*WORDS, "launcher=inline", "--retry", "damaged")  # a run may have finished before
    words = ("table", "cut", "--format", "tidy")
    lines, expected = (one(*words).out.splitlines() for one in (shell, calm))
    # Whose code began a run stands in its env.json alone: where that was cut, the table says so.
    told = [line for line in lines if "version of the training code: " not in line]
    assert told == expected
    assert all("unknown+" in line for line in set(lines) - set(told))
