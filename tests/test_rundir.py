"""Whole writes, locks that the kernel frees, checkpoints and metrics that survive a torn file."""

import hashlib
import itertools
import json
import os
import subprocess
import sys
import time

import pytest

from ablate.run.rundir import Metrics, RunDir
from ablate.shared.files import Lock, write_whole
from ablate.shared.notes import Notes


def test_a_reader_never_sees_half_of_a_write(tmp_path):
    path = tmp_path / "result.json"
    a, b = b"a" * 200_000, b"b" * 300_000
    write_whole(path, a)
    code = (
        "import sys, pathlib; from ablate.shared.files import write_whole\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "while True:\n"
        "    write_whole(path, b'a' * 200_000); write_whole(path, b'b' * 300_000)\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, str(path)])
    try:
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            assert path.read_bytes() in (a, b)
    finally:
        writer.kill()
        writer.wait()
    assert path.read_bytes() in (a, b)


def test_a_failed_write_leaves_what_was_there_and_no_litter(tmp_path):
    path = tmp_path / "result.json"
    write_whole(path, b"old")
    with pytest.raises(TypeError):
        write_whole(path, "not bytes")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["result.json"]


HOLD = """
import sys, time, pathlib
from ablate.shared.files import Lock
lock = Lock(pathlib.Path(sys.argv[1]))
assert lock.acquire()
lock.note(pid=1, phase="held")
print("held", flush=True)
time.sleep(60)
"""


def test_a_lock_is_held_while_its_process_lives_and_no_longer(tmp_path):
    lock = Lock(tmp_path / "lock")
    assert not lock.is_held()
    words = [sys.executable, "-c", HOLD, str(lock.path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        assert lock.is_held()
        assert not lock.acquire(wait_s=0.05)
        assert lock.notes() == Notes(pid=1, phase="held")
        holder.kill()
    assert not lock.is_held()
    assert lock.notes().phase == "held"  # last words stay, until the next holder's
    lock.clear()
    assert not lock.notes()
    assert lock.acquire()
    lock.release()
    lock.path.write_bytes(b'{"pid": 12')  # torn notes are none
    assert not lock.notes()


def test_notes_are_whole_after_each_write_also_shorter_ones(tmp_path, monkeypatch):
    """Whoever reads between two writes of a holder finds them."""
    lock, pwrite, seen = Lock(tmp_path / "lock"), os.pwrite, []
    monkeypatch.setattr(os, "pwrite", lambda *what: pwrite(*what) and seen.append(lock.notes()))
    phases = ("data", "validation", "train")
    with lock.hold():
        for phase in phases:
            lock.note(phase=phase)
    assert seen == [Notes(phase=phase) for phase in phases]


def test_two_checkpoints_are_kept_newest_first(tmp_path):
    run = RunDir(tmp_path)
    for before, step in itertools.pairwise((0, 5, 90, 200)):
        run.write_checkpoint(step, before, b"x")
    assert [step for step, _ in run.checkpoints()] == [200, 90]
    run.write_checkpoint(250, 90, b"x")  # gone on from 90, since that of 200 was damaged
    assert [step for step, _ in run.checkpoints()] == [250, 90]
    run.write_checkpoint(50, 0, b"x")  # from the start, since both were
    assert [step for step, _ in run.checkpoints()] == [50]
    run.drop_checkpoints()
    assert run.checkpoints() == []


def test_a_torn_last_line_of_metrics_is_left_out_and_rewinding_drops_what_comes_again(tmp_path):
    run = RunDir(tmp_path)
    metrics = Metrics(run.metrics)
    for step in (1, 2, 3):
        metrics.append({"step": step})
    with open(run.metrics, "ab") as file:
        file.write(b'{"step": 4, "lo')
    assert [line["step"] for line in run.read_metrics()] == [1, 2, 3]
    metrics.rewind(2)
    assert run.metrics.read_bytes() == b'{"step": 1}\n{"step": 2}\n'


def test_metrics_that_rot_while_they_are_written_are_sealed_as_they_were_written(tmp_path):
    run = RunDir(tmp_path)
    metrics = Metrics(run.metrics)
    metrics.append({"step": 1, "loss": 0.5})
    run.metrics.write_bytes(b'{"step": 1, "loss": 0.4}\n')
    metrics.append({"step": 2, "loss": 0.25})
    whole = b'{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.25}\n'
    assert metrics.seal() == {"bytes": len(whole), "sha256": hashlib.sha256(whole).hexdigest()}
    assert run.metrics.read_bytes() == whole
    run.metrics.unlink()
    metrics.seal()
    assert run.metrics.read_bytes() == whole


def test_every_truncation_of_the_files_is_read_as_missing_never_as_something_else(tmp_path):
    run = RunDir(tmp_path / "abc")
    run.create({"seed": 1})
    whole = run.run.read_bytes()
    for length in range(len(whole) - 1):
        run.run.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"run\.json"):
            run.read_spec()
    run.create({"seed": 1})  # what was torn is written again
    assert run.read_spec() == {"seed": 1}
    result = json.dumps({"status": "finished", "n": [1, 2]}).encode()
    for length in range(len(result)):
        run.result.write_bytes(result[:length])
        assert run.read_result() is None
    run.result.write_bytes(result)
    assert run.read_result()["status"] == "finished"


def test_a_word_that_notes_do_not_declare_cannot_be_written_nor_read(tmp_path):
    lock = Lock(tmp_path / "lock")
    with lock.hold():
        lock.note(beat=3, images=4, batches=5, from_at=1.5)
        assert lock.notes() == Notes(beat=3, images=4, batches=5, from_at=1.5)
        with pytest.raises(TypeError, match="heartbeat"):
            lock.note(heartbeat=1)
        with pytest.raises(TypeError, match="beat: 'x' is no int"):
            lock.note(beat="x")
        with pytest.raises(TypeError, match="step: True is no int"):
            lock.note(step=True)
    lock.path.write_text('{"pid": "1", "step": 2, "beat": true, "from_at": NaN, "other": 1}')
    assert lock.notes() == Notes(step=2)
