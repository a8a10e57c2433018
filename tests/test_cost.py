"""What a plan is said to cost: when a step is timed, when not, and on hardware that is not here."""

import contextlib
import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.plans import record_plan, small_plan

from ablate.api import training
from ablate.planning.compose import resolve_run
from ablate.planning.expand import plan_from_words as make_plan
from ablate.planning.launcher import launcher_settings
from ablate.report.planned import PlanForecast, planned_runs
from ablate.report.text import device_time, duration
from ablate.run import plugin
from ablate.run.build import build_run
from ablate.run.spec import RunSpec
from ablate.running import estimate
from ablate.running.decoding import DECODE_S, decoding_lines
from ablate.running.devices import EVALUATION, MOVED, PEAKS, START_S, Devices
from ablate.running.estimate import Costs
from ablate.running.gpus import Gpu, GpuSet
from ablate.running.launchers import Slot
from ablate.running.rehearse import Rehearsals
from ablate.running.work import CellWork
from ablate.running.world_sizes import EXCHANGED, MEETING_S
from ablate.shared.errors import UserError
from ablate.shared.machine import HostHardware
from ablate.store.events import RunState
from ablate.store.ledger import Ledger
from ablate.store.store import Store
from ablate.training.model.count import describe

WORDS = ["stem=none,dpn", "seeds=3", "train.steps=1000"]  # 6 runs of 1000 steps of 64 images
ENCODED = ["recipe=deit", "data=imagenet1k", "model.arch=Ti/16,S/16", "eval.every=1000"]
# What 6 runs take on 2 slots at the rate that no core surpasses is a month at so many a forward.
MONTH = 2 * 30 * 86400 * 1e12 / (6 * 3 * 64_000)


@pytest.fixture
def told(tmp_path):
    """`told(multiply_adds, ...)`: the costs, and which specs the worker was asked to time."""
    store = Store(tmp_path)
    plan, _ = make_plan(WORDS, store=tmp_path)
    split, _ = make_plan([*WORDS, "train.micro_batch=8"], store=tmp_path)
    encoded, _ = make_plan([*WORDS[1:], *ENCODED], store=tmp_path)

    def find(multiply_adds: int, ranks: int = 1, slots: int = 2, device: str = "cpu", **how):
        """`runs`: that share a GPU, which computes for 0.4 of a step; `anew`: nothing was asked
        before; `step_s`, `warmup`: of the tree of a spec."""
        share, step_s = 1 / how.pop("runs", 1), how.pop("step_s", lambda tree: 2.0)
        warmup = how.pop("warmup", lambda tree: None)
        timed = []

        def ask(verb, question):
            assert verb == "describe"
            timed.extend(question["calibrate"])
            examples = {"train": 1197, "validation": 300, "test": 200}
            whole = {"parameters": 1, "multiply_adds": multiply_adds, "launches": 10, "groups": {}}
            whole |= {"statistics": False, "examples": examples, "warnings": []}
            answers = {}
            for key, tree in question["specs"].items():
                times = {"step_s": step_s(tree), "image_s": 0.01, "busy": 0.4}
                answers[key] = whole | (times if key in question["calibrate"] else {})
                answers[key]["warmup"] = warmup(tree)
            return answers

        if how.pop("anew", True):
            (store.cache / "costs.json").unlink(missing_ok=True)
        launcher = SimpleNamespace(device=device, most=slots, worlds=[ranks], remote=False, ask=ask)
        launcher.devices = GpuSet(how.pop("gpus", ()))
        launcher.slots = [Slot("0", "0", device, share=share)]
        of = split if ranks > 1 else how.pop("of", plan)
        return estimate.estimate_costs(
            of, store, launcher, how.pop("states", {}), how.pop("finished", {}), **how
        ), timed

    find.plan, find.split, find.encoded = plan, split, encoded
    return find


def shown(plan, costs, **settings) -> None:
    settings = launcher_settings({"name": "local", **settings})
    PlanForecast(plan, {}, costs, Rehearsals({}, []), settings, []).show()


def test_nothing_is_timed_that_surely_takes_over_a_month(told, capsys):
    costs, timed = told(int(0.99 * MONTH))
    assert len(timed) == 2
    # an epoch is 18 steps, so 1000 steps have 56 validations, the last one after the last step
    evaluated = (56 * 300 + 200) * 0.01
    assert costs.left_s == pytest.approx(6 * (1000 * 2.0 + evaluated))
    assert (costs.wall_s, costs.hardware) == (costs.left_s / 2, "2 slots")
    costs, timed = told(int(1.01 * MONTH))
    assert (timed, costs.left_s) == ([], math.inf)
    shown(told.plan, costs, attempts=5)
    assert (
        "left: more than a month on these 2 slots; `ablate plan stem=none,dpn seeds=3 "
        "train.steps=1000 --on h100:8` shows the time on GPUs\n"
        "launcher: local, attempts=5\n"
    ) in capsys.readouterr().out


def test_ranks_share_what_was_timed_and_finished_runs_tell_their_own_time(told):
    alone, _ = told(10**9, slots=8)
    costs, _ = told(10**9, ranks=4, slots=2)
    assert costs.basis == "by a short calibration, shared evenly by 4 ranks"
    beside = MEETING_S + 2 * 4 * 1000 / EXCHANGED["cpu"]  # of one parameter, 1000 steps
    for place, seconds in costs.seconds.items():
        assert seconds == pytest.approx(alone.seconds[place] / 4 + beside)
    assert costs.left_s == pytest.approx(alone.left_s + 6 * 4 * beside)  # of devices
    assert sum(costs.seed_s.values()) == pytest.approx(costs.left_s / 3)
    assert costs.wall_s == pytest.approx(costs.left_s / 8)  # 6 runs on two groups of four
    assert alone.wall_s == max(alone.seconds.values())
    ended = {"seconds": 50, "ranks": 4}
    runs = {run: ended for cell in told.split.cells for run in cell.ids.values()}
    costs, timed = told(10**9, ranks=4, slots=2, finished=runs)
    assert (timed, costs.wall_s, costs.left_s) == ([], 6 * 50 / 2, 6 * 50 * 4)


def test_runs_that_are_finished_tell_without_a_bound(told):
    runs = {run: {"seconds": 3e6} for c in told.plan.cells for s, run in c.ids.items() if s == 0}
    costs, timed = told(int(2 * MONTH), finished=runs)
    assert (timed, costs.left_s, costs.basis) == ([], 6 * 3e6, "from finished runs")


def test_runs_that_the_sweep_leaves_are_not_left(told, tmp_path):
    """Two of six were given up, and one starts once more. Children of failed runs are blocked."""
    cell, other = told.plan.cells
    states = {cell.ids[0]: RunState("failed"), cell.ids[1]: RunState("hung", hung=2)}
    states[cell.ids[2]] = RunState("oom", oom=1)
    costs, _ = told(10**9, states=states)
    seconds = costs.seconds[other.row, ""]
    assert costs.left_s == pytest.approx(4 * seconds)
    parents, _ = make_plan([*WORDS, "from.train.steps=1000"], store=tmp_path)
    failed = {run.id: RunState("failed") for run in parents.runs() if run.above and run.seed == 0}
    costs, _ = told(10**9, of=parents)
    rest, _ = told(10**9, of=parents, states=failed)
    assert rest.left_s == pytest.approx(costs.left_s * 2 / 3)


def test_runs_of_a_trainer_of_one_s_own_that_the_sweep_leaves_are_not_left():
    plan = small_plan()
    costs = estimate.own_costs(plan, {"a0", "a1"}, {"a0": {"seconds": 7.0}}, 1, "1 slot")
    assert costs.left_s == 2 * 7.0


def test_a_sweep_that_retries_counts_those_runs(tmp_path, monkeypatch):
    store, plan, counted = Store(tmp_path), small_plan(), []
    with Ledger.driving(store) as ledger:
        record_plan(store, ledger, plan)
        for run, kind in {"a0": "failed", "a1": "oom", "b0": "hung"}.items():
            ledger.record(run, "started", step=0)
            ledger.record(run, kind)

    def estimated(plan, store, launcher, states, finished, **how):
        counted.append({run for run, state in states.items() if state == RunState()})
        raise UserError("enough")

    monkeypatch.setattr("ablate.running.estimate.estimate_costs", estimated)
    for retry in ((), ("failed", "hung")):
        with contextlib.suppress(UserError):
            training.forecast_sweep(plan, store, SimpleNamespace(worlds=[1]), retry)
    assert counted == [{"b1"}, {"a0", "b0", "b1"}]


def test_what_is_surely_short_is_not_timed_where_only_length_matters(told):
    costs, timed = told(1000, from_s=86400)
    assert (costs.left_s, timed) == (0, [])
    _, timed = told(int(0.99 * MONTH), from_s=86400)
    assert len(timed) == 2


STEP_S = {"fp32": 4.0, "bf16": 1.0}
DECAYS = ",".join(f"{n / 100}" for n in range(1, 8))


@pytest.mark.parametrize(
    ("words", "step_s", "steps"),
    [
        (["train.precision=fp32,bf16"], lambda tree: STEP_S[tree["train"]["precision"]], (4, 1)),
        (["augment.randaug=0,2"], lambda tree: 1.0 + tree["augment"]["randaug"], (1, 3)),
        (
            ["augment.randaug=0,2", f"optim.wd={DECAYS}"],  # of which not all are timed
            lambda tree: 1.0 + tree["augment"]["randaug"],
            7 * (1,) + 7 * (3,),
        ),
    ],
)
def test_cells_of_one_size_have_each_its_own_time(told, tmp_path, words, step_s, steps):
    plan, _ = make_plan([*WORDS[1:], *words], store=tmp_path)
    told(10**9, step_s=step_s)  # of an earlier plan, which has the first cell, too
    for anew in (False, True):
        costs, _ = told(10**9, of=plan, step_s=step_s, anew=anew)
        seconds = [1000 * step + (56 * 300 + 200) * 0.01 for step in steps]
        assert [costs.seconds[cell.row, ""] for cell in plan.cells] == pytest.approx(seconds)


def test_times_are_those_of_a_model_of_gpu_or_cpu(told, monkeypatch):
    """A store is used from several machines: each times for itself, once."""
    host = HostHardware.read()

    def timed_on(gpu: str, cpu: str, step_s: float) -> tuple[int, float]:
        monkeypatch.setattr(HostHardware, "read", lambda: replace(host, cpu_model=cpu))
        gpus = (Gpu("0", "GPU-0", gpu, "GPU-0"),) if gpu else ()
        how = {"device": "cuda" if gpu else "cpu", "gpus": gpus, "anew": False}
        costs, timed = told(10**9, step_s=lambda tree: step_s, **how)
        return len(timed), round(costs.seconds["none", ""] / 1000)

    for gpu, cpu, step_s in (("A100", "x", 4.0), ("H100", "x", 2.0), ("", "x", 30), ("", "y", 60)):
        assert timed_on(gpu, cpu, step_s) == (2, step_s)
    assert timed_on("A100", "z", 9.0) == (0, 4)
    assert timed_on("", "x", 9.0) == (0, 30)


def test_each_precision_is_timed_and_tells_of_its_cells(told, tmp_path):
    """Also where another precision of its size has a time, and where not all cells are timed."""

    def step_s(tree) -> float:
        return STEP_S[tree["train"]["precision"]]

    told(10**9, step_s=step_s)
    plan, _ = make_plan([*WORDS[1:], "train.precision=fp32,bf16"], store=tmp_path)
    costs, timed = told(10**9, of=plan, step_s=step_s, anew=False)
    assert len(timed) == 1
    assert costs.seconds["fp32", ""] > 4000 > costs.seconds["bf16", ""]
    words = [*WORDS[1:], f"optim.wd={DECAYS}", "train.precision=fp32,bf16"]
    many, _ = make_plan(words, store=tmp_path)
    costs, timed = told(10**9, of=many, step_s=step_s)
    assert len(timed) == 6
    for cell in many.cells:
        fp32 = cell.spec.tree["train"]["precision"] == "fp32"
        assert (costs.seconds[cell.row, cell.column] > 4000) == fp32


def test_other_hardware_is_reckoned_and_nothing_is_timed(told):
    costs, timed = told(10**9, on=Devices.parse("h100:8", None, {}))
    # the recipe computes in fp32, and a model of 32 channels is bound by memory
    operations = 2 * 3 * 1e9 * 64_000
    each = START_S + 1.15 * 4 * (operations / 2) * MOVED / 32 / 3.35e12
    assert (timed, costs.hardware) == ([], "8 x h100")
    assert costs.left_s == pytest.approx(6 * each)
    assert costs.wall_s == pytest.approx(each)  # 6 runs on 8 devices: no run is shared
    assert all(part in costs.basis for part in ("35 %", "67 TFLOP/s", "3.35 TB/s", "H100"))
    given, _ = told(10**9, on=Devices.parse("h100", 0.175, {}))
    whole = pytest.approx(6 * (START_S + 1.15 * operations / (67e12 * 0.175)))
    assert (given.left_s, given.wall_s) == (whole, whole)
    assert "17.5 %" in given.basis
    assert "TB/s" not in given.basis
    assert not any("lower bound" in note for note in (*costs.notes, *given.notes))


@pytest.mark.parametrize(
    ("words", "batch", "step_s"),
    [
        # measured on an H100: benchmarks/results/gpu.txt; of what its host held up, the graph's
        ("recipe=augreg data=imagenet1k model.arch=B/16 model.dropout=0", 256, 0.1093),
        ("recipe=augreg data=imagenet1k model.arch=S/16", 512, 0.1042),
        ("recipe=augreg data=imagenet1k model.arch=Ti/16", 512, 0.0695),
        ("recipe=cifar data=cifar10 model.arch=S/4", 512, 0.0316 + 0.0039),
        ("recipe=cifar data=cifar10 model.arch=Ti/4", 512, 0.0197 + 0.0043),
        ("recipe=dtn data=imagenet1k model.arch=S/16", 256, 0.2122),
    ],
)
def test_a_step_on_an_h100_is_foretold_within_half(words, batch, step_s):
    tree, _ = resolve_run([*words.split(), f"train.batch={batch}"], Path("runs"))
    work = CellWork(SimpleNamespace(spec=RunSpec.of(tree)), 1.0)
    work.multiply_adds = 3 * batch * describe(build_run(tree))["multiply_adds"]
    seconds = (Devices.parse("h100", None, {}).seconds(work) - START_S) / EVALUATION
    assert 1 / 1.5 < seconds / step_s < 1.5


def test_small_runs_take_what_their_launches_take_which_is_a_lower_bound(told, capsys):
    """Of 1000 steps of 64 digits, whose forward is 10 launches, no arithmetic to speak of."""
    costs, _ = told(10**3, on=Devices.parse("H100:8", None, {}))
    assert START_S + 1000 * (3 * 10) * 5e-6 < costs.wall_s < START_S + 1000 * (6 * 10 + 50) * 5e-6
    bound = "the time on h100 is a lower bound: such small runs spend it on launching kernels (5 us"
    bound = f"{bound} each) and on starting (2 s each)"
    assert [note for note in costs.notes if "lower bound" in note] == [bound]
    shown(told.plan, costs)
    out = capsys.readouterr().out
    assert "left: about 2 s on 8 x h100, under 1 device-minute (" in out
    assert "note: the time on h100 is a lower bound" in out


@pytest.mark.parametrize(
    ("hours", "text"),
    [
        *((59 / 3600, "under 1 device-minute"), (0.02, "0.02 device-hours")),
        *((7.14, "7.1 device-hours"), (710, "710 device-hours"), (12345, "12,345 device-hours")),
    ],
)
def test_device_hours_have_no_exponent(hours, text):
    assert device_time(hours * 3600) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"),
        (0.2, "0 s"),
        (59.4, "59 s"),
        (59.7, "1 min 0 s"),
        (90, "1 min 30 s"),
        (119.7, "2 min 0 s"),
        (3599.8, "1 h 0 min"),
        (3 * 3600 + 59 * 60 + 59, "3 h 59 min"),
        (47 * 3600 + 7 * 60, "47 h 7 min"),
        (48 * 3600, "2.0 days"),
        (100 * 86400, "100 days"),
        (math.inf, "inf days"),
    ],
)
def test_a_duration_has_no_more_of_a_unit_than_the_next_one_has(seconds, text):
    assert duration(seconds) == text


def test_bf16_is_the_rate_of_the_tensor_cores_and_a_v100_has_none():
    assert Devices.parse("a100:2", 0.5, {}).rate("bf16") == pytest.approx(312e12 / 4)
    assert Devices.parse("a100:2", 0.5, {}).rate("tf32") == pytest.approx(312e12 / 8)
    with pytest.raises(UserError, match=r"v100 .*train\.precision=bf16; its rates are for fp32"):
        Devices.parse("v100", None, {}).rate("bf16")
    assert {"b200", "gh200", "mi300x", "t4"} <= PEAKS.keys()


@pytest.mark.parametrize(
    ("text", "mfu", "named"),
    [
        ("h1000:8", None, r"--on: got 'h1000' \(did you mean 'h100'\?\), expected one of h100, "),
        ("8", None, "--on: expected one of h100, "),
        ("h100:0", None, "--on: expected a number of devices such as h100:8, got 'h100:0'"),
        ("h100:", None, "got 'h100:'"),
        ("h100:8", 35, "--mfu: .* 0 < mfu <= 1, got 35"),
        ("h100:8", math.nan, "--mfu"),
    ],
)
def test_a_mistake_in_other_hardware_names_the_choices(text, mfu, named):
    with pytest.raises(UserError, match=named):
        Devices.parse(text, mfu, {})


def test_a_large_factorial_has_a_line_for_what_has_no_change_one_or_all(tmp_path):
    """Its 2**5 combinations don't fit on a screen."""
    settings = {"stem": "dpn", "norm": "rmsnorm", "optim.wd": 0.2, "model.act": "relu"}
    settings |= {"optim.lr": 0.002}
    changes = {f"c{key}": {key: value} for key, value in settings.items()}
    folder = tmp_path / "sweeps"
    folder.mkdir()
    text = json.dumps({"title": "x", "changes": changes, "design": "factorial", "seeds": 2})
    (folder / "large.yaml").write_text(text)
    plan, _ = make_plan([str(folder / "large.yaml")], store=tmp_path / "runs")
    sizes = {"parameters": 5, "multiply_adds": 7}
    costs = Costs(
        described={(cell.row, cell.column): sizes for cell in plan.cells},
        seconds={(cell.row, cell.column): 3.0 for cell in plan.cells},
        **{"basis": "", "left_s": 1.0, "hardware": "", "wall_s": 1.0, "searches": []},
        **{"seed_s": {}, "notes": [], "worlds": {}},
    )
    launcher = launcher_settings({"name": "local"})
    _, lines = PlanForecast(plan, {}, costs, Rehearsals({}, []), launcher, []).grid()
    labels = [label for label, *_ in lines]
    assert labels == ["none", *changes, "all", "25 other combinations"]
    assert lines[-1][-1] == "50 planned"
    assert "factorial" in planned_runs(plan)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["stem=none,dpn", "seeds=5"], "2 variants x 5 seeds = 10 runs"),
        (["stem=none,dpn", "model.arch=mu/2,mu/4", "seeds=1"], "2 variants x 2 columns x 1 seed"),
        (["odd"], "3 cells of 2 variants x 2 columns x 3 seeds = 9 runs"),
        (["tuned"], "2 variants x 2 seeds = 4 runs, after 20 tuning trials"),
    ],
)
def test_the_runs_of_a_plan_are_counted_as_they_will_be(users, words, text):
    rows = "variants: [{a: {}}, {b: {stem: dpn}}]\n"
    odd = "across: {model.depth: [1, 2]}\nexclude: [{stem: dpn, model.depth: 2}]\n"
    tuned = "seeds: 2\ntune: {space: {optim.lr: {log: [1e-4, 3e-2]}}, trials: 15}\n"
    folder = users({"sweeps/odd.yaml": rows + odd, "sweeps/tuned.yaml": rows + tuned})
    plan, _ = make_plan(words, store=folder / "runs")
    assert planned_runs(plan).startswith(text)
    assert f"= {sum(len(cell.ids) for cell in plan.cells)} run" in planned_runs(plan)


@pytest.mark.parametrize(
    ("variants", "lines"),
    [
        ("[{a: {}}, {b: {stem: dpn}}]", ["column", "mu/4", "S/4", "variants: a, b"]),
        ("[{a: {}}, {b: {model.depth: 5}}]", ["variant", "a", "b"]),
    ],
)
def test_a_plan_has_a_line_a_column_where_rows_hardly_differ(tmp_path, capsys, variants, lines):
    (tmp_path / "wide.yaml").write_text(
        f"base: {{data: digits, data.size: 32}}\nvariants: {variants}\n"
        "across: {model.arch: [mu/4, S/4]}\n"
    )
    plan, _ = make_plan([str(tmp_path / "wide.yaml")], store=tmp_path)
    sizes, described = {"mu/4": 32_000, "S/4": 22_000_000}, {}
    for cell in plan.cells:
        size = round(sizes[cell.column] * (1.0 if cell.spec.tree["model"]["depth"] != 5 else 1.2))
        described[cell.row, cell.column] = {"parameters": size, "multiply_adds": 800 * size}
        described[cell.row, cell.column]["groups"] = {}
    shown(plan, Costs(described, dict.fromkeys(described, 90.0), "by a short calibration", 0.0))
    out = capsys.readouterr().out.partition("\n\n2 variants x")[0]
    rows = [line.strip() for line in out.splitlines() if line.strip(" ─")]
    assert [row.split("  ")[0] for row in rows] == lines
    if lines[0] == "column":
        of = ["S/4", "22,000,000", "17.6 G", "1 min 30 s", "6 planned"]
        assert re.split(r" {2,}", rows[2]) == of


@pytest.mark.whole
def test_known_sets_are_planned_without_their_data_and_trained_with_it(shell):
    """Parents learn ImageNet-21k, which is fetched by hand; the other is fetched from the hub."""
    parents = ("recipe=finetune", "from.recipe=i21k", "from.data=imagenet21k", "data=imagenet1k")
    words = (*parents, "model.arch=Ti/16", "model.depth=1", "stem=none,dpn")
    planned = shell("plan", *words, "--on", "h100:8").out
    assert re.search(r"left: about .* on 8 x h100, \S+ device-hours", planned)
    note = "data=imagenet21k was not seen: its size is taken as 14,197,122 of train; to train, give"
    assert f"note: {note} from.data.path=FOLDER\n" in planned
    assert "data=imagenet1k was not seen" not in planned
    for verb in (("sweep", *words), ("plan", "stem=none,dpn", "data=imagefolder")):
        assert "data.path: data=" in shell(*verb, code=2).err
    assert not (shell.folder / "runs" / "ledger.db").exists()


@pytest.mark.whole
@pytest.mark.parametrize("name", ["table2", "table4", "table1_fewshot", "table1_fewshot@jft"])
def test_the_tables_of_private_data_are_planned_without_any(name, tmp_path):
    sweep, _, scale = name.partition("@")
    with pytest.raises(UserError, match="needs a folder"):
        make_plan([sweep], store=tmp_path, scale=scale or None)
    plan, _ = make_plan([sweep], store=tmp_path, scale=scale or None, allow_missing=True)
    assert any("data=imagenet21k was not seen" in note for note in plan.notes)


@pytest.mark.whole
def test_other_hardware_has_groups_of_gpus_that_this_machine_has_not(shell):
    """`--on` says how many GPUs there are; that this machine has none is no matter."""
    words = ("plan", "recipe=augreg", "data=imagenet21k", "model.arch=B/16", "stem=none,dpn")

    def planned(*more: str) -> dict:
        return json.loads(shell(*words, "--on", "h100:8", "--format", "json", *more).out)

    alone, together = planned(), planned("launcher.gpus_per_run=8")
    for one, eight in zip(alone["variants"], together["variants"], strict=True):
        assert 6 < one["seconds"] / eight["seconds"] < 8  # the ranks exchange their gradients
    assert "--on has 2" in shell(*words, "--on", "h100:2", "launcher.gpus_per_run=8", code=2).err


@pytest.mark.whole
def test_a_plan_names_the_cores_that_decode_what_a_gpu_reads(shell):
    """By hand: images of a run, over its seconds, times the seconds of a core for each."""
    words = ("plan", "recipe=augreg", "data=imagenet21k", "model.arch=Ti/16", "stem=none,dpn")
    planned = json.loads(shell(*words, "--on", "h100:8", "--format", "json").out)
    fastest = min(variant["seconds"] for variant in planned["variants"])
    epochs, train = 300, (14_197_122 - 51_200) // 4096 * 4096  # without its validation images
    rate = epochs * train / fastest
    (line,) = [note for note in planned["notes"] if "decoded" in note]
    assert f"{rate:,.0f} images/s" in line
    assert f"{0.66e-3 * rate:.1f} to {1.08e-3 * rate:.1f} cores" in line
    resident = json.loads(shell("plan", "stem=none,dpn", "--on", "h100", "--format", "json").out)
    assert not any("decoded" in note for note in resident["notes"])


def test_gpus_here_share_the_cores_that_decode_for_them(told, monkeypatch):
    """1,024 images in 2 s: 512 a second keep 0.55 of a core busy, and each GPU has half of one."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(1))

    def decoding(**how) -> list[str]:
        costs, _ = told(10**9, of=told.encoded, slots=2, **how)
        return [note for note in costs.notes if "decoded" in note]

    (line,) = decoding(device="cuda")
    assert "0.5 for each" in line
    assert "1.1 times" in line
    assert decoding() == []
    runs = {run: {"seconds": 50} for cell in told.encoded.cells for run in cell.ids.values()}
    assert decoding(device="cuda", finished=runs) == []


def test_a_host_with_too_few_cores_is_named(tmp_path):
    plan, _ = make_plan(["recipe=deit", "data=imagenet1k", "model.arch=Ti/16,S/16"], store=tmp_path)
    work = CellWork(plan.cells[0], 1.0, images=1e6, seconds=100.0)  # 10,000 a second: 6.6 to 10.8
    (line,) = decoding_lines([work], cores=4.0)
    assert "2.7" in line  # 10.8 cores are wanted
    (line,) = decoding_lines([work], cores=12.0)
    assert "12" not in line
    assert decoding_lines([replace(work, seconds=None)]) == []


def test_a_run_takes_as_long_as_the_slower_of_gpu_and_host(told, monkeypatch):
    """2 s a step of 1,024 images, which take a core 1.11 s, and half a core 2.21 s."""
    seconds = {}
    for cores in (1, 2):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cores=cores: range(cores))
        costs, _ = told(10**9, of=told.encoded, slots=2, device="cuda")
        (seconds[cores],) = set(costs.seconds.values())
    steps = 1000
    assert seconds[1] == pytest.approx(steps * 1024 * max(DECODE_S) / 0.5)
    assert steps * 2.0 < seconds[2] < 1.01 * steps * 2.0  # and evaluations
    assert costs.wall_s < 3 * seconds[1]


def test_runs_that_share_a_gpu_wait_for_one_another(told):
    """Each takes 0.4 of the GPU: two take as long as one alone, five twice as long."""
    alone, _ = told(10**9, device="cuda")
    for runs, factor in ((2, 1.0), (5, 2.0)):
        costs, _ = told(10**9, device="cuda", runs=runs)
        for place, seconds in costs.seconds.items():
            assert seconds == pytest.approx(factor * alone.seconds[place])


def test_runs_that_shared_a_gpu_took_their_part_of_its_time(told):
    """Eight took 80 s together, so each takes 10 s of a GPU that no others share yet."""
    ended = {"seconds": 80.0, "share": 1 / 8}
    finished = {run: ended for cell in told.plan.cells for run in cell.ids.values()}
    for runs, seconds in ((1, 10.0), (4, 40.0), (8, 80.0)):
        costs, _ = told(10**9, device="cuda", runs=runs, slots=runs, finished=finished)
        assert [*costs.seconds.values()] == pytest.approx([seconds] * 2)
    finished = {run: {"seconds": 80.0} for run in finished}
    costs, _ = told(10**9, device="cuda", finished=finished)
    assert {*costs.seconds.values()} == {80.0}


def test_other_hardware_waits_for_a_host_that_launches_for_few_runs():
    """By the launches of eight runs on a GPU, which one alone takes eight times as long for."""
    work = CellWork(SimpleNamespace(spec=build_run(resolve_run([], Path("runs"))[0]).spec), 1.0)
    work.multiply_adds, work.launches = 1.0, 1e6

    def seconds(runs: int | str) -> float:
        on = Devices.parse("h100", None, {"runs_per_gpu": runs})
        assert on.card.runs == (1 if runs == "auto" else runs)
        return on.seconds(work) - START_S

    assert seconds("auto") == pytest.approx(5.0)
    assert [seconds(runs) for runs in (1, 2, 8, 16)] == pytest.approx([40.0, 20.0, 5.0, 5.0])
    with pytest.raises(UserError, match="runs_per_gpu"):
        Devices.parse("h100:8", None, {"runs_per_gpu": 2, "gpus_per_run": 4})


def test_a_warm_up_that_lasts_to_the_end_is_noted_once(told):
    costs, _ = told(10**9, warmup=lambda tree: 1000)
    (note,) = costs.notes
    assert all(part in note for part in ("optim.warmup_epochs: 4 ", "(1,000 steps)"))
    assert not any(row in note for row in ("none", "dpn"))
    costs, _ = told(10**9, warmup=lambda tree: 1000 if tree["stem"]["name"] == "dpn" else None)
    assert " of dpn (" in costs.notes[0]
    assert not told(10**9)[0].notes


@pytest.mark.whole
def test_trials_that_two_columns_share_are_counted_once(shell):
    """Both columns search at one weight decay: so the second adds its own runs alone."""
    searched = (
        "tune: {sampler: grid, repeats: 2, stages: [{at: {optim.wd: 0.2}, "
        "space: {optim.lr: {choices: [1e-3, 3e-3]}}}]}\n"
    )
    light, heavy = "{light: {optim.wd: 0.1}}", "{heavy: {optim.wd: 0.3}}"
    (shell.folder / "sweeps").mkdir()

    def seconds(across: str, tail: str) -> float:
        (shell.folder / "sweeps" / "shared.yaml").write_text(
            f"base: {{recipe: quick, data: digits}}\nseeds: 3\nacross: [{across}]\n"
            f"variants: [{{pre: {{}}}}, {{post: {{block.mlp: post}}}}]\n{tail}"
        )
        found = json.loads(shell("plan", "shared", "--on", "h100", "--format", "json").out)
        return found["left"]["device_seconds"]

    both = seconds(f"{light}, {heavy}", searched)
    assert both == pytest.approx(seconds(light, "") + seconds(heavy, searched))


@pytest.mark.parametrize("edited", ["class Own(", None])
def test_code_that_is_being_edited_ends_no_view(users, edited):
    source = "class Own:\n    def __init__(self, shape):\n        pass\n"
    folder = users({"own_norm.py": source})
    plan, _ = make_plan(["norm=layernorm,own_norm:Own", "seeds=1", "train.steps=10"], store=folder)
    store = Store(folder)
    plain, own = plan.cells
    answer = {"parameters": 1, "multiply_adds": 5, "launches": 10, "statistics": False}
    answer["examples"] = {"train": 1197, "validation": 300, "test": 200}
    answers = {estimate._key(cell, "cpu"): answer for cell in plan.cells}
    estimate._cache(store).add(answers)
    assert {*estimate.known_work(plan, store)} == {(c.row, c.column) for c in (plain, own)}
    if edited is None:
        (folder / "own_norm.py").unlink()
        with pytest.raises(UserError) as missing:
            plugin.own_code(own.spec)
        assert str(missing.value).startswith("norm: ")
    else:
        users({"own_norm.py": edited})
    assert estimate.known_work(plan, store) == {}
    assert estimate.estimate_sizes(plan, store, {}) == {(plain.row, plain.column): answer}
