"""`ablate report`: one page that needs nothing else, says what the table says, and fits a phone."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import http.server
import json
import os
import re
import shutil
import stat
import subprocess
import threading
from pathlib import Path

import pytest
from conftest import Shell, records
from html_page import Page, tidy
from support.plans import with_sections
from support.planted_sweeps import planted_sweep
from support.tables import PLANTED, make_plan, plant, tabulate

from ablate.analysis import Note, table_headline
from ablate.planning.cell import Column, PlannedRun, Row, Trial, Tune, TuningStage, TuningWinner
from ablate.planning.plan import Plan
from ablate.report import show
from ablate.report.formats import render_table
from ablate.report.formats.parts import DEFAULT_SHOW
from ablate.report.page import forests, gains_html, render_page
from ablate.report.plot import draw_figures
from ablate.shared.files import to_json
from ablate.store.record import RunRecord, load_records
from ablate.store.store import Store

FAILS = '<b>fails</b> & "x"'
SWEEP = f"""
title: 'Do <i>these</i> help? & "how"'
base: {{recipe: quick, data: digits, model.arch: mu/4, model.depth: 1, train.steps: 4}}
baseline: LN
seeds: 2
variants:
  - LN: {{}}
  - '{FAILS}': {{norm: "norms:Fails"}}
  - diverges: {{optim.lr: 1e20}}
  - Dual PatchNorm: {{stem: dpn}}
"""
NORM = """
from torch import nn

class Fails(nn.Module):
    version, mixes_tokens, roles = 1, False, {}

    def __init__(self, shape):
        super().__init__()

    def forward(self, x):
        if not self.training and len(x) > 4:  # not where it is planned
            raise RuntimeError("</pre><script>alert(1)</script> & \\x1b[31mred\\x1b[0m")
        return x
"""
SETTINGS = ("model.arch=mu/4", "model.depth=1", "train.steps=4", "seeds=2")  # of runs in it


@pytest.fixture(scope="module")
def driven(tmp_path_factory) -> Shell:
    """A folder with two driven sweeps and their reports: `planted` has runs that failed, `whole` is
    the others. And `wide`, a report of 300 planted runs of 100 epochs."""
    shell = Shell(tmp_path_factory.mktemp("reported"))
    (shell.folder / "norms.py").write_text(NORM)
    (shell.folder / "sweeps").mkdir()
    (shell.folder / "sweeps" / "planted.yaml").write_text(SWEEP)
    shell("sweep", "planted", "launcher=inline", code=1)
    shell("sweep", "stem=none,dpn", *SETTINGS[:-1], "seeds=3", "launcher=inline", "--as", "whole")
    shell("report", "planted")
    shell("report", "whole")
    plan, results = wide(shell.folder / "wide")
    table = tabulate(plan, results)
    runs = load_records(plan, Store(shell.folder / "wide"), {})
    drawn = draw_figures(plan, table, Store(shell.folder / "wide").rundir)
    html = render_page(plan, table, runs, [], drawn)
    (shell.folder / "wide.html").write_text(html)
    (shell.folder / "wide.csv").write_text(render_table(table, "tidy"))
    return shell


def wide_plan() -> Plan:
    """20 variants x 5 columns x 3 seeds."""
    rows = [f"{name} {i}" for i in range(4) for name in ("base", "better", "worse", "same", "x")]
    columns = [f"column {c}" for c in range(5)]
    plan = make_plan(rows, columns)
    data = {**plan.cells[0].spec.tree["data"], "fingerprint": "f"}
    cells = []
    for i, cell in enumerate(plan.cells):
        own = {"data": data, "model": {"arch": cell.column}, "stem": {"name": cell.row}}
        ids = {seed: f"{i:04d}{seed:012d}" for seed in cell.ids}
        cells.append(dataclasses.replace(with_sections(cell, **own), ids=ids))
    return dataclasses.replace(
        plan,
        cells=tuple(cells),
        rows=tuple(Row(row, {"stem": row}) for row in rows),
        columns=tuple(Column(column, {"model.arch": column}) for column in columns),
    )


def wide(root: Path) -> tuple[Plan, dict]:
    """It, with its results and folders as workers leave them."""
    plan = wide_plan()
    top1 = {row.label: [90 + i % 3, 91, 92.5 - i / 9] for i, row in enumerate(plan.rows)}
    results = plant(plan, top1)
    line = {"lr": 1e-3, "train_loss": 1.2345678, "val_loss": 1.1, "val_top1": 0.9123}
    curve = "".join(json.dumps({"step": s, "epoch": s / 7, **line}) + "\n" for s in range(100))
    for run, result in results.items():
        folder = Store(root).rundir(run)
        folder.path.mkdir(parents=True)
        result["metrics_sha256"] = hashlib.sha256(curve.encode()).hexdigest()
        folder.result.write_bytes(to_json(result))
        folder.metrics.write_text(curve)
    return plan, results


def read(shell: Shell, name: str) -> Page:
    return Page((shell.folder / f"{name}.html").read_text())


def facts(shell: Shell, name: str) -> list[dict[str, str]]:
    path = shell.folder / f"{name}.csv"
    text = path.read_text() if path.exists() else shell("table", name, "--format", "tidy").out
    return records(text)


# --- What it says -------------------------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.parametrize("name", ["planted", "whole", "wide"])
def test_it_needs_nothing_else_and_runs_nothing(driven, name):
    html = (driven.folder / f"{name}.html").read_text()
    page = Page(html)
    assert not {"script", "iframe", "object", "embed", "img"} & set(page.tags)
    assert all(link.startswith("#") or link == "data:," for link in page.links)
    assert not re.search(r"url\((?!#)|@import|javascript:", html)
    assert "default-src 'none'" in html


@pytest.mark.whole
@pytest.mark.parametrize("name", ["planted", "whole", "wide"])
def test_every_number_of_the_gains_is_the_csvs(driven, name):
    told: dict[tuple[str, str], dict[str, float]] = {}
    seeds: dict[tuple[str, str, str], float] = {}
    for fact in facts(driven, name):
        key = (fact["column"], fact["row"])
        if fact["row"] and fact["value"] and not fact["seed"]:
            told.setdefault(key, {})[fact["quantity"]] = float(fact["value"])
        elif fact["quantity"] == "top1.run":
            seeds[*key, fact["seed"]] = float(fact["value"])
    rows = [row for table in read(driven, name).tables for row in table]
    found = 0
    for (column, row), values in told.items():
        for what, sign in (("top1", ""), ("gain", "+")):
            if what in values:
                ends = [
                    f"{values[f'{what}.{end}']:{sign}.2f}"
                    for end in ("low", "high")
                    if f"{what}.{end}" in values
                ] or ["-"]
                shown = f"{values[what]:{sign}.2f} [{', '.join(ends)}]"
                assert any(line[0] == row and shown in line for line in rows), (column, row, shown)
                found += 1
    assert found >= 3
    assert seeds == {k: top1 for k, top1 in runs_of(driven, name).items() if top1 is not None}


def runs_of(shell: Shell, name: str) -> dict[tuple[str, str, str], float | None]:
    """The exact top-1 of every run in the page, by column, row and seed; ids are the plan's."""
    plan = wide_plan() if name == "wide" else Store(shell.folder / "runs").read_plan(name)
    planned = {run.id: run for run in plan.runs()}
    page = read(shell, name)
    found = {}
    for table, values in zip(page.tables, page.values, strict=True):
        for cells, exact in zip(table, values, strict=True):
            if cells[-1] in planned:
                run = planned[cells[-1]]
                key = (run.cell.column, run.cell.row, str(run.seed))
                found[key] = exact[0] if "finished" in " ".join(cells) else None
    assert len(found) == len(planned)
    return found


def test_labels_titles_and_logs_are_escaped_and_failed_runs_show_why(driven):
    page = read(driven, "planted")
    assert not {"b", "i"} & set(page.tags)
    for told in (
        'Do <i>these</i> help? & "how"',
        "</pre><script>alert(1)</script> & red",
        "8 runs: 4 finished, 2 failed, 2 diverged",
        f"{FAILS}#0 failed: RuntimeError",
        "UNFINISHED",
    ):
        assert told in page.text
    last = {row[0]: row[-1] for row in page.tables[0]}
    assert (last[FAILS], last["diverges"]) == ("2/2 missing", "2/2 diverged")
    assert page.text.count("Traceback (most recent call last)") <= 2
    assert "\x1b" not in page.text


def test_it_says_how_it_was_made(driven):
    text = read(driven, "planted").text
    run = next((driven.folder / "runs" / "runs").glob("*/env.json"))
    attempt = json.loads(run.read_text())["attempts"][-1]
    packages = attempt["packages"]
    for told in (
        *("ablate sweep planted", attempt["digest"], attempt["platform"], "seeds 0, 1"),
        *(f"{name} {packages[name]}" for name in ("torch", "ablate-sweep")),
        " s of device time (cpu), 8 attempts at 8 runs",
        "optim.lr=1e+20 (0.003)",
        "stem.name=dpn (none)",
    ):
        assert told in text, told


def test_trials_are_told_apart_from_runs_and_what_they_chose_is_told(tmp_path):
    plan, results = wide(tmp_path)
    log = {"optim.lr": {"log": (1e-4, 1e-2)}, "norm": {"choices": ("rms", "none")}}
    shorter = TuningStage({"optim.lr": {"uniform": (0.001, 0.002)}}, 1, {"train.epochs": 2})
    first, *others = plan.cells
    trial = Trial(0, 0, {}, dataclasses.replace(first, ids={1000: "f" * 16}), 0.9)
    chosen = TuningWinner({"optim.lr": 0.003, "norm": "rms"}, 2, 4, 0.9)
    first = dataclasses.replace(first, chosen=(chosen,), specs=(first.spec,))
    tune = Tune((TuningStage(log, 3), shorter))
    tuned = dataclasses.replace(plan, cells=(first, *others), tune=tune, trials=(trial,))
    runs = load_records(tuned, Store(tmp_path), {})
    text = Page(render_page(tuned, tabulate(tuned, results), runs, [], {})).text
    assert "3 seeds. 300 runs: 300 finished; 1 tuning trial: 1 planned." in text
    assert (
        "optim.lr in log 0.0001 to 0.01, norm in rms, none: 3 trials; then optim.lr in uniform "
        "0.001 to 0.002: 1 trial of train.epochs=2; 3 searches for every variant in every column "
        "(sampler tpe, pruner none). Trials are judged on validation"
    ) in text
    assert "base 0 on column 0: optim.lr=0.003, norm=rms" in text
    assert "0 s of it on tuning" in text


def test_show_calls_a_trial_a_trial(tmp_path, monkeypatch):
    plan = make_plan(["base"])
    store = Store(tmp_path)
    trial = Trial(3, 0, {}, plan.cells[0])
    for run, text in (
        (PlannedRun("ab" * 8, plan.cells[0], 1), "base#1"),
        (PlannedRun("ab" * 8, plan.cells[0], 1000, trial), "base#1000.3, a tuning trial"),
    ):
        record = RunRecord(store.rundir("ab" * 8), [("planted", run)])
        monkeypatch.setattr(show, "load_record", lambda *_, record=record: record)
        assert f"  of planted: {text}\n" in show.describe_run(store, None, "ab" * 8)


def test_the_same_sweep_gives_the_same_bytes_and_the_report_is_a_look(driven, shell):
    shutil.copytree(driven.folder / "runs", shell.folder / "runs")
    words = ("report", "whole", "analysis.margin=5", "--out")  # an analysis that nobody has read
    shell(*words, "1.html")
    shell(*words, "2.html")
    one, two = ((shell.folder / f"{n}.html").read_text() for n in (1, 2))
    assert one == two
    trained = "whole. Trained on digits, 1,197 images at 8 px, 4 steps; n = 3."
    assert f"<title>{trained}</title>" in one
    assert "verdicts read at 3 seeds" in Page(one).text
    looks = map(json.loads, (shell.folder / "runs" / "looks.jsonl").read_text().splitlines())
    [look] = [look for look in looks if look["analysis"].get("margin") == 5]
    assert (look["sweep"], look["columns"][""]["n"]) == ("whole", 3)


@pytest.mark.parametrize("place", ["nowhere/r.html", "folder.html", "r.pdf", "r"])
def test_a_place_that_can_not_be_written_is_named(driven, place):
    (driven.folder / "folder.html").mkdir(exist_ok=True)
    done = driven("report", "whole", "--out", place, code=2)
    assert f"--out: {place}" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.whole
def test_what_is_no_regular_file_is_written_through_and_a_link_is_kept(driven):
    fifo, link, file = (driven.folder / name for name in ("fifo", "link", "file.html"))
    os.mkfifo(fifo)
    link.symlink_to(file)
    with open(driven.folder / "read", "wb") as kept:
        reader = subprocess.Popen(["cat", fifo], stdout=kept)
    done = driven("report", "whole", "--out", "fifo")
    reader.wait(60)
    assert "wrote" not in done.out
    assert stat.S_ISFIFO(os.lstat(fifo).st_mode)
    driven("report", "whole", "--out", "link")
    assert link.is_symlink()
    assert file.read_bytes() == (driven.folder / "read").read_bytes()
    assert file.read_bytes().lower().startswith(b"<!doctype html>")


def test_it_begins_with_the_headline_of_the_table_and_then_the_warnings(driven):
    whole, planted = (read(driven, name).text for name in ("whole", "planted"))
    table = driven("table", "whole", "--format", "md").out
    [sentence] = [
        line for line in table.splitlines() if line.startswith("On digits, against stem=none")
    ]
    assert whole.count(tidy(sentence)) == 1
    assert whole.index(tidy(sentence)) < whole.index("whole: 2 variants x 3 seeds")
    assert planted.index("UNFINISHED") < planted.index("planted: 4 variants x 2 seeds")
    assert "against LN" not in planted
    assert "helps" not in planted


@pytest.mark.parametrize("complete", [True, False])
def test_the_fragment_of_the_live_page_begins_with_headline_and_warnings(complete):
    table = tabulate(*planted_sweep(complete))
    unrecorded = Note("looks.unrecorded", {"reason": "no room"}, "warning")
    table = dataclasses.replace(table, notes=(*table.notes, unrecorded))
    html = gains_html(table, DEFAULT_SHOW).partition('<div class="grids">')[0]
    headline, warnings = table_headline(table), table.texts("unfinished", "warning")
    assert bool(headline) == complete
    assert len(warnings) == 2 - complete
    assert Page(html).texts == [*filter(None, [headline]), *warnings]


def test_the_forest_shows_the_numbers_of_the_table():
    plan = make_plan(list(PLANTED), ("S/4", "Ti/4"), margin=0.16)
    table = tabulate(plan, plant(plan, PLANTED))
    drawn = forests(plan, table)
    assert [forest.heading for forest in drawn] == ["S/4", "Ti/4"]
    for forest in drawn:
        (p, a), *_, (q, b) = [(place, float(text)) for place, text in forest.ticks]
        assert -3 < a < -1 < 1 < b < 3

        def value(place, p=p, a=a, q=q, b=b):
            return a + (place - p) / (q - p) * (b - a)

        assert value(forest.zero) == pytest.approx(0, abs=1e-3)
        start, width = forest.margin
        assert (value(start), value(start + width)) == pytest.approx((-0.16, 0.16), abs=1e-3)
        entries = {e.row: e for e in table.entries if e.column == forest.heading and e.gain}
        assert [line.label for line in forest.lines] == [*entries]
        for line in forest.lines:
            gain, (start, width) = entries[line.label].gain, line.interval
            found = [value(place) for place in (start, line.mean, start + width)]
            assert found == pytest.approx([gain.low, gain.mean, gain.high], abs=1e-3)
            at = [v - b for v, b in zip(PLANTED[line.label], PLANTED["base"], strict=True)]
            assert [value(place) for place in line.seeds] == pytest.approx(at, abs=1e-3)
            assert line.words.startswith(f"{gain.mean:+.2f} points [{gain.low:+.2f}, ")
            assert line.words.endswith(f": {entries[line.label].verdict}")
            assert line.cut == ()


def test_300_runs_of_100_epochs_are_under_5_mb(driven):
    html = (driven.folder / "wide.html").read_bytes()
    assert len(html) < 5_000_000
    assert len(runs_of(driven, "wide")) == 300


# --- In a browser -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(driven):
    """(address, the paths asked for): the folder of the reports, over http."""
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            asked.append(self.path)

    handler = functools.partial(Handler, directory=str(driven.folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


OPENED = "for (const part of document.querySelectorAll('details')) part.open = true; 0"
DRAWN = (
    "[...document.querySelectorAll('figure svg')].map((svg) => svg.getBoundingClientRect().width)"
)
FAR = """[...document.querySelectorAll('main *')].filter((part) => {
  const scrolls = part.closest('.scroll, pre, svg'), box = part.getBoundingClientRect();
  return !scrolls && box.width && (box.right > innerWidth + 1 || box.left < -1);
}).length"""


@pytest.mark.whole
@pytest.mark.parametrize(("name", "dark"), [("planted", False), ("whole", False), ("wide", True)])
def test_a_browser_shows_it_at_desk_and_phone_width(served, browser, name, dark):
    address, asked = served
    asked.clear()
    for width in (1400, 390):
        page = browser.open(f"{address}/{name}.html", width, dark=dark)
        page.evaluate(OPENED)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(FAR) == 0
        drawn = page.evaluate(DRAWN)
        assert len(drawn) == 1
        assert all((0.5 if width > 1000 else 0.9) * width < size <= width for size in drawn)
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (max(map(int, re.findall(r"\d+", colour)[:3])) < 64) is dark
        page.close()
    assert set(asked) == {f"/{name}.html"}
    assert not browser.complaints


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "dark"), [("planted", False), ("planted", True), ("whole", False)]
)
def test_axe_finds_nothing_serious(served, browser, axe, name, dark):
    page = browser.open(f"{served[0]}/{name}.html", 1280, dark=dark)
    page.evaluate(OPENED)
    assert page.violations(axe) == []
    page.close()
