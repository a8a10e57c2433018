"""Seeds are state: a sweep keeps those that it was driven with, until `--replace` gives them up, as
`gc` keeps the runs of its earlier plans. By real commands, with a trainer that takes no time."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import Shell, wait_for
from support.files import write_files

from ablate.planning.expand import plan_from_words as make_plan
from ablate.planning.plan import Plan
from ablate.shared.errors import Failure, UserError
from ablate.store.gc import GarbageCollection
from ablate.store.ledger import Ledger
from ablate.store.repair import repair_ledger
from ablate.store.store import Store

pytestmark = pytest.mark.whole

NOISY = """
def main(settings, run):
    noise = run.rng("noise", int(1000 * settings["lr"])).random()
    run.result(score=settings["lr"] + noise / 10)
"""
YAML = """
name: noisy:main
keys: {lr: 0.1}
metrics: {score: {direction: more}}
fork_safe: true
"""
ROWS = ("a", "b", "c", "d", "e", "f")
BOTH = "`seeds=8` keeps all of these, --replace gives up those that you leave out"


def file_of(rows: str = "".join(ROWS), seeds: str = "seeds: 3") -> str:
    lines = [f"  - {row}: {{trainer.lr: 0.{1 + ROWS.index(row)}}}" for row in rows]
    return "\n".join(["base: {trainer: noisy}", seeds, "variants:", *lines, ""])


def declare(folder: Path, text: str) -> None:
    write_files(folder, noisy_py=NOISY, conf__trainer__noisy_yaml=YAML, sweeps__photos_yaml=text)


@pytest.fixture(scope="module")
def eight(tmp_path_factory) -> Path:
    """A file that says 3, driven at 3, 4, 6 and 8 seeds."""
    shell = Shell(tmp_path_factory.mktemp("eight"))
    declare(shell.folder, file_of())
    several = ((), ("seeds=4",), ("seeds=6",), ("seeds=8",))
    assert [sweep(shell, *words).count("finished: ") for words in several] == [18, 6, 12, 12]
    return shell.folder


@pytest.fixture
def photos(eight, tmp_path, monkeypatch) -> Shell:
    """A copy of it."""
    folder = shutil.copytree(eight, tmp_path / "copy")
    monkeypatch.chdir(folder)
    return Shell(folder)


def sweep(shell: Shell, *words: str) -> str:
    return shell("sweep", "photos", *words, "launcher=inline").out


def seeds_of(shell: Shell, name: str = "photos") -> list[int]:
    return json.loads(shell("plan", name, "--format", "json").out)["seeds"]


def recorded(shell: Shell, name: str = "photos") -> Plan:
    store = Store(shell.folder / "runs")
    with Ledger.reading(store) as ledger:
        plan = ledger.sealed_plan(store, name)
    assert plan is not None
    return plan


def offered(shell: Shell) -> str:
    """What `gc` would remove, without its size; nothing of it goes."""
    before = Store(shell.folder / "runs").folders()
    out = shell("gc", code=2).out
    assert Store(shell.folder / "runs").folders() == before
    return " ".join(out.split()[2:])


def nothing_offered(shell: Shell) -> bool:
    return shell("gc").out == "nothing to remove: a sweep refers to every file\n"


# --- A file -------------------------------------------------------------------------------------


def test_a_sweep_keeps_the_seeds_of_last_time_and_says_so(photos):
    said = sweep(photos)
    assert "finished: " not in said
    assert "note: 8 seeds, as last time; the file says 3\n" in said
    assert "over 8 seeds" in said
    plan = recorded(photos)
    assert (len(list(plan.runs())), plan.seeds) == (48, tuple(range(8)))
    assert plan.words == ("photos", "seeds=8", "launcher=inline")  # which make it again
    assert nothing_offered(photos)
    declare(photos.folder, file_of(seeds=""))
    assert "note: 8 seeds, as last time; the default is 3\n" in sweep(photos)


def test_plan_shows_the_seeds_that_sweep_would_train(photos):
    out = photos("plan", "photos", "--detect", "2").out
    assert "note: 8 seeds, as last time; the file says 3\n" in out
    assert "48 finished runs]" in out
    assert "with the 8 seeds planned" in out
    assert seeds_of(photos) == [*range(8)]
    assert BOTH in photos("plan", "photos", "seeds=3", code=2).err


def test_fewer_seeds_are_refused_in_a_line_that_has_both_ways(photos):
    before = recorded(photos)
    done = photos("sweep", "photos", "seeds=3", code=2)
    assert done.err == f"ablate: seeds=3: photos was driven with seeds=8; {BOTH}\n"
    assert done.out == ""
    assert recorded(photos) == before
    wide = photos("sweep", "photos", "seeds=[0,1,9]", code=2).err
    assert "`seeds=[0,1,2,3,4,5,6,7,9]` keeps all of these" in wide
    assert "finished: " not in sweep(photos, "seeds=[7,6,5,4,3,2,1,0]")  # in any order


def test_replace_alone_gives_up_earlier_plans_and_gc_then_names_them(photos):
    said = sweep(photos, "--replace")
    assert "note: 30 runs of earlier plans are given up: `ablate gc` offers" in said
    assert "as last time" not in said
    assert "finished: " not in said
    assert recorded(photos).seeds == (0, 1, 2)
    assert offered(photos).startswith("30 runs of photos, seeds=8, which --replace gave up: ")
    assert "as last time" not in sweep(photos)
    assert "finished: " not in sweep(photos, "seeds=8")  # nothing went yet
    assert nothing_offered(photos)
    sweep(photos, "seeds=3", "--replace")
    photos("gc", "--yes")
    assert len(list((photos.folder / "runs" / "runs").iterdir())) == 18
    assert nothing_offered(photos)
    assert sweep(photos, "seeds=8").count("finished: ") == 30


def test_rows_that_an_edited_file_lacks_stay_until_replace(photos):
    declare(photos.folder, file_of("abcd"))
    said = sweep(photos)
    assert "note: 16 runs of earlier plans are not in this one; `ablate gc` keeps them" in said
    assert "note: 8 seeds, as last time; the file says 3\n" in said
    assert len(list(recorded(photos).runs())) == 32
    declare(photos.folder, file_of("abc", "seeds: 4"))
    assert "note: 8 runs of earlier plans are not in this one" in sweep(photos)
    assert "not in this one" not in sweep(photos)
    assert nothing_offered(photos)
    declare(photos.folder, file_of("abcd"))
    assert "finished: " not in sweep(photos)
    assert "note: 16 runs of earlier plans are given up" in sweep(photos, "seeds=8", "--replace")
    assert offered(photos).startswith("16 runs of photos, seeds=8, which --replace gave up: ")


def test_a_file_that_says_more_extends_and_one_that_says_others_does_not(photos):
    declare(photos.folder, file_of(seeds="seeds: 9"))
    said = sweep(photos)
    assert said.count("finished: ") == 6
    assert "as last time" not in said
    declare(photos.folder, file_of(seeds="seeds: [3, 5, 7, 11]"))
    assert "note: 9 seeds, as last time; the file says [3,5,7,11]\n" in sweep(photos)
    assert recorded(photos).seeds == tuple(range(9))


def test_a_forgotten_sweep_has_no_earlier_plans(photos):
    declare(photos.folder, file_of("abcd"))
    sweep(photos)
    store = Store(photos.folder / "runs")
    with Ledger.driving(store) as ledger:
        assert len(ledger.earlier("photos").kept_runs) == 16
        ledger.forget("photos")
    store.plan_path("photos").unlink()
    assert "as last time" not in sweep(photos)
    assert recorded(photos).seeds == (0, 1, 2)
    assert offered(photos).startswith("36 runs that no sweep contains: ")


def test_one_that_waited_keeps_what_was_driven_meanwhile(photos):
    sweep(photos, "--replace")
    store = Store(photos.folder / "runs")
    assert store.driver.acquire()
    store.driver.note(pid=1, sweep="photos")
    waiting = photos.start("sweep", "photos", "launcher=inline")
    out = photos.folder / f"{photos.number}.out"
    wait_for(lambda: "drives runs already" in out.read_text())
    eight, _ = make_plan(["photos", "seeds=8"], store=store.root)
    with Ledger.driving(store) as ledger:
        store.write_plan(eight)
        ledger.plan(eight)
    store.driver.release()
    assert "note: 8 seeds, as last time; the file says 3\n" in photos.end(waiting).out
    assert recorded(photos).seeds == tuple(range(8))


# --- Words, lists, other sweeps -----------------------------------------------------------------


def test_a_sweep_of_words_remembers_by_its_name(tmp_path):
    shell = Shell(tmp_path)
    declare(tmp_path, file_of())
    words = ("trainer=noisy", "trainer.lr=0.1,0.2", "launcher=inline")
    assert shell("sweep", *words, "seeds=[3,5,7]").out.count("finished: ") == 6
    said = shell("sweep", *words).out
    assert "note: seeds 3, 5, 7, as last time; the default is 3\n" in said
    assert "finished: " not in said
    refused = shell("sweep", *words, "seeds=[3,9]", code=2).err
    assert refused.startswith("ablate: seeds=[3,9]: lr-0.1-0.2 was driven ")
    assert "with seeds=[3,5,7]; `seeds=[3,5,7,9]` keeps all of these, --replace gives" in refused
    more = shell("sweep", *words, "seeds=[3,5,7,9]").out
    assert more.count("finished: ") == 2
    assert shell("sweep", *words, "--as", "other").out.count("finished: ") == 6
    other = ("trainer=noisy", "trainer.lr=0.2,0.3", "seeds=1", "launcher=inline", "--as", "other")
    assert "another sweep" in shell("sweep", *other, code=2).err
    assert "as last time" not in shell("plan", *other).out  # what another sweep had is not its own
    assert "5 runs of earlier plans are given up" in shell("sweep", *other, "--replace").out
    assert offered(shell).startswith("5 runs of other, seeds=3, which --replace gave up: ")


# --- Looks --------------------------------------------------------------------------------------


def planned(before: Plan | None, text: str, *words: str, **options) -> Plan:
    declare(Path(), text)
    recall = SimpleNamespace(plan=lambda *_: before)
    plan, _ = make_plan(["photos", *words], store=Path("runs"), recall=recall, **options)
    return plan


LOOKED = "until: {looks: [5, 8, 12], margin: 0.5}"
FIXED = file_of(seeds="seeds: 3")


def test_looks_of_last_time_stay_with_their_margin(here):
    before = planned(None, FIXED, until=12, margin=0.5)
    again = planned(before, FIXED)
    assert again.design.seed_counts == (5, 8, 12)
    assert again.analysis == before.analysis
    assert again.words == ("photos", "--until", "12", "--margin", "0.5") == before.words
    assert again.notes[-1] == "looks at 5, 8, 12 seeds, as last time; the file says 3"
    assert planned(before, FIXED, "analysis.margin=0.7").analysis.margin == 0.7
    declared = planned(None, file_of(seeds=LOOKED))
    again = planned(declared, FIXED)
    assert (again.design.seed_counts, again.analysis.margin) == ((5, 8, 12), 0.5)
    assert again.words == ("photos",)  # no --until says what the file did
    assert planned(again, file_of(seeds="until: {looks: [5, 8]}")).design.seed_counts == (5, 8, 12)


@pytest.mark.parametrize(
    ("last", "text", "words", "options"),
    [
        ({"until": 12}, FIXED, (), {"until": 20}),
        ({"until": 12}, FIXED, (), {"until": 7}),  # 5 seeds were given out so far
        ({"until": 12}, FIXED, ("seeds=5",), {}),
        ({"until": 12}, file_of(seeds="seeds: 12"), (), {}),
        ({}, file_of(seeds=LOOKED), (), {}),
        ({}, FIXED, (), {"until": 12}),
    ],
)
def test_looks_that_cover_the_seeds_of_last_time_are_as_they_are(here, last, text, words, options):
    now = planned(planned(None, FIXED, **last), text, *words, **options)
    assert now == planned(None, text, *words, **options)
    assert not any("last time" in note for note in now.notes)


def test_looks_that_could_not_give_out_the_seeds_of_last_time_are_refused(here):
    nine = planned(None, FIXED, "seeds=9")
    with pytest.raises(UserError) as error:
        planned(nine, FIXED, until=8)
    assert str(error.value) == (
        "--until 8: photos was driven with seeds=9; `--until 9` keeps all of these, --replace "
        "gives up those that you leave out"
    )
    assert planned(nine, FIXED, until=9).design.seed_counts == (5, 9)
    kept = planned(nine, file_of(seeds=LOOKED))
    assert (kept.design.seed_counts, kept.seeds) == ((), tuple(range(9)))
    assert kept.notes[-1] == "9 seeds, as last time; the file says looks at 5, 8, 12 seeds"


def test_a_sweep_with_looks_goes_on_with_them_and_never_shrinks_unsaid(tmp_path):
    shell = Shell(tmp_path)
    declare(tmp_path, file_of("abc"))
    first = sweep(shell, "--until", "8", "--margin", "0.001")
    given = [len(cell.ids) for cell in recorded(shell).cells]
    again = sweep(shell)
    assert "note: looks at 5, 8 seeds, as last time; the file says 3\n" in again
    assert "finished: " in first
    assert "finished: " not in again
    assert [len(cell.ids) for cell in recorded(shell).cells] == given
    assert "--margin 0.001" in " ".join(recorded(shell).words)
    sweep(shell, "seeds=10")
    said = sweep(shell, "--until", "12", "--margin", "0.5")  # which is easily decided
    left = 30 - sum(len(cell.ids) for cell in recorded(shell).cells)
    assert left > 0
    assert f"note: {left} runs of earlier plans are not in this one; `ablate gc` keeps" in said
    assert nothing_offered(shell)


# --- Damage -------------------------------------------------------------------------------------


def test_a_plan_that_was_edited_takes_no_run_along(photos):
    """It is no memory; what the ledger has of it stays."""
    path = Store(photos.folder / "runs").plan_path("photos")
    tree = json.loads(path.read_bytes())
    path.write_text(json.dumps({**tree, "seeds": [*range(9)]}))
    assert "note: 30 runs of earlier plans are not in this one" in sweep(photos)
    assert recorded(photos).seeds == (0, 1, 2)
    assert nothing_offered(photos)
    assert "finished: " not in sweep(photos, "seeds=8")


@pytest.mark.parametrize("broken", [False, True])
def test_a_repaired_ledger_knows_the_runs_of_earlier_plans(photos, broken):
    declare(photos.folder, file_of("abcd"))
    sweep(photos)
    store, plan = Store(photos.folder / "runs"), recorded(photos)
    with Ledger.driving(store) as ledger:
        if broken:  # an event before the last: the seals behind it count no more
            query = "UPDATE event SET at = 0 WHERE number = (SELECT max(number) - 20 FROM event)"
            ledger._db.execute(query)
    repair_ledger(store)
    with Ledger.reading(store) as ledger:
        assert len(ledger.earlier("photos").kept_runs) == 16
        assert ledger.sealed_plan(store, "photos") == plan
    assert nothing_offered(photos)


KILLED = """
import os, shutil, signal, sys
from ablate import cli
from ablate.store.ledger import Ledger
from ablate.store.store import Store

count, last, whole, fsync = 0, 0, Ledger.replace, os.fsync

def operation(*of):
    global count
    count += 1
    if count == last:
        os.kill(os.getpid(), signal.SIGKILL)

def hook(event, of):
    writes = event == "open" and of[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if writes or event in ("os.rename", "os.link", "os.remove"):
        operation()

def synced(descriptor):
    operation()
    fsync(descriptor)
    operation()

def killed(_, store, plan):
    global last
    for last in range(1, 1000):
        shutil.copytree(store.root, f"../{last}/runs")
        pid = os.fork()
        if not pid:
            place = Store(store.root.parent / ".." / str(last) / "runs")
            with Ledger.driving(place) as ledger:
                os.fsync = synced
                sys.addaudithook(hook)
                ledger._db.set_trace_callback(operation)
                whole(ledger, place, plan)
            os._exit(0)
        if not os.WIFSIGNALED(os.waitpid(pid, 0)[1]):
            os._exit(0)

Ledger.replace = killed
sys.argv = ["ablate", "sweep", "photos", "--replace", "launcher=inline"]
cli.main()
"""


@pytest.mark.faults
def test_killed_anywhere_in_a_replace_it_is_done_or_it_is_not(eight, tmp_path):
    """Before and after each write of a file, each sync, and each statement to the ledger."""
    whole = shutil.copytree(eight, tmp_path / "whole")
    subprocess.run([sys.executable, "-P", "-c", KILLED], cwd=whole, check=True)
    folders = [path for path in tmp_path.iterdir() if path.name.isdigit()]
    assert len(folders) > 30
    seen: dict[tuple[bytes, str], tuple[int, str]] = {}
    for folder in sorted(folders, key=lambda path: int(path.name)):
        declare(folder, file_of())
        shell, store = Shell(folder), Store(folder / "runs")
        before = len(recorded(shell).seeds)  # its plan is whole, and sealed
        assert len(store.folders()) == 48
        with Ledger.reading(store) as ledger:
            assert ledger.broken_seals() == []
            state = store.plan_path("photos").read_bytes(), repr(ledger.plan_events("photos"))
        if state in seen:
            continue
        seen[state] = before, found_by_gc(store)
        said = sweep(shell)
        assert "finished: " not in said
        assert len(recorded(shell).seeds) == before
        assert ("note: 8 seeds, as last time" in said) == (before == 8)
        if before == 8:
            assert nothing_offered(shell)
        else:
            assert offered(shell).startswith("30 runs of photos, seeds=8, which --replace gave up")
    lacking = "lacks 30 runs that the ledger has"
    assert [*dict.fromkeys(seen.values())] == [(8, "0 runs"), (3, lacking), (3, "30 runs")]


def found_by_gc(store: Store) -> str:
    with Ledger.driving(store) as ledger:
        try:
            return f"{len(GarbageCollection.forgetting(store, ledger, []).rubbish)} runs"
        except Failure as error:
            return " ".join(str(error).split()[1:8])


def test_words_with_commas_cross_a_file_and_extend_its_sweep_as_seeds_do(shell):
    """A file of rows, driven, then asked whether it is robust to another key."""
    declare(shell.folder, file_of("ab", "seeds: 2"))
    write_files(shell.folder, conf__trainer__noisy_yaml=YAML.replace("lr: 0.1", "lr: 0.1, wd: 0.0"))
    crossed = "trainer.wd=0.0,0.5"
    assert sweep(shell).count("finished: ") == 4
    before = {run.id for run in recorded(shell).runs()}
    assert "has trainer.wd=0.0, too" in shell("plan", "photos", "trainer.wd=0.5,1", code=2).err
    assert sweep(shell, crossed).count("finished: ") == 4
    plan = recorded(shell)
    assert [column.heading for column in plan.columns] == ["trainer.wd=0.0", "trainer.wd=0.5"]
    assert before < {run.id for run in plan.runs()}
    said = sweep(shell, "seeds=3")
    assert f"note: {crossed}, as last time\n" in said
    assert said.count("finished: ") == 4
    assert recorded(shell).words == ("photos", "seeds=3", "launcher=inline", crossed)
    assert "finished: " not in sweep(shell)
    fewer = shell("sweep", "photos", "trainer.wd=0.0,1", code=2).err
    assert "photos has trainer.wd=0.5, too; `trainer.wd=0.0,0.5,1` extends it" in fewer
    assert "trainer.wd=0.5" in shell("table", "photos", crossed).out
    more = shell("table", "photos", "trainer.wd=0.0,0.5,1", code=2).err
    assert "`ablate sweep photos trainer.wd=0.0,0.5,1` trains more" in more
    assert "a: sets trainer.lr" in shell("plan", "photos", "trainer.lr=1,2", code=2).err
    other = shell("plan", "photos", "trainer.wd=0.5,1", "--as", "other").out
    assert "sweep: other\n" in other
    sweep(shell, "--replace")
    assert [column.label for column in recorded(shell).columns] == [""]
