"""The commands, as a user types them: real processes in a folder of their own.

Most tests look at a copy of one small sweep that was driven once; what they drive themselves trains
for three steps.
"""

import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from conftest import ABLATE, Shell, wait_for
from PIL import Image

from ablate.cli import app
from ablate.planning.plan import Plan
from ablate.report.status import SweepView
from ablate.run.choices import CHOICES
from ablate.store.ledger import Ledger
from ablate.store.store import Store
from ablate.version import __version__

ROWS = ("block.attn=pre,post", "model.depth=1", "train.steps=4")
SWEEP = ("sweep", *ROWS, "--as", "tiny")
COMMANDS = sorted(c.name or c.callback.__name__ for c in app.registered_commands)


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> tuple[Path, str]:
    """A store with the sweep `tiny`, two variants x two seeds, and what driving it printed."""
    shell = Shell(tmp_path_factory.mktemp("tiny"))
    return shell.folder / "runs", shell(*SWEEP, "seeds=2", "launcher=inline").out


@pytest.fixture
def driven(shell, first) -> Shell:
    """A folder of one's own with a copy of that store."""
    shutil.copytree(first[0], shell.folder / "runs")
    return shell


def mistake(done, *named: str) -> None:
    """One line on standard error that names all of `named`."""
    assert done.err.startswith("ablate: ")
    assert done.err.count("\n") == 1
    for text in named:
        assert text in done.err


def nothing_trained(shell: Shell) -> None:
    assert not (shell.folder / "runs" / "runs").exists()


def run_folder(shell: Shell, *words: str) -> Path:
    identity = shell("config", *words).out.splitlines()[0].removeprefix("# run ")
    return shell.folder / "runs" / "runs" / identity


def customized(shell: Shell, text: str) -> dict[str, str]:
    """The environment of interpreters that run `text` first."""
    (shell.folder / "sitecustomize.py").write_text(text)
    path = [str(shell.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(path)}


def said_by(code: str, *words: str, **options) -> str:
    """What an interpreter of its own prints that runs this code."""
    line = [sys.executable, "-c", code, *words]
    return subprocess.run(line, capture_output=True, text=True, check=True, **options).stdout


# --- Starting up --------------------------------------------------------------------------------

HEAVY = {"torch", "hydra", "omegaconf", "pandas", "scipy", "numpy", "datasets", "sklearn"}
PLAN = "expand.plan_from_words(['quickstart'], store=pathlib.Path('store'))"
LATE = {  # in this order; what is not loaded by then
    "import ablate": {*HEAVY, "rich", "jinja2", "ablate.report"},
    "import ablate.cli": {*HEAVY, "rich"},
    "from ablate import analysis, audit, planning, report, running, store": {*HEAVY, "rich"},
    "from ablate.planning import compose, expand": {*HEAVY, "yaml"},
    "import ablate.analysis.tabulate, ablate.report.formats, ablate.store.looks": {*HEAVY, "rich"},
    f"import pathlib; {PLAN}": {"torch", "pandas", "numpy"},
    "import ablate.analysis.stats": {"torch", "pandas", "scipy.stats"},
}


@pytest.mark.whole
def test_what_is_imported_loads_no_more_than_it_needs():
    out = said_by("import sys\n" + "".join(f"{line}\nprint(*sys.modules)\n" for line in LATE))
    for (line, late), loaded in zip(LATE.items(), out.splitlines(), strict=True):
        assert not late & set(loaded.split()), line


def test_python_m_ablate_is_the_command(monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["/x/ablate/__main__.py", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("ablate", run_name="__main__")
    assert (ended.value.code, capfd.readouterr().out) == (0, f"{__version__}\n")
    assert sys.argv[0] == "ablate"  # which a run notes as its command


@pytest.mark.whole
def test_help_is_there_and_loads_nothing_heavy():
    """In one process: what a command has loaded is there after the later ones, too."""
    code = """
import contextlib, io, json, sys
from ablate import cli
for words in json.load(sys.stdin):
    sys.argv[1:] = [*words, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        cli.main()
    print(json.dumps([out.getvalue(), [*sys.modules]]))
"""
    lines = [[], *([command] for command in COMMANDS)]
    helps = map(json.loads, said_by(code, input=json.dumps(lines)).splitlines())
    for words, (said, loaded) in zip(lines, helps, strict=True):
        assert not HEAVY & {module.partition(".")[0] for module in loaded}, words
        for other in ["Usage", "--debug"] if words else COMMANDS:
            assert other in said, words


@pytest.mark.whole
def test_a_sweep_loads_neither_torchs_compiler_nor_scikit_learn(tmp_path):
    """Decoding, describing, training and the table: each takes as long as torch to load."""
    code = """
import atexit, sys
from ablate.cli import main
atexit.register(lambda: print(*sys.modules))
main()
"""
    words = ("sweep", *ROWS, "launcher=inline", "seeds=2", "train.deterministic=true")
    loaded = set(said_by(code, *words, cwd=tmp_path).split())
    assert {"torch", "safetensors"} <= loaded
    assert not {"torch._dynamo", "torch._inductor", "sympy", "sklearn", "pandas"} & loaded


MOMENTS = ("sqlite3", "typer.models", "ablate.cli.keeping", "hydra.core")


@pytest.mark.whole
def test_a_reader_that_goes_and_a_ctrl_c_at_any_moment_are_no_word_of_ours(first):
    """As of other commands: 141 after a closed pipe, 130 (or death by the signal) after Ctrl-C."""
    here = {"cwd": first[0].parent, "stderr": subprocess.PIPE}
    for words in (["list"], ["--help"], ["table"], ["status"]):
        with subprocess.Popen([ABLATE, *words], stdout=subprocess.PIPE, **here) as done:
            done.stdout.close()
            assert (done.wait(60), done.stderr.read()) == (141, b"")
    here |= {"stdout": subprocess.DEVNULL, "text": True, "start_new_session": True}
    words = [sys.executable, "-X", "importtime", ABLATE, "plan", *ROWS]
    for module in (*MOMENTS, "ablate.running.launchers.fork"):
        with subprocess.Popen(words, **here) as process:
            assert any(line.split()[-1].startswith(module) for line in process.stderr)
            os.killpg(process.pid, signal.SIGINT)
            rest = process.stderr.read().splitlines()
            assert [line for line in rest if not line.startswith("import time:")] == []
            assert process.wait(60) in (130, -signal.SIGINT)


BROKEN_OFF = {
    "made another error of": """\
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:  # as omegaconf does, which fails on what was broken off
        raise AttributeError('half a config')
""",
    "dropped by Python": """\
    gone = type('Gone', (), {})()
    ref = weakref.ref(gone, lambda _: os.kill(os.getpid(), signal.SIGINT))
    del gone  # its callback, of which each import has one
    time.sleep(60)
""",
}


@pytest.mark.whole
@pytest.mark.parametrize("body", BROKEN_OFF.values(), ids=BROKEN_OFF)
def test_a_ctrl_c_ends_a_command_silently_whatever_becomes_of_it(shell, body):
    loads = "import os, signal, time, weakref, ablate.planning.compose\n"
    text = f"{loads}def resolve_run(*_):\n{body}"
    there = customized(shell, f"{text}ablate.planning.compose.resolve_run = resolve_run\n")
    done = shell.process("config", code=130, **there)
    assert (done.out, done.err) == ("", "")


@pytest.mark.whole
def test_a_command_in_the_tests_process_is_as_in_one_of_its_own(driven):
    """And nothing of it stays behind."""

    def state() -> list[object]:
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        links = [os.readlink(f"/proc/self/fd/{number}") for number in range(3)]
        streams = [sys.stdin, sys.stdout, sys.stderr]
        return [os.getcwd(), [*sys.argv], [*sys.path], {**os.environ}, handlers, links, streams]

    before = state()
    for words, code in ((("table",), 0), (("tabel",), 2)):
        assert driven(*words, code=code) == driven.process(*words, code=code)
    assert driven("show", "pre#0", TERM="dumb").err == ""
    assert state() == before


def test_the_columns_of_status_go_as_the_life_of_a_run():
    plan = SimpleNamespace(rows=())
    now = SimpleNamespace(counts=dict.fromkeys(("finished", "blocked", "started", "planned"), 1))
    header, _ = SweepView(plan, (), now, None, ()).by_variant()
    assert header == ("variant", "planned", "started", "finished", "blocked")


# --- Mistakes -----------------------------------------------------------------------------------

MISTAKES = [
    ("sweep stem=none,dpn model.depht=3", ["model.depht", "depth", "did you mean 'depth'?"]),
    ("sweep stem=none,dpn model.depth=three", ["model.depth", "whole number", "'three'"]),
    ("sweep model.arch=mu/3,mu/4", ["model.arch", "patch 3", "8x8", "1, 2, 4, 8"]),
    ("sweep stem=none,dpn data=cifar10 data.path=nowhere", ["data.path", "nowhere", "cifar10"]),
    ("sweep stem=none,dpn data=cifra10", ["data", "'cifra10'", "cifar10", "digits"]),
    ("sweep quickstrat", ["'quickstrat'", "quickstart", "placement"]),
    ("sweep placement_2026 --scale big", ["--scale", "'big'", "smoke"]),
    ("sweep stem=none,dpn seeds=0,1,2", ["seeds=0,1,2", "seeds=[0,1,2]"]),
    ("sweep stem=none", ["stem=none: ", "stem=none,dpn"]),
    ("sweep quickstart --retry nonsense", ["--retry", "'nonsense'", "failed, oom, hung"]),
    ("config optim.lr=fast", ["optim.lr", "number", "'fast'"]),
    ("sweep stem=none,dpn data.train=trian", ["data.train", "'trian'", "present: train"]),
    ("config norm.eps=-1", ["norm.eps", "at least 0", "-1"]),
    ("config train.epochs=1e12", ["train.epochs", "at most 100,000,000,000"]),
    ("config probe=[scales,scales]", ["probe", "scales is given twice"]),
    ("config seed=1" + 30 * "0", ["seed", "63 bits"]),
    ("sweep model.depth=range(1,1000000000)", ["model.depth", "more than 100,000 values"]),
    ("list flavours", ["'flavours'", "norms", "stems", "recipes"]),
    ("table", ["no store", "runs", "--store"]),
    ("status quickstart", ["no store", "runs", "--store"]),
    # The batch is the worker's to judge: it knows how many images are left to train on.
    ("sweep stem=none,dpn train.batch=1198", ["train.batch", "1198", "1197", "digits"]),
    ("sweep stem=none,dpn train.epochs=10000000", ["device-hours", "--yes"]),
    ("sweep stem=none,dpn train.epochs=100000000000", ["more than a month on", "--yes"]),
    ("plan stem=none,dpn --on h10", ["--on", "'h10'", "h100"]),
    ("plan stem=none,dpn --mfu 0.5", ["--mfu", "--on"]),
]


SPELLINGS = [
    (kind, name, keys)
    for kind, choices in CHOICES.items()
    for choice in choices.values()
    for name, keys in choice.spellings.items()
]
MISTAKES += [(f"config {kind}={name}", [kind, f"'{name}'", keys]) for kind, name, keys in SPELLINGS]


@pytest.mark.whole
@pytest.mark.parametrize(("line", "named"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_told_in_one_line_before_anything_trains(shell, line, named):
    worker = ["launcher=inline"] * (" train." in line)
    done = shell(*line.split(), *worker, code=2)
    mistake(done, *named)
    assert not done.out or " train." in line  # what a worker judges has a first line before
    nothing_trained(shell)


@pytest.mark.parametrize("keys", sorted({keys for *_, keys in SPELLINGS}))
def test_the_keys_that_a_name_is_spelled_by_make_a_run(shell, keys):
    block = yaml.safe_load(shell("config", *keys.split()).out)["block"]
    for word in keys.split():
        key, _, value = word.removeprefix("block.").partition("=")
        assert block[key] == value


SMALL = ("data.size=8", "train.batch=4", "model.depth=1", "train.steps=3", "launcher=inline")


def test_an_unreadable_image_in_a_folder_is_named_before_anything_trains(shell):
    for number in range(20):
        file = shell.folder / "pictures" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (12 * number, 40, 90)).save(file)
    file.write_bytes(file.read_bytes()[:-30])
    words = ("sweep", "stem=none,dpn", "data=imagefolder", "data.path=pictures", *SMALL)
    mistake(shell(*words, code=2), str(file), "not a readable image")
    nothing_trained(shell)
    assert not list((shell.folder / "runs" / "cache").glob("*.building"))


def test_a_sweep_that_was_not_driven_is_answered_with_those_that_were(driven):
    for words, named in (
        (("table", "tinny"), ["'tinny'", "did you mean 'tiny'?"]),
        (("status", "quickstart"), ["'quickstart'", "tiny"]),
        (("table", "stem=none,dpn"), ["'stem-none-dpn'", "tiny"]),
    ):
        mistake(driven(*words, code=2), *named)


UNREADABLE = [
    ("tabel", "ablate: no such command 'tabel'. Did you mean 'table'? The commands are sweep, "),
    ("norm=a,b", "ablate: norm=a,b: a command comes first, such as `ablate sweep norm=a,b`"),
    ("init", "ablate: no such command 'init'. `ablate new sweep NAME` writes a sweep file"),
    ("compare a b", "ablate: no such command 'compare'. `ablate show RUN --against RUN` "),
    ("delete a#0", "ablate: no such command 'delete'. `ablate run RUN --delete` removes a run"),
    ("resume tiny", "ablate: no such command 'resume'. `ablate sweep` trains, and goes on where "),
    ("sweep tiny --seeds 3", "ablate sweep: --seeds: settings have no dashes: seeds=3, or "),
    ("data prep digits", "ablate data: no such command 'prep'. Did you mean 'prepare'? "),
    ("data", "ablate data: missing command. The commands are prepare"),
    ("table --formt md", "ablate table: --formt: is no option; did you mean --format? "),
    ("sweep quickstart --sedes 3", "--sedes: is no option; did you mean seeds=N? `ablate sweep "),
    ("table --xyzzy", "ablate table: --xyzzy: is no option; `ablate table --help` lists them"),
    ("table --format mdd", "ablate table: --format: got 'mdd' (did you mean 'md'?), expected "),
    ("trials --format xml", "ablate trials: --format: expected one of rich, md, csv, json, got "),
    ("sweep -m stem=none,dpn", "-m: leave it out; values with commas are a sweep: `ablate sweep "),
    ("sweep stem=none,dpn --multirun", "ablate sweep: --multirun: leave it out; "),
    ("-m stem=none,dpn", "ablate: -m: leave it out; "),
    ("sweep stem=none,dpn --dry-run", "--dry-run: `ablate plan` with the same words shows "),
    ("sweep stem=dpn --cfg job", "--cfg: `ablate config KEY=VALUE` shows the whole"),
    ("table --format", "ablate table: option '--format' requires an argument"),
    ("plan lr --detect x", "ablate plan: --detect: expected a number, got 'x'"),
    ("plan lr --until 5.5", "ablate plan: --until: expected a whole number, got '5.5'"),
    ("export", "ablate export: DIR: is missing: new folder, or an earlier export"),
    ("show a b", "ablate show: got unexpected extra argument(s) (b); usage: ablate show "),
]


@pytest.mark.whole
def test_words_that_no_command_can_read_are_one_line_too(shell):
    lines = [words.split() for words, _ in UNREADABLE]
    for (words, said), done in zip(UNREADABLE, shell.several(*lines), strict=True):
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), words
        assert said in done.err


def test_words_beside_a_sweep_are_its_own_or_refused(driven):
    """By every command that reads a sweep. None is passed over."""
    only = "only analysis.KEY=VALUE; `ablate sweep block.attn=pre,post model.depth=1 train.steps=4"
    for words in (["table"], ["status"], ["verify"], ["report"], ["trials"], ["export", "out"]):
        mistake(driven(words[0], "tiny", "seeds=3", *words[1:], code=2), "seeds=3: tiny", only)
    shown, tiny = "tiny is shown as it was driven", ("--as", "tiny")
    for words, told in (
        (("plot", "tiny", "stem=dpn", "gain"), f"stem=dpn: {shown}"),
        (("table", "seeds=3"), f"seeds=3: {shown}"),
        (("table", "tiny", "--each"), f"options: {shown}"),
        (("table", "tiny", "another"), "another: expected KEY=VALUE; a sweep's NAME comes first"),
        (("table", "paper:T1L"), "sweep: expected one driven in runs: tiny, got 'paper:T1L'"),
        (("table", *ROWS[:2], *tiny), "--as tiny: "),
        (("table", *ROWS, "seeds=3", *tiny), "seeds=3: tiny was driven with 2 seed"),
    ):
        mistake(driven(*words, code=2), told)
    assert driven("table", *ROWS, "seeds=[1,0]", *tiny).out == driven("table", "tiny").out


def test_debug_shows_the_traceback_and_the_same_line(shell):
    (shell.folder / "file").touch()
    for words, code in ((("config", "model.depht=3"), 2), ((*SWEEP, "--store", "file"), 1)):
        plain = shell(*words, code=code).err
        debug = shell(*words, "--debug", code=code).err
        assert debug.startswith("Traceback")
        assert debug.endswith(plain)
    assert plain == "ablate: file: File exists\n"


# --- A run that fails ---------------------------------------------------------------------------


@pytest.mark.whole
def test_one_run_fails_the_others_go_on_and_retry_trains_it(driven):
    folder = run_folder(driven, *ROWS[1:], "block.attn=post", "seed=2")
    broken = folder.name
    (folder / "metrics.jsonl").mkdir(parents=True)  # what it would write to
    done = driven(*SWEEP, "seeds=3", code=1)
    assert done.out.count("finished:") == 1
    assert re.search(r"failed: post#2: .*regular file.*metrics\.jsonl", done.out)
    assert f"(see runs/runs/{broken}/log.txt)" in done.out
    assert "1/3 missing" in done.out
    mistake(done, "tiny: 1 failed of 6 runs", "`ablate status tiny` shows why", "--retry failed")
    assert "Traceback" in (folder / "log.txt").read_text()
    assert f"log: runs/runs/{broken}/log.txt" in driven("status", "tiny").out

    shutil.rmtree(folder)
    left = driven(*SWEEP, "seeds=3", "launcher=inline", code=1)
    assert "finished:" not in left.out  # a failure is not tried again unasked
    again = driven(*SWEEP, "seeds=3", "launcher=inline", "--retry", "failed")
    assert again.out.count("finished:") == 1
    assert "missing" not in again.out


def test_runs_that_diverge_are_a_result_and_no_failure(driven):
    blow = ("optim.lr=1e30", "optim.clip=null", "optim.warmup_epochs=0")
    done = driven("sweep", *ROWS, *blow, "seeds=1", "launcher=inline", "--as", "blown")
    assert "diverged at step" in done.out
    assert "1/1 diverged" in done.out
    assert "2 runs: 2 diverged" in driven("status", "blown").out


# --- What is driven once ------------------------------------------------------------------------


def test_a_sweep_prints_its_name_its_runs_and_its_table(first):
    store, out = first
    lines = out.splitlines()
    assert lines[0] == "sweep: tiny"
    assert "decoding data=digits: 1,797 of 1,797 images" in lines
    finished = re.findall(r"^finished: (\S+), validation \d+\.\d\d %, \d+ s$", out, re.M)
    assert sorted(finished) == ["post#0", "post#1", "pre#0", "pre#1"]
    assert out.index("**tiny. Trained") > out.rindex("finished:")
    assert len(list((store / "runs").glob("*/result.json"))) == 4


def test_a_log_has_a_line_a_validation(driven):
    folder = run_folder(driven, *ROWS[1:], "block.attn=post", "seed=1")
    lines = driven("show", "post#1", "--log").out.splitlines()
    assert lines == (folder / "log.txt").read_text().splitlines()
    assert lines[0].endswith("training from step 0 of 4, 18 an epoch, on cpu")
    [measured] = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    loss, validation, top1 = (measured[key] for key in ("train_loss", "val_loss", "val_top1"))
    assert (
        f" epoch 0.2222, step 4: train loss {loss:.4f}, validation loss {validation:.4f}, "
        f"top1 {100 * top1:.2f} %, top5 "
    ) in lines[1]
    assert re.search(r" %; [\d,]+ images/s, \d+ s$", lines[1])
    assert re.search(r" finished: 4 steps in \d+ s$", lines[-1])


def test_a_second_sweep_trains_nothing_and_prints_the_same_table(driven, first):
    again = driven(*SWEEP, "seeds=2").out
    assert again == "sweep: tiny\n" + first[1][first[1].index("**tiny. Trained") :]


def test_runs_that_two_sweeps_share_are_trained_once_and_one_seed_has_no_interval(driven):
    one = driven("sweep", *ROWS, "seeds=1", "--as", "one")
    assert "finished:" not in one.out
    assert re.search(r"^\| post \| [\d.]+ \[-\] \| [+-][\d.]+ \[-\] \| 1 \|", one.out, re.M)
    assert "(n = 1)" in one.out
    assert "nan" not in one.out

    # No name is the last one driven; the words that started it name it, too.
    assert driven("table").out.startswith("**one. Trained on digits, ")
    assert "sweep: one" in driven("status").out
    assert "sweep: tiny" in driven("status", "tiny").out


def test_a_sweep_is_named_by_its_words_and_found_by_them_in_any_order(driven):
    driven("sweep", *ROWS, "seeds=1")
    assert driven("table", *reversed(ROWS)).out.startswith("**attn-pre-post. ")
    assert "attn-pre-post (" in driven("status", *ROWS).out


MINE = """\
title: A sweep of my own
base: {model.depth: 1}
variants: [{before: {}}, {after: {block.attn: post}}]
seeds: 1
"""


def test_a_bare_name_with_two_instances_lists_them(driven):
    (driven.folder / "sweeps").mkdir()
    (driven.folder / "sweeps" / "mine.yaml").write_text(MINE)
    steps = "mine+train.steps=4"
    clip = "mine+optim.clip=1.0+train.steps=4"  # its default: again the runs of `tiny`
    driven("sweep", "mine", "train.steps=4")
    assert f"sweep: {steps}" in driven("status", "mine").out  # the only one
    driven("sweep", "mine", "train.steps=4", "optim.clip=1.0")
    for command in ("table", "status"):
        mistake(driven(command, "mine", code=2), "mine: matches several sweeps", steps, clip)
    assert f"sweep: {steps}" in driven("status", steps).out
    assert f"sweep: {clip}" in driven("status", "mine", "optim.clip=1.0", "train.steps=4").out


def test_a_plan_that_is_not_whole_is_a_failure_that_says_what_writes_it_again(driven):
    (driven.folder / "runs" / "sweeps" / "tiny.json").write_text('{"name": "ti')
    done = driven("table", code=1)
    mistake(done, "runs/sweeps/tiny.json: not whole", "writes it again")


# --- The first line -----------------------------------------------------------------------------

GATE = """
import os, sys
if "ablate.running.launchers.server" in sys.orig_argv:
    open(os.environ["GATE"]).read()
"""


PLANNED = "sweep: attn-pre-post\n"


@pytest.mark.whole
@pytest.mark.parametrize(
    ("words", "kind", "line"),
    [
        (("plan", *ROWS, "seeds=2"), "out", PLANNED),
        (("sweep", *ROWS, "seeds=2"), "out", PLANNED),
        (("data", "prepare", "digits"), "err", "data=digits: looking for "),
    ],
)
def test_a_first_line_is_there_before_a_worker_is_asked(shell, words, kind, line):
    """The server that is asked waits at a gate that nobody opens."""
    gate = shell.folder / "gate"
    os.mkfifo(gate)
    waiting = shell.start(*words, GATE=str(gate), **customized(shell, GATE))
    wait_for(lambda: (shell.folder / f"1.{kind}").read_text().startswith(line))
    waiting.send_signal(signal.SIGINT)
    assert shell.end(waiting).code == 130


@pytest.mark.whole
def test_a_stop_while_a_sweep_prepares_is_an_end_as_after_ctrl_c(shell):
    gate, store = shell.folder / "gate", Store(shell.folder / "runs")
    os.mkfifo(gate)
    words = ("sweep", *ROWS, "seeds=2", "--format", "json")
    waiting = shell.start(*words, GATE=str(gate), **customized(shell, GATE))
    wait_for(lambda: store.driver.notes().pid == waiting.pid and store.ledger.exists())
    Shell(shell.folder, number=10)("stop")
    done = shell.end(waiting)
    assert done.code == 128 + signal.SIGTERM
    assert json.loads(done.out)["retry"] is True
    assert store.driver.notes().ended.endswith("SIGTERM")
    nothing_trained(shell)


@pytest.mark.slow
def test_what_reads_all_runs_says_so_beside_what_it_prints(driven):
    """Each from a fresh interpreter: commands load late what they need."""
    for words, err, out in (
        (("verify",), "checking the runs of tiny\n", "verified: 4 runs, "),
        (("report",), "reading the runs of tiny\n", ""),
        (("export", "out"), "checking the runs of tiny\n", ""),
        (("plot", "gain"), "drawing gain of tiny\n", "tiny-gain.svg\n"),
        (("table",), "", ""),
    ):
        done = driven.process(*words)
        assert (done.err, done.out[: len(out)]) == (err, out)


# --- Looking ------------------------------------------------------------------------------------


def test_plan_shows_states_sizes_and_time_and_trains_nothing(shell):
    words = ("stem=none,dpn", "model.arch=mu/2", "model.depth=1", "train.steps=3", "seeds=2")
    before = shell("plan", *words, "launcher=inline").out
    # By hand: 12 numbers a patch, width 32, 17 tokens; dpn has LN(4) and LN(32) on top.
    sizes = dict(re.findall(r"^ (\S+) +([\d,]+) +230 k .* 2 planned", before, re.M))
    none, dpn = (int(sizes[row].replace(",", "")) for row in ("none", "dpn"))
    assert dpn - none == 2 * (4 + 32)
    assert "2 variants x 2 seeds = 4 runs (4 planned)" in before
    assert re.search(
        r"^left: about \S+ s on \d+ slots?, .*device-(hours|minute) \(by a short", before, re.M
    )
    assert "warning: dpn: stem.before normalises over 4 values only" in before
    assert "warning: none" not in before
    assert not (shell.folder / "runs" / "ledger.db").exists()
    nothing_trained(shell)


@pytest.mark.whole
def test_plan_of_a_driven_sweep_knows_what_is_done(driven):
    done = driven("plan", *ROWS, "seeds=2", "--as", "tiny").out
    assert "4 runs (4 finished)" in done
    assert "left:" not in done
    more = driven("plan", *ROWS, "seeds=3", "--as", "tiny").out
    assert "6 runs (2 planned, 4 finished)" in more
    assert "(from finished runs)" in more
    assert "3 seeds" not in driven("table").out  # a plan records nothing


@pytest.mark.whole
def test_status_and_table_while_a_sweep_runs_and_after_it_was_stopped(driven):
    driver = driven.start("sweep", *ROWS[:2], "train.epochs=5000", "seeds=1", "--as", "long")
    look = Shell(driven.folder, number=100)
    try:
        runs = driven.folder / "runs" / "runs"
        wait_for(lambda: len(list(runs.glob("*/metrics.jsonl"))) > 4)  # a new one trains
        line = r"^running: (pre|post)#0 on cpu:\d+: [a-z]+ \d+/\d+, [\d.e+]+ steps/s, .+ left$"
        during = wait_for(
            lambda: (out := look("status", "long").out) * bool(re.search(line, out, re.M))
        )
        assert f"sweep: long (driven by process {driver.pid})" in during
        table = look("table", "long").out
        assert "UNFINISHED: 2 of 2 runs missing" in table
        assert "1/1 missing" in table
        assert "| verdict |" not in table
    finally:
        driver.send_signal(signal.SIGTERM)
        stopped = driven.end(driver)
    assert stopped.out.endswith("stopped after 0 of 2; the same command goes on\n")
    after = look("status", "long").out
    assert "sweep: long (not driven)" in after
    assert "running" not in after
    told = f"to go on: `ablate sweep {' '.join(ROWS[:2])} train.epochs=5000 seeds=1 --as long`"
    assert told in after
    assert told not in during


def test_status_of_a_sweep_whose_driver_died_before_it_noted_the_new_runs(driven):
    plan = driven.folder / "runs" / "sweeps" / "tiny.json"
    tree = json.loads(plan.read_text())
    tree["seeds"] = [0, 1, 2]
    for number, cell in enumerate(tree["cells"]):
        cell["ids"]["2"] = f"{number}" * 16
    store, grown = Store(driven.folder / "runs"), Plan.from_tree(tree)
    with Ledger.driving(store) as ledger:
        ledger.announce(grown)
    store.write_plan(grown)
    assert "6 runs: 2 planned, 4 finished" in driven("status", "tiny").out


def test_config_prints_yaml_that_composes_to_the_same_id_again(shell):
    words = ("stem=dpn", "block.attn=pre_post", "model.depth=2", "optim.lr=1e-3", "seed=4")
    printed = shell("config", *words).out
    tree = yaml.safe_load(printed)
    assert (tree["model"]["depth"], tree["block"]["attn"], tree["seed"]) == (2, "pre+post", 4)
    del tree["data"]["fingerprint"]  # computed
    again = []
    for section, value in tree.items():
        of_section = isinstance(value, dict)
        keys = {f"{section}.{k}": v for k, v in value.items()} if of_section else {section: value}
        if section in ("data", "block", "norm", "stem"):
            again.append(f"{section}={keys.pop(f'{section}.name')}")
        for key, leaf in keys.items():
            text = leaf if of_section and isinstance(leaf, str) else json.dumps(leaf)
            again.append(f"{key}={text}")
    assert shell("config", *again).out == printed
    twice = shell("config", *words, "model.depth=3", code=2).err
    assert twice == "ablate: model.depth: given twice\n"
    assert shell("config", *words[:-1], "seed=5").out.split()[2] != printed.split()[2]


def test_config_shows_a_cell_of_a_sweep_before_anything_ran(shell):
    (shell.folder / "wide.yaml").write_text(
        "base: {model.depth: 2, train.steps: 3}\nseeds: [4, 7]\n"
        "variants: [{plain: {}}, {again: {stem: none}}, {dpn: {stem: dpn}}]\n"
        "across: {model.arch: [mu/4, mu/2]}\nexclude: [{stem: dpn, model.arch: mu/2}]\n"
    )
    alone = ("model.depth=2", "train.steps=3", "optim.lr=1e-3", "seed=4")
    for options, words in (
        ((), ("model.arch=mu/4",)),
        (("--row", "again", "--column", "mu/2"), ("model.arch=mu/2",)),
        (("--row", "dpn"), ("model.arch=mu/4", "stem=dpn")),
    ):
        found = shell("config", "wide.yaml", "optim.lr=1e-3", *options).out
        same = shell("config", *alone, *words).out
        assert found.splitlines()[0].startswith(f"{same.splitlines()[0]}: ")  # the id
        assert yaml.safe_load(found) == yaml.safe_load(same)
    assert "dpn@mu/4#4" in found.splitlines()[0]
    for words, told in (
        (("wide.yaml", "--row", "dnp"), "--row: "),
        (("wide.yaml", "--row", "dpn", "--column", "mu/2"), "--column: 'dpn'"),
        (("wide.yaml", "--scale", "small"), "--scale small: "),
        (("model.depth=2", "--row", "dpn"), "ablate: model.depth=2: is one variant"),
    ):
        assert told in shell("config", *words, code=2).err
    assert not (shell.folder / "runs" / "ledger.db").exists()


@pytest.mark.whole
def test_config_knows_no_id_of_what_is_searched_or_was_not_seen(shell):
    (shell.folder / "tuned.yaml").write_text(
        "variants: [{a: {}}, {b: {stem: dpn}}]\nseeds: 2\n"
        "tune: {space: {optim.lr: {log: [1e-4, 3e-2]}}, trials: 15}\n"
    )
    assert shell("config", "tuned.yaml").out.splitlines()[:2] == [
        "# a#0, whose id is not known yet",
        "# note: a search will choose optim.lr",
    ]
    for sweep, known in (("table1", True), ("table1_fewshot", False)):
        told = shell("config", sweep, "--row", "ViT", "--format", "json").out
        assert (json.loads(told)["run"] is not None) == known


@pytest.mark.whole
def test_list_shows_every_kind_and_the_users_files(shell):
    (shell.folder / "conf" / "recipe").mkdir(parents=True)
    (shell.folder / "conf" / "recipe" / "mine.yaml").write_text("# Nobody else's.\noptim: {}\n")
    out = shell("list").out
    for line in (
        *(r"layernorm +\(x - mean\)", r"dpn +LN -> dense -> LN", r"mu/PATCH +width 32"),
        *(r"digits +1,797 handwritten", r"mine +Nobody else's\.?  -- conf/recipe/mine\.yaml"),
        *(r"local +trains one run on each GPU", r"quickstart +Quick start"),
    ):
        assert re.search(f"^  {line}", out, re.M), line
    norms = shell("list", "norms").out
    assert norms.startswith("norms  (norm=NAME, or norm=module:Class of your own)\n")
    assert norms.rstrip() in out


@pytest.mark.whole
def test_list_prints_defaults_as_yaml_reads_them(shell):
    seen = set()
    for kind, table in CHOICES.items():
        lines = shell("list", f"{kind}s").out.splitlines()
        for name, choice in table.items():
            [line] = [line for line in lines if re.match(rf"  {name} ", line)]
            for key, param in choice.params.items():
                text = re.search(rf"[\[ ]{key}=([^],]+)[],]", line)[1]
                assert text == json.dumps(param.default).strip('"'), line
                seen |= {text} if isinstance(param.default, bool) else set()
    assert seen == {"true", "false"}
    options = re.findall(r"\[(?:true|false).*?\]", shell("list", "keys", "model.").out)
    assert {*options} == {"[true, false]"}


@pytest.mark.whole
def test_a_kind_without_choices_names_the_command_that_writes_one(shell):
    [command] = re.findall(r"`ablate (.+?)`", shell("list", "trainers").out)
    shell(*command.replace("NAME", "mine").split())
    assert "mine" in shell("list", "trainers").out.split()
    shell("list", "trainers", "yours", code=2)


@pytest.mark.whole
def test_every_key_of_a_configuration_is_explained_with_its_default(shell):
    listed = shell("list", "keys").out
    tree = json.loads(shell("config", "--format", "json").out)["configuration"]
    for section, keys in tree.items():
        for key, value in keys.items() if isinstance(keys, dict) else [("", keys)]:
            name, value = f"{section}.{key}".rstrip("."), re.escape(json.dumps(value).strip('"'))
            if section in ("norm", "stem", "block"):  # `norm=NAME` is a choice; null: the host's
                if key == "name":
                    continue
                value = r"\S+"
            assert re.search(rf"^  {name}={value} +\S+ .*\[.+\]", listed, re.M), name
    assert shell("list", "keys", "optim.warmup_s").out.splitlines()[1:] == [
        "  optim.warmup_steps=null  length of the warm-up, in steps; over examples and epochs "
        "[a whole number at least 0, null]"
    ]
    tune = shell("list", "keys", "tune.").out.splitlines()[1:]
    said = shell("plan", "table7", "tune.nosuch=1", code=2).err  # names the keys that words may set
    told = said.partition("expected one of ")[2].partition(", got")[0].split(", ")
    assert sorted(line.split("=")[0] for line in tune) == sorted(f"  tune.{key}" for key in told)
    assert "did you mean 'optim.wd'" in shell("list", "keys", "otim.wd", code=2).err
    assert "`ablate config trainer=NAME` prints all" in shell("list", "keys", "trainer.").out
    assert shell("config", "lr=0.1", code=2).err == (
        "ablate: lr: is no key; did you mean optim.lr?\n"
    )


def test_every_format_of_the_table_says_the_same(driven):
    rows = driven.facts("tiny")
    whole = json.loads(driven("table", "tiny", "--format", "json").out)
    assert [row["label"] for row in whole["rows"]] == ["pre", "post"]
    entries = {entry["row"]: entry["values"] for entry in whole["columns"][0]["entries"]}
    results = {(row, seed): value for row, of in entries.items() for seed, value in of.items()}
    runs = {(f["row"], f["seed"]): float(f["value"]) for f in rows if f["quantity"] == "top1.run"}
    assert runs == results
    assert len(runs) == 4
    gain = next(f for f in rows if (f["row"], f["quantity"]) == ("post", "gain"))["value"]
    text = f"{float(gain):+.2f} ["
    assert f" {text}" in driven("table", "tiny").out  # Markdown, off a terminal
    assert text in driven("table", "tiny", "--format", "rich").out


# --- Pipes and terminals ------------------------------------------------------------------------


@pytest.mark.whole
def test_off_a_terminal_there_is_no_colour_whatever_the_environment_says(driven):
    lines = [("status",), ("table", "--format", "rich"), ("list",)]
    for words in (*lines, ("plan", *ROWS, "seeds=2"), (*SWEEP, "seeds=2")):
        done = driven(*words, FORCE_COLOR="1", TERM="xterm-256color")
        assert "\x1b" not in done.out + done.err, words


@pytest.mark.whole
def test_without_standard_streams_a_sweep_is_driven_and_its_files_are_its_own(driven):
    line = f"exec {ABLATE} {' '.join(SWEEP)} seeds=3 <&- >&- 2>&-"
    assert subprocess.run(line, shell=True, cwd=driven.folder, timeout=120).returncode == 0
    assert "6 finished" in driven("status").out
    assert driven("verify").out.startswith("verified: 6 runs")
    text = subprocess.run(f"{ABLATE} table --format mdd >&- 2>&1", shell=True, cwd=driven.folder)
    assert text.returncode == 2
