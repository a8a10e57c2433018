"""kill -9 of `export` and of `gc` at any moment: the store opens, what is finished is there, a half
export is no bundle, and the same command again does the rest. Real processes, real signals."""

import os
import random
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import contents
from support.commands import Server
from support.stores import NAME, WORDS, leave_run

from ablate.audit import bundle_check
from ablate.audit.bundle import Bundle
from ablate.planning.expand import plan_from_words as make_plan
from ablate.store.ledger import Ledger
from ablate.store.store import Store

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    """Beside a store with two sweeps, of which `other` has runs of its own."""
    server = Server(tmp_path_factory.mktemp("killed"))
    store = Store(server.folder / "whole")
    for name, words in ((NAME, WORDS), ("other", [*WORDS, "optim.lr=0.001,0.1", "seeds=9"])):
        settings = {word.partition("=")[0]: word for word in words}
        plan, _ = make_plan(list(settings.values()), store=store.root, name=name)
        store.write_plan(plan)
        for n, run in enumerate(plan.runs()):
            if not store.rundir(run.id).path.exists():
                leave_run(store, run, 0.8 + 0.01 * (n % 2) + 0.003 * n)
    with Ledger.driving(store):
        pass
    diff = store.root / "diffs" / f"{'a' * 16}.diff"
    diff.parent.mkdir()
    diff.write_text("of nobody")
    os.utime(diff, (1.0, 1.0))
    with server.process:
        yield server


def runs(store: Store, sweep: str) -> dict[str, dict[str, bytes]]:
    """The files of every run of it that has any."""
    folders = {run.id: store.rundir(run.id).path for run in store.read_plan(sweep).runs()}
    return {run: contents(folder) for run, folder in folders.items() if folder.exists()}


def check(store: Store, whole: dict[str, dict[str, bytes]]) -> None:
    """It opens, and all that the sweep has is there and recorded."""
    with Ledger.reading(store) as ledger:
        assert NAME in ledger.sweeps()
        assert ledger.broken_seals() == []
        assert not ledger.lacks_its_end()
        assert whole.keys() <= ledger.seals().keys()
    assert runs(store, NAME) == whole


def kill_exports(server: Server, kills: int) -> None:
    moment = random.Random(kills)
    store = Store(shutil.copytree(server.folder / "whole", server.folder / f"exported-{kills}"))
    before = runs(store, NAME)
    place = server.folder / f"place-{kills}"
    place.mkdir()
    words = ("export", NAME, str(place / "out"), "--store", str(store.root))
    took = server(*words)
    whole, half_and_whole = contents(place / "out"), [0, 0]
    for kill in range(10 * kills):  # a few may all come too early, or too late
        if kill >= kills and min(half_and_whole) > 0:
            break
        if moment.random() < 0.5:
            shutil.rmtree(place / "out", ignore_errors=True)
        server.killed(moment.uniform(0, took), *words)
        check(store, before)
        for left in place.iterdir():
            same = contents(left) == whole
            half_and_whole[same] += 1
            if not same:
                assert bundle_check.check_bundle(Bundle(left)).findings != [], left
                assert left.name != "out"
        if moment.random() < 0.25:
            server(*words)
            assert contents(place / "out") == whole
            assert [path.name for path in place.iterdir()] == ["out"]
    server(*words)
    assert [path.name for path in place.iterdir()] == ["out"]
    assert min(half_and_whole) > 0


def kill_gcs(server: Server, kills: int) -> None:
    moment, middle = random.Random(kills), 0
    whole = Store(server.folder / "whole")
    before, others = runs(whole, NAME), runs(whole, "other")
    own = others.keys() - before.keys()
    root = server.folder / f"collected-{kills}"
    words = ("gc", "other", "--yes", "--store", str(root))
    shutil.copytree(whole.root, root)
    took = server(*words)
    for kill in range(10 * kills):  # a few may all come too late
        if kill >= kills and middle:
            break
        shutil.rmtree(root)
        store = Store(shutil.copytree(whole.root, root))
        seen = moment.choice([None, store.trash / "0", store.trash / "3"])
        server.killed((2 if seen else moment.random()) * took, *words, seen=seen)
        check(store, before)
        left = {run: contents(store.rundir(run).path) for run in own & store.folders()}
        assert all(files == others[run] for run, files in left.items())
        middle += store.trash.exists()
        server(*words)
        check(store, before)
        assert store.folders() == before.keys()
        assert not store.plan_path("other").exists()
        assert not any(store.diffs.iterdir())
        assert not store.trash.exists()
        with Ledger.reading(store) as ledger:
            assert ledger.sweeps() == [NAME]
    assert middle > 0


@pytest.mark.parametrize("kills", [5, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kill", [kill_exports, kill_gcs])
def test_killed_at_any_moment(server: Server, kill: Any, kills: int):
    kill(server, kills)
