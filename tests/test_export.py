"""`ablate export DIR`, `ablate table --from DIR`, frames: what a reviewer gets."""

import dataclasses
import errno
import hashlib
import json
import os
import platform
import random
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import Shell, contents
from support.plans import with_sections

import ablate
from ablate.audit import bundle_check, export
from ablate.audit.bundle import Bundle
from ablate.planning.declared import word_of
from ablate.report.formats import FORMAT_ENDINGS
from ablate.shared.errors import Failure, UserError
from ablate.shared.files import to_json
from ablate.store.ledger import Ledger
from ablate.store.record import run_histories
from ablate.store.store import Store
from ablate.version import FORMAT

WHO = dict(HOME="/tmp/home-of-zaphod", USER="zaphod", LOGNAME="zaphod", TOKEN="s3cret-t0k3n")
DIFFERS = "differs from the file that the raw files give"
# Four runs that finish, two that diverge.
SWEEP = ("sweep", "optim.lr=0.003,0.01,1e20", "model.arch=mu/4", "model.depth=1", "train.steps=4")


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Shell:
    """A folder with a store, and the bundle `out` of its sweep."""
    shell = Shell(tmp_path_factory.mktemp("exported"))
    tracked = shell.folder / "notes.txt"
    for words in (["init", "-q"], ["add", "notes.txt"], ["commit", "-qm", "notes"]):
        tracked.write_text("of mine\n")
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *who, *words], cwd=shell.folder, check=True)
    tracked.write_text("uncommitted thoughts\n")
    shell(*SWEEP, "seeds=2", "launcher=inline", "--as", "tiny", **WHO)
    done = shell("export", "tiny", "out")
    assert "ablate table --from out" in done.out
    return shell


@pytest.fixture
def out(exported, tmp_path) -> Path:
    """A copy of the bundle alone, to be changed."""
    return shutil.copytree(exported.folder / "out", tmp_path / "out")


def files(folder: Path) -> set[str]:
    return {*contents(folder)}


def edit(out: Path, name: str, **parts: object) -> None:
    """Other parts of a JSON object, in a file of an export that is sealed again."""
    (out / name).write_bytes(to_json(json.loads((out / name).read_text()) | parts))


def found(out: Path) -> list[str]:
    return bundle_check.check_bundle(Bundle(out)).findings


def leave(store: Store, folder: Path, sweep: str = "tiny") -> None:
    plan = store.read_plan(sweep)
    with Ledger.reading(store) as ledger:
        told = run_histories(plan, ledger)
    export.export_bundle(plan, store, told, folder)


# --- What is in it ------------------------------------------------------------------------------


@pytest.mark.whole
def test_it_holds_tables_curves_raw_files_and_says_what_they_are(exported):
    out = exported.folder / "out"
    there = contents(out)
    plan = Store(exported.folder / "runs").read_plan("tiny")
    tables = {f"table.{ending}" for ending in FORMAT_ENDINGS}
    single = {"runs.csv", "curves.parquet", "sweep.json", "looks.jsonl", "environment.json"}
    assert tables | single | {"events.json", "README.txt", "report.html"} <= there.keys()
    for run in plan.runs():
        kept = contents(exported.folder / "runs" / "runs" / run.id)
        for name in ("run.json", "result.json", "env.json", "metrics.jsonl"):
            assert there[f"specs/{run.id}/{name}"] == kept[name]
        assert there.get(f"predictions/{run.id}.npy") == kept.get("predictions.npy")
    readme = there.pop("README.txt").decode()
    assert "ablate table --from ." in readme
    assert not any(name.startswith("diffs") for name in there)
    for name in there:
        assert name.partition("/")[0] in readme or name.startswith("table.")
    told = json.loads(there["environment.json"])
    assert told["ablate"] == ablate.__version__
    assert list(told["trained_with"]["packages.torch"].values()) == [6]


@pytest.mark.whole
def test_tables_and_report_are_those_of_the_store(exported):
    out = exported.folder / "out"
    for name, ending in (("csv", "csv"), ("tidy", "tidy.csv"), ("md", "md")):
        printed = exported("table", "tiny", "--format", name, "--notes", "full").out
        assert (out / f"table.{ending}").read_text() == printed
    told = json.loads(exported("table", "tiny", "--format", "json").out)
    assert told.pop("version")  # a bundle has one of its own
    assert json.loads((out / "table.json").read_text()) == told
    exported("report", "tiny", "--out", "report.html")
    assert (out / "report.html").read_bytes() == (exported.folder / "report.html").read_bytes()


@pytest.mark.whole
def test_the_same_sweep_gives_the_same_bytes(exported, tmp_path):
    leave(Store(exported.folder / "runs"), tmp_path / "again")
    assert contents(tmp_path / "again") == contents(exported.folder / "out")


# --- Recomputed ---------------------------------------------------------------------------------


SHARED = """
base: {recipe: quick, data: digits, model.arch: mu/4, model.depth: 1, train.epochs: 1}
from:
  train.epochs: 1
  tune: {space: {optim.lr: {choices: [3e-3, 1e-2]}}, sampler: grid, repeats: 1}
variants: [{plain: {}}, {other: {optim.b2: 0.9}}]
seeds: 1
"""


@pytest.mark.whole
def test_rows_whose_searches_share_trials(shell):
    """They differ in the child alone, so each trial, a parent, is one run of both."""
    (shell.folder / "shared.yaml").write_text(SHARED)
    shell("sweep", "shared", "launcher=inline")
    shell("export", "shared", "bundle")
    full = ("--notes", "full")
    assert shell("table", "--from", "bundle", *full).out == shell("table", "shared", *full).out
    assert "nothing wrong" in shell("verify", "bundle").out


def test_the_table_is_made_again_from_the_raw_files_alone(out, shell):
    made = (out / "table.tidy.csv").read_bytes()
    for path in {*out.glob("table.*"), *out.glob("*.csv"), out / "report.html"}:
        path.unlink()
    before = files(shell.folder)
    done = shell("table", "--from", "out", "--format", "tidy")
    assert done.out.encode() == made
    assert files(shell.folder) - before == {"1.out", "1.err"}  # a reviewer looks, writes nothing


def test_a_changed_prediction_a_changed_result_and_a_lost_one_are_named(out, shell):
    path = sorted((out / "predictions").iterdir())[0]
    whole, table = path.read_bytes(), np.load(path)
    table["rank"][0] += 1
    np.save(path, table)
    told = shell("table", "--from", "out", code=1).err
    assert re.fullmatch(rf"ablate: .*{path.name}.*\n", told)
    path.write_bytes(whole)
    plan, told = Bundle(out).read_sealed()
    run = next(run for run in plan.runs() if run.label == "lr=0.003#0")
    path = Bundle(out).rundir(run.id).result
    result = json.loads(path.read_text())
    result["test"]["top1"] += 0.1
    path.write_text(json.dumps(result))
    with pytest.raises(Failure, match=rf"{run.id} lr=0\.003#0: result\.json"):
        Bundle(out).recompute(plan, told)
    path.unlink()
    with pytest.raises(Failure, match=rf"{run.id} lr=0\.003#0: result\.json: missing"):
        Bundle(out).recompute(plan, told)


def test_from_takes_one_bundle_and_no_other_sweep(out, shell):
    for words in (["tiny"], ["--scale", "smoke"], ["--as", "x"]):
        assert "--from" in shell("table", "--from", "out", *words, code=2).err
    (shell.folder / "sweep.json").write_text("{}")
    assert "no bundle" in shell("table", "--from", ".", code=2).err


# --- Verified -----------------------------------------------------------------------------------


def sealed_again(out: Path, *names: str) -> None:
    """The manifest of somebody who edited files, and knows of hashes."""
    listed = json.loads((out / "manifest.json").read_text())["files"]
    listed |= {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in names}
    edit(out, "manifest.json", files=listed, seal=hashlib.sha256(to_json(listed)).hexdigest())


@pytest.mark.whole
def test_verify_makes_all_of_it_again(out, shell):
    before = contents(out)
    listed = json.loads(before["manifest.json"])["files"]
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in before.items()}
    assert listed.items() == hashes.items() - {("manifest.json", hashes["manifest.json"])}
    done = shell("verify", "out")
    assert "verified: 6 runs, 88 numbers of the bundle out, nothing wrong" in done.out
    assert contents(out) == before
    (out / "table.csv").write_text("")
    done = shell("verify", "out", code=1)
    assert "table.csv: changed after the export" in done.out
    assert done.err.splitlines()[-1] == "ablate: out: 1 finding"
    assert "other options" in shell("verify", "out", "--each", code=2).err


@pytest.mark.whole
def test_every_file_that_is_changed_missing_or_more_is_named(out):
    names = sorted(files(out) - {"manifest.json"})
    random.Random(1).shuffle(names)
    # Of specs/ID and predictions one of each is enough.
    kinds = {
        name.rpartition("/")[0][:8] + Path(name).suffix + Path(name).stem[:3]: number
        for number, name in reversed([*enumerate(names)])
    }
    assert len(kinds) > 15
    for number in kinds.values():
        path = out / names[number]
        content = path.read_bytes()
        if number % 3 == 0 or not content:
            path.unlink()
        else:
            place = random.Random(number).randrange(len(content))
            path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        said = found(out)
        assert [line for line in said if line.startswith(f"{names[number]}: ")], said
        path.write_bytes(content)
    (out / "figures" / "more.svg").write_text("<svg/>")
    (out / "link").symlink_to(out / "specs")
    more = ["figures/more.svg", "link", "link"]
    assert [line.partition(":")[0] for line in found(out)] == more
    path = next((out / "specs").iterdir()) / "metrics.jsonl"
    path.unlink()
    os.mkfifo(path)  # is never opened
    assert f"{path.relative_to(out)}: changed after the export" in found(out)


@pytest.mark.whole
@pytest.mark.parametrize(
    "name", ["table.md", "table.tex", "runs.csv", "report.html", "figures/gain.svg", "README.txt"]
)
def test_a_derived_file_is_named_also_where_its_hash_was_taken_again(out, name):
    (out / name).write_bytes((out / name).read_bytes().replace(b"1", b"7", 1))
    sealed_again(out, name)
    assert found(out) == [f"{name}: {DIFFERS}"]


@pytest.mark.whole
def test_a_bundle_without_a_file_that_is_made_today_is_an_older_one(out):
    """`table.tidy.csv` came without another format: one line, not one for each other file."""
    (out / "table.tidy.csv").unlink()
    (out / "table.md").write_text("as an older ablate wrote it")
    Bundle(out).write_manifest()
    [line] = found(out)
    assert "table.tidy.csv" in line


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "before", "may"),
    [
        ("table.tidy.csv", r",\w+\.low,", True),
        ("table.tidy.csv", r",\w+\.sd,", False),
        ("table.tidy.csv", r",loss\.run,", False),
        ("table.json", r'"high": ', True),
        ("table.json", r'"sd": ', False),
        ("runs.csv", r",finished,[\d.]+,[\d.]+,", False),
    ],
)
def test_last_digits_of_quantiles_are_those_of_a_processor_and_no_others(out, name, before, may):
    """As a bundle of a design differed on another CPU: its p by 4e-15 of it. Whatever is made of
    counts and of sums is the same everywhere."""
    text = (out / name).read_text()
    number = re.search(rf"{before}(-?\d+\.\d{{11,}})", text)[1]
    for at, ok in ((-2, may), (6, False)):
        digit = str((int(number[at]) + 5) % 10)
        (out / name).write_text(text.replace(number, number[:at] + digit + number[at:][1:]))
        sealed_again(out, name)
        assert found(out) == ([] if ok else [f"{name}: {DIFFERS}"])


@pytest.mark.parametrize(("value", "may"), [("error", True), ("alpha", False)])
def test_last_digits_of_an_error_in_a_sentence_are_those_of_a_processor(tmp_path, value, may):
    path = tmp_path / "table.json"
    for number, ok in ((0.0871234567891234, True), (0.0871234567891236, may), (0.0871235, False)):
        path.write_text(json.dumps({"notes": [{"values": {value: number}}]}))
        expected = json.dumps({"notes": [{"values": {value: 0.0871234567891234}}]})
        assert bundle_check._is_reproduced(path, expected.encode()) == ok


@pytest.mark.whole
def test_curves_count_by_their_values(out):
    frame = pd.read_parquet(out / "curves.parquet")
    for more, said in ((0, []), (1e-9, [f"curves.parquet: {DIFFERS}"])):
        frame.loc[0, "train_loss"] += more
        frame.to_parquet(out / "curves.parquet", index=False, compression="gzip")
        sealed_again(out, "curves.parquet")
        assert found(out) == said


@pytest.mark.whole
def test_what_other_versions_made_is_no_finding_but_for_numbers(out):
    versions = json.loads((out / "environment.json").read_text())["made_with"]
    edit(out, "environment.json", made_with={**versions, "matplotlib": "2.0"})
    for name, said in (("figures/gain.svg", []), ("table.csv", [f"table.csv: {DIFFERS}"])):
        (out / name).write_bytes((out / name).read_bytes().replace(b"3", b"4", 1))
        sealed_again(out, "environment.json", name)
        checked = bundle_check.check_bundle(Bundle(out))
        assert checked.findings == said
        told = [note for note in checked.notes if "figures/gain.svg" in note]
        assert "matplotlib 2.0" in told[0]


READERS = (("table", "--from", "out"), ("merge", "out"))


@pytest.mark.parametrize("format", [FORMAT - 1, FORMAT + 1])
def test_a_bundle_of_another_format_is_refused_in_a_line(out, shell, format):
    edit(out, "environment.json", bundle=format)
    for words in (*READERS, ("verify", "out")):
        assert shell(*words, code=1).err == (
            f"ablate: out: has format {format}, and this ablate reads format "
            f"{FORMAT} alone; use the ablate that wrote it, or export the sweep again\n"
        )


@pytest.mark.whole
@pytest.mark.parametrize("format", ["3", None])
def test_a_bundle_without_a_format_is_none(out, shell, format):
    edit(out, "environment.json", bundle=format)
    Bundle(out).write_manifest()
    assert "environment.json: says no format of a bundle" in shell("verify", "out", code=1).out
    for words in READERS:
        assert "no bundle" in shell(*words, code=2).err


@pytest.mark.parametrize("name", ["events.json", "specs/more/result.json"])
def test_a_file_that_is_too_large_is_named_before_it_is_read(out, shell, name):
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).touch()
    os.truncate(out / name, 40 << 30)  # without a block on the disk
    for words in (*READERS, ("verify", "out")):
        assert shell(*words, code=1).err == (
            f"ablate: out/{name}: has 42,949,672,960 bytes; no file of an export has as many\n"
        )
    os.truncate(out / "environment.json", 40 << 30)
    assert Bundle(out).format == 0


@pytest.mark.parametrize(
    "words",
    [
        ("sweep", "stem=none,dpn", "data=digits", "recipe=quick"),
        ("gate", "start", "idea", "data=digits", "recipe=quick"),
        ("gc",),
        ("doctor", "--repair"),
    ],
)
def test_no_command_adds_a_file_to_a_bundle(out, shell, words):
    before = {*out.rglob("*")}
    assert "is a bundle" in shell(*words, "--store", out, code=2).err
    assert {*out.rglob("*")} == before


def test_a_bundle_without_a_manifest_is_named(out, shell):
    (out / "manifest.json").unlink()
    for words in READERS:
        assert shell(*words, code=1).err == (
            "ablate: out/manifest.json: is missing, or was changed after the export\n"
        )


def test_a_link_to_itself_is_no_place_for_a_bundle(exported, tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for place in ("loop", "loop/x"):
        line = exported("export", "tiny", tmp_path / place, code=2).err
        assert line.startswith(f"ablate: {tmp_path}/loop: ")
        assert line.count("\n") == 1


@pytest.mark.parametrize("name", ["sweep.json", "events.json", "looks.jsonl", "environment.json"])
def test_no_table_is_made_of_a_bundle_whose_own_files_were_changed(out, name):
    with (out / name).open("a") as file:
        file.write(" ")
    with pytest.raises(Failure, match=rf"{name}: was changed after the export"):
        Bundle(out).read_sealed()


# --- Whose it is --------------------------------------------------------------------------------


@pytest.mark.whole
def test_an_anonymous_bundle_says_nowhere_whose_it_is(exported, tmp_path):
    out, named = tmp_path / "out", exported.folder / "out"
    exported("export", "tiny", str(out), "--anonymous", **WHO)
    head = ("git", "rev-parse", "HEAD")
    commit = subprocess.check_output(head, cwd=exported.folder, text=True).strip()
    telling = ["zaphod", "uncommitted", "s3cret-t0k3n", ".diff", commit, platform.platform()]
    telling += [str(exported.folder), str(Path.home()), str(tmp_path)]
    host = re.compile(rf"\b{re.escape(platform.node())}\b")

    def told(path: Path) -> list[str]:
        binary, table = path.suffix in (".npy", ".npz"), path.suffix == ".parquet"
        text = pd.read_parquet(path).to_csv() if table else path.read_bytes().decode("latin-1")
        return [word for word in telling if word in text] + ([] if binary else host.findall(text))

    assert {name: told(out / name) for name in files(out) if told(out / name)} == {}
    assert any(told(named / name) for name in files(named))  # the other one says all of it
    assert "nothing wrong" in exported("verify", str(out)).out
    assert (out / "table.csv").read_bytes() == (named / "table.csv").read_bytes()


@pytest.mark.whole
def test_what_can_not_be_made_anonymous_is_not_written(exported, tmp_path, monkeypatch):
    store, out = Store(exported.folder / "runs"), tmp_path / "out"
    plan = store.read_plan("tiny")
    monkeypatch.setenv("HOME", "/home/of-zaphod")
    with Ledger.reading(store) as ledger:
        told = run_histories(plan, ledger)
    titled = dataclasses.replace(plan, title="kept in /home/of-zaphod/results")
    with pytest.raises(Failure, match=r"--anonymous: .* would name '/home/of-zaphod'"):
        export.export_bundle(titled, store, told, out, anonymous=True)
    assert list(tmp_path.iterdir()) == []
    on_a_host = dataclasses.replace(plan, title="on host-of-zaphod")
    monkeypatch.setattr(platform, "node", lambda: "host-of-zaphod")
    with pytest.raises(Failure) as refusal:
        export.export_bundle(on_a_host, store, told, out, anonymous=True)
    assert "'host-of-zaphod'" in str(refusal.value)
    monkeypatch.setattr(platform, "node", lambda: "train")  # as keys of every configuration
    export.export_bundle(on_a_host, store, told, out, anonymous=True)
    where = {"path": "/data/of-zaphod"}
    cells = tuple(with_sections(cell, data=cell.spec.tree["data"] | where) for cell in plan.cells)
    words = word_of("data.path", "/data/of-zaphod"), word_of("launcher.devices", "zaphod")
    moved = dataclasses.replace(plan, cells=cells, declared=plan.declared.with_words(*words))
    export.export_bundle(moved, store, told, out, anonymous=True)
    assert not [name for name, content in contents(out).items() if b"zaphod" in content]
    assert found(out) == []


@pytest.mark.parametrize("name", ["environment.json", "manifest.json", "events.json", "RESULT"])
def test_a_pipe_in_a_file_s_place_is_named_and_nobody_waits_for_it(out, name):
    where = next((out / "specs").iterdir()) / "result.json" if name == "RESULT" else out / name
    where.unlink()
    os.mkfifo(where)
    for call in (
        lambda: found(out),
        lambda: Bundle(out).recompute(*Bundle(out).read_sealed()),
        lambda: ablate.Store(out).sweep().to_pandas(),
    ):
        try:
            said = str(call())
        except (UserError, Failure, OSError) as error:
            said = str(error)
        assert where.name in said or "no bundle" in said or "no store" in said


@pytest.mark.whole
def test_diffs_go_along_when_asked_for(exported, tmp_path):
    exported("export", "tiny", str(tmp_path / "out"), "--with-diff")
    (diff,) = (tmp_path / "out" / "diffs").iterdir()
    assert "+uncommitted thoughts" in diff.read_text()
    assert found(tmp_path / "out") == []
    both = ("--with-diff", "--anonymous")
    assert "--with-diff" in exported("export", "tiny", "no", *both, code=2).err


def test_the_name_of_a_sweep_alone_is_no_folder(exported):
    assert exported("export", "tiny", code=2).err == (
        "ablate: tiny: is a sweep; name a new folder, too: ablate export tiny DIR\n"
    )


# --- Never half-written -------------------------------------------------------------------------


@pytest.mark.whole
def test_another_folder_is_left_alone_and_an_earlier_export_replaced(exported, out, tmp_path):
    store = Store(exported.folder / "runs")
    for name in ("mine", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"mine.*no earlier export"):
        leave(store, tmp_path / "mine")
    assert files(tmp_path / "mine") == {"notes.txt"}
    with pytest.raises(UserError, match="no such folder"):
        leave(store, tmp_path / "nowhere" / "out")
    before = files(out)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(UserError) as refusal:
        leave(store, out)
    assert "notes.txt, " in str(refusal.value)
    (out / "notes.txt").unlink()
    (out / ".git").mkdir()
    for name in ("HEAD", "config"):
        (out / ".git" / name).touch()
    with pytest.raises(UserError) as refusal:
        leave(store, out)
    assert ".git/HEAD and 1 " in str(refusal.value)
    assert files(out) == {*before, ".git/HEAD", ".git/config"}
    shutil.rmtree(out / ".git")
    table = (out / "table.md").read_bytes()
    (out / "table.md").write_bytes(table + b"mine")
    with pytest.raises(UserError) as refusal:
        leave(store, out)
    assert "table.md, " in str(refusal.value)
    assert (out / "table.md").read_bytes() == table + b"mine"
    (out / "table.md").write_bytes(table)
    other = dataclasses.replace(store.read_plan("tiny"), name="other")
    with pytest.raises(UserError) as refusal, Ledger.reading(store) as ledger:
        export.export_bundle(other, store, run_histories(other, ledger), out)
    assert " tiny; " in str(refusal.value)
    for folder in (out, tmp_path / "empty"):
        leave(store, folder)
        assert files(folder) == before
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "out", "empty"}


def test_a_full_disk_is_named_by_the_folder_that_is_written(exported, tmp_path, monkeypatch):
    class NoSpace(OSError):
        pass

    def full(source: Path, _: Path) -> None:
        raise NoSpace(errno.ENOSPC, os.strerror(errno.ENOSPC), str(source))  # as copyfile raises it

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(NoSpace) as raised:
        leave(Store(exported.folder / "runs"), tmp_path / "out")
    assert raised.value.filename == str(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_run_whose_files_were_changed_is_not_exported(exported, out, tmp_path):
    store = Store(shutil.copytree(exported.folder / "runs", tmp_path / "runs"))
    run = next(run for run in store.read_plan("tiny").runs() if run.label == "lr=0.003#1")
    with open(store.rundir(run.id).predictions, "ab") as file:
        file.write(b"\0")
    before = contents(out)
    with pytest.raises(Failure, match=rf"{run.id} lr=0\.003#1: {run.id}\.npy"):
        leave(store, out)
    assert contents(out) == before
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "out"}


# --- In Python ----------------------------------------------------------------------------------


def test_load_gives_a_row_a_run(exported):
    store = Store(exported.folder / "runs")
    frame = ablate.Store(store.root).sweep("tiny").to_pandas()
    assert list(frame.id) == [run.id for run in store.read_plan("tiny").runs()]
    for row in frame.itertuples():
        result = store.rundir(row.id).read_result()
        seed = store.rundir(row.id).read_spec()["seed"]
        assert (row.status, row.seconds, row.seed) == (result["status"], result["seconds"], seed)
        if row.status == "finished":
            test = result["test"]
            told = (row.top1, row.top5, row.loss, row.test_n)
            assert told == (test["top1"], test["top5"], test["loss"], test["n"])
        else:
            assert pd.isna(row.top1)
            assert pd.isna(row.test_n)
    assert set(frame["optim.lr"]) == {0.003, 0.01, 1e20}
    assert set(frame.status) == {"finished", "diverged"}


def test_load_gives_the_curves(exported):
    frame = ablate.Store(exported.folder / "runs").sweep("tiny").to_pandas(curves=True)
    lines = [
        {"id": path.parent.name, **json.loads(line)}
        for path in (exported.folder / "runs" / "runs").glob("*/metrics.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert len(frame) == len(lines) > 0
    for line in lines:
        row = frame[(frame.id == line["id"]) & (frame.step == line["step"])].iloc[0]
        assert all(row[key] == value for key, value in line.items())


def test_a_bundle_loads_as_its_store_and_its_files_are_the_frames(exported, monkeypatch):
    out = exported.folder / "out"
    monkeypatch.chdir(exported.folder)
    sweep = ablate.Store().sweep("tiny")
    runs, curves = sweep.to_pandas(), sweep.to_pandas(curves=True)
    pd.testing.assert_frame_equal(ablate.Store(out).sweep().to_pandas(), runs)
    pd.testing.assert_frame_equal(ablate.Store(out).sweep("tiny").to_pandas(curves=True), curves)
    pd.testing.assert_frame_equal(pd.read_parquet(out / "curves.parquet"), curves)
    read = pd.read_csv(out / "runs.csv", keep_default_na=False)
    assert list(read.id) == list(runs.id)
    assert [float(v) for v in read.top1 if v != ""] == list(runs.top1.dropna())


def test_load_names_what_there_is(exported, tmp_path):
    for folder, sweep, said in (
        (exported.folder / "runs", "tinny", "tiny"),
        (exported.folder / "out", "tinny", "tiny"),
        (tmp_path, None, "no store"),
    ):
        with pytest.raises(UserError, match=said):
            ablate.Store(folder).sweep(sweep).to_pandas()
