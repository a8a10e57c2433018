"""Rot in any file of a store, or of a bundle: no number is printed that the whole one does not
have, unless the table says what it lacks; no traceback; no hang. And the sweep goes on."""

import contextlib
import csv
import hashlib
import io
import itertools
import os
import pickle
import random
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from conftest import contents
from damage import DAMAGES, spoil
from support.images import folders

import ablate
from ablate import cli
from ablate.report import plot
from ablate.run.rundir import RunDir
from ablate.shared.errors import Failure, UserError
from ablate.store.ledger import Ledger
from ablate.store.store import Store
from ablate.training import attempt, worker
from ablate.training.attempt import EXIT_STOPPED
from ablate.training.loop import train

pytestmark = pytest.mark.faults

HANGS_S = 60.0  # a command takes a second at most
DATA = ("data=imagefolder", "data.path=images", "data.size=8", "data.classes=3")
SPLITS = ("data.validation=20", "data.test=20")
MODEL = ("model.arch=mu/4", "model.depth=1", "model.width=16", "model.heads=2", "train.batch=20")
EACH = ("optim.lr=0.003,0.03", *DATA, *SPLITS, *MODEL)
HERE = ("launcher=inline", "--as")
SWEEPS = {
    "tiny": (*EACH, "probe=[gradnorm]", "train.steps=24", "seeds=3", *HERE, "tiny"),
    "half": (*EACH, "train.steps=25", "seeds=1", "data.cache=encoded", *HERE, "half"),
    "tuned": ("tuned", "launcher=inline"),
}
TUNED = f"""
base: {{{", ".join(word.replace("=", ": ") for word in (*DATA, *SPLITS, *MODEL))}, train.steps: 8}}
variants: [pre: {{}}, post: {{block.attn: post}}]
seeds: 1
tune: {{space: {{optim.lr: {{log: [1e-4, 3e-2]}}}}, trials: 5, repeats: 1}}
"""


@dataclass(frozen=True)
class Said:
    """What a command ended with, in this process."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"{' '.join(self.words)}: {self.code}\n{self.out[-3000:]}\n{self.err[-3000:]}"


def ask(*words: str) -> Said:
    """Any exception but the command's own one-line failure ends here, and so does a hang."""
    out, err = io.StringIO(), io.StringIO()
    begun = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["ablate", *words])
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                cli.main()
            except SystemExit as end:
                code = int(end.code or 0)
            except BaseException:
                traceback.print_exc()
                code = -1
    said = Said(words, code, out.getvalue(), err.getvalue())
    assert code in (0, 1, 2), said
    failures = [line for line in said.err.splitlines() if line.startswith("ablate: ")]
    assert len(failures) == (code != 0), said
    assert time.monotonic() - begun < HANGS_S, said
    return said


class Whole:
    """A store with a sweep, a tuned one and one that was stopped; a bundle of the first."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store, self.bundle = folder, Store(folder / "whole"), folder / "bundle"
        folders(folder / "images", "abc", 40)
        (folder / "sweeps").mkdir()
        (folder / "sweeps" / "tuned.yaml").write_text(TUNED)
        (folder / "notes.txt").write_text("of mine\n")
        for words in (["init", "-q"], ["add", "notes.txt"], ["commit", "-qm", "notes"]):
            who = ("-c", "user.name=a", "-c", "user.email=a@b")
            subprocess.run(["git", *who, *words], cwd=folder, check=True)
        (folder / "notes.txt").write_text("not committed\n")
        time.sleep(2)  # the images must not be so young that they are read again each time
        for name in SWEEPS:
            assert self.sweep(name, self.store).code == 0
        self.tables = {name: self.table(name, self.store) for name in SWEEPS}
        self.page = self.report(self.store)[0]
        assert self.tables["tiny"].code == 0
        assert ask("export", "tiny", str(self.bundle), "--store", str(self.store.root)).code == 0
        self.frame = ablate.Store(self.bundle).sweep().to_pandas()
        self.exported = ask("table", "--from", str(self.bundle), "--format", "tidy")
        self.stop(next(self.plan("half").runs()).id)
        with Ledger.driving(self.store) as ledger:  # open: what it appends is in the -wal
            ledger.plan(self.plan("tiny"))
            self.open = shutil.copytree(self.store.root, folder / "open")
        assert (self.open / "ledger.db-wal").stat().st_size > 0

    def plan(self, name: str) -> Any:
        plan = self.store.read_plan(name)
        assert plan is not None
        return plan

    def stop(self, run: str) -> None:
        """As if its worker had been stopped twice, and then the machine."""
        rundir = self.store.rundir(run)
        tree = rundir.read_spec()
        shutil.rmtree(rundir.path)
        rundir.create(tree)
        options = {"slot": "inline", "device": "cpu", "threads": 1, "checkpoint_s": 1e9}
        with pytest.MonkeyPatch.context() as patch:
            for steps in (9, 9):
                count = itertools.count(1)
                asked = contextlib.nullcontext(lambda c=count, last=steps: next(c) == last)
                patch.setattr(attempt, "stop_signals", lambda rundir, asked=asked: asked)
                code = worker.work(str(rundir.path), {**options, "cache": str(self.store.cache)})
                assert code == EXIT_STOPPED
        assert len(rundir.checkpoints()) == 2

    def sweep(self, name: str, store: Store) -> Said:
        return ask("sweep", *SWEEPS[name], "--store", str(store.root))

    def table(self, name: str, store: Store) -> Said:
        words = ("--show", "accuracy,gain,ci,verdict,params,auc", "--format", "tidy")
        return ask("table", name, *words, "--store", str(store.root))

    def report(self, store: Store) -> tuple[str, Said]:
        page = self.folder / "page.html"
        page.unlink(missing_ok=True)
        said = ask("report", "tiny", "--out", str(page), "--store", str(store.root))
        return (page.read_text() if page.exists() else "", said)


def drawn_once(draw: Callable[..., bytes]) -> Callable[..., bytes]:
    """`plot.draw`, which takes half a second, asked only for what it was not asked for before: of
    the same plan, table and bytes in the runs' folders it makes the same bytes."""
    known: dict[Any, bytes] = {}

    def drawn(plan: Any, table: Any, kind: str, rundir: Any, format: str = "svg") -> bytes:
        told = {name: value for name, value in vars(table).items() if name != "choice"}
        files = {run.id: contents(rundir(run.id).path) for run in plan.runs()}
        for of in files.values():
            for name in ("log.txt", "lock"):
                of.pop(name, None)
        key = hashlib.sha256(pickle.dumps((plan, told, kind, format, files))).digest()
        if key not in known:
            known[key] = draw(plan, table, kind, rundir, format)
        return known[key]

    return drawn


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Iterator[Whole]:
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("damage")
        patch.chdir(folder)
        patch.setattr(plot, "draw_figure", drawn_once(plot.draw_figure))
        whole = Whole(folder)
        sources = (whole.store.root, whole.open, whole.bundle)
        before = [contents(source) for source in sources]
        yield whole
        assert before == [contents(source) for source in sources]  # copies share files with them
    torch.set_num_threads(threads)


def anew(source: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    return shutil.copytree(source, to)


def linked(source: Path, to: Path) -> Path:
    """As `anew`, but files are shared that no command which only reads may write to."""

    def take(path: str, name: str) -> None:
        own = os.path.basename(path).startswith(("ledger.db", "driver.lock", "lock"))
        shutil.copy2(path, name) if own else os.link(path, name)

    shutil.rmtree(to, ignore_errors=True)
    return shutil.copytree(source, to, copy_function=take)


# --- A store --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """Files that are one kind. `sure`: `verify` finds any damage, and names the file."""

    files: Callable[[Store, list[RunDir]], list[Path]]
    sweep: str = "tiny"
    sure: bool = False
    open: bool = False  # of a store whose ledger somebody has open
    page: bool = True  # a report says so where it is another


def of_runs(name: str) -> Callable[[Store, list[RunDir]], list[Path]]:
    return lambda store, runs: [run.path / name for run in runs]


def in_store(pattern: str) -> Callable[[Store, list[RunDir]], list[Path]]:
    return lambda store, runs: sorted(store.root.glob(pattern))


def of_data(store: Store, runs: list[RunDir]) -> list[Path]:
    fingerprint = runs[0].read_spec()["data"]["fingerprint"]
    return sorted((store.cache / fingerprint).glob("*.npy"))


KINDS = {
    "run": Kind(of_runs("run.json")),
    "env": Kind(of_runs("env.json"), page=False),
    "metrics": Kind(of_runs("metrics.jsonl"), sure=True),
    "result": Kind(of_runs("result.json"), sure=True),
    "predictions": Kind(of_runs("predictions.npy"), sure=True),
    "weights": Kind(of_runs("weights.safetensors"), sure=True),
    "probe": Kind(of_runs("probe-gradnorm.npz"), sure=True),
    "log": Kind(of_runs("log.txt")),
    "lock": Kind(of_runs("lock")),
    "checkpoint": Kind(in_store("runs/*/checkpoint-*"), "half"),
    "half's metrics": Kind(lambda store, runs: [runs[0].metrics], "half"),
    "trial's metrics": Kind(of_runs("metrics.jsonl"), "tuned", sure=True),
    "trial's result": Kind(of_runs("result.json"), "tuned", sure=True),
    "study": Kind(in_store("studies/*"), "tuned"),
    "plan": Kind(in_store("sweeps/tiny.json")),
    "tuned plan": Kind(in_store("sweeps/tuned.json"), "tuned"),
    "looks": Kind(in_store("looks.jsonl"), sure=True),
    "ledger": Kind(in_store("ledger.db")),
    "ledger of a driver": Kind(in_store("ledger.db"), open=True),
    "wal": Kind(in_store("ledger.db-wal"), open=True),
    "shm": Kind(in_store("ledger.db-shm"), open=True),
    "driver.lock": Kind(in_store("driver.lock")),
    "costs": Kind(in_store("cache/costs.json")),
    "fingerprints": Kind(in_store("cache/fingerprints.json")),
    "data": Kind(of_data, sure=True),
    "encoded data": Kind(of_data, "half", sure=True),
    "meta": Kind(lambda store, runs: [of_data(store, runs)[0].parent / "meta.json"], sure=True),
    "diff": Kind(in_store("diffs/*")),
}


def facts(text: str) -> list[tuple[str, ...]]:
    return [tuple(line) for line in csv.reader(io.StringIO(text))]


def is_honest(said: Said, whole: Said, path: Path) -> bool:
    """Is every number of the whole table, and what lacks is said?"""
    if said.code or said.out == whole.out:
        return True
    told, known = facts(said.out), facts(whole.out)
    runs = {fact for fact in told if fact[3] > "" and fact[4].endswith(".run")}
    lacks = ("", "", "", "complete", "0", "")
    named = path.name in said.out + said.err
    return runs <= {*known} and (named or lacks in [fact[1:] for fact in told])


SOAK = pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(4 * 3600)])


@pytest.mark.parametrize("times", [2, SOAK])
@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_store_prints_no_wrong_number(whole, name, times):
    """Of `every` so many damages one is followed by a report and a sweep, too."""
    kind = KINDS[name]
    for damage, every in zip(DAMAGES, [9, 5, 9, 9], strict=True):
        moment = random.Random(f"{name} {damage.__name__}")
        for number in range(1, times + 1):
            swept_too = number % (every if times == 5 else 10) == 0
            source = whole.open if kind.open else whole.store.root
            root = (anew if swept_too else linked)(source, whole.folder / "damaged")
            store = Store(root)
            runs = [store.rundir(run.id) for run in whole.plan(kind.sweep).runs()]
            path = moment.choice(kind.files(store, runs))
            if not spoil(path, damage, moment):
                continue
            where = f"{name} {damage.__name__} #{number}: {path}"
            checked = ask("verify", kind.sweep, "--store", str(root))
            if kind.sure:
                assert (checked.code, path.name in checked.out) == (1, True), f"{where}: {checked}"
            table = whole.table(kind.sweep, store)
            assert is_honest(table, whole.tables[kind.sweep], path), f"{where}: {table}"
            if swept_too:
                if kind.sweep == "tiny" and kind.page:
                    page, said = whole.report(store)
                    same = said.code or page == whole.page or path.name in page + said.err
                    assert same or "missing" in page, f"{where}: {said}"
                swept = whole.sweep(kind.sweep, store)
                again = whole.table(kind.sweep, store)
                assert is_honest(again, whole.tables[kind.sweep], path), f"{where}: {again}"
                assert swept.code or again.code == 0, f"{where}: {swept} {again}"


@pytest.mark.parametrize("rots", ["a bit", "decoded again"])
def test_a_run_whose_data_rotted_while_it_trained_begins_again(whole, monkeypatch, rots):
    """`decoded again`: by another worker, which found the damage first."""
    store = Store(anew(whole.store.root, whole.folder / "damaged"))
    first, second = (store.rundir(run.id) for run in whole.plan("half").runs())
    second.result.unlink()
    home, trained = store.cache / first.read_spec()["data"]["fingerprint"], []

    def rotten(run, rundir, machine):
        result = train(run, rundir, machine)
        trained.append(rundir.id)
        if len(trained) == 1 and rots == "a bit":
            labels = home / "train.labels.npy"
            content = bytearray(labels.read_bytes())
            content[-8] ^= 1
            labels.write_bytes(content)
        elif len(trained) == 1:
            os.utime(home / "meta.json", (1.0, 1.0))
        return result

    monkeypatch.setattr(worker, "train", rotten)
    swept = whole.sweep("half", store)
    assert swept.code == 0, swept
    assert trained == [first.id, second.id, first.id]
    said = {"a bit": "train.labels.npy: not the bytes that were written", "decoded again": rots}
    assert f"data damaged: {whole.plan('half').cells[0].row}#0: Damaged: " in swept.out
    assert said[rots] in swept.out
    assert whole.table("half", store).out == whole.tables["half"].out
    begun = [line for line in first.log.read_text().splitlines() if "training from" in line]
    assert "training from step 0 " in begun[-1]


# --- A bundle -------------------------------------------------------------------------------------

EXPORTED = {
    **{name: f"specs/*/{name}.json*" for name in ("metrics", "result", "run", "env")},
    **{"probe": "specs/*/probe-*", "predictions": "predictions/*", "figure": "figures/*"},
    **{
        name: name
        for name in (
            *("sweep.json", "events.json", "looks.jsonl", "environment.json", "manifest.json"),
            *(
                "table.csv",
                "table.tidy.csv",
                "table.html",
                "table.json",
                "table.md",
                "table.tex",
                "runs.csv",
            ),
            *("curves.parquet", "report.html", "README.txt"),
        )
    },
}


def test_every_file_of_a_bundle_is_of_a_kind(whole):
    known = {path for pattern in EXPORTED.values() for path in whole.bundle.glob(pattern)}
    assert known == {path for path in whole.bundle.rglob("*") if path.is_file()}


@pytest.mark.parametrize("times", [2, SOAK])
@pytest.mark.parametrize("name", EXPORTED)
def test_a_damaged_bundle_is_named_and_prints_no_wrong_number(whole, name, times):
    for damage in DAMAGES:
        moment = random.Random(f"{name} {damage.__name__}")
        for number in range(times):
            out = linked(whole.bundle, whole.folder / "out")
            path = moment.choice(sorted(out.glob(EXPORTED[name])))
            if not spoil(path, damage, moment):
                continue
            where = f"{name} {damage.__name__} #{number}: {path}"
            said = ask("table", "--from", str(out), "--format", "tidy")
            assert is_honest(said, whole.exported, path), f"{where}: {said}"
            checked = ask("verify", str(out))
            assert checked.code == 1, f"{where}: {checked}"
            assert path.name in checked.out + checked.err, f"{where}: {checked}"
            with contextlib.suppress(Failure, UserError):
                frame = ablate.Store(out).sweep().to_pandas()
                for mine, known in zip(frame.itertuples(), whole.frame.itertuples(), strict=True):
                    assert mine.status == "withheld" or pd.isna(mine.top1) or mine == known, where
