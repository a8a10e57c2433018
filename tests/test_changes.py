"""Several changes at once, as a user declares, plans, trains and reads them."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import Shell
from scipy import stats as oracle
from support.declared import split_line
from support.tables import grids

import ablate
from ablate.analysis import stats
from ablate.analysis.evidence import Evidence
from ablate.analysis.tabulate import make_table
from ablate.planning import expand
from ablate.planning.changes import read_changes
from ablate.report.formats import render_table

SMALL = ("data=digits", "train.steps=40", "train.batch=64", "model.width=16", "model.heads=2")
CHANGES = {
    "dpn": "stem=dpn",
    "rms": "norm=rmsnorm",
    "swiglu": "model.act=swiglu",
    "wd": "optim.wd=0.2 optim.b2=0.99",
    "deep": "model.depth=2",
}


def words(*names, design=None):
    changes = [text for name in names for text in ("--change", f"{name}: {CHANGES[name]}")]
    return [*SMALL, *changes, *(["--design", design] if design else [])]


THREE = ("dpn", "rms", "wd")
FULL = words(*THREE, design="factorial")


def facts(shell, name):
    """quantity -> change -> value, of the table as CSV."""
    found = {}
    for line in shell.facts(name):
        found.setdefault(line["quantity"], {})[line["row"]] = line["value"]
    return found


def in_a_line(shell, *words, says):
    """A refusal of a plan that has all of these."""
    error = shell("plan", *words, code=2).err
    assert len(error.splitlines()) == 1
    for word in says:
        assert word in error


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A store with a factorial of three changes, and what else there is to tell of them."""
    shell = Shell(tmp_path_factory.mktemp("changes"))
    shell("sweep", *FULL, "seeds=3", "launcher=inline", "--as", "full")
    return shell


# --- What is declared ---------------------------------------------------------------------------

CELLS = {
    "one_at_a_time": ["none", "dpn", "rms", "wd"],
    "leave_one_out": ["all", "all but dpn", "all but rms", "all but wd"],
    "both": ["none", "dpn", "rms", "wd", "all but dpn", "all but rms", "all but wd", "all"],
    "factorial": ["none", "dpn", "rms", "wd", "dpn + rms", "dpn + wd", "rms + wd", "all"],
}


def planned(*given, **options):
    """The plan of words, which trains and asks nothing."""
    own, said = split_line(given)
    declared = {"change": said["change"], "design": said["design"], **options}
    return expand.plan_from_words(own, store=Path("runs"), **declared)[0]


def ids(plan):
    return {cell.row: cell.ids[0] for cell in plan.cells}


@pytest.mark.parametrize("design", CELLS)
@pytest.mark.usefixtures("here")
def test_a_design_has_its_cells_with_the_settings_of_their_changes(design):
    plan = planned(*words(*THREE, design=design))
    assert [*ids(plan)] == CELLS[design]
    assert plan.baseline == CELLS[design][0]
    assert all(row.confounds == () for row in plan.rows)
    both = planned(*SMALL, "stem=dpn,none", "norm=rmsnorm").cells[0].ids[0]
    assert {ids(plan).get(label, both) for label in ("all but wd", "dpn + rms")} == {both}
    assert len({*ids(plan).values()}) == len(plan.rows)
    two = planned(*words("dpn", "rms", design="both"))  # which has one design of all cells
    assert {*ids(two).items()} == {*ids(planned(*words(*THREE[:2], design="factorial"))).items()}


def test_a_space_in_a_list_or_in_quotes_parts_no_words():
    probe = "probe=[gradnorm, scales]"
    text = f"""a: {probe} text.prompts=[['a ]', "{{}}"], b]  train.loss='x y'"""
    changes = read_changes([text, f"b:{probe} stem=dpn"], {})
    settings = [{word.key: word.value for word in change.settings} for change in changes]
    probes = {"probe": ["gradnorm", "scales"]}
    prompts = {"text.prompts": [["a ]", "{}"], "b"], "train.loss": "x y"}
    assert settings == [probes | prompts, probes | {"stem": "dpn"}]


@pytest.mark.whole
def test_a_file_says_what_changes_set_together(shell, monkeypatch):
    monkeypatch.chdir(shell.folder)
    Path("both.yaml").write_text(
        "base: {recipe: quick, data: digits, train.steps: 4}\n"
        "changes: {before: {stem: pre}, after: {stem: post}, before + after: {stem: dpn}, "
        "deep: {model.depth: 2}}\n"
        "design: factorial\nseeds: 2\nscales: {tiny: {seeds: 3}}\n"
    )
    plan = planned("both")
    assert len(plan.rows) == 8
    stems = ("before", "after", "before + after")
    alone = planned("recipe=quick", "data=digits", "train.steps=4", "stem=pre,post,dpn")
    assert [ids(plan)[label] for label in stems] == [cell.ids[0] for cell in alone.cells]
    assert planned("both", scale="tiny").seeds == (0, 1, 2)
    assert len(planned("both", design="one_at_a_time").rows) == 4
    assert "both" in shell("list", "sweeps").out


A, B = ("--change", "a: stem=dpn"), ("--change", "b: norm=rmsnorm")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (A, ["--change", "two changes or more, got 1"]),
        (["--change", "a stem=dpn"], ["--change 'a stem=dpn'", "NAME: key=value"]),
        (["--change", "a:"], ["--change 'a:'", "NAME: key=value"]),
        ([*A, "--change", "a: stem=pre"], ["--change a", "given twice"]),
        ([*B, "--change", "a: stem=dpn stem=pre"], ["--change a: stem: ", "given twice"]),
        ([*B, "--change", "a: stem=dpn,pre"], ["--change a: stem: ", "stem=dpn"]),
        (
            [*A, "--change", "b: stem=pre"],
            ["a and b both set stem", "give 'a + b', with the stem"],
        ),
        ([*A, *B, "--change", "a + c: stem=pre"], ["a + c", "'c'", "a, b"]),
        ([*A, *B, "--change", "a + b: stem=pre"], ["a + b", "stem", "fewer than two"]),
        ([*A, "--change", "b: norm=layernorm"], ["change b", "alters nothing", "none"]),
        (["--change", "none: stem=dpn", *B], ["'none'", "cell"]),
        (words("dpn", "rms", design="fractional"), ["design", "fractional", "5 to 16", "got 2"]),
        (words("dpn", "rms", design="half"), ["design", "'half'", "one_at_a_time", "factorial"]),
        (["stem=none,dpn", "--design", "factorial"], ["--design factorial", "--change"]),
        (["stem=none,dpn", *B, "--change", "c: optim.wd=1"], ["stem=none,dpn", "--across"]),
        (["quickstart", "--design", "both"], ["--design", "both", "variants"]),
        (["quickstart", *A], ["--change"]),
        ([*words("dpn", "rms"), "baseline=dpn"], ["baseline", "dpn", "'none'"]),
    ],
)
def test_what_is_no_design_is_refused_in_a_line(shell, given, says):
    in_a_line(shell, *given, says=says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("changes: {a: {stem: dpn}}\n", ["mine.yaml: changes", "got 1"]),
        ("variants: [{a: {}}]\nchanges: {}\n", ["variants", "changes", "give variants"]),
        ("variants: [{a: {}}]\ndesign: both\n", ["mine.yaml: design", "variants"]),
        ("changes: {a: 3, b: {stem: dpn}}\n", ["changes.a", "got 3"]),
        ("changes: {a: {}, b: {stem: dpn}}\n", ["changes.a", "{key: value}"]),
    ],
)
def test_a_file_with_a_mistake_is_refused_in_a_line(shell, text, says):
    (shell.folder / "mine.yaml").write_text(f"base: {{recipe: quick, data: digits}}\n{text}")
    in_a_line(shell, "./mine.yaml", says=says)


# --- What is planned ----------------------------------------------------------------------------


@pytest.mark.whole
def test_plan_shows_the_designs_side_by_side(shell):
    given = (*words(*CHANGES), "seeds=3", "--spread", "0.5", "--detect", "0.5")
    out = shell("plan", *given).out
    lines = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert lines["both"][1:5] == ["(this", "one)", "12", "36"]
    assert (lines["factorial"][1:3], lines["fractional"][1:3]) == (["32", "96"], ["16", "48"])
    designs = json.loads(shell("plan", *given, "--format", "json").out)["designs"]
    names = ["one_at_a_time", "leave_one_out", "both", "factorial", "fractional"]
    assert [one["design"] for one in designs] == names
    assert [one["runs"] for one in designs] == [18, 18, 36, 96, 48]
    detects = {one["design"]: one["smallest"][""] for one in designs}
    assert detects["factorial"] < detects["fractional"] < detects["one_at_a_time"]
    assert detects["factorial"] == pytest.approx(detects["fractional"] / 2**0.5, rel=0.05)


def designs_of(shell, *given):
    found = json.loads(shell("plan", *given, "--format", "json").out)["designs"]
    return {one["design"]: one for one in found}


@pytest.mark.whole
def test_plan_says_which_spread_its_designs_assume(shell):
    """A guess, and what is given; in the JSON the upper end of a crossed design."""
    given = (*words(*THREE, design="factorial"), "seeds=3")
    (line,) = [one for one in shell("plan", *given).out.splitlines() if "--spread" in one]
    for word in ("0.5 points between seeds", "guess"):
        assert word in line
    assert (
        "0.7 points between seeds, given by --spread"
        in shell("plan", *given, "--spread", "0.7").out
    )
    by_design = designs_of(shell, *given)
    method = stats.Method("images", contrasts=3, variants=3)
    ends = [stats.detected_effect(0.5, 8, 3, method, part) for part in (0.0, 0.3)]
    full = by_design["factorial"]
    assert [full["smallest"][""], full["largest"][""]] == pytest.approx(ends)
    assert full["changes"] == {}
    assert by_design["both"]["smallest"] == by_design["both"]["largest"]
    two = designs_of(shell, *given[:-1], "seeds=2")
    assert {one["smallest"][""] for one in two.values()} == {None}


def power_at(gain, found, quantity, row, n, more, contrasts):
    """The share of simulated effects as large as `gain` that `more` seeds tell from 0, by the sd
    and df of n seeds that the table has."""
    sd, df = (float(found[f"{quantity}.{part}"][row]) for part in ("sd", "df"))
    df = df * (more - 1) / (n - 1)
    rng = np.random.default_rng(16)
    critical = oracle.t.ppf(1 - 0.05 / (2 * contrasts), df)
    spread = np.sqrt(rng.chisquare(df, 100_000) / df)
    t = rng.standard_normal(100_000) + gain / (sd / more**0.5)
    return (t > critical * spread).mean()


@pytest.mark.whole
@pytest.mark.parametrize("seeds", [3, 5])
def test_finished_runs_forecast_each_change_by_the_spread_that_judges_it(trained, seeds):
    found = facts(trained, "full")
    own = designs_of(trained, *FULL, f"seeds={seeds}", "--as", "full")["factorial"]
    for name in THREE:
        gain = own["changes"][""][name]
        power = power_at(gain, found, "change.main_effect", name, 3, seeds, contrasts=3)
        assert power == pytest.approx(0.8, abs=0.01)
    ends = [f([*own["changes"][""].values()]) for f in (min, max)]
    assert [own["smallest"][""], own["largest"][""]] == ends
    out = trained("plan", *FULL, "--as", "full").out
    (line,) = [one for one in out.splitlines() if "by change: " in one]
    for word in ("factorial", "3 finished seeds", *THREE):
        assert word in line
    given = designs_of(trained, *FULL, "--as", "full", "--spread", "0.5")["factorial"]
    assert given["changes"] == {}


@pytest.mark.whole
def test_the_name_of_a_driven_sweep_stands_for_its_words(trained):
    """Of a sweep that words declared: `plan`, `sweep` and Python take the name, more seeds too."""
    plans = [
        json.loads(trained("plan", *given, "--format", "json").out)
        for given in ((*FULL, "--as", "full"), ("full",), ("full", "seeds=4"))
    ]
    runs = [{row["row"]: row["runs"] for row in plan["variants"]} for plan in plans]
    assert runs[0] == runs[1]
    assert all(runs[1][row].items() < runs[2][row].items() for row in runs[1])
    assert [plan["sweep"] for plan in plans] == ["full"] * 3
    out = trained("sweep", "full").out
    assert "sweep: full" in out
    assert "finished:" not in out
    made = ablate.Sweep("full", store=trained.folder / "runs")._plan
    assert {row.label for row in made.rows} == {*runs[0]}
    for beside, says in (
        (["optim.lr=0.1"], "optim.lr=0.1"),
        (["--design", "both"], "--design"),
        (["--change", "dpn: stem=dpn"], "--change"),
    ):
        in_a_line(trained, "full", *beside, says=[says, "full", "--as NAME"])


def test_two_seeds_have_intervals_and_no_verdicts(trained):
    for name, more in (("two", ()), ("losses", ("analysis.metric=loss",))):
        trained("sweep", *FULL, "seeds=2", *more, "launcher=inline", "--as", name)
        found = facts(trained, name)
        assert {*found["change.main_effect"]} == {*THREE}
        assert found["change.main_effect.low"]
        assert "change.main_effect.verdict" not in found


# --- What is told -------------------------------------------------------------------------------


def accuracies(shell, name):
    """row -> accuracies in points by seed, from the runs themselves."""
    frame = ablate.Store(shell.folder / "runs").sweep(name).to_pandas()
    return {
        row: 100 * part.sort_values("seed").top1.to_numpy() for row, part in frame.groupby("row")
    }


def test_effects_are_those_of_the_runs(trained):
    of, found = accuracies(trained, "full"), facts(trained, "full")
    order = ("none", "wd", "rms", "rms + wd", "dpn", "dpn + wd", "dpn + rms", "all")
    y = dict(zip(itertools.product((0, 1), repeat=3), [of[n].mean() for n in order], strict=True))
    for place, name in enumerate(THREE):
        sides = [[v for on, v in y.items() if on[place] == at] for at in (0, 1)]
        main = float(found["change.main_effect"][name])
        assert main == pytest.approx(np.mean(sides[1]) - np.mean(sides[0]), abs=1e-9)
    pair = np.mean([y[1, 1, c] - y[1, 0, c] - y[0, 1, c] + y[0, 0, c] for c in (0, 1)])
    assert float(found["pair"]["dpn x rms"]) == pytest.approx(pair, abs=1e-9)
    whole = float(found["shapley"]["whole gain"])
    assert sum(float(found["shapley"][name]) for name in THREE) == pytest.approx(whole)
    assert whole == pytest.approx(y[1, 1, 1] - y[0, 0, 0])
    assert (found["change.contrasts"][""], found["pair.contrasts"][""]) == ("3", "3")
    assert {*found["change.main_effect.verdict"]} == {*THREE}
    assert "gain.verdict" not in found


def test_a_part_shows_no_gain_of_a_cell_either(trained):
    whole, part = (
        trained("table", "full", *words, "--format", "csv").out.splitlines()
        for words in ((), ("--rows", "dpn,wd"))
    )
    assert {line.partition(",")[0] for line in part} == {"row", "none", "dpn", "wd"}
    assert set(part) < set(whole)
    text = trained("table", "full", "--rows", "dpn,wd", "--format", "md").out
    [grid] = grids(text)
    assert [heading.split()[0] for heading in grid[0]] == ["variant", "top1", "n"]


def test_an_effect_says_where_one_code_version_trained_a_level(tmp_path):
    """All cells with wd by d2, the others by d1; then one other cell by d2, too."""
    given, options = split_line([*FULL[: len(SMALL)], "seeds=3", *FULL[len(SMALL) :]])
    plan, _ = expand.plan_from_words(given, store=tmp_path, **options)
    rng, names = np.random.default_rng(5), plan.changes.rows
    test = {"n": 300, "loss": 1.0, "top5": 0.9}
    results = {
        run: {
            **{"status": "finished", "collapsed": False, "train": {"n": 1197}},
            **{"test": test | {"top1": rng.random()}},
            "digest": "d2" if "wd" in names[cell.row] else "d1",
        }
        for cell in plan.cells
        for run in cell.ids.values()
    }

    def codes():
        change, pairs, shares = make_table(Evidence.collect(plan, results)).blocks
        said = [{line.label: line.code for line in block.lines} for block in (change, pairs)]
        return *said, {line.label: line.code for line in shares.lines}

    change, pairs, shares = codes()
    text = render_table(make_table(Evidence.collect(plan, results)), "md")
    assert change == {"dpn": "", "rms": "", "wd": "with it code d2 alone, without it code d1 alone"}
    assert shares["wd"] == change["wd"]
    assert re.findall(r"d\d", shares["whole gain"]) == ["d2", "d1"]
    assert pairs["dpn x rms"] == ""
    assert all(pairs[pair] == f"wd: {change['wd']}" for pair in ("dpn x wd", "rms x wd"))
    assert "| wd (confounded with the code version) |" in text
    (some,) = [cell for cell in plan.cells if cell.row == "dpn"]
    results[some.ids[0]]["digest"] = "d2"
    assert codes()[0] == {"dpn": "", "rms": "", "wd": "with it code d2 alone"}
    for result in results.values():
        result["digest"] = "d1"
    assert {*codes()[0].values()} == {*codes()[2].values()} == {""}


def test_the_same_runs_in_another_design_are_trained_once(trained):
    again = words(*THREE, design="both")
    out = trained("sweep", *again, "seeds=3", "launcher=inline", "--as", "some").out
    assert "finished:" not in out
    of, found = accuracies(trained, "some"), facts(trained, "some")
    for name in THREE:
        alone, rest = of[name] - of["none"], of["all"] - of[f"all but {name}"]
        assert float(found["change.alone"][name]) == pytest.approx(alone.mean(), abs=1e-9)
        assert float(found["change.among_all"][name]) == pytest.approx(rest.mean(), abs=1e-9)
    # Of the same runs three main effects were read before, beside its seven cells.
    assert found["change.contrasts"][""] == "10"
    gain = designs_of(trained, "some")["both"]["changes"][""]["dpn alone"]
    power = power_at(gain, found, "change.alone", "dpn", 3, 3, contrasts=10)
    assert power == pytest.approx(0.8, abs=0.01)


@pytest.mark.whole
def test_a_table_of_changes_is_the_same_in_every_form(trained, tmp_path):
    said = {f: trained("table", "full", "--format", f).out for f in ("md", "latex", "html", "json")}
    text = said["md"]
    assert "| change | main effect [95 % CI] | n | verdict |" in text
    assert text.index("What each change does") < text.index("Pairs of changes")
    assert "| none |" in text
    assert any(verdict in text for verdict in ("can't tell", "helps", "hurts"))
    assert "dpn x rms" in said["latex"]
    assert "main effect" in said["html"]
    kinds = [block["kind"] for block in json.loads(said["json"])["blocks"]]
    assert kinds == ["change", "pair", "shapley"]
    trained("export", "full", tmp_path / "bundle")
    for word in (tmp_path / "bundle", "full"):
        assert "nothing wrong" in trained("verify", word).out
    for kind in ("changes", "pairs"):
        trained("plot", "full", kind, "--out", tmp_path / f"{kind}.svg")
        assert "rms" in (tmp_path / f"{kind}.svg").read_text()
    trained("report", "full", "--out", tmp_path / "full.html")
    assert "main effect" in (tmp_path / "full.html").read_text()


@pytest.mark.whole
def test_looks_give_all_cells_seeds_until_each_change_is_told(trained):
    def looked(name, *more):
        """What it said, and how many seeds its cells have."""
        some = (*words("dpn", "rms", design="factorial"), "--until", "7", *more)
        out = trained("sweep", *some, "launcher=inline", "--as", name).out
        plan = ablate.Store(trained.folder / "runs").sweep(name)._plan
        return out, {len(cell.ids) for cell in plan.cells}

    out, seeds = looked("few", "--margin", "60")
    assert "look at 5 seeds: same within 60: dpn, rms" in out
    assert seeds == {5}
    text = trained("table", "few").out
    assert "| dpn |" in text
    assert "same within 60" in text
    assert "stopped at 5 seeds: a gain of 60 was ruled out (one-sided 90 % bound)" in " ".join(
        text.split()
    )
    out, seeds = looked("all")
    assert "look at 5 seeds: goes on" in out
    assert seeds in ({5}, {7})


def test_a_sweep_of_changes_in_python(trained):
    changes = {"dpn": {"stem": "dpn"}, "rms": {"norm": "rmsnorm"}}
    keys = {"train": {"steps": 40, "batch": 64}, "model": {"width": 16, "heads": 2}}
    store = trained.folder / "runs"
    design = {"changes": changes, "design": "factorial", "data": "digits", **keys}
    made = ablate.Sweep(store=store, seeds=3, **design)._plan
    there = ablate.Store(store).sweep("full")._plan
    ids = {run for cell in there.cells for run in cell.ids.values()}
    assert {run for cell in made.cells for run in cell.ids.values()} < ids
