"""What every launcher owes the driver, with real workers on tiny runs.

Subclass `LauncherContract`, give `name`, and pytest collects the subclass.
"""

import functools
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ablate.planning.compose import Composer, resolve_run
from ablate.run.rundir import EXIT_TAKEN, FAILED, STOPPED, RunDir
from ablate.running import launchers
from ablate.running.gpus import GpuSet
from ablate.running.launchers import Launcher
from ablate.shared.errors import Failure, UserError
from ablate.shared.files import to_json, write_whole
from ablate.shared.notes import Notes
from ablate.store.store import Store
from ablate.training.attempt import EXIT_STOPPED

TINY = ("model.depth=1", "train.steps=3")
LONG = ("train.steps=null", "train.epochs=5000")


def settings(name: str, **own: Any) -> dict[str, Any]:
    """The launcher group of one who says no more than that."""
    return _composer().launcher({"launcher": name, **{f"launcher.{k}": v for k, v in own.items()}})


@functools.cache
def _composer() -> Composer:
    return Composer(Path("nowhere"))


def until(condition: Callable[[], object], seconds: float = 180.0, pause: float = 0.01) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(pause)


def end(launcher: Launcher, *runs: RunDir) -> list[int]:
    """Poll until the launcher has told of all of `runs`, once each; their exit codes."""
    exits: dict[str, int] = {}
    deadline = time.monotonic() + 180
    while not {run.id for run in runs} <= exits.keys():
        assert time.monotonic() < deadline, f"told of {exits} only"
        told = launcher.poll(0.2)
        assert not told.keys() & exits.keys(), "told twice"
        exits |= told
    return [exits[run.id] for run in runs]


def ended(launcher: Launcher, run: RunDir) -> int:
    """How a worker of the run ends."""
    launcher.start(run, launcher.slots[0])
    return end(launcher, run)[0]


class LauncherContract:
    name: str

    @pytest.fixture(scope="class")
    @classmethod
    def cache(cls, tmp_path_factory) -> Path:
        """One for all launchers: the digits are decoded once."""
        return tmp_path_factory.getbasetemp() / "contract-cache"

    @pytest.fixture(scope="class")
    @classmethod
    def launcher(cls, cache) -> Iterator[Launcher]:
        made = launchers.make_launcher(settings(cls.name), cache)
        yield made
        made.free()

    @pytest.fixture
    def folder(self, tmp_path) -> Callable[..., RunDir]:
        """`folder("seed=1")`: a run's folder with its run.json, as the driver leaves it."""

        def create(*words: str) -> RunDir:
            given = {word.partition("=")[0] for word in words}
            tiny = [word for word in TINY if word.partition("=")[0] not in given]
            tree, run = resolve_run([*tiny, *words], tmp_path / "store")
            return self.prepared(tmp_path / "store", run, tree)

        return create

    def prepared(self, root: Path, run: str, tree: dict[str, Any]) -> RunDir:
        """As the driver leaves a run's folder before its first worker."""
        created = RunDir(root / "runs" / run)
        created.create(tree)
        return created

    def again(self, run: RunDir) -> RunDir:
        """As the driver leaves it before a further worker."""
        run.lock.clear()
        return run

    def test_slots_have_names_of_their_own_and_a_cpu_is_not_tried_out(self, launcher):
        names = [slot.name for slot in launcher.slots]
        assert len(set(names)) == len(names) > 0
        assert {slot.device for slot in launcher.slots} == {"cpu"}
        assert (launcher.unfit(launcher.slots), launcher.devices) == ({}, GpuSet())

    def test_a_poll_without_workers_tells_nothing_and_does_not_hang(self, launcher):
        begun = time.monotonic()
        assert launcher.poll() == launcher.poll(0.05) == {}
        assert time.monotonic() - begun < 5

    def test_a_question_is_answered(self, launcher, cache, tmp_path):
        spec, _ = resolve_run(list(TINY), tmp_path)
        told: list[tuple[int, int]] = []
        question = {"data": spec["data"], "cache": str(tmp_path)}
        answer = launcher.ask("prepare", question, lambda *now: told.append(now))
        assert answer["examples"] == {"train": 1197, "validation": 300, "test": 300}
        assert answer["whole"]
        assert told[-1] == (1797, 1797)
        assert (tmp_path / spec["data"]["fingerprint"] / "test.images.npy").exists()

    def test_a_mistake_and_a_failure_are_told_apart_in_a_line(self, launcher, cache, tmp_path):
        spec, _ = resolve_run([*TINY, "train.batch=1198"], tmp_path)
        question = {
            "specs": {"a": spec},
            "calibrate": [],
            "peaks": [],
            "cache": str(cache),
            "device": "cpu",
        }
        with pytest.raises(UserError, match=r"^train.batch: 1198 is more than the 1197 .*$"):
            launcher.ask("describe", question)
        with pytest.raises(Failure, match=r"^worker nonsense: KeyError: 'nonsense'$"):
            launcher.ask("nonsense", {"more": "than a pipe holds" * 100_000})

    def test_a_worker_trains_its_run_and_its_end_is_told_once(self, launcher, folder):
        run = folder()
        assert not launcher.alive(run)
        assert not launcher.notes(run)
        launcher.stop(run)  # what does not run: nothing
        launcher.stop(run, now=True)
        assert ended(launcher, run) == 0
        result = run.read_result()
        assert (result["status"], result["step"]) == ("finished", 3)
        assert not launcher.alive(run)
        assert launcher.notes(run).slot == launcher.slots[0].name
        launcher.stop(run)
        launcher.stop(run, now=True)
        assert launcher.poll(0.05) == {}

    def test_every_slot_takes_a_worker(self, launcher, folder):
        runs = [folder(f"seed={seed}") for seed, _ in enumerate(launcher.slots)]
        for run, slot in zip(runs, launcher.slots, strict=True):
            launcher.start(run, slot)
        assert set(end(launcher, *runs)) == {0}
        assert all(run.has_result() for run in runs)

    def test_a_run_with_a_result_is_not_trained_again(self, launcher, folder):
        run = folder()
        write_whole(run.result, to_json({"status": "finished"}))
        assert ended(launcher, run) == 0
        assert run.read_result() == {"status": "finished"}
        assert (run.metrics.exists(), run.env.exists()) == (False, False)

    def test_a_folder_that_another_worker_holds_is_left_alone(self, launcher, folder):
        run = folder()
        with (holder := RunDir(run.path).lock).hold():
            holder.note(pid=1, phase="somebody else's")
            assert ended(launcher, run) == EXIT_TAKEN
            assert run.lock.notes() == Notes(pid=1, phase="somebody else's")
            assert not run.has_result()
        assert ended(launcher, self.again(run)) == 0

    def test_a_run_that_raises_says_why_in_its_notes(self, launcher, folder):
        run = folder()
        write_whole(run.run, to_json({"spec": {"from": "another world"}}))
        assert ended(launcher, run) == 1
        notes = launcher.notes(run)
        assert (notes.exit, launcher.alive(run)) == (FAILED, False)
        assert str(notes.error).startswith("UserError: from: expected a key among")


def trains(launcher: Launcher, run: RunDir) -> bool:
    launcher.poll()
    return launcher.alive(run) and (launcher.notes(run).step or 0) > 0


class BesideContract(LauncherContract):
    """Of launchers whose `start` returns at once: their workers go on beside the driver."""

    @pytest.fixture
    def training(self, launcher, folder) -> RunDir:
        """A long run, that a worker trains."""
        run = folder(*LONG)
        launcher.start(run, launcher.slots[0])
        until(lambda: trains(launcher, run))
        return run

    def test_a_stopped_worker_leaves_a_checkpoint_from_which_the_next_goes_on(
        self, launcher, training
    ):
        run = training
        launcher.stop(run)
        assert end(launcher, run) == [EXIT_STOPPED]
        assert not launcher.alive(run)
        assert launcher.notes(run).exit == STOPPED
        assert not run.has_result()
        ((step, _),) = run.checkpoints()
        assert step > 0

        run = self.again(run)
        launcher.start(run, launcher.slots[-1])
        until(lambda: trains(launcher, run))
        # Who did not start it, an adopting driver or a reader, has the store's word for it.
        liveness = Store(run.runs.parent).liveness
        until(lambda: liveness.alive(run))
        until(lambda: (liveness.notes(run).step or 0) >= step)
        # A read during a write may find nothing.
        until(lambda: liveness.notes(run).slot == launcher.slots[-1].name)
        liveness.stop(run)
        assert end(launcher, run) == [EXIT_STOPPED]
        until(lambda: not liveness.alive(run))  # it looks again after a moment
        assert run.checkpoints()[0][0] > step

    def test_a_stop_at_once_after_the_start_ends_the_worker_too(self, launcher, folder):
        run = folder(*LONG)
        launcher.start(run, launcher.slots[0])
        launcher.stop(run)
        assert end(launcher, run)[0] in (EXIT_STOPPED, -signal.SIGTERM)  # it may not listen yet
        assert not launcher.alive(run)

    def test_a_killed_worker_is_gone_and_told_of(self, launcher, training):
        launcher.stop(training, now=True)
        assert end(launcher, training) == [-signal.SIGKILL]
        assert not launcher.alive(training)
        assert launcher.notes(training).exit is None
        assert not training.has_result()
