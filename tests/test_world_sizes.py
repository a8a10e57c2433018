"""How many devices share a run where that is open: by a forecast of the end, and for real."""

import itertools
import json
import random
import re
from types import SimpleNamespace

import pytest
from support.ranks import results_by_run, train_on_ranks

from ablate.planning.expand import plan_from_words as planned
from ablate.running import world_sizes
from ablate.running.launchers import Slot
from ablate.running.preflight import drop_unfit_slots
from ablate.running.work import CellWork
from ablate.running.world_sizes import end, share
from ablate.store.ledger import Ledger
from ablate.store.store import Store

pytestmark = pytest.mark.whole

DAY = 86400.0
WORLDS = (1, 2, 4, 8)


def work(seconds: float, runs: float, column: str = "", above: bool = False, beside_s: float = 0.0):
    cell = SimpleNamespace(row="base" + ".from" * above, column=column)
    return CellWork(cell, runs, seconds=seconds, beside_s=beside_s)


def decided(works, devices=8):
    options = {world_sizes.group_of(each.cell): WORLDS for each in works}
    return share(works, options, devices, 1.0)


PARENT = work(64 * DAY, 1, "L", True)


@pytest.mark.parametrize(
    ("works", "worlds", "ends"),
    [
        # one long parent, and children that take a few hours: by the eight, then one each
        ([PARENT, work(DAY / 4, 12, "L")], {("L", True): 8, ("L", False): 1}, 8.5),
        # as many runs as devices, or many more: nothing is won
        ([work(DAY, 8)], {("", False): 1}, 1),
        ([work(DAY, 800)], {("", False): 1}, 100),
        # three runs: by two each a day and a half; by all of them 1.125
        ([work(3 * DAY, 3)], {("", False): 8}, 9 / 8),
        # a tenth is not worth twice as many
        ([work(DAY, 15)], {("", False): 1}, 2),
        # long and short ones, both few
        ([work(8 * DAY, 1, "L"), work(DAY, 4, "Ti")], {("L", False): 8, ("Ti", False): 2}, 1.5),
        # short runs that would meet for longer than they train
        ([work(6.0, 2, beside_s=5.0)], {("", False): 1}, 6.0 / DAY),
        # what is left of short trials is a part of a training
        ([work(DAY, 2.5)], {("", False): 4}, None),
    ],
)
def test_the_least_number_that_ends_as_soon(works, worlds, ends):
    chosen = decided(works)
    assert ends is None or chosen == worlds
    if ends is not None:
        assert end(works, 8, chosen) == pytest.approx(ends * DAY)


def test_the_longest_runs_are_forecast_first():
    """Else the run of two days would begin when both short ones have ended."""
    assert end([work(DAY, 2, "short"), work(2 * DAY, 1, "long")], 2, {}) == 2 * DAY


def test_a_choice_ends_about_as_soon_as_the_best_of_all_there_are():
    """Against every combination, of three columns with random runs."""
    draw = random.Random(0)
    for _ in range(150):
        works = [
            work(draw.choice([1, 5, 20, 100]) * draw.uniform(0.8, 1.25), draw.randint(1, 9), column)
            for column in "abc"
        ]
        groups = [world_sizes.group_of(each.cell) for each in works]
        combinations = itertools.product(WORLDS, repeat=3)
        best = min(end(works, 8, dict(zip(groups, each, strict=True))) for each in combinations)
        assert end(works, 8, decided(works)) <= world_sizes.NEAR * best


def test_a_micro_batch_that_was_settled_smaller_or_larger_narrows_the_choice(tmp_path):
    words = ["stem=none,dpn", "train.batch=64", "train.micro_batch=auto"]
    cells = planned(words, store=tmp_path)[0].cells
    launcher = SimpleNamespace(worlds=WORLDS)
    for micro, most in {8: 8, 16: 4, 32: 2, 64: 1}.items():
        settled = {(cell.row, cell.column): {"micro_batch": micro} for cell in cells}
        for world in WORLDS:
            found = world_sizes.narrow_worlds({("", False): world}, cells, launcher, settled)
            assert found == {("", False): min(world, most)}


def test_devices_of_a_group_at_work_are_not_tried_before_a_drive():
    """They work, and may have no room for a kernel more."""
    names, tried = ["g0", "g1", "g2", "g3"], []
    slots = [Slot(name, name, "cuda") for name in names]
    for group in (names[:2], names[2:], names):
        name = "+".join(group)
        slots.append(Slot(name, name, "cuda", ranks=len(group), group=group))

    def unfit(slots):
        tried.extend(slot.name for slot in slots)
        return {"g2": "lost", "g2+g3": "lost"}

    launcher = SimpleNamespace(remote=False, slots=slots, unfit=unfit)
    drop_unfit_slots(launcher, {"g0+g1"}, print)
    assert tried == ["g2", "g3", "g2+g3"]
    assert [slot.name for slot in launcher.slots] == ["g0", "g1", "g3", "g0+g1"]


def test_a_sweep_shares_its_long_runs_alone_to_the_same_results(ask, here, monkeypatch):
    """On two cores: both share the long run, and then have a short one each."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(world_sizes, "MEETING_S", 0.0)  # these take seconds
    (here / "three.yaml").write_text(
        "base: {data: digits, recipe: quick, model.depth: 2, train.micro_batch: 16}\n"
        "variants: [{none: {stem: none}}]\nacross: {train.steps: [200, 4, 5]}\n"
    )
    words = str(here / "three.yaml"), "seeds=1"

    def told(command: str, *more: str) -> str:
        code, said = ask(command, *words, "launcher.cores_per_run=auto", *more)
        assert code == 0, said
        return said

    assert re.search("devices of a run: train.steps=200: 2, for .*; others: one\n", told("plan"))
    of = json.loads(told("plan", "--format", "json"))["variants"]
    assert [variant["devices"] for variant in of] == [2, 1, 1]
    assert "trains 2 runs at once: cpu:0, cpu:1" in told("doctor")
    told("sweep", "--quiet", "--yes")
    results = [json.loads(path.read_text()) for path in here.glob("runs/runs/*/result.json")]
    assert {(each["step"], each["ranks"]) for each in results} == {(200, 2), (4, 1), (5, 1)}
    with Ledger.reading(Store(here / "runs")) as ledger:  # for the forecast of another number
        noted = ledger.last_detail("finished")
    assert sorted(each.get("ranks", 1) for each in noted.values()) == [1, 1, 2]
    assert results_by_run(SimpleNamespace(folder=here)) == train_on_ranks(1, here / "alone", *words)
