"""Where a run came from: what git says, what each attempt noted, which code took part."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import time
from pathlib import Path

import PIL
import pytest
import torch

from ablate.api import training
from ablate.api.training import origin
from ablate.planning.compose import resolve_run
from ablate.run.rundir import RunDir
from ablate.shared import system as questions
from ablate.store.events import result_detail
from ablate.training import worker
from ablate.training.attempt import EXIT_FAILED, EXIT_STOPPED

# --- Where a drive comes from -------------------------------------------------------------------


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=n", "-c", "user.email=n@example.org")
    done = subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, check=True)
    return done.stdout.decode().strip()


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Path:
    """The folder we are in: a repository with one commit, clean."""
    folder = tmp_path / "work"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "notes.txt").write_text("one\n")
    git(folder, "add", "notes.txt")
    git(folder, "commit", "-qm", "first")
    monkeypatch.chdir(folder)
    return folder


def test_a_clean_repository_is_its_commit(repository, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/ablate", "sweep", "a b"])
    (repository / "untracked.txt").write_text("results lie beside the code")
    found = origin(repository / "diffs")
    commit = git(repository, "rev-parse", "HEAD")
    assert found["git"] == {"commit": commit, "dirty": False, "diff": None}
    assert found["command"] == ["ablate", "sweep", "a b"]
    assert (found["folder"], found["host"]) == (str(repository), os.uname().nodename)
    assert not (repository / "diffs").exists()
    json.dumps(found, allow_nan=False)


def test_what_was_not_committed_is_kept_once(repository, tmp_path):
    (repository / "notes.txt").write_text("two\n")
    (repository / "inside").mkdir()
    names = set()
    for folder in (repository, repository / "inside"):
        os.chdir(folder)
        found = origin(tmp_path / "store" / "diffs")["git"]
        assert found["dirty"] is True
        names.add(found["diff"])
    (kept,) = (tmp_path / "store" / "diffs").iterdir()
    assert names == {f"diffs/{kept.name}"}
    assert "-one\n+two\n" in kept.read_text()


def test_a_long_diff_is_cut_and_says_so(repository, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "DIFF_BYTES", 300)
    (repository / "notes.txt").write_text("x" * 1000)
    name = origin(tmp_path / "diffs")["git"]["diff"]
    text = (tmp_path / name).read_text()
    assert 300 < len(text) < 400
    assert text.splitlines()[-1].startswith("# cut: 300 of 1,")


def test_without_a_repository_or_git_or_an_answer_in_time_there_is_none(
    repository, tmp_path, monkeypatch
):
    outside, tools = tmp_path / "outside", tmp_path / "tools"
    outside.mkdir()
    tools.mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.chdir(outside)
    assert origin(tmp_path / "diffs")["git"] is None
    monkeypatch.chdir(repository)
    assert origin(tmp_path / "diffs")["git"] is not None
    monkeypatch.setenv("PATH", str(tools))
    assert origin(tmp_path / "diffs")["git"] is None
    (tools / "git").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    (tools / "git").chmod(0o755)
    monkeypatch.setattr(questions, "GIT_S", 0.3)
    begun = time.monotonic()
    assert origin(tmp_path / "diffs")["git"] is None
    assert time.monotonic() - begun < 10


# --- What attempts note -------------------------------------------------------------------------

COST = ("seconds", "images_per_s", "peak_bytes", "utilisation", "env_sha256")
NOTED = {
    **{"exit": "result", "from_step": 0, "seed": 0, "slot": "cpu:3", "threads": 1, "origin": None},
    **{"device": "cpu", "driver": None, "kernel": "sdpa", "plugins": {}},
}
TINY = ("model.depth=1", "train.steps=6", "train.batch=16")


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def attempt(tmp_path, cache, monkeypatch):
    """`attempt(code="d1", stop_at=2)` works on the run in this process: its exit code.

    `code` stands for the digest of the training code; it stops after `stop_at` more steps, or
    raises at once (-1).
    """

    def go(code: str = "d1", stop_at: int | None = None, name: str = "run", **options) -> int:
        steps = itertools.count(1)
        train = worker.train

        def stopped(run, rundir, machine):
            if stop_at == -1:
                raise RuntimeError("of its own\nand more")
            if stop_at is not None:
                machine = dataclasses.replace(machine, stopping=lambda: next(steps) == stop_at)
            return train(run, rundir, machine)

        tree, _ = resolve_run(list(TINY), tmp_path)
        RunDir(tmp_path / name).create(tree)
        told = {"slot": "cpu:3", "device": "cpu", "threads": 1, "checkpoint_s": 60}
        with monkeypatch.context() as patch:
            patch.setattr(worker, "DIGEST", code)
            patch.setattr(worker, "train", stopped)
            return worker.work(str(tmp_path / name), {**told, "cache": str(cache), **options})

    return go


@pytest.fixture
def rundir(tmp_path) -> RunDir:
    return RunDir(tmp_path / "run")


def digest_of(rundir: RunDir) -> str:
    result = rundir.read_result()
    assert result is not None
    return result["digest"]


def test_an_attempt_notes_where_and_with_what_it_trains(attempt, rundir):
    before, here = time.time(), {"host": "here", "git": None}
    assert attempt(origin=here) == 0
    (noted,) = rundir.read_attempts()
    assert before <= noted["at"] <= noted["ended"] <= time.time()
    packages = noted["packages"]
    assert (packages["torch"], packages["pillow"]) == (torch.__version__, PIL.__version__)
    assert {key: noted[key] for key in noted.keys() & NOTED.keys()} == {**NOTED, "origin": here}
    assert (noted["pid"], noted["host"]) == (os.getpid(), os.uname().nodename)
    assert noted["digest"] == digest_of(rundir) == "d1"
    assert noted["fingerprint"] == rundir.read_spec()["data"]["fingerprint"]
    assert json.loads(rundir.lock.path.read_text())["from_step"] == 0


def test_a_result_says_which_share_of_its_device_the_run_had(attempt, rundir, tmp_path):
    assert attempt(share=0.25) == attempt(name="alone", share=1.0) == 0
    alone = RunDir(tmp_path / "alone")
    details = [result_detail(folder, folder.read_result()) for folder in (rundir, alone)]
    assert [detail.get("share") for detail in details] == [0.25, None]


def test_a_stopped_run_ends_as_the_undisturbed_one_with_the_same_code(attempt, rundir, tmp_path):
    assert attempt(name="calm") == 0
    assert attempt(stop_at=2) == EXIT_STOPPED
    assert attempt(stop_at=1) == EXIT_STOPPED
    assert attempt() == 0
    ends = [(a["from_step"], a["exit"]) for a in rundir.read_attempts()]
    assert ends == [(0, "stopped"), (2, "stopped"), (3, "result")]
    results = [RunDir(tmp_path / name).read_result() for name in ("calm", "run")]
    whole, resumed = ({k: v for k, v in r.items() if k not in COST} for r in results)
    assert whole == resumed
    assert whole["digest"] == "d1"


def test_the_result_says_all_code_that_took_part_and_no_other(attempt, rundir):
    assert attempt("idle", stop_at=-1) == 1  # it leaves no checkpoint
    assert attempt("d1", stop_at=2) == EXIT_STOPPED
    assert attempt("d2", stop_at=1) == EXIT_STOPPED
    newest, older = rundir.checkpoints()
    assert (newest[0], older[0]) == (3, 2)
    newest[1].write_bytes(newest[1].read_bytes()[:-1])  # what d2 did is lost
    assert attempt("d3", stop_at=2) == EXIT_STOPPED
    assert attempt("d1") == 0
    assert [a["from_step"] for a in rundir.read_attempts()] == [0, 0, 2, 2, 4]
    assert digest_of(rundir) == "d1+d3"


def test_a_lost_env_json_is_code_that_nobody_knows(attempt, rundir):
    attempt("d1", stop_at=2)
    rundir.env.write_text('{"attempts": [{"dig')
    assert attempt("d2") == 0
    assert digest_of(rundir) == "unknown+d2"


def test_one_that_fails_says_why(attempt, rundir):
    assert attempt(stop_at=-1) == EXIT_FAILED
    (noted,) = rundir.read_attempts()
    assert (noted["exit"], noted["error"]) == ("failed", "RuntimeError: of its own")
    assert noted["ended"] >= noted["at"]


def test_a_full_disk_changes_nothing_about_how_a_worker_leaves(attempt, rundir, monkeypatch):
    write = RunDir.write_attempts

    def full(self, attempts):
        if "ended" in attempts[-1]:
            raise OSError(28, "No space left on device")
        write(self, attempts)

    monkeypatch.setattr(RunDir, "write_attempts", full)
    assert attempt(stop_at=2) == EXIT_STOPPED
    assert attempt() == 0
    assert [a["from_step"] for a in rundir.read_attempts()] == [0, 2]


def test_torn_at_every_byte_it_is_read_as_nothing(attempt, rundir):
    attempt(stop_at=2)
    attempt()
    for file, read in ((rundir.env, rundir.read_attempts), (rundir.metrics, rundir.read_metrics)):
        whole = file.read_bytes()
        everything = read()
        assert everything
        for length in range(len(whole)):
            file.write_bytes(whole[:length])
            found = read()
            assert found == everything[: len(found)]
        file.unlink()
        assert read() == []
