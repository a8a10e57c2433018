"""The real driver against a simulated cluster: nodes that fail, preempt and time out, by the
thousand. Only the workers are not real; time is drawn, not waited for."""

from __future__ import annotations

import heapq
import itertools
import json
import random
import resource
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import Shell

from ablate.planning.analysis_keys import Analysis
from ablate.planning.cell import Cell, Column, Row
from ablate.planning.plan import Plan
from ablate.run.rundir import EXIT_AWAY, STOPPED, RunDir
from ablate.run.spec import RunSpec
from ablate.running.driver import Drive
from ablate.running.gpus import GpuSet
from ablate.running.launchers import Slot
from ablate.shared.files import to_json
from ablate.shared.notes import Notes
from ablate.store.ledger import Ledger
from ablate.store.store import Store
from ablate.training.attempt import EXIT_STOPPED

H = 3600.0
LIMIT, PREEMPTED, FAILS = 4 * H, 8 * H, 24 * H  # a job's limit; mean times until a node is taken
QUEUE, LOST = 300.0, 60.0  # mean wait for a node; until a dead one is noticed
CHECKPOINT, STARTS = 60.0, 10.0  # between checkpoints; until the first step
MEAN = 2 * H  # of a run
SETTINGS = {"attempts": 3, "hang_s": 1e9, "checkpoint_s": CHECKPOINT}


class Nodes:
    """A launcher without workers: `count` nodes of `gpus`, in its own time. A step is a second."""

    remote, device, devices = True, "cuda", GpuSet()

    def __init__(self, count: int, gpus: int, seed: int) -> None:
        self.draw = random.Random(seed)
        self.most, self.gpus = count * gpus, gpus
        self.now, self.spent = 0.0, 0.0  # its time; our CPU
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.open: dict[str, list[Slot]] = {}  # by pilot
        self.working: dict[str, tuple[RunDir, str, float, int]] = {}  # by attempt
        self.exits: dict[str, int] = {}
        self.lengths: dict[str, float] = {}
        self.useful = self.again = 0.0
        self.fenced = 0
        self.slots: Sequence[Slot] = []
        for node in range(count):
            self.at(self.draw.expovariate(1 / QUEUE), lambda node=node: self.opens(node))

    def at(self, wait: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + wait, next(self.order), what))

    def opens(self, node: int) -> None:
        pilot = f"n{node}-{next(self.order)}"
        slots = [f"gpu:{gpu}" for gpu in range(self.gpus)]
        self.open[pilot] = [Slot(f"{pilot}/{s}", f"n{node}/{s}", "cuda") for s in slots]
        taken = min(LIMIT, self.draw.expovariate(1 / PREEMPTED))
        fails = self.draw.expovariate(1 / FAILS)
        how = self.stops if taken < fails else self.fails
        self.at(min(taken, fails), lambda: how(node, pilot))
        self.slots = [slot for slots in self.open.values() for slot in slots]

    def closes(self, node: int, pilot: str) -> list[str]:
        del self.open[pilot]
        self.slots = [slot for slots in self.open.values() for slot in slots]
        self.at(self.draw.expovariate(1 / QUEUE), lambda: self.opens(node))
        return [a for a, (_, slot, _, _) in self.working.items() if slot.startswith(f"{pilot}/")]

    def stops(self, node: int, pilot: str) -> None:
        """At the limit, or for another's job: with a checkpoint."""
        for attempt in self.closes(node, pilot):
            self.leaves(attempt, EXIT_STOPPED, every=1.0)

    def fails(self, node: int, pilot: str) -> None:
        """It is noticed later; one of three only lost its way to us, and goes on."""
        lives = self.draw.random() < 1 / 3
        for attempt in self.closes(node, pilot):
            folder, _, _, before = self.working[attempt]
            self.leaves(attempt, EXIT_AWAY, every=CHECKPOINT, noticed=LOST)
            if lives:
                left = self.lengths[folder.id] - before
                self.at(left, lambda folder=folder: self.wakes(folder))

    def wakes(self, folder: RunDir) -> None:
        if folder.path.is_dir():  # it may have been removed with its node's pilot
            self.fenced += RunDir(folder.runs / folder.id).attempt != folder.attempt  # or it counts
            result = {"status": "finished", "left_out": {}, "attempt": folder.attempt}
            folder.result.write_bytes(to_json(result))

    def leaves(self, attempt: str, code: int, every: float, noticed: float = 0.0) -> None:
        folder, _, since, before = self.working.pop(attempt)
        made = max(0.0, self.now - since - STARTS)
        step = before + int(made / every) * int(every)
        self.again += made - (step - before)
        if step > before:
            for _, path in folder.checkpoints():
                path.unlink()
            (folder.path / f"checkpoint-{step}.safetensors").write_bytes(b"")
        if code == EXIT_STOPPED:
            folder.lock.path.write_text(json.dumps({"exit": STOPPED}))
        self.at(noticed, lambda: self.exits.__setitem__(folder.id, code))

    def finishes(self, attempt: str, slot: str) -> None:
        if self.working.get(attempt, (None, ""))[1] != slot:
            return  # it left before
        folder = self.working.pop(attempt)[0]
        self.useful += self.lengths[folder.id]
        result = {"status": "finished", "step": 9, "seconds": 9.0, "left_out": None}
        folder.result.write_bytes(to_json({**result, "attempt": folder.attempt}))
        self.exits[folder.id] = 0

    # --- As the driver sees it ------------------------------------------------------------------

    def offer(self, waiting: int, excluded_places: Collection[str]) -> Sequence[str]:
        return ()

    def start(self, run: RunDir, slot: Slot, settled: object = None) -> None:
        began = time.process_time()
        assert slot in self.open[slot.name.partition("/")[0]]
        assert slot.name not in {used for _, used, _, _ in self.working.values()}
        length = self.lengths.setdefault(run.id, self.draw.expovariate(1 / MEAN) + 60)
        before = run.newest_step()
        attempt = str(run.attempt)
        self.working[attempt] = run, slot.name, self.now, before
        self.at(STARTS + length - before, lambda: self.finishes(attempt, slot.name))
        self.spent += time.process_time() - began

    def poll(self, wait_s: float = 0.0) -> Mapping[str, int]:
        """All that happens in a minute, the next in which something does."""
        began = time.process_time()
        until = self.events[0][0] + 60
        while self.events and self.events[0][0] <= until:
            self.now, _, what = heapq.heappop(self.events)
            what()
        exits, self.exits = self.exits, {}
        self.spent += time.process_time() - began
        return exits

    def alive(self, run: RunDir) -> bool:
        return run.attempt in self.working

    def notes(self, run: RunDir) -> Notes:
        found = self.working.get(str(run.attempt))
        if found is None:
            return run.lock.notes()
        return Notes(slot=found[1], step=int(self.now), total=9**9)


class Half:
    """A view that looks at the store once, when half of the runs are done."""

    def __init__(self, look: Callable[[], None]) -> None:
        self.look: Callable[[], None] | None = look
        self.polls = 0

    def say(self, text: str) -> None:
        pass

    def show(self, progress: Any) -> None:
        self.polls += 1
        if self.look is not None and progress.ended_count > progress.total / 2:
            look, self.look = self.look, None
            look()


def large_plan(runs: int) -> Plan:
    rows = [f"r{n}" for n in range(runs // 10)]
    seeds = tuple(range(10))
    names = iter(f"{n:016x}" for n in range(runs))
    spec = RunSpec.of({"data": {"classes": 10, "fingerprint": "f"}})
    cells = tuple(Cell(row, "", spec, {seed: next(names) for seed in seeds}) for row in rows)
    shown = tuple(Row(row, {}) for row in rows)
    return Plan("p", "t", shown, (Column("", {}),), cells, "r0", seeds, analysis=Analysis())


def pilots(store: Store, nodes: Nodes) -> None:
    """What real pilots would have written by now."""
    for pilot, slots in nodes.open.items():
        folder = store.pilots / pilot
        folder.mkdir(parents=True)
        runs = {a: used for a, (_, used, _, _) in nodes.working.items()}
        own = {a: used for a, used in runs.items() if used in {slot.name for slot in slots}}
        notes = {a: {"slot": used, "phase": "train", "step": 1} for a, used in own.items()}
        (folder / "orders.json").write_text(json.dumps({"runs": own}))
        (folder / "beat.json").write_text(json.dumps({"beat": 1, "runs": notes, "ended": {}}))


def simulate(folder: Path, runs: int, count: int, looks: bool = True, seed: int = 0) -> dict:
    """`looks`: `ablate status` is typed when half of the runs are done."""
    store, nodes, plan = Store(folder / "runs"), Nodes(count, 4, seed), large_plan(runs)
    told: dict[str, float] = {}
    paused = 0.0

    def look() -> None:
        nonlocal paused
        cpu = time.process_time()
        pilots(store, nodes)
        before = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
        out = Shell(folder).process("status", "p").out
        told["status_s"] = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - before
        told["shown"] = out.count("running: ")
        told["working"] = len(nodes.working)
        paused += time.process_time() - cpu

    view = Half(look if looks else lambda: None)
    with Ledger.driving(store) as ledger:
        began = time.process_time()
        outcome = Drive(plan, store, ledger, nodes, SETTINGS, view).run()
        cpu = time.process_time() - began - nodes.spent - paused
        assert outcome.progress.counts == {"finished": runs}
        starts = 0
        for run in plan.runs():
            events, rundir = ledger.events(run.id), store.rundir(run.id)
            assert sum(kind == "finished" for _, kind, _ in events) == 1
            started = [detail["attempt"] for _, kind, detail in events if kind == "started"]
            starts += len(started)
            assert rundir.read_result()["attempt"] == f"{started[-1]}/{run.id}"
            assert not rundir.path.is_symlink()
    again, hours = nodes.again / nodes.useful, nodes.now / H
    told |= {"cpu_ms": 1e3 * cpu / runs, "again": again, "starts": starts / runs}
    return told | {"fenced": nodes.fenced, "polls": view.polls, "hours": hours}


def test_a_sweep_over_nodes_that_come_and_go(tmp_path):
    told = simulate(tmp_path, runs=100, count=5, looks=False, seed=3)
    assert told["fenced"] > 0
    assert told["starts"] > 1.05
    assert told["again"] < 0.03


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_runs_on_two_hundred_nodes():
    with tempfile.TemporaryDirectory() as folder:
        told = simulate(Path(folder), runs=10_000, count=200)
    print({name: round(value, 4) for name, value in told.items()})
    assert told["fenced"] > 10
    assert told["cpu_ms"] <= 3
    assert told["again"] < 0.03
    assert told["shown"] == told["working"] > 500
    assert told["status_s"] <= 1
