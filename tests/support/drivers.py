"""Drive small plans with a launcher that starts no process, and a view that shows nothing."""

from __future__ import annotations

from ablate.planning.plan import Plan
from ablate.run.rundir import RunDir, to_json, write_whole
from ablate.running.driver import Drive
from ablate.running.driver_lock import driver_session
from ablate.running.launchers import Slot
from ablate.shared.notes import Notes
from ablate.store.ledger import Ledger
from ablate.store.store import Store
from support.plans import record_plan, small_plan

SETTINGS = {"attempts": 3, "hang_s": 1800, "checkpoint_s": 60}


class Elsewhere:
    """Stands for a launcher with workers on other hosts: each ends its run after `polls` polls."""

    remote = False  # but they write into their runs' own folders

    def __init__(self, polls: int = 2) -> None:
        self.slots = [Slot(f"far:{n}", f"far:{n}", "cpu") for n in range(2)]
        self.polls = polls
        self.started: list[str] = []
        self.stopped: list[tuple[str, bool]] = []
        self.left: dict[str, int] = {}  # of the living: polls until they are done
        self.said: dict[str, Notes] = {}
        self.folders: dict[str, RunDir] = {}

    def alive(self, run: RunDir) -> bool:
        return run.id in self.left

    def notes(self, run: RunDir) -> Notes:
        return self.said.get(run.id, Notes())

    def stop(self, run: RunDir, now: bool = False) -> None:
        self.stopped.append((run.id, now))
        self.left.pop(run.id, None)

    def live(self, run: RunDir, slot: str) -> None:
        self.left[run.id], self.folders[run.id] = self.polls, run
        self.said[run.id] = Notes(slot=slot, phase="train", pid=2**22 + 1)

    def warm(self) -> None:
        pass

    def offer(self, waiting: int, excluded_places) -> tuple[str, ...]:
        return ()

    def start(self, run: RunDir, slot: Slot, settled: object = None) -> None:
        self.started.append(run.id)
        self.live(run, slot.name)

    def poll(self, wait_s: float = 0.0) -> dict[str, int]:
        for run in list(self.left):
            self.left[run] -= 1
            if self.left[run] == 0:
                write_whole(self.folders[run].result, to_json({"status": "finished"}))
                del self.left[run]
        return {run: 0 for run in self.started if run not in self.left}

    def free(self) -> None:
        pass


class Quiet:
    """Stands for the view of a sweep: keeps the lines that it is given, and shows nothing."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def show(self, progress) -> None:
        pass


def driven(store: Store, launcher: Elsewhere, view=None, plan: Plan | None = None, **settings):
    """Drive a plan to its end with this launcher, and return what the driver returns."""
    plan = plan or small_plan()
    with driver_session(store, plan.name, Quiet) as ledger:
        settings = {**SETTINGS, **settings}
        return Drive(plan, store, ledger, launcher, settings, view or Quiet()).run()


def left_behind(store: Store, launcher: Elsewhere) -> Elsewhere:
    """Record a plan of four runs, one of which (`a0`) has a worker whose driver has died."""
    with Ledger.driving(store) as ledger:
        record_plan(store, ledger, small_plan())
        ledger.record("a0", "started", step=0, slot="far:1")
    store.rundir("a0").create({"data": {"fingerprint": "f"}})
    launcher.live(store.rundir("a0"), "far:1")
    store.liveness = launcher
    return launcher
