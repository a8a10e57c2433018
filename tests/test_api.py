"""`import ablate`: a sweep, its runs and its table from Python, beside what the commands say."""

import contextlib
import io
import json
import math
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import PAGES
from scipy import stats

import ablate
from ablate.api.errors import in_python
from ablate.api.training import check_outcome
from ablate.planning.expand import plan_from_words
from ablate.report.formats.layout import UNFINISHED
from ablate.running.driver import Outcome
from ablate.shared.errors import Failure, UserError
from ablate.store.folder import StoreFolder
from ablate.store.progress import SweepProgress
from ablate.store.store import Store as OpenStore

WORDS = ("recipe=quick", "data=digits", "stem=none,dpn", "model.depth=1")
SHORT = {"train": {"epochs": 2}, "launcher": "inline"}


@pytest.mark.whole
def test_a_sweep_is_trained_read_and_resumed_as_by_the_commands(here, shell, capsys):
    sweep = ablate.Sweep(*WORDS, seeds=3, **SHORT)
    assert sweep.design.looks == ()
    assert sweep.design.seeds == (0, 1, 2)
    assert {run.status for run in sweep.train().runs()} == {"finished"}
    capsys.readouterr()

    facts = {
        (fact["row"], fact["quantity"]): float(fact["value"])
        for fact in shell.facts()
        if fact["row"] and fact["value"] and not fact["seed"]
    }
    frame = sweep.table().to_pandas().set_index("row")
    assert list(frame.index) == ["none", "dpn"]
    for row, quantity, column in (("none", "top1", "mean"), ("dpn", "gain", "gain")):
        assert frame.loc[row, column] == pytest.approx(facts[row, quantity])
        assert frame.loc[row, f"{column}_low"] == pytest.approx(facts[row, f"{quantity}.low"])
    assert sweep.table().verdicts.keys() == {("dpn", "")}
    assert str(sweep.table()) == shell("table", "--format", "md").out

    def written() -> list[int]:
        return [path.stat().st_mtime_ns for path in sorted(here.rglob("result.json"))]

    before = written()
    again = ablate.Sweep(*WORDS, seeds=3, **SHORT).train()
    assert written() == before
    runs = {run.id: run for run in again.runs()}
    plan = json.loads((here / "runs" / "sweeps" / f"{sweep.name}.json").read_bytes())
    assert {run for cell in plan["cells"] for run in cell["ids"].values()} == runs.keys()
    for run in runs.values():
        assert run.metrics == json.loads((run.folder / "result.json").read_bytes())["test"]
        assert run.config["stem"]["name"] == run.row
        assert run.label == f"{run.row}#{run.seed}"

    store = ablate.Store(here / "runs")
    assert store.sweeps == [sweep.name]
    assert list(store.sweep(sweep.name).to_pandas().id) == [*runs]
    shell("export", "out")
    bundle = ablate.Store(here / "out")
    assert len(bundle.sweeps) == 1
    assert bundle.sweep().table().to_pandas().equals(sweep.table().to_pandas())
    before = written()  # those of the bundle, too
    assert store.sweep().train().status().finished.to_list() == [3, 3]
    assert written() == before


def cells_of(noun: Any) -> list[str]:
    """The texts of the table that a notebook shows."""
    return re.findall(r"<t[hd]>(.*?)</t[hd]>", noun._repr_html_())


@pytest.mark.whole
def test_a_notebook_shows_states_figures_and_mistakes(here, shell):
    """What IPython and jedi, which complete and show things in notebooks, make of the nouns."""
    import jedi
    from IPython.core.interactiveshell import InteractiveShell

    for code, names in (
        ("import ablate\nablate.", {*ablate.__all__}),
        (
            "import ablate\nablate.Sweep('x').",
            {"plan", "train", "table", "status", "plot", "report"},
        ),
        ("import ablate\nablate.Sweep('x').plan().", {"data", "to_pandas"}),
        ("import ablate\nablate.Sweep('x').train().table().", {"render", "to_pandas"}),
    ):
        line = code.splitlines()[1]
        assert names <= {c.name for c in jedi.Script(code).complete(2, len(line))}
    assert {*ablate.__all__} <= {*dir(ablate)}
    words = (WORDS[0], *WORDS[2:])
    sweep = ablate.Sweep(*words, data=("digits", "mnist"), seeds=2, **SHORT)
    one_column = ablate.Sweep(*WORDS, seeds=2, **SHORT).train()
    status = sweep.status()
    assert status.planned.to_dict() == {
        (row, column): 0 if column == "digits" else 2
        for row in ("none", "dpn")
        for column in ("digits", "mnist")
    }
    assert (status.sum(axis="columns") == 2).all()
    assert cells_of(sweep)[-3:] == ["dpn", "2 finished", "2 planned"]
    assert cells_of(one_column)[-2:] == ["dpn", "2 finished"]
    assert cells_of(ablate.Store())[5:] == [one_column.name, "2", "1", "2", "4 finished"]
    assert cells_of(one_column.design)[2:] == ["none", "none", "dpn", "dpn"]
    run = one_column.runs()[0]
    assert cells_of(run)[2:4] == ["status", "finished"]
    assert f"top1 {run.metrics['top1']:.4g}" in repr(run)
    assert repr(one_column.table()) == str(one_column.table())

    figure = one_column.plot("curves")
    assert figure._repr_svg_().startswith("<?xml")
    figure.save(here / "curves.pdf")
    assert (here / "curves.pdf").read_bytes().startswith(b"%PDF")
    assert one_column.report(here / "page.html").read_text().startswith("<!doctype html>")
    with pytest.raises(UserError, match="curves"):
        one_column.plot("curve")
    with pytest.raises(UserError) as caught:
        figure.save(here / "curves.gif")
    assert "curves.gif" in str(caught.value)

    shell("export", "bundle")
    bundle = ablate.Store(here / "bundle").sweep()
    assert bundle.status().finished.to_list() == [2, 2]
    for draw in (bundle.plot, bundle.report, bundle.plan, bundle.train):
        with pytest.raises(UserError) as caught:
            draw()
        assert str(here / "bundle") in str(caught.value)

    more = ablate.Sweep(*WORDS, seeds=3, **SHORT)
    OpenStore(here / "runs").order("skip", [more._plan.cells[1].ids[2]])
    assert more.train().status().loc["dpn"].to_dict("records") == [{"finished": 2, "skipped": 1}]
    assert UNFINISHED not in more.report(here / "page.html").read_text()
    assert UNFINISHED not in str(more.table())

    result = InteractiveShell.instance().run_cell("import ablate; ablate.Sweep('stem=none,dpm')")
    assert isinstance(result.error_in_exec, ablate.UserError)
    shown = result.error_in_exec._render_traceback_()
    assert shown == [f"UserError: {result.error_in_exec}"]


@pytest.mark.whole
def test_a_plan_is_what_the_command_prints_and_trains_nothing(here, shell):
    sweep = ablate.Sweep(*WORDS, seeds=2, **SHORT)
    forecast = sweep.plan()
    assert not (here / "runs" / "ledger.db").exists()
    printed = shell("plan", *sweep._plan.words).out
    assert repr(forecast) + "\n" == printed
    tree = json.loads(shell("plan", *sweep._plan.words, "--format", "json").out)
    assert forecast.data["variants"] == tree["variants"]
    assert cells_of(forecast)[:2] == ["variant", "parameters"]
    frame = forecast.to_pandas().set_index("row")
    assert frame.parameters.to_dict() == {v["row"]: v["parameters"] for v in tree["variants"]}
    assert frame.left.to_list() == [2, 2]
    assert sweep.train().plan().to_pandas().left.to_list() == [0, 0]
    assert ablate.Store().sweep().plan().to_pandas().left.to_list() == [0, 0]


@pytest.mark.whole
def test_the_table_has_the_columns_and_dtypes_that_its_help_lists(here):
    frame = ablate.Sweep(*WORDS, seeds=3, **SHORT).train().table().to_pandas()
    listed: dict[str, str] = {}
    help_lines = re.findall(r"\| (`.*`) \| (\w+) \|", ablate.Table.to_pandas.__doc__)
    for names, dtype in help_lines:
        listed |= dict.fromkeys(re.findall(r"`(\w+)`", names), dtype)
    assert {name: str(dtype) for name, dtype in frame.dtypes.items()}.items() == listed.items()
    baseline, dpn = frame.to_dict("records")
    assert dpn["verdict"]
    assert frame.verdict.isna().to_list() == [True, False]
    assert math.isnan(baseline["gain"])
    half = stats.t.ppf(1 - 0.05 / 2, dpn["gain_df"]) * dpn["gain_sd"] / dpn["gain_n"] ** 0.5
    assert dpn["gain_high"] - dpn["gain"] == pytest.approx(half)
    assert dpn["gain"] - dpn["gain_low"] == pytest.approx(half)


def words_of(text: str) -> list[list[str]]:
    """The words of each line, without numbers, times and what is estimated: these depend on the
    machine."""
    lines = (line for line in text.splitlines() if not line.startswith("left: "))
    words = (re.findall(r"[A-Za-z_']+", line) for line in lines)
    return [[w for w in line if w not in ("h", "min", "s")] for line in words if line]


@pytest.mark.whole
def test_the_page_shows_what_its_code_prints(here):
    names: dict[str, Any] = {}
    page = PAGES["docs/python.md"]
    blocks = re.findall(r"```python\n(.*?)```(?:\n```text\n(.*?)```)?", page, re.DOTALL)
    assert len(blocks) > 5
    for code, shown in blocks:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, names)
        assert words_of(printed.getvalue()) == words_of(shown), code
    assert ablate.__all__ == sorted(re.findall(r"^\| `([A-Z]\w+)", page, re.MULTILINE))
    columns = ablate.Table.to_pandas.__doc__
    for line in re.findall(r"^\| (`.*`) \| (\w+) \|", page, re.MULTILINE):
        assert " | ".join(line) in columns


def test_words_are_those_of_the_command_and_so_are_their_mistakes(here):
    sweep = ablate.Sweep("stem=none,dpn", data="digits", until=8, optim={"lr": 1e-3})
    assert sweep.design.looks == (5, 8)
    assert "optim.lr=0.001" in sweep._plan.words
    keys = {"stem": ("none", "dpn"), "probe": ["gradnorm"], "block": {"attn": ("pre", "post")}}
    words = ("stem=none,dpn", "probe=[gradnorm]", "block.attn=pre,post")
    plan, same = (ablate.Sweep(*w, seeds=[3, 5], **k)._plan for w, k in (((), keys), (words, {})))
    assert (plan.cells, plan.seeds) == (same.cells, (3, 5))
    assert [row.label for row in plan.rows][:2] == ["stem=none · attn=pre", "stem=none · attn=post"]
    with pytest.raises(UserError, match="did you mean"):
        ablate.Sweep("stem=none,dpm")
    with pytest.raises(UserError, match=r"train\.stepz"):
        ablate.Sweep("stem=none,dpn", train={"stepz": 1})
    with pytest.raises(UserError):
        ablate.Store(here / "nowhere").sweep()
    assert not (here / "runs" / "ledger.db").exists()


def test_an_empty_name_of_the_store_is_none(monkeypatch):
    """As for the commands."""
    monkeypatch.setenv("ABLATE_STORE", "")
    assert ablate.Store().path == Path("runs")
    assert StoreFolder(Path("runs")).option == ()


PARROT = {
    "conf/trainer/parrot.yaml": "name: parrot:main\nkeys: {note: none, tags: [none], lr: 0.1}\n"
    "metrics: {score: {direction: more}}\nfork_safe: true\n",
    "parrot.py": """
import json, pathlib

def main(settings, run):
    with pathlib.Path(__file__).with_name("seen.jsonl").open("a") as file:
        file.write(json.dumps([run.seed, settings]) + "\\n")
    run.result(score=0.5 + run.seed / 100)
""",
}
# Texts of which each is something else where the command line's grammar reads it.
NOTES = ("1e-3", "a,b", "null", "it's [x]: {y}", "glob(*)", "True", "a b")
ODD = {"trainer": {"note": NOTES, "tags": ["1", "a b", "x,y"]}, "launcher": "inline"}


def seen(folder: Path) -> list[tuple[int, str, list[str]]]:
    """The seed and the settings that each training got, in order."""
    lines = (folder / "seen.jsonl").read_text().splitlines()
    return [(seed, of["note"], of["tags"]) for seed, of in map(json.loads, lines)]


def ids(plan) -> set[str]:
    return {run.id for run in plan.runs()}


@pytest.mark.whole
def test_values_reach_the_training_as_they_are(users, shell):
    folder = users(PARROT)
    sweep = ablate.Sweep("trainer=parrot", seeds=1, **ODD).train()
    trained = seen(folder)
    assert trained == [(0, note, ["1", "a b", "x,y"]) for note in NOTES]
    assert [run.config["trainer"]["note"] for run in sweep.runs()] == [*NOTES]

    again = ablate.Sweep("trainer=parrot", seeds=1, **ODD).train()
    assert ids(again._plan) == ids(sweep._plan)
    shell("sweep", *sweep._plan.words)  # the printed command is of the same runs
    assert seen(folder) == trained
    with pytest.raises(UserError) as caught:  # a number is no text
        ablate.Sweep("trainer=parrot", seeds=1, trainer={"note": ("none", 1e-3)})
    assert {"trainer.note:", "0.001;"} <= {*str(caught.value).split()}


def test_changes_of_python_are_values(users, shell):
    folder = users(PARROT)
    changes = {
        "odd": {"trainer": {"note": "it's a:b, c", "lr": 0.2}},
        "tags too": {"trainer": {"tags": ["a b", "1"]}},
    }
    own = {"seeds": 1, "design": "factorial", "launcher": "inline"}
    sweep = ablate.Sweep("trainer=parrot", changes=changes, **own).train()
    assert [where for _, *where in seen(folder)] == [
        ["none", ["none"]],
        *(["it's a:b, c", ["none"]], ["none", ["a b", "1"]], ["it's a:b, c", ["a b", "1"]]),
    ]
    assert {run.config["trainer"]["lr"] for run in sweep.runs() if "odd" in run.row} == {0.2}
    shell("sweep", *sweep._plan.words)
    assert len(seen(folder)) == 4
    for name in ("a: b", " a"):
        with pytest.raises(UserError) as caught:
            ablate.Sweep("trainer=parrot", changes={**changes, name: {"trainer.lr": 1}})
        (line,) = str(caught.value).splitlines()
        assert line.startswith("changes: ")
        assert repr(name) in line
        assert "rename" in line


@pytest.mark.whole
def test_a_name_stands_for_the_values_that_it_was_driven_with(users, shell):
    folder = users(PARROT)
    first = ablate.Sweep("trainer=parrot", seeds=1, name="odd", **ODD).train()
    shell("sweep", "odd", "seeds=2")
    second = [(1, note, ["1", "a b", "x,y"]) for note in NOTES]
    assert seen(folder)[len(NOTES) :] == second
    third = ablate.Sweep("odd", seeds=3)
    assert ids(third._plan) > ids(first._plan)
    assert len(ids(third._plan)) == 3 * len(NOTES)
    assert (third.name, third._plan.declared.identity) == ("odd", first._plan.declared.identity)

    # The name takes no other settings: the line names the place, the value and the command.
    with pytest.raises(UserError) as caught:
        ablate.Sweep("odd", trainer={"note": "a b"})
    (line,) = str(caught.value).splitlines()
    assert line.startswith('trainer.note="a b": odd ')
    assert line.endswith("name=NAME")
    said = shell("sweep", "odd", "trainer.note='a b'", code=2).err.strip()
    assert said.removeprefix("ablate: ").partition("--until")[0] == line.partition("until")[0]
    assert said.endswith("--as NAME")
    [command] = re.findall("`ablate sweep (.*)`", line)
    planned = json.loads(shell("plan", *shlex.split(command), "--format", "json").out)
    runs = {run for row in planned["variants"] for run in row["runs"].values()}
    assert runs == ids(ablate.Sweep("odd")._plan)


def test_words_of_another_sweep_of_the_name_read_no_table(users):
    """In a notebook, say, whose words were edited, and the name was not."""
    users(PARROT)
    keys = {"seeds": 1, "name": "notes", "launcher": "inline"}
    ablate.Sweep("trainer=parrot", trainer={"note": ("a", "b")}, **keys).train()
    other = ablate.Sweep("trainer=parrot", trainer={"note": ("a", "c")}, **keys)
    for read in (other.table, other.runs, other.to_pandas, other.report):
        with pytest.raises(UserError) as refusal:
            read()
        assert str(refusal.value).startswith("notes: ")
    assert not other.status().to_numpy()[1].sum() - 1  # its own runs: one, which is planned
    assert len(ablate.Store().sweep("notes").runs()) == 2


TUNED = """
base: {trainer: parrot}
variants: [{one: {trainer.note: a}}, {two: {trainer.note: b}}]
seeds: 3
tune: {space: {trainer.lr: {log: [0.01, 1.0]}}, trials: 15}
"""


@pytest.mark.whole
def test_the_status_of_a_tuned_sweep_is_that_of_its_winners(users):
    report = "run.log(1, score=settings['lr'])\n    run.result("
    users({**PARROT, "parrot.py": PARROT["parrot.py"].replace("run.result(", report)})
    users({"sweeps/rates.yaml": TUNED})
    ablate.Sweep("rates", launcher="inline").train()
    for sweep in (ablate.Sweep("rates"), ablate.Store().sweep("rates")):
        assert sweep.status().to_dict("list") == {"finished": [3, 3]}
    assert ablate.Sweep("rates", seeds=4).status().sum().to_dict() == {"finished": 6, "planned": 2}


def test_a_text_with_commas_is_one_value_and_the_line_says_so(here):
    for keys, value in (
        ({"stem": "none,dpn"}, "stem='none,dpn'"),
        ({"stem": ["none", "dpn"]}, "stem=[none,dpn]"),
        ({"model": {"arch": "S/16,B/16"}}, "model.arch='S/16,B/16'"),
    ):
        with pytest.raises(UserError) as caught:
            ablate.Sweep(data="digits", **keys)
        (line,) = str(caught.value).splitlines()
        assert line.startswith(f"{value}: ")
        assert "tuple" in line


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ({"stem": ["none", "dpn"]}, "stem"),
        ({"data": ["digits", "mnist"]}, "data"),
        ({"train": {"epochs": [2, 3]}}, "train.epochs"),
        ({"optim": {"lr": [1e-3, 1e-4]}}, "optim.lr"),
        ({"block": {"attn": ["pre", "post"]}}, "block.attn"),
    ],
)
def test_a_list_that_means_several_values_is_answered_by_the_word_tuple(here, keys, place):
    with pytest.raises(UserError) as caught:
        ablate.Sweep(**{"data": "digits"} | keys)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(place)
    assert "tuple" in line


@pytest.mark.whole
def test_calls_with_wrong_arguments_are_mistakes_of_one_line(here, shell):
    sweep = ablate.Sweep(*WORDS, seeds=2, **SHORT).train()
    table = sweep.table()
    for call, place, value in (
        (lambda: ablate.Sweep(5), "Sweep", "5"),
        (lambda: sweep.plot(stile="paper"), "Sweep.plot", "'style'"),
        (lambda: sweep.to_pandas(curve=True), "Sweep.to_pandas", "'curves'"),
        (lambda: table.render(note="full"), "Table.render", "'notes'"),
        (lambda: table.render(show=("gain", "params")), "show", "'params'"),
        (lambda: table.render("rich"), "format", "'rich'"),
        (lambda: ablate.Store().add_runs(1), "Store.add_runs", "metrics"),
        (lambda: ablate.Store().add_runs("a.csv", "s", "m", "acc:more:%"), "expected a pa", "str"),
        (lambda: sweep.train(retry="fail"), "retry: ", "'failed'"),
        (lambda: sweep.status(1), "Sweep.status", "none"),
        (lambda: sweep.table(1), "Sweep.table", "**analysis"),
        (lambda: sweep.plot("curves").save(), "Figure.save", "'path'"),
        (lambda: ablate.Sweep(*WORDS, name=5), "Sweep: name", "5"),
        (lambda: ablate.Sweep(*WORDS, changes=["a"]), "Sweep: changes", "['a']"),
        (lambda: ablate.Store(5), "Store: path", "5"),
        (lambda: ablate.Store().sweep(5), "Store.sweep: name", "5"),
        (lambda: sweep.plot(size=(3, "a")), "Sweep.plot: size", "(3, 'a')"),
        (lambda: sweep.plot(size=3), "Sweep.plot: size", "3"),
        (lambda: sweep.plot(rows=5), "Sweep.plot: rows", "5"),
        (lambda: sweep.plot(rows=["a", 5]), "Sweep.plot: rows", "['a', 5]"),
        (lambda: sweep.plot(size=(0.1, 1)), "size: ", "0.1x1"),
        (lambda: sweep.plot(rows=["dnp"]), "rows: ", "'dpn'"),
        (lambda: sweep.plot(highlight="dnp"), "highlight: ", "'dpn'"),
        (lambda: sweep.plot("curves", highlight="dpn"), "highlight: ", "gain"),
        (lambda: sweep.train(retry=5), "Sweep.train: retry", "5"),
        (lambda: sweep.to_pandas(curves="yes"), "Sweep.to_pandas: curves", "'yes'"),
    ):
        with pytest.raises(UserError) as caught:
            call()
        (line,) = str(caught.value).splitlines()
        assert line.startswith(place)
        assert value in line
    rows = iter(["dpn"])
    sweep.plot("curves", rows=rows, size=[4, 3.5])
    sweep.plot("curves", rows=("dpn",), size=(np.float32(4), np.int64(3)))
    (here / "file").touch()
    with pytest.raises(Failure) as caught:
        ablate.Sweep(*WORDS, store="file", **SHORT).train()
    assert str(caught.value).startswith("file")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--as: expected a name, got ''", "name: expected a name, got ''"),
        (
            "--design x: of which? give --change 'NAME: key=value ...'",
            "design=x: of which? give changes={NAME: {KEY: VALUE}}",
        ),
        ("`sweep --as b` or --as NAME", "`sweep --as b` or name=NAME"),
        ("--until 3: --each, --replace", "until=3: each=True, replace=True"),
        ("a.flag: 'a--b'", "a.flag: 'a--b'"),
    ],
)
def test_python_hears_of_arguments_and_no_options(line, text):
    assert in_python(line) == text


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ({"stem": ("none", "dpn"), "across": "norm"}, "across=norm: "),
        ({"stem": ("none", "dpn"), "design": "factorial"}, "design=factorial: "),
        ({"stem": ("none", "dpn"), "margin": 1.0}, "margin: "),
        ({"stem": ("none", "dpn"), "until": 3}, "until: "),
        ({"changes": {"a": {"stem": "dpn"}}}, "changes: "),
        ({"stem": ("none", "dpn"), "name": ""}, "name: "),
    ],
)
def test_a_mistake_in_an_argument_names_the_argument(here, keys, place):
    with pytest.raises(UserError) as caught:
        ablate.Sweep(**keys)
    assert str(caught.value).startswith(place)
    assert "--" not in re.sub("`.*?`", "", str(caught.value))


SWEEP = f"import ablate; sweep = ablate.Sweep({', '.join(map(repr, WORDS))}, seeds=1, **{SHORT})"


@pytest.mark.whole
@pytest.mark.parametrize(
    ("code", "out", "err"),
    [
        (f"{SWEEP}.train(); print(len(sweep.runs()))", r"2\n", ""),  # silent without a terminal
        ("import ablate; ablate.Sweep('stem=none,dpm')", "", r"UserError: stem: .*'dpn'.*\n"),
        ("import ablate; ablate.Store('no').sweep()", "", r"UserError: .* no: .*\n"),
        ("import ablate; ablate.Store; 1 / 0", "", r"Traceback(.|\n)*ZeroDivisionError: .*\n"),
    ],
)
@pytest.mark.parametrize("way", ["-c", "file"])
def test_a_script_ends_by_one_line(here, way, code, out, err):
    (here / "script.py").write_text(code)
    words = ["-c", code] if way == "-c" else ["script.py"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert re.fullmatch(out, done.stdout)
    assert re.fullmatch(err, done.stderr), done.stderr
    assert done.returncode == bool(err)


HOOK = """
import sys

def hook(kind, error, frames):
    print("hooked", kind.__name__, frames is not None)

before, after = {before}, {after}
if before:
    sys.excepthook = hook
import ablate
ablate.Sweep
if after:
    sys.excepthook = hook
{error}
"""


@pytest.mark.whole
@pytest.mark.parametrize("error", ["ablate.Store('no').sweep()", "1 / 0"])
@pytest.mark.parametrize("before", [True, False])
def test_a_hook_of_the_programs_own_gets_every_error(here, before, error):
    code = HOOK.format(before=before, after=not before, error=error)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert re.fullmatch(r"hooked (NotThere|ZeroDivisionError) True\n", done.stdout)
    assert done.stderr == ""


BAD = {
    "conf/trainer/bad.yaml": "name: bad:main\nkeys: {lr: 0.1}\n"
    "metrics: {accuracy: {direction: more}}\n",
    "bad.py": "def main(settings, run):\n"
    "    if settings['lr'] == 0.1:\n"
    "        raise RuntimeError('no')\n"
    "    run.result(accuracy=0.5)\n",
}


def test_runs_that_fail_are_a_failure_and_named_on_standard_error(users, capsys):
    users(BAD)
    with pytest.raises(Failure) as caught:
        ablate.Sweep("trainer=bad", "trainer.lr=0.1,0.2", seeds=1, launcher="inline").train()
    assert "1 failed of 2 runs" in str(caught.value)
    out, err = capsys.readouterr()
    assert out == ""
    assert [line for line in err.splitlines() if line.startswith("failed: ") and "0.1" in line]
    assert "finished: " not in err


def test_a_place_that_was_given_up_earlier_hides_not_why_the_sweep_stopped(here):
    [plan, *_] = plan_from_words(["stem=none,dpn", "seeds=2"], store=Path("runs"))
    counts = {"failed": 3, "interrupted": 1}
    outcome = Outcome(
        plan,
        SweepProgress(plan.name, 4, counts, []),
        signal=None,
        retired=("gpu:1",),
        stopped="3 runs failed alike",
    )
    with pytest.raises(Failure) as caught:
        check_outcome(outcome, OpenStore(here / "runs"))
    for text in ("3 runs failed alike", "--retry failed", "0 of 4"):
        assert text in str(caught.value)
    assert "gpu:1" not in str(caught.value)
    with pytest.raises(Failure) as caught:  # no place is left
        check_outcome(replace(outcome, stopped=None), OpenStore(here / "runs"))
    assert "gpu:1" in str(caught.value)


def test_import_ablate_takes_nothing_along():
    told = "import sys, ablate; print(sorted({m.partition('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert not {"numpy", "torch", "hydra", "pandas", "rich", "typing"} & {*eval(done.stdout)}
    assert (Path(ablate.__file__).parent / "py.typed").exists()
