"""Folders of attempts off the driver's host: at every moment the run has one folder, and what the
ledger names last is what it has, whenever the driver dies."""

import contextlib
import dataclasses
import os
import shutil
import time
from pathlib import Path
from sqlite3 import OperationalError
from threading import Thread

import pytest
from support.plans import small_plan

from ablate.planning.plan import Plan
from ablate.run.rundir import RunDir
from ablate.run.spec import RunSpec
from ablate.running import attempts, driver_lock
from ablate.running.board import Folders
from ablate.running.driver_lock import hold_driver_lock
from ablate.shared.errors import Failure, TryAgain
from ablate.store.gc import GarbageCollection, KeptSweeps, Rubbish
from ablate.store.ledger import Ledger, Unrecorded, journal_mode, transaction
from ablate.store.pilots import PilotDir, Pilots, put
from ablate.store.progress import Driver, driver_of
from ablate.store.store import Store

RUN, OTHER = "a" * 16, "b" * 16  # OTHER: no run of the plan


def plan() -> Plan:
    plan = small_plan()
    cell = dataclasses.replace(
        plan.cells[0], ids={0: RUN}, spec=RunSpec.of({"data": {"fingerprint": "f"}})
    )
    return dataclasses.replace(plan, cells=(cell,))


@pytest.fixture
def ledger(store):
    with Ledger.driving(store) as opened:
        opened.plan(plan())
        yield opened


def start(store: Store, ledger: Ledger, folders: Folders) -> RunDir:
    folder, attempt = folders.begin(RUN)
    folder.create({})
    ledger.record(RUN, "started", step=folder.newest_step(), slot="s", **attempt)
    folders.note_begun(RUN, **attempt)
    return folder


def work(folder: RunDir, step: int) -> None:
    """As a worker that has come so far and writes as workers do: whole files, appended ones."""
    folder.write_checkpoint(step, 0, f"state {step}".encode())
    with open(folder.log, "a") as log:
        log.write(f"{step}\n")


def loaded(store: Store, ledger: Ledger, remote: bool = True) -> Folders:
    """As the next driver finds them."""
    folders = Folders(store, ledger, remote)
    folders.add([RUN])
    return folders


def test_each_attempt_goes_on_from_the_one_before_and_the_last_is_the_run(store, ledger):
    first = start(store, ledger, folders := loaded(store, ledger))
    work(first, 5)
    second = start(store, ledger, folders)
    assert (first.attempt, second.attempt) == (f"1/{RUN}", f"2/{RUN}")
    assert second.newest_step() == 5
    work(first, 7)  # it was given up, and is not dead
    work(second, 6)
    run = store.rundir(RUN)
    assert (run.newest_step(), run.log.read_text(), run.attempt) == (6, "5\n6\n", f"2/{RUN}")
    assert second.of_parent("b0").path == store.rundir("b0").path

    second.result.write_text("{}")
    attempts.publish(store, RUN)
    assert store.rundir(RUN).attempt is None
    assert store.rundir(RUN).has_result()
    work(first, 9)
    first.result.write_text("another")
    assert store.rundir(RUN).result.read_text() == "{}"
    attempts.publish(store, RUN)  # again: nothing
    loaded(store, ledger)
    assert store.rundir(RUN).result.read_text() == "{}"


def test_an_attempt_that_told_its_end_is_removed_once_another_has_gone_on(store, ledger):
    first = start(store, ledger, folders := loaded(store, ledger))
    work(first, 5)
    folders.ended(store.rundir(RUN))
    second = start(store, ledger, folders)
    assert not first.path.exists()
    assert second.newest_step() == 5
    third = start(store, ledger, folders)
    assert second.path.exists()  # nobody knows whether it ended
    assert third.newest_step() == 5


def test_a_run_goes_from_here_to_a_cluster_and_back(store, ledger):
    here = start(store, ledger, loaded(store, ledger, remote=False))
    assert (here.path, here.attempt) == (store.rundir(RUN).path, None)
    work(here, 3)
    away = start(store, ledger, loaded(store, ledger))
    assert (away.attempt, away.newest_step()) == (f"2/{RUN}", 3)
    work(away, 4)
    back = start(store, ledger, loaded(store, ledger, remote=False))
    assert (back.attempt, back.newest_step()) == (None, 4)
    assert away.lock.path.parent != back.path
    work(away, 8)
    assert store.rundir(RUN).newest_step() == 4
    assert start(store, ledger, loaded(store, ledger)).attempt == f"4/{RUN}"


def collected(store: Store, ledger: Ledger) -> list[Rubbish]:
    """What `ablate gc` finds and removes, long after."""
    for folder in store.attempts.glob("*/*"):
        os.utime(folder, (0, 0))
    collection = GarbageCollection(store, ledger, KeptSweeps([plan()], {}))
    collection.remove()
    return collection.rubbish


class Crash(BaseException):
    pass


def crashing(monkeypatch, after: int) -> None:
    """The driver dies before its change number `after` of the store's names."""
    done: list[str] = []

    def dying(real):
        def call(*args, **more):
            if len(done) == after:
                raise Crash
            done.append(real)
            return real(*args, **more)

        return call

    for name in ("rename", "replace", "symlink", "unlink", "mkdir", "link"):
        monkeypatch.setattr(os, name, dying(getattr(os, name)))


@pytest.mark.parametrize("after", range(14))
@pytest.mark.parametrize("what", ["publish", "from here", "next", "back"])
def test_whenever_a_driver_dies_the_next_has_what_the_ledger_names(
    store, ledger, monkeypatch, what, after
):
    remote, published = what != "back", what == "publish"
    before = start(store, ledger, loaded(store, ledger, remote=what != "from here"))
    work(before, 5)
    if published:
        before.result.write_text("{}")
    with monkeypatch.context() as patch, contextlib.suppress(Crash):
        crashing(patch, after)
        folders = loaded(store, ledger, remote)
        attempts.publish(store, RUN) if published else start(store, ledger, folders)
    collected(store, ledger)
    folders = loaded(store, ledger, remote)
    assert store.rundir(RUN).has_result() is published
    assert store.rundir(RUN).newest_step() == 5
    if published:
        attempts.publish(store, RUN)
        assert store.rundir(RUN).has_result()
        assert store.rundir(RUN).attempt is None
    else:
        assert start(store, ledger, folders).newest_step() == 5
        assert store.rundir(RUN).newest_step() == 5


def test_what_was_prepared_for_a_start_that_the_ledger_does_not_have_is_made_again(store, ledger):
    first = start(store, ledger, folders := loaded(store, ledger))
    stray, _ = folders.begin(RUN)
    work(stray, 99)
    work(first, 5)
    folders = loaded(store, ledger)
    assert store.rundir(RUN).newest_step() == 5
    again = start(store, ledger, folders)
    assert (again.newest_step(), again.attempt) == (5, f"3/{RUN}")
    store.root.joinpath("ledger.db").unlink()  # its numbers are lost, and not given again
    with Ledger.driving(store) as new:
        new.plan(plan())
        assert start(store, new, loaded(store, new)).attempt == f"4/{RUN}"


def test_a_store_may_be_called_attempts(tmp_path):
    store = Store(tmp_path / "attempts")
    here, away = store.rundir(RUN), attempts.attempt_folder(store, RUN, 3)
    assert (here.attempt, here.runs) == (None, store.runs)
    assert (away.attempt, away.runs) == (f"3/{RUN}", store.runs)
    with Ledger.driving(store) as ledger:
        ledger.plan(plan())
        work(start(store, ledger, loaded(store, ledger, remote=False)), 3)
        assert start(store, ledger, loaded(store, ledger)).newest_step() == 3


def test_gc_removes_what_a_driver_that_died_left_half_done(store, ledger):
    work(start(store, ledger, loaded(store, ledger)), 5)
    home, link = (store.runs / f".{RUN}.{name}" for name in ("home", "link"))
    home.mkdir()
    link.symlink_to(store.rundir(RUN).path)
    left = [store.pilots / ".p1.gone", store.pilots / "p2"]
    stay = [store.pilots / name for name in ("jobs", "p3", "p4")]
    for folder in (*left, *stay):
        folder.mkdir(parents=True)
    PilotDir(left[0]).write_beat({"runs": {}})
    PilotDir(stay[1]).write_beat({"runs": {}})
    assert [pilot.id for pilot in Pilots(store.pilots).pilots()] == ["p3"]
    for path in (home, link, *left, *stay[:2]):
        os.utime(path, (0, 0), follow_symlinks=False)
    found = collected(store, ledger)
    assert [(item.kind, item.path) for item in found] == [
        ("temporary", path) for path in (home, link, *left)
    ]
    assert all(folder.exists() for folder in stay)
    assert store.rundir(RUN).newest_step() == 5


def test_the_folder_of_a_pilot_goes_at_once(store, monkeypatch):
    """Whoever dies while it is emptied, or writes there, leaves none that looks alive."""
    pilot = PilotDir(store.pilots / "p1")
    pilot.create()
    pilot.write_beat({"runs": {"1/x": {}}})

    def dies(folder: Path, **_: object) -> None:
        with pytest.raises(FileNotFoundError):
            pilot.write_beat({"runs": {"1/x": {}}})
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", dies)
        with pytest.raises(Crash):
            pilot.remove()
    assert [*Pilots(store.pilots).pilots()] == []


def test_links_are_copied_where_there_are_none(store, ledger, monkeypatch):
    def fail(*_):
        raise PermissionError

    first = start(store, ledger, folders := loaded(store, ledger))
    work(first, 5)
    monkeypatch.setattr(os, "link", fail)
    second = start(store, ledger, folders)
    assert second.checkpoints()[0][1].read_bytes() == b"state 5"
    shutil.rmtree(first.path)
    assert second.newest_step() == 5


PROGRAM = {"data": {"fingerprint": "f"}, "code": {"program": {}}, "trainer": {}}


def test_what_a_program_wrote_is_carried_along_wherever_it_went_on(store):
    """After a change of machine it writes into `scratch.1`; the third attempt has that, too."""
    first, _ = attempts.fork(store, RUN, 1)
    first.create(PROGRAM)
    for name in ("scratch", "scratch.1"):
        (first.path / name).mkdir()
        (first.path / name / "state").write_text(name)
    os.mkfifo(first.path / "scratch.1" / "pipe")
    attempts.appoint(store, RUN, 1)
    second, number = attempts.fork(store, RUN, 2)
    assert {path.parent.name: path.read_text() for path in second.path.glob("*/state")} == {
        "scratch": "scratch",
        "scratch.1": "scratch.1",
    }
    attempts.appoint(store, RUN, number)
    attempts.bring_home(store, RUN)
    assert (store.rundir(RUN).path / "scratch.1" / "state").read_text() == "scratch.1"
    assert not (store.rundir(RUN).path / "scratch.1" / "pipe").exists()


def test_a_part_of_what_a_program_wrote_is_not_carried_along(store, monkeypatch):
    def fails(old: str, new: str) -> None:
        raise PermissionError

    first, _ = attempts.fork(store, RUN, 1)
    first.create(PROGRAM)
    first.scratch.mkdir()
    (first.scratch / "state").write_text("whole")
    attempts.appoint(store, RUN, 1)
    monkeypatch.setattr(shutil, "copy2", fails)
    with pytest.raises(PermissionError):
        attempts.fork(store, RUN, 2)
    assert not attempts.attempt_folder(store, RUN, 2).path.exists()


def test_a_store_of_a_group_is_written_by_all_of_it(store):
    """With the umask of a shared folder, 002."""
    store.root.mkdir()
    previous = os.umask(0o002)
    try:
        with hold_driver_lock(store, "gc"), Ledger.driving(store):
            modes = {path.name: path.stat().st_mode & 0o777 for path in store.root.glob("*")}
    finally:
        os.umask(previous)
    assert modes[store.ledger.name] == 0o664
    assert {mode for name, mode in modes.items() if (store.root / name).is_file()} == {0o664}


def test_stop_interrupts_no_command_that_changes_the_store(store):
    store.root.mkdir()
    with hold_driver_lock(store, "merge"), pytest.raises(TryAgain):
        driver_lock.stop_driver(store, None, print)


def test_gc_removes_attempts_that_do_not_count_and_keeps_the_one_that_does(store, ledger):
    folders = [attempts.fork(store, RUN, 1)[0] for _ in range(2)]
    folders.append(attempts.fork(store, OTHER, 1)[0])
    attempts.appoint(store, RUN, 2)
    attempts.appoint(store, OTHER, 1)
    for folder in folders:
        work(folder, 5)
    found = collected(store, ledger)
    assert [(item.kind, item.path) for item in found] == [
        ("attempts", folders[0].path),
        ("attempts", folders[2].path),
        ("runs", store.rundir(OTHER).path),
    ]
    assert store.rundir(RUN).newest_step() == 5
    assert not os.path.lexists(store.rundir(OTHER).path)
    assert GarbageCollection(store, ledger, KeptSweeps([plan()], {})).rubbish == []


def driven_elsewhere(store: Store) -> Path:
    """By another host, whose locks are not seen here; the file of its beat."""
    beat = store.pilots / "driver.json"
    beat.parent.mkdir(parents=True)
    put(beat, {"pid": 1, "host": "another", "beat": 3, "done": False})
    with store.driver.hold():
        store.driver.note(pid=1, host="another", sweep="p")
    return beat


def test_a_driver_on_another_host_is_seen_by_its_beat(store):
    beat = driven_elsewhere(store)
    assert driver_of(store) == Driver(1, "p")
    assert not store.take_turn()
    store.ask_to_stop()
    with store.driver.hold():
        store.driver.note(pid=2, host="another", sweep="p")
        assert not store.asked_to_stop()  # it was for the driver before
        store.ask_to_stop()
        assert store.asked_to_stop()
        assert not store.asked_to_stop()

    os.utime(beat, (0, 0))
    assert driver_of(store) is None
    assert store.take_turn()
    store.driver.release()
    put(beat, {"pid": 1, "host": "another", "beat": 4, "done": True})
    assert driver_of(store) is None


@pytest.fixture
def far(store, ledger, tmp_path) -> Store:
    """What another host sees of the store, in the middle of a driver's transaction: no locks."""
    ledger.rows((str,), "PRAGMA journal_mode = DELETE")
    with transaction(ledger._db) as db:
        db.execute("PRAGMA cache_spill = 1")
        db.execute("PRAGMA cache_size = 1")
        db.execute("UPDATE run SET status = 'half done'")
        db.executemany(
            "INSERT INTO planned VALUES ('x', ?, ?)", ((n, "r" * 500) for n in range(200))
        )
        shutil.copytree(store.root, tmp_path / "far")
    far = Store(tmp_path / "far")
    driven_elsewhere(far)
    return far


def test_who_reads_rolls_no_transaction_of_another_host_back(far, monkeypatch):
    """Its journal looks like a dead writer's where its locks are not seen."""
    journal = far.root / "ledger.db-journal"
    before = journal.read_bytes(), far.ledger.read_bytes()
    monkeypatch.setattr("ablate.store.ledger.PATIENCE_S", 0.1)
    with pytest.raises(Failure, match="another host writes it"), Ledger.reading(far):
        pass
    assert (journal.read_bytes(), far.ledger.read_bytes()) == before
    committed = Thread(target=lambda: time.sleep(0.2) or journal.unlink())
    monkeypatch.setattr("ablate.store.ledger.PATIENCE_S", 20)
    committed.start()
    with Ledger.reading(far) as ledger:
        assert ledger.rows((str,), "PRAGMA journal_mode") == [("delete",)]
        with pytest.raises(OperationalError, match="readonly"):
            ledger._db.execute("DELETE FROM planned")
    committed.join()


def test_nobody_writes_the_ledger_beside_a_driver_of_another_host(far):
    with pytest.raises(Unrecorded, match="another drives the store"):
        far.add_look({"sweep": "p", "at": 1.0, "seeds": [0]})
    with pytest.raises(Failure, match="process 1 drives this store"), hold_driver_lock(far, "gc"):
        pass
    os.utime(far.pilots / "driver.json", (0, 0))
    with hold_driver_lock(far, "gc"):
        pass


def test_stop_from_another_host_ends_workers_of_a_dead_driver(store, ledger, monkeypatch):
    (run,) = plan().runs()
    store.write_plan(plan())
    start(store, ledger, loaded(store, ledger))
    beat, pilot = driven_elsewhere(store), PilotDir(store.pilots / "p1")
    pilot.create()
    pilot.write_orders({"runs": {f"1/{run.id}": "s"}})
    pilot.write_beat({"runs": {f"1/{run.id}": {"step": 3}}})
    asked = []

    def obey(waiting, alive) -> None:
        asked.append([*alive])
        os.utime(beat, (0, 0))
        if pilot.stops():
            pilot.write_beat({"over": True})

    monkeypatch.setattr(driver_lock.Waiting, "on", obey)
    assert driver_lock.stop_driver(store, None, print, timeout_s=20) == "p"
    assert pilot.stops() == {f"1/{run.id}": False}
    assert asked[-1] == [run.label]


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
31 22 0:44 / /home rw,relatime shared:9 - nfs4 server:/home rw,vers=4.2
32 31 0:45 / /home/scratch rw - xfs /dev/sdb rw
33 22 0:46 / /mnt/with\\040space rw - lustre mds@tcp:/x rw,flock
34 22 0:47 / /mnt/bound rw - fuse.bindfs /data rw
35 22 0:48 / /mnt/over rw - tmpfs tmpfs rw
36 35 0:49 / /mnt/over rw - nfs server:/x rw
37 22 0:50 / /mnt/größe rw - nfs server:/y rw
"""


@pytest.mark.parametrize(
    ("mode", "places"),
    [
        ("WAL", "/var/runs,/homely,/home/scratch/runs"),
        ("DELETE", "/home/me/runs,/mnt/with space/x,/mnt/bound/x,/mnt/over/x,/mnt/größe/x"),
    ],
)
def test_the_ledger_has_a_wal_on_this_hosts_own_disks_alone(tmp_path, mode, places):
    (tmp_path / "mounts").write_text(MOUNTS)
    assert {journal_mode(Path(place), tmp_path / "mounts") for place in places.split(",")} == {mode}


def test_where_nobody_tells_of_mounts_it_has_one(tmp_path):
    assert journal_mode(tmp_path, tmp_path / "none") == "WAL"
