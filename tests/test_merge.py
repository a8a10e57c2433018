"""`ablate merge`: halves of a sweep, brought together, are the sweep that one store did; nothing is
lost or mixed by conflicts, damage, full disks and kills. Real trainings, processes, signals."""

import errno
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import ABLATE, Shell, contents, wait_for
from support.commands import Server
from support.looks import reading
from support.stores import leave_run

from ablate import audit
from ablate.audit.copies import whole_folder
from ablate.audit.merge import StoreMerge
from ablate.audit.verify import verify_plan
from ablate.planning.design import with_seeds
from ablate.planning.expand import plan_from_words as make_plan
from ablate.planning.unite import unite_plans
from ablate.running import attempts
from ablate.running.board import Folders
from ablate.shared.errors import Failure
from ablate.shared.files import read_sealed, write_sealed
from ablate.store.ledger import Ledger
from ablate.store.store import Store

pytestmark = pytest.mark.whole

TINY = ("model.arch=mu/4", "model.depth=1", "train.steps=4", "launcher=inline", "--as", "tiny")
SWEEP = ("sweep", "optim.lr=0.003,0.01", *TINY)
FORMATS = tuple(("table", "tiny", "--format", format) for format in ("tidy", "md"))
READ = (*FORMATS, ("verify", "tiny"))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Shell:
    """Stores with halves of a sweep, `one` and `two`, with all of it, `all`, and its tables."""
    shell = Shell(tmp_path_factory.mktemp("made"))
    for store, seeds in (("one", "seeds=[0,1]"), ("two", "seeds=[2,3]"), ("all", "seeds=4")):
        shell(*SWEEP, seeds, "--store", store)
    shell("export", "tiny", "handed-on", "--store", "two")
    return shell


@pytest.fixture
def shell(made, tmp_path) -> Shell:
    """With copies of the halves, which share the files of the data."""
    for store in ("one", "two", "handed-on"):
        shutil.copytree(made.folder / store, tmp_path / store)
    return Shell(tmp_path)


@pytest.fixture(scope="module")
def whole(made) -> list[str]:
    return read(made, "all")


OF_LOOKS = ("were also read in sweep", "were also seen in sweep", "had been read")


def but_looks(text: str) -> str:
    """Without the store that commands name, and without the notes on looks: halves were read, each
    at its own n, before they were merged."""
    text = re.sub(r" --store \w+", "", text)
    kept = (line for line in text.splitlines(True) if not any(said in line for said in OF_LOOKS))
    return "".join(kept)


def read(shell: Shell, store: str) -> list[str]:
    """What table and verify print, but of looks."""
    return [but_looks(shell(*words, "--store", store).out) for words in READ]


def ids(store: Path, sweep: str = "tiny") -> list[str]:
    plan = Store(store).read_plan(sweep)
    assert plan is not None
    return list(dict.fromkeys(run.id for run in plan.runs()))


def trained(shell: Shell, *words: str) -> int:
    """How many runs a sweep trained."""
    return shell(*words).out.count("finished: ")


def merge(shell: Shell, *words: str, code: int = 0) -> str:
    """What `ablate merge FROM ... --store TO` says, its last word being TO."""
    done = shell("merge", *words[:-1], "--store", words[-1], code=code)
    return done.out if code == 0 else done.err


# --- Halves --------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one")])
def test_halves_are_the_sweep_that_one_store_did(shell, whole, order):
    into, source = order
    said = merge(shell, source, into)
    assert said == f"{source}: runs: 4 brought\n  sweep 'tiny': has more runs now\n"
    assert read(shell, into) == whole
    again = merge(shell, source, into)
    assert again == f"{source}: runs: 4 here already\n  sweep 'tiny': as it was\n"
    assert trained(shell, *SWEEP, "seeds=4", "--store", into) == 0
    assert trained(shell, *SWEEP, "seeds=5", "--store", into) == 2


def test_halves_by_rows_share_the_baseline_that_both_trained(shell):
    words = ("sweep", *TINY[:-1], "three", "seeds=2", "optim.lr=0.003,0.01,0.03", "--store")
    shell("sweep", "optim.lr=0.003,0.03", *TINY[:-1], "rows", "seeds=2", "--store", "rows")
    assert "runs: 2 brought, 2 here already" in merge(shell, "rows", "one")
    assert [trained(shell, *words, store) for store in ("one", "fresh")] == [0, 6]
    for format in ("tidy", "md"):
        table = ("table", "three", "--format", format, "--store")
        assert but_looks(shell(*table, "one").out) == but_looks(shell(*table, "fresh").out)


def test_a_store_that_is_not_there_is_made(shell, whole):
    before = {store: contents(shell.folder / store / "runs") for store in ("one", "two")}
    said = json.loads(shell("merge", "two", "one", "--store", "new", "--format", "json").out)
    assert [one["brought"] for one in said["sources"]] == [4, 4]
    assert [one["sweeps"] for one in said["sources"]] == [{"tiny": "new"}, {"tiny": "grown"}]
    assert read(shell, "new")[:2] == whole[:2]
    assert {s: contents(shell.folder / s / "runs") for s in before} == before
    shutil.copytree(shell.folder / "one" / "cache", shell.folder / "new" / "cache")
    assert read(shell, "new") == whole
    theirs = {name: content for files in before.values() for name, content in files.items()}
    brought = contents(shell.folder / "new" / "runs")
    assert brought == {name: theirs[name] for name in theirs if not name.endswith("lock")}


def test_a_source_without_its_ledger_is_only_read(shell):
    for file in (shell.folder / "two").glob("ledger.db*"):
        file.unlink()
    before = contents(shell.folder / "two")
    assert "4 brought" in merge(shell, "two", "one")
    assert contents(shell.folder / "two") == before


def test_a_bundle_has_all_but_weights_which_its_store_brings_later(shell, whole):
    merge(shell, "handed-on", "one")
    note = "note: 4 of 8 runs came from a bundle, which has no weights\n"
    assert read(shell, "one") == [*whole[:2], note + whole[2]]
    assert trained(shell, *SWEEP, "seeds=4", "--store", "one", "--retry", "damaged") == 0
    rerun = shell("verify", "--rerun", "lr=0.01#3", "launcher=inline", "--store", "one").out
    assert "weights.safetensors: the same bits" in rerun
    assert "4 here already" in merge(shell, "two", "one")
    assert read(shell, "one") == whole


def test_a_lost_ledger_and_a_killed_merge_leave_it_known_which_runs_a_bundle_had(shell):
    merge(shell, "handed-on", "lost")
    shutil.copytree(shell.folder / "lost" / "runs", shell.folder / "killed" / "runs")
    for file in (shell.folder / "lost").glob("ledger.db*"):
        file.unlink()
    assert "4 brought" in merge(shell, "lost", "next")
    shell(*SWEEP, "seeds=[2,3]", "--store", "killed", "--retry", "damaged")
    assert not list((shell.folder / "killed").rglob("weights.safetensors"))
    for store in ("lost", "next", "killed"):
        notes = json.loads(shell("verify", "tiny", "--format", "json", "--store", store).out)[
            "notes"
        ]
        assert [note for note in notes if note.startswith("4 of 4 ") and "bundle" in note]


def test_runs_that_are_not_finished_are_trained_here(shell, whole):
    lost = ids(shell.folder / "two")[1]
    shutil.rmtree(shell.folder / "two" / "runs" / lost)
    with Ledger.driving(Store(shell.folder / "two")) as ledger:
        ledger.record(lost, "interrupted")
    assert "runs: 3 brought, 1 not finished there" in merge(shell, "two", "one")
    assert trained(shell, *SWEEP, "seeds=4", "--store", "one") == 1
    assert read(shell, "one") == whole


def test_a_half_trained_run_here_gives_way_to_the_finished_one(shell, whole):
    store = Store(shell.folder / "one")
    run = store.rundir(ids(shell.folder / "two")[0])
    run.path.mkdir()
    run.write_checkpoint(2, 0, b"half")
    merge(shell, "two", "one")
    assert not run.checkpoints()
    assert not store.trash.exists()
    assert read(shell, "one") == whole


def test_an_attempt_of_a_cluster_here_gives_way_and_numbers_of_attempts_there_say_nothing(
    shell, whole
):
    store, source = (Store(shell.folder / name) for name in ("one", "two"))
    run = ids(source.root)[0]
    attempt = attempts.attempt_folder(store, run, 1)
    attempt.path.mkdir(parents=True)
    attempt.write_checkpoint(2, 0, b"half")
    attempts.appoint(store, run, 1)
    assert store.rundir(run).path.is_symlink()
    with Ledger.driving(source) as ledger:
        [result] = [detail for _, kind, detail in ledger.events(run) if kind == "finished"]
        ledger.record(run, "started", step=0, attempt=1)
        ledger.record(run, "finished", **result)
    merge(shell, "two", "one")
    assert not store.rundir(run).path.is_symlink()
    assert trained(shell, *SWEEP, "seeds=4", "--store", "one") == 0
    with Ledger.driving(store) as ledger:
        Folders(store, ledger, remote=True).add([run])
    assert not store.rundir(run).path.is_symlink()
    assert read(shell, "one") == whole


def test_a_half_trained_run_goes_on_here_where_it_is_further_and_free(shell):
    words = ("sweep", "optim.lr=0.003,0.01", *TINY[:2], "train.steps=150", "--as", "long")
    words += ("seeds=1", "launcher=inline", "launcher.checkpoint_s=0.1", "--store")
    driver = shell.start(*words, "two")
    there = shell.folder / "two" / "runs"
    wait_for(lambda: list(there.glob("*/checkpoint-*")))
    driver.send_signal(signal.SIGINT)
    assert shell.end(driver).code == 130
    with Store(shell.folder / "two").driver.hold():  # somebody may go on there
        assert "2 not finished there" in merge(shell, "two", "new")
    [run] = {path.parent.name for path in there.glob("*/checkpoint-*")}
    said = "4 here already, 1 half trained, to go on here, 1 not finished there\n"
    assert said in merge(shell, "two", "new")
    new, two = (Store(shell.folder / name).rundir(run) for name in ("new", "two"))
    assert 0 < new.newest_step() == two.newest_step() < 150
    assert "2 not finished there" in merge(shell, "two", "new")
    shutil.copytree(shell.folder / "new", shell.folder / "other")
    other = Store(shell.folder / "other").rundir(run)
    for _, path in other.checkpoints():
        path.rename(path.with_name("checkpoint-1.safetensors"))
    other.metrics.write_text('{"step": 1, "train_loss": 0.5}\n')  # of other bits
    assert "2 not finished there" in merge(shell, "two", "other")
    assert [trained(shell, *words, name) for name in ("new", "two")] == [2, 2]
    assert new.read_attempts()[1]["from_step"] > 0
    assert "runs: 6 here already" in merge(shell, "two", "new")


def test_what_was_decided_for_a_column_comes_along_and_what_is_here_stays(shell):
    for name, decided in (("one", {"a": 1, "b": 2}), ("two", {"b": 3, "c": 4})):
        path = shell.folder / name / "cache" / "settled.json"
        write_sealed(path, {k: {"shapes": [], "micro_batch": n} for k, n in decided.items()})
    merge(shell, "two", "one")
    now = read_sealed(shell.folder / "one" / "cache" / "settled.json") or {}
    assert {k: decided["micro_batch"] for k, decided in now.items()} == {"a": 1, "b": 2, "c": 4}


def test_looks_of_both_count_in_the_order_of_their_times(shell):
    looks = [reading("bx", (seed,), "tiny").event() for seed in range(4)]
    given = ((3, "one", 0), (1, "two", 1), (9, "one", 2), (2, "one", 3), (4, "two", 3))
    for at, store, look in given:
        with Ledger.driving(Store(shell.folder / store)) as ledger:
            ledger.bring({}, {}, [(float(at), looks[look])])
    shutil.copytree(shell.folder / "two", shell.folder / "other")
    for into, source in (("one", "two"), ("other", "one"), ("one", "two")):
        merge(shell, source, into)
        said = (shell.folder / into / "looks.jsonl").read_text().splitlines()
        theirs = [look for look in map(json.loads, said) if look in looks]  # the halves' are more
        assert theirs == [looks[n] for n in (1, 3, 0, 2)]
        assert "nothing wrong" in shell("verify", "tiny", "--store", into).out


TUNED = """
base: {recipe: quick, data: digits, model.arch: mu/4, model.depth: 1, train.steps: 3}
variants: [pre: {}, post: {block.attn: post}]
tune: {space: {optim.lr: {log: [1e-3, 3e-2]}}, trials: 15, sampler: random, at: {train.steps: 2}}
"""


def test_halves_of_a_tuned_sweep_have_the_searches_of_the_whole(tmp_path):
    shell = Shell(tmp_path)
    (tmp_path / "lr.yaml").write_text(TUNED)
    shell("sweep", "lr", "seeds=2", "launcher=inline", "--store", "all")
    for store, seeds in (("one", "seeds=[0]"), ("two", "seeds=[1]")):  # which trains nothing again
        for name in ("runs", "cache"):
            shutil.copytree(tmp_path / "all" / name, tmp_path / store / name)
        shell("sweep", "lr", seeds, "launcher=inline", "--store", store)
        shell("gc", "--yes", "--store", store)
    assert "12 brought\n" in merge(shell, "two", "one")
    plans = [Store(tmp_path / store).read_plan("lr") for store in ("one", "all")]
    assert plans[0].trials == plans[1].trials != ()
    assert plans[0].cells == plans[1].cells
    for command, _, *format in READ:
        words = (command, "lr", *format, "--store")
        assert but_looks(shell(*words, "one").out) == but_looks(shell(*words, "all").out)


# --- What is refused -----------------------------------------------------------------------------


def planted(root: Path, scores: dict[int, float], *words: str, name: str = "planted") -> Store:
    """A store of finished runs, those of a seed with this accuracy."""
    store = Store(root)
    words = (*(words or ("optim.lr=0.001,0.003",)), "recipe=quick", f"seeds={[*scores]}")
    plan, _ = make_plan([word.replace(" ", "") for word in words], store=store.root, name=name)
    for run in plan.runs():
        leave_run(store, run, scores[run.seed])
        folder, weights = store.rundir(run.id), random.Random(run.id).randbytes(300_000)
        folder.weights.write_bytes(weights)
        result = json.loads(folder.result.read_bytes())
        result["weights_sha256"] = hashlib.sha256(weights).hexdigest()
        folder.result.write_text(json.dumps(result))
    store.write_plan(plan)
    store.ledger.unlink(missing_ok=True)
    with Ledger.driving(store):  # made of the folders
        pass
    return store


def but_ledger(store: Store) -> dict[str, bytes]:
    found = contents(store.root)
    return {name: found[name] for name in found if not name.startswith(("ledger", "driver"))}


def test_other_bits_of_a_run_are_named_and_nothing_is_merged(tmp_path, shell):
    one = planted(tmp_path / "here", {0: 0.8, 1: 0.9})
    other = planted(tmp_path / "there", {0: 0.8, 1: 0.7, 2: 0.5})
    before = but_ledger(one)
    run = ids(tmp_path / "here", "planted")[2]
    said = merge(shell, "there", "here", code=1)
    results = [store.rundir(run).result.read_bytes() for store in (one, other)]
    first, second = (hashlib.sha256(result).hexdigest()[:16] for result in results)
    assert f"here/runs/{run} (result.json {first})" in said
    assert f"there/runs/{run} ({second}) differ in test, predictions, metrics" in said
    assert but_ledger(one).items() >= before.items()
    assert "nothing was merged" in merge(shell, "here", "there", "new", code=1)
    assert not (tmp_path / "new" / "runs").exists()
    for run in ids(tmp_path / "here", "planted")[2:]:  # the remedy
        shutil.rmtree(one.rundir(run).path)
    assert "runs: 4 brought, 2 here already" in merge(shell, "there", "here")


def test_the_same_bits_of_another_day_are_the_same_run(tmp_path, shell):
    one, other = (planted(tmp_path / name, {0: 0.8}) for name in ("here", "there"))
    for run in ids(tmp_path / "there", "planted"):
        result = json.loads(other.rundir(run).result.read_bytes())
        other.rundir(run).result.write_text(json.dumps({**result, "seconds": 77.0}))
    other.ledger.unlink()
    before = contents(one.runs)
    assert "runs: 2 here already" in merge(shell, "there", "here")
    assert contents(one.runs) == before


@pytest.mark.parametrize(
    "file", ["predictions.npy", "weights.safetensors", "result.json", "metrics.jsonl"]
)
def test_a_damaged_run_is_named_and_left_out(shell, whole, file):
    run = ids(shell.folder / "two")[2]
    path = shell.folder / "two" / "runs" / run / file
    if file == "metrics.jsonl":  # which can't be read at all
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"\1")
    done = shell("merge", "two", "--store", "one", code=1)
    assert "runs: 3 brought\n" in done.out
    assert re.search(f"^  damaged: {run} .*{re.escape(file)}", done.out, re.M)
    assert "two: has damaged runs, which were not merged" in done.err
    assert not (shell.folder / "one" / "runs" / run).exists()
    assert trained(shell, *SWEEP, "seeds=4", "--store", "one") == 1
    assert read(shell, "one") == whole


def test_a_damaged_run_here_is_named_and_mended(shell, whole):
    shutil.copytree(shell.folder / "one", shell.folder / "three")
    run = ids(shell.folder / "one")[0]
    path = shell.folder / "one" / "runs" / run / "result.json"
    path.write_bytes(path.read_bytes().replace(b"0.", b"1.", 1))
    assert f"{run}/result.json was edited" in merge(shell, "three", "one", code=1)
    shutil.rmtree(path.parent)
    assert "1 brought, 3 here already" in merge(shell, "three", "one")
    merge(shell, "two", "one")
    assert read(shell, "one") == whole


def test_another_sweep_of_that_name_is_named(tmp_path, shell):
    planted(tmp_path / "here", {0: 0.8})
    planted(tmp_path / "there", {0: 0.8}, "optim.lr=0.001,0.01")
    planted(tmp_path / "third", {0: 0.8}, "optim.lr=0.001,0.003", "analysis.margin=1")
    said = "the sweep 'planted' of there is another one (rows: -lr=0.003, +lr=0.01)"
    assert said in merge(shell, "there", "here", code=1)
    assert "(analysis)" in merge(shell, "third", "here", code=1)


def test_where_another_sweep_of_that_name_can_be_renamed(tmp_path, shell):
    """The remedy names a store that has the sweep, and never a bundle."""

    def remedy(*words: str) -> tuple[str, ...]:
        said = merge(shell, *words, code=1)
        return tuple(re.findall(r"drive|import|--contrast|--store \w+|of its own", said))

    planted(tmp_path / "here", {0: 0.8})
    planted(tmp_path / "there", {0: 0.8}, "optim.lr=0.001,0.01")
    assert remedy("there", "here") == ("drive", "--store there")
    shell("export", "tiny", "analysis.alpha=0.2", "odd", "--store", "one")
    assert remedy("odd", "one") == ("--contrast", "drive", "--store one")
    assert remedy("handed-on", "odd", "new") == ("--contrast", "of its own")
    (tmp_path / "sheet.csv").write_text("row,acc\na,0.5\na,0.6\nb,0.7\nb,0.9\n")
    shell("import", "sheet.csv", "--row", "row", "--metric", "acc:more:share", "--store", "sheets")
    shell("export", "sheet", "analysis.alpha=0.2", "of-sheet", "--store", "sheets")
    assert remedy("of-sheet", "sheets") == ("--contrast", "import", "--store sheets")


def test_the_larger_of_two_plans_counts_in_any_order(tmp_path):
    made = (["optim.lr=0.1,0.2,0.3", "seeds=3"], ["optim.lr=0.1,0.3", "seeds=2"])
    whole, part = (make_plan([*w, "recipe=quick"], store=tmp_path, name="x")[0] for w in made)
    assert unite_plans(whole, part) is unite_plans(part, whole) is whole
    words = ["optim.lr=0.1,0.2", "recipe=quick"]
    a, b = (make_plan([*words, f"seeds={s}"], store=tmp_path, name="x")[0] for s in ("3", "[5,2]"))
    both, _ = make_plan([*words, "seeds=[0,1,2,5]"], store=tmp_path, name="x")
    assert unite_plans(a, b).cells == unite_plans(b, a).cells == both.cells
    assert {*unite_plans(a, b).words} == {*unite_plans(b, a).words} == {*both.words}


def test_seeds_that_looks_gave_to_some_cells_are_all_kept_in_any_order(tmp_path):
    """Each of two plans has more seeds of another column; one store drove both to the end."""
    words = ["optim.lr=0.1,0.2", "recipe=quick", "data=digits,mnist5k"]

    def plan(counts, last=8):
        made, _ = make_plan(words, store=tmp_path, name="x", across=["data"], until=last)
        return with_seeds(made, {(c.row, c.column): counts[c.column] for c in made.cells})

    a, b, both = (
        plan(dict(zip(("digits", "mnist5k"), n, strict=True))) for n in ((8, 5), (5, 8), (8, 8))
    )
    assert unite_plans(a, b).cells == unite_plans(b, a).cells == both.cells
    assert {len(cell.ids) for cell in a.cells} == {5, 8}
    assert unite_plans(a, both) == unite_plans(both, a) == both
    with pytest.raises(ValueError, match=r"^until$"):
        unite_plans(a, plan({"digits": 5, "mnist5k": 5}, 12))


def test_what_is_no_source_is_told_in_a_line(shell):
    (shell.folder / "empty").mkdir()
    shell("export", "tiny", "nobody", "--anonymous", "--store", "two")
    for words, said in (
        (("empty", "runs"), "empty: is no store, and no bundle"),
        (("./one", "one"), "is the store itself"),
        (("one", "handed-on"), "is a bundle"),
        (("nobody", "one"), "is anonymous"),
    ):
        assert said in merge(shell, *words, code=2)
    events = shell.folder / "handed-on" / "events.json"
    events.write_text(events.read_text().replace("finished", "diverged"))
    assert "was changed after the export" in merge(shell, "handed-on", "new", code=1)
    with Store(shell.folder / "one").driver.hold():
        assert "drives this store" in merge(shell, "two", "one", code=75)
        assert "runs: 4 brought" in merge(shell, "one", "new")  # it only reads


# --- Broken off ----------------------------------------------------------------------------------


def test_a_full_disk_ends_it_and_the_same_command_goes_on(tmp_path, shell):
    one = planted(tmp_path / "here", {0: 0.8})
    planted(tmp_path / "there", {1: 0.8})

    def little() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}  # half a file of it would stay
    here = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    words = [ABLATE, "merge", "there", "--store", "here"]
    done = subprocess.run(words, preexec_fn=little, check=False, **here)
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert one.folders() == {*ids(tmp_path / "here", "planted")}
    assert "runs: 2 brought" in merge(shell, "there", "here")


def test_a_full_disk_is_named_by_the_store_that_is_written(tmp_path, monkeypatch):
    here, there = (planted(tmp_path / name, {n: 0.8}) for n, name in enumerate(("here", "there")))

    class NoSpace(OSError):
        pass

    def full(*_: object) -> None:
        raise NoSpace(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as writing raises it

    monkeypatch.setattr(audit.merge, "copy_file", full)
    with Ledger.driving(here) as ledger, pytest.raises(NoSpace) as raised:
        StoreMerge.of([there.root]).bring_into(here, ledger)
    assert raised.value.filename == str(here.root)


def test_a_plan_that_a_crash_left_half_recorded_is_a_note(shell):
    store = Store(shell.folder / "one")
    plan = unite_plans(*(Store(shell.folder / name).read_plan("tiny") for name in ("one", "two")))
    with Ledger.driving(store) as ledger:
        ledger.bring({}, {run.id: "tiny" for run in plan.runs()}, [])
        ledger.announce(plan)
        store.write_plan(plan)
    said = shell("verify", "tiny", "--store", "one").out
    assert "note: tiny.json: a crash came when it was written; the same command goes on" in said
    assert "nothing wrong" in said


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Server:
    """Beside two stores that share two runs."""
    server = Server(tmp_path_factory.mktemp("killed"))
    planted(server.folder / "here", {0: 0.8, 1: 0.9})
    planted(server.folder / "there", {1: 0.9, 2: 0.7, 3: 0.85})
    planted(server.folder / "there", {6: 0.6, 7: 0.5}, "stem=none,dpn", name="other")
    with Ledger.driving(Store(server.folder / "there")) as ledger:
        ledger.bring({}, {}, [(5.0, reading("bx", (6,), "other").event())])
        ledger.write_view(Store(server.folder / "there"))
    yield server
    assert server.process.stdin is not None
    server.process.stdin.close()
    server.process.wait(60)
    server.process.stdout.close()


@pytest.mark.faults
@pytest.mark.parametrize("kills", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_killed_at_any_moment_the_store_opens_and_the_same_command_finishes(server, kills):
    moment = random.Random(kills)
    root = server.folder / f"into-{kills}"
    words = ("merge", "there", "--store", str(root))
    shutil.copytree(server.folder / "here", root)
    took = server(*words)
    whole = contents(root / "runs")
    found = dict.fromkeys(("none", "some", "all"), 0)
    store, kill = Store(root), 0
    marks = [None, *(root / "runs" / run for run in ids(server.folder / "there", "other"))]
    marks += [store.plan_path("other"), store.plan_path("other"), store.looks]
    while kill < kills or (found["some"] == 0 and kill < 10 * kills):
        shutil.rmtree(root)
        shutil.copytree(server.folder / "here", root)
        for _ in range(moment.choice([1, 1, 3])):
            kill += 1
            seen = moment.choice(marks)
            server.killed((2 if seen else moment.random()) * took, *words, seen=seen)
            n = sum(1 for run in store.folders() if store.rundir(run).has_result())
            found["none" if n == 4 else "all" if n == 12 else "some"] += 1
            for name, content in contents(root / "runs").items():
                if not name.startswith("."):
                    assert whole[name] == content
            with Ledger.reading(store) as ledger:
                assert ledger.broken_seals() == []
                for sweep in ledger.sweeps():
                    plan = ledger.sealed_plan(store, sweep)
                    wrong = [
                        f for f in verify_plan(plan, store, ledger).findings if "looks" not in f
                    ]
                    assert wrong == []
        server(*words)
        assert contents(root / "runs") == whole
        with Ledger.reading(store) as ledger:
            assert sorted(ledger.sweeps()) == ["other", "planted"]
            assert set(ledger.seals()) == store.folders()
            assert [look["sweep"] for look in ledger.looks()] == ["other"]
            for sweep in ledger.sweeps():
                plan = ledger.sealed_plan(store, sweep)
                assert plan is not None
                assert verify_plan(plan, store, ledger).findings == []
    assert found["some"] > 0
    assert len(whole) == 12 * 6 + 4  # locks of the four that were trained here


SCRATCH = {
    "conf/trainer/writer.yaml": "name: writer:main\nkeys: {lr: 0.1}\nfork_safe: true\n"
    "metrics: {score: {direction: more}}\n",
    "writer.py": """
import os, socket

def main(settings, run):
    (run.folder / "models").mkdir()
    (run.folder / "models" / "last.bin").write_bytes(bytes([run.seed]))
    (run.folder / "models" / "last.bin").chmod(0o755)
    (run.folder / "newest").symlink_to("models/last.bin")
    socket.socket(socket.AF_UNIX).bind(f"/proc/self/fd/{os.open(run.folder, os.O_PATH)}/door")
    run.result(score=0.5)
""",
}


def test_what_programs_wrote_comes_along(tmp_path):
    """It is in no hash, and nowhere else once the source is deleted."""
    shell = Shell(tmp_path)
    for name, text in SCRATCH.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    shell("sweep", "trainer=writer", "trainer.lr=0.1,0.2", "seeds=1", "launcher=inline")
    shell("merge", "runs", "--store", "both")
    for folder in (tmp_path / "runs" / "runs").iterdir():
        copy = tmp_path / "both" / "runs" / folder.name / "scratch"
        assert (folder / "scratch" / "door").is_socket()
        (folder / "scratch" / "door").unlink()
        assert contents(copy) == contents(folder / "scratch")
        assert os.access(copy / "models" / "last.bin", os.X_OK)
        assert os.readlink(copy / "newest") == "models/last.bin"
    assert len(list((tmp_path / "both").glob("runs/*/scratch/models/last.bin"))) == 2


def test_no_file_of_somebody_else_goes_with_the_folder_that_a_run_replaces(tmp_path):
    store, run = Store(tmp_path / "runs"), "a" * 16
    notes = store.rundir(run).path / "notes.md"
    notes.parent.mkdir(parents=True)
    notes.write_text("mine")
    with pytest.raises(Failure) as refusal, whole_folder(store, run):
        pass
    assert "notes.md, " in str(refusal.value)
    assert notes.read_text() == "mine"
    notes.unlink()
    with whole_folder(store, run) as new_folder:
        new_folder.log.write_text("new")
    assert store.rundir(run).log.read_text() == "new"
