"""docs/json.md is what `--format json` prints: every key that a command prints is there with its
type, every key that is there is printed, and the page is as it is written now."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import types
import typing
from pathlib import Path
from typing import Any

import pytest
from conftest import ABLATE
from json_page import written
from support.json_contract import PAGE, SECTIONS, Seen, check_document
from support.planted_sweeps import grouped_sweep, planted_sweep
from support.stores import sow_store
from support.tables import tabulate
from support.tuning import declare_tuning, simulate

from ablate.analysis import across, paper, stats
from ablate.analysis.table import Table
from ablate.api.stream_answers import GateAnswer, StreamLog
from ablate.cli.answers import JSON_VERSION
from ablate.planning import cell
from ablate.planning.cell import PlannedRun
from ablate.planning.expand import plan_from_words as make_plan
from ablate.planning.plan import Plan
from ablate.planning.search import Search
from ablate.report import trees, trials
from ablate.report.formats import tidy
from ablate.report.status import SweepView
from ablate.shared.notes import Notes
from ablate.store.events import RunState
from ablate.store.progress import SweepProgress, Worker
from ablate.store.store import Store

# --- Everything that is printed -----------------------------------------------------------------


def filled(of: Any) -> Any:
    """A value of a type: of a dataclass one whose every field has a value."""
    if dataclasses.is_dataclass(of):
        scope = {**vars(across), **vars(paper), **vars(stats), **vars(cell)}
        hints = typing.get_type_hints(of, localns=scope)
        return of(**{f.name: filled(hints[f.name]) for f in dataclasses.fields(of)})
    origin, inner = typing.get_origin(of), typing.get_args(of)
    if origin in (types.UnionType, typing.Union):
        return filled(next(part for part in inner if part is not types.NoneType))
    if origin is tuple:
        inner = inner[:1] if inner[-1] is Ellipsis else inner
        return tuple(map(filled, inner))
    if origin is not None:  # a mapping
        return {filled(inner[0]): filled(inner[1])}
    return {str: "text", int: 3, float: 0.5, bool: True, Any: "any"}[of]


def whole_table() -> Table:
    """A table with every key, but for `own`."""
    names = {f.name for f in dataclasses.fields(Table)} - {"choice", "full_table", "task", "notes"}
    scope = {**vars(across), **vars(paper), **vars(stats)}
    hints = typing.get_type_hints(Table, localns=scope)
    return Table(**{name: filled(hints[name]) for name in names}, task="segmentation", notes=())


def own_table() -> Table:
    table = whole_table()
    metrics = {"mine:f": table.metric_of("top1")}
    return dataclasses.replace(
        table, choice=dataclasses.replace(table.choice, user_metrics=metrics)
    )


def printed(tree: Any) -> Any:
    return json.loads(json.dumps({"version": JSON_VERSION, **tree}, default=list))


SMALL = ("model.depth=1", "model.width=16", "model.heads=2", "train.steps=2", "stem=none,dpn")
OURS = ("--store", "ours")


@pytest.fixture
def said(ask, golden_store):
    """`said(words)`: the document that a command prints beside a golden store in ./runs."""
    ended, text = ask("sweep", *SMALL, "seeds=1", "launcher=inline", *OURS)
    assert ended == 0, text

    def said(*words: str, code: int = 0) -> Any:
        ended, text = ask(*words, "--format", "json")
        assert ended == code, text
        start = text.index("{")
        return json.JSONDecoder().raw_decode(text[start:])[0]

    return said


def documents(said, folder: Path) -> typing.Iterator[tuple[str, Any]]:
    """(section, document) of every command."""
    yield "list", said("list")
    yield "list", said("list", "keys", "optim.")
    yield "config", said("config", "stem=dpn")
    grid = ("stem=none,dpn", "model.arch=mu/4", "model.depth=1", "launcher=inline", "--spread", "1")
    long = (*grid, "train.epochs=1e11")  # which is not timed
    yield "plan", said("plan", *long, "--detect", "2", "seeds=5")
    yield "plan", said("plan", *long, "--until", "12", "--margin", "2")
    more = ("norm=layernorm,identity,rmsnorm", "train.steps=2")  # whose baseline may have more
    yield "plan", said("plan", *grid, *more, "--detect", "2", "--on", "h100:8")
    declare_tuning(folder, trials=15)
    yield "plan", said("plan", "lr", "--on", "h100:8")
    changes = ("--change", "a: stem=dpn", "--change", "b: norm=rmsnorm", "--detect", "2")
    yield "plan", said("plan", "launcher=inline", *changes)
    yield "status", said("status")
    store = Store(folder / "runs")
    plan = store.read_plan("fixture")
    assert plan is not None
    [run, *_] = plan.runs()
    yield "status", printed(_status(plan, store, run))
    yield "show", said("show", "pre#0")
    yield "show --against", said("show", "pre#0", "--against", "post#0")
    for parts in ("gain,cost,population,epochs_to:0.9", "gain"):
        yield "table", said("table", "--show", parts)
    planted, results = planted_sweep()
    for table in (
        tabulate(planted, results, cost=True),
        tabulate(*planted_sweep(complete=False)),
        tabulate(*grouped_sweep()),
        whole_table(),
        own_table(),
    ):
        yield "table", printed(tidy.table_tree(table))
    begun = Search(make_plan(["lr"], store=folder / "runs")[0]).grow({}.get, lambda _: [])
    searched, ended = simulate(begun)
    for state in (begun, searched):
        yield "trials", printed(trials.tree(state, trials.list_trials(state, {})))
    yield "table", printed(tidy.table_tree(tabulate(searched, ended)))
    yield "verify", said("verify", "fixture")
    yield (
        "verify --rerun",
        said("verify", "--rerun", "none#0", "launcher=inline", "--store", "ours"),
    )
    yield "merge", said("merge", "runs", "--store", "elsewhere")
    yield "gate try", printed(filled(GateAnswer).tree)
    yield "gate log", printed(filled(StreamLog).tree)
    said("new", "trainer", "line")
    said("gate", "start", "idea", "trainer=line", *OURS)
    yield "gate show", said("gate", "show", "idea", "0", *OURS)
    yield "gate restore", said("gate", "restore", "idea", "0", "restored", *OURS)
    (folder / "sheet.csv").write_text("row,acc,lr\na,1,1\nb,nan,2\nb,3,2\n")
    words = ("--row", "row", "--metric", "acc:more")
    yield "import", said("import", "sheet.csv", *words, "--store", "elsewhere")
    log = "commit\tval_bpb\tstatus\na\t1.0\tkeep\na\t1.1\tdiscard\nb\t0.9\tkeep\n"
    (folder / "results.tsv").write_text(log)
    yield "import --loop", said("import", "results.tsv", "--loop")
    yield "doctor", said("doctor", "--repair")
    sow_store(folder / "twelve", "photos", 12)
    yield "doctor", said("doctor", "--statistics", "--store", "twelve")
    yield "doctor --constraints", said("doctor", "--constraints")
    yield "error", said("status", "nope", code=2)
    yield "new", said("new", "norm", "my_norm")
    yield "data prepare", said("data", "prepare", "digits", "--store", "elsewhere")
    yield "plot", said("plot", "gain")
    yield "report", said("report")
    yield "export", said("export", "fixture", "handed-on")
    yield "export --weights", said("export", "w.safetensors", "--weights", "none#0", *OURS)
    yield "run", said("run", "none#0", "--delete", "--yes", *OURS)
    yield "gc", said("gc", "stem-none-dpn", "--yes", *OURS)
    detached = ("sweep", *SMALL, "seeds=1", "--detach", "here", "--store", "behind")
    words = [ABLATE, *detached, "--format", "json"]
    yield "sweep --detach", json.loads(subprocess.check_output(words, text=True))
    yield "status", said("status", "--wait", "--store", "behind")
    yield "stop", said("stop", "--store", "behind")


def _status(plan: Plan, store: Store, run: PlannedRun) -> Any:
    """With a run that trains, and one that failed."""
    states = dict.fromkeys((run.id for run in plan.runs()), RunState())
    states[run.id] = RunState("failed")
    workers = [Worker(run, "cpu:0", Notes(phase="train", step=3, total=9), store.rundir(run.id))]
    counts = {"planned": len(states) - 1, "failed": 1}
    now = SweepProgress(plan.name, len(states), counts, workers, states=states)
    return trees.of_status(SweepView(plan, [*plan.runs()], now, store, ()), ["a line"])


@pytest.mark.whole
def test_the_page_has_every_key_and_no_other(said, tmp_path):
    seen: Seen = set()
    for section, document in documents(said, tmp_path):
        assert document["version"] == JSON_VERSION
        check_document(document, section, seen)
    told = {(section, key) for section, keys in SECTIONS.items() for key in keys}
    served = {(section, key) for section, key in told if section == "watch"}  # see test_answers.py
    assert told - seen == served


def test_the_page_is_as_it_is_written_now():
    assert written() == PAGE, "python tests/json_page.py writes it"
