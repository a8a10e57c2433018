"""`ablate doctor --repair`: what it keeps, what it names, and that a kill at any moment leaves a
store that opens, with the old ledger or with the new. Real processes, real signals."""

import contextlib
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Shell
from support.files import changed_json, flip_digit
from support.looks import reading

from ablate.audit.verify import verify_plan
from ablate.cli import keeping
from ablate.shared.errors import Failure
from ablate.store import repair as repairing
from ablate.store.ledger import Ledger
from ablate.store.repair import Repaired, repair_ledger
from ablate.store.store import Store
from ablate.version import FORMAT

GOLDEN = Path(__file__).parent / "golden"
WORDS = (
    *("sweep", "block.attn=pre,post", "model.depth=1", "model.width=16", "model.heads=2"),
    *("train.steps=4", "train.batch=32", "--as", "fixture", "seeds=3"),
)
LOOK = reading("bx", (7,), "other").event()
Ask = Callable[..., tuple[int, str]]


@pytest.fixture
def store(here) -> Store:
    """Six finished runs, of whose ledger the write-ahead log has a part."""
    return Store(shutil.copytree(GOLDEN / "store", here / "runs"))


def sql(store: Store, *statements: str) -> list[tuple[Any, ...]]:
    """What the last of them finds."""
    with contextlib.closing(sqlite3.connect(store.ledger)) as db, db:
        return [db.execute(statement).fetchall() for statement in statements][-1]


def events(store: Store) -> list[tuple[Any, ...]]:
    return sql(store, "SELECT * FROM event ORDER BY number")


def alone(store: Store) -> Repaired:
    with store.driver.hold():
        return repair_ledger(store)


def checked(store: Store) -> tuple[list[str], list[str]]:
    with Ledger.reading(store) as ledger:
        plan = ledger.sealed_plan(store, "fixture")
        assert plan is not None
        found = verify_plan(plan, store, ledger)
    return found.findings, found.notes


# --- What is kept -------------------------------------------------------------------------------


def test_of_a_whole_ledger_everything_is_kept(store):
    store.add_look(LOOK)
    before = events(store)
    rows = "UPDATE run SET status = 'planned'", "UPDATE planned SET position = position + 7"
    sql(store, *rows, "DELETE FROM sweep")
    done = alone(store)
    assert events(store) == before
    assert (done.events, done.lines) == (len(before), [])
    with contextlib.closing(sqlite3.connect(done.backup)) as old:
        assert old.execute("SELECT count(*) FROM sweep").fetchone() == (0,)
    assert done.backup.name.startswith(f"ledger.db.broken-{time.strftime('%Y-')}")
    assert checked(store)[0] == []
    with Ledger.reading(store) as ledger:
        assert LOOK in ledger.looks()
        assert {state.status for state in ledger.states().values()} == {"finished"}


def test_what_is_in_the_write_ahead_log_alone_is_kept(store):
    """A driver that was killed: SQLite had no time to fold its log into the file."""
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from ablate.store.ledger import Ledger; from ablate.store.store import Store\n"
        "with Ledger.driving(Store(Path('runs'))) as ledger:\n"
        f"    ledger.record({next(iter(store.folders()))!r}, 'interrupted', reason='last words')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    assert b"last words" not in store.ledger.read_bytes()
    assert not alone(store).lines
    assert "last words" in events(store)[-1][4]
    assert not list(store.root.glob("*-wal")) + list(store.root.glob("*-shm"))


@pytest.mark.parametrize("first", ["planning", "finished"])
def test_behind_a_broken_seal_the_files_count_and_looks_are_kept(store, first):
    store.add_look(LOOK)
    store.looks.unlink()  # the file has them, too
    before = events(store)
    broken = next(number for number, _, _, kind, *_ in before if kind == first)
    sql(store, f"UPDATE event SET at = at + 1 WHERE number = {broken}")
    done = alone(store)
    assert events(store)[: broken - 1] == before[: broken - 1]
    assert done.events == broken - 1
    kept = f"{broken - 1} events are" if broken > 1 else "no event is"
    assert done.lines == [
        f"{store.ledger}: event {broken} was changed: {kept} kept",
        *[f"{store.plan_path('fixture')}: taken from its file, since no seal of it could be read"]
        * (first == "planning"),
        "6 results taken from their files, since no hash of them could be read",
    ]
    findings, notes = checked(store)
    assert findings == []
    rebuilt = [note for note in notes if note.startswith("fixture.json: was read from its file")]
    assert len(rebuilt) == (first == "planning")
    assert any(note.startswith("6 of 6 runs were recorded from their files") for note in notes)
    with Ledger.reading(store) as ledger:
        assert LOOK in ledger.looks()
        assert len(ledger.looks()) == sum(kind == "look" for *_, kind, _, _ in before)


def test_events_taken_out_at_the_end_are_said_to_be(store):
    sql(store, f"DELETE FROM event WHERE number > {len(events(store)) - 2}")
    (line, *_) = alone(store).lines
    assert "its last events were removed" in line
    assert checked(store)[0] == []


def test_an_edited_file_is_not_made_true_by_a_repair(store, ask):
    """The ledger is whole: what it says counts."""
    path, run = store.plan_path("fixture"), next(iter(store.folders()))
    flip_digit(store.rundir(run).result, b'"top1": 0.')
    alone(store)
    assert f"{run}/result.json was edited since it was recorded" in ask("table")[1]
    path.write_text(changed_json(path, "title", to="another"))
    assert not alone(store).lines
    code, said = ask("table")
    assert (code, "fixture.json: was edited after it was planned" in said) == (1, True)
    with Ledger.reading(store) as ledger:
        assert len(ledger.planned("fixture")) == 6  # what gc holds against the file
    path.unlink()
    alone(store)
    with Ledger.reading(store) as ledger:
        assert ledger.sweeps() == ["fixture"]


@pytest.mark.parametrize("content", [b"no database, but a text that is long enough" * 99, None])
def test_a_file_that_sqlite_makes_nothing_of_and_a_missing_one(store, content):
    """With a log that was another's: it must not be taken for the new ledger's."""
    log = store.ledger.with_name("ledger.db-wal")
    log.write_bytes(b"of another" * 999)
    store.ledger.unlink() if content is None else store.ledger.write_bytes(content)
    done = alone(store)
    assert done.lines[0].startswith(f"{store.ledger}: can't be read") == bool(content)
    assert done.backup is None or done.backup.read_bytes() == content
    assert not log.exists() or log.read_bytes()[:10] != b"of another"
    assert checked(store)[0] == []


@pytest.mark.parametrize("format", [FORMAT - 1, FORMAT + 1])
def test_other_formats_are_left(store, format):
    sql(store, f"UPDATE meta SET version = {format}")
    before = store.ledger.read_bytes()
    with pytest.raises(Failure, match=f"has format {format}, "):
        alone(store)
    assert store.ledger.read_bytes() == before


# --- Not alone ----------------------------------------------------------------------------------


@pytest.mark.whole
def test_beside_another_repair_or_a_reader_that_stays_it_is_refused(store, monkeypatch):
    first = Shell(store.root.parent).start("doctor", "--repair")
    while store.driver.notes().pid != first.pid:  # the lock is held a moment before
        assert first.poll() is None
    first.send_signal(signal.SIGSTOP)
    if first.poll() is None and store.driver.is_held():
        with pytest.raises(Failure, match=f"process {first.pid} does `ablate doctor --repair`"):
            keeping.doctor(None, None, True, store=store.root)
    first.send_signal(signal.SIGCONT)
    assert first.wait() == 0
    monkeypatch.setattr(repairing, "BUSY_S", 0.1)
    with Ledger.driving(store):  # log and all
        pass
    with Ledger.reading(store) as ledger:
        ledger.states()
        with pytest.raises(Failure, match="another process reads it"):
            alone(store)
    assert alone(store).lines == []


def test_a_look_written_while_the_ledger_is_made_again_is_written_again(store, monkeypatch):
    look, moved = Ledger.look, []

    def raced(ledger: Ledger, *of: Any) -> None:
        look(ledger, *of)
        if not moved:  # into a ledger that was put aside meanwhile
            moved.append(store.ledger.rename(store.root / "aside"))
            shutil.copy(GOLDEN / "store" / "ledger.db", store.ledger)
            with Ledger.driving(store):
                pass

    monkeypatch.setattr(Ledger, "look", raced)
    store.add_look(LOOK)
    with Ledger.reading(store) as ledger:
        assert LOOK in ledger.looks()


# --- Killed -------------------------------------------------------------------------------------

KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from ablate.cli import keeping
from ablate.store.store import Store
import ablate.store.repair

count, last = 0, 0

def operation():
    global count
    count += 1
    if count == last:
        os.kill(os.getpid(), signal.SIGKILL)

def hook(event, of):
    writes = event == "open" and of[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if writes or event in ("os.rename", "os.link", "os.remove", "sqlite3.connect"):
        operation()

fsync = os.fsync
def synced(descriptor):
    operation()
    fsync(descriptor)
    operation()

for last in range(1, 1000):
    place = Path(str(last), "runs")
    shutil.copytree("store", place)
    pid = os.fork()
    if not pid:
        os.fsync = synced
        sys.addaudithook(hook)
        keeping._repair(Store(place))
        os._exit(0)
    if not os.WIFSIGNALED(os.waitpid(pid, 0)[1]):
        break
"""


def broken(store: Store) -> None:
    """Its first page is gone."""
    content = store.ledger.read_bytes()
    store.ledger.write_bytes(bytes(4096) + content[4096:])


@pytest.mark.faults
@pytest.mark.parametrize(
    "damage", [pytest.param(None, marks=pytest.mark.slow), broken], ids=["whole", "broken"]
)
def test_killed_at_each_file_operation_the_store_opens(store, tmp_path, ask, monkeypatch, damage):
    table = ask("table", "--format", "tidy")[1]
    place = tmp_path / "killed"
    shutil.copytree(store.root, place / "store")
    if damage is not None:
        damage(Store(place / "store"))
    words = [sys.executable, "-c", KILLED]
    subprocess.run(words, cwd=place, stdout=subprocess.DEVNULL, check=True, timeout=300)
    kills = sorted(int(path.name) for path in place.iterdir() if path.name.isdigit())
    assert len(kills) > 15
    opened = {}
    for kill in kills:
        monkeypatch.chdir(place / f"{kill}")
        own = [p for p in Path("runs").iterdir() if p.is_file() and p.name != "driver.lock"]
        # names without numbers of a process, a time
        left = hash(frozenset((re.sub(r"\d+", "", p.name), p.read_bytes()) for p in own))
        if left not in opened:  # after most operations nothing has changed
            opened[left] = opens(ask, table, damage is None)
    works = [*opened.values()]
    assert works == sorted(works)  # once it is the new ledger it stays the new one
    assert works[-1]
    assert works[0] is (damage is None)
    assert len(works) > 3


def opens(ask: Ask, table: str, whole: bool) -> bool:
    """With every command, or, where the old ledger was not `whole`, with the remedy."""
    store = Store(Path("runs"))
    code, said = ask("table", "--format", "tidy")
    works = code == 0
    assert said == table or not works
    for words in (("status",), ("verify",), WORDS):  # which prints the table
        code, said = ask(*words)
        if works:
            assert code == 0, said
        else:
            assert not whole, said
            assert code in (1, 2), said
            assert "`ablate doctor --repair`" in said
            assert "Traceback" not in said
    alone(store)
    assert checked(store)[0] == []
    return works


@pytest.mark.faults
@pytest.mark.parametrize("kills", [3, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_at_random_moments_the_store_opens(store, tmp_path, ask, monkeypatch, kills):
    table = ask("table", "--format", "tidy")[1]
    with Ledger.driving(store) as ledger:  # so that a repair takes its time
        run = next(iter(ledger.states()))
        times = [(run, "retried", {}), (run, "finished", ledger.last_detail("finished")[run])]
        ledger._db.execute("BEGIN")
        ledger._append(2000 * times)
        ledger._db.execute("COMMIT")
    moment, died = random.Random(kills), 0
    for number in range(10 * kills):  # a few may come too late
        if number >= kills and died > kills // 2:
            break
        place, whole = tmp_path / f"{number}", number % 2 == 0
        kept = Store(shutil.copytree(store.root, place / "runs"))
        if not whole:
            broken(kept)
        repairing = Shell(place).start("doctor", "--repair")
        while repairing.poll() is None and not kept.driver.is_held():
            time.sleep(0.001)
        time.sleep(moment.uniform(0, 0.12))
        repairing.kill()
        died += repairing.wait() == -signal.SIGKILL
        monkeypatch.chdir(place)
        opens(ask, table, whole)
        shutil.rmtree(place)
    assert died > kills // 2
