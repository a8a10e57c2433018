"""Rehearsals: what `plan` and `sweep` say of a variant before it trains, by name, file and line."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import torch

from ablate.planning import expand
from ablate.run import plugin, sections
from ablate.run.source import own_line
from ablate.running import rehearse as rehearsals
from ablate.shared.errors import UserError
from ablate.store.store import Store
from ablate.training.answers import answer_rehearse
from ablate.training.model import build
from ablate.training.model.count import describe
from ablate.training.plugin import blame, by_path
from ablate.training.probes.attention import AttentionDistance
from ablate.training.probes.tokens import TokenNorms
from ablate.training.rehearsal import compare_rows, rehearse

pytestmark = pytest.mark.whole

SOURCE = '''
import torch
import torch.nn.functional as F
from torch import nn

class Pass(nn.Module):
    """The identity, which says that it has a power and a scale."""
    version = 1
    mixes_tokens = False
    roles = {"weight": "scale"}

    def __init__(self, shape, *, power: float = 1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape.width))

    def forward(self, x):
        return x

class Nothing(Pass):
    """Pass, whose weight is used, but times 0."""

    def forward(self, x):
        return x + 0 * self.weight

class Bias(nn.Module):
    """Attention with a number for each pair of patches; a class token has none."""

    def __init__(self, shape):
        super().__init__()
        self.before, patches = shape.cls, shape.grid[0] * shape.grid[1]
        self.table = nn.Parameter(0.02 * torch.randn(patches, patches))

    def forward(self, q, k, v):
        bias = F.pad(self.table, (self.before, 0, self.before, 0))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))

class Marks(nn.Module):
    """Attention that adds a number to the tokens before the patches alone."""

    def __init__(self, shape):
        super().__init__()
        self.before, self.mark = shape.cls, nn.Parameter(torch.ones(()))

    def forward(self, q, k, v):
        contexts = F.scaled_dot_product_attention(q, k, v)
        before, patches = contexts[:, :, :self.before], contexts[:, :, self.before:]
        return torch.cat([before + self.mark, patches], 2)

class Root(nn.Module):
    mixes_tokens = False

    def __init__(self, shape, *, eps: float = 1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        return x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt()

class Same(Root):
    """Another name of it."""

class Wider(Root):
    def forward(self, x):
        return torch.cat([x, x[..., :1]], -1)  # wider

class Doubles(Root):
    def forward(self, x):
        return x.double()  # doubles

class Pair(Root):
    def forward(self, x):
        return x, x  # pair

class Nan(Root):
    def forward(self, x):
        return super().forward(x) * (x - x).sum() / (x - x).sum()

class Random(Root):
    def forward(self, x):
        return super().forward(x) + 0.01 * torch.rand(())

class Counts(Root):
    seen = 0

    def forward(self, x):
        self.seen += 1
        return super().forward(x) * (1 + 0.1 * self.seen)

class Buffered(Root):
    def __init__(self, shape):
        super().__init__(shape)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.seen += 1
        return super().forward(x) * (1 + 0.1 * self.seen)

class InPlace(Root):
    def forward(self, x):
        y = x.exp()  # in place: what exp has kept for its gradient is gone
        y.mul_(2)
        return y

class Eights(Root):
    def forward(self, x):
        if x.device.type != "meta":
            x = x.unflatten(0, (8, -1)).flatten(0, 1)
        return x

class Registered(nn.Module):
    roles = {"token": "registers"}

    def __init__(self, patches, width, *, number: int = 3, says: int = 3):
        super().__init__()
        self.patches, self.tokens_added = patches, says
        self.dense = nn.Linear(patches.values, width)
        self.token = nn.Parameter(torch.empty(1, number, width))

    def forward(self, images):
        x = self.dense(self.patches.cut(images))
        return torch.cat([self.token.expand(len(x), -1, -1), x], 1)  # registered

class Joins(nn.Module):
    def __init__(self, layer):
        super().__init__()

    def forward(self, x):
        return torch.cat([x[:, :1], x], 1)  # joins

class Flat(torch.optim.Optimizer):
    def __init__(self, params, lr, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(group["lr"] * p.grad.view(len(p), -1).T.T.squeeze(2))  # flat
'''
CPU, NOWHERE = torch.device("cpu"), Path("nowhere")


@pytest.fixture
def folder(users) -> Path:
    """The user's folder, with `mine.py`."""
    return users({"mine.py": SOURCE})


def with_own(kind: str, cls: str, changes=None, **settings):
    """A small run with this class of the user's, who works in this folder."""
    whole = plugin.complete({kind: {"name": f"mine:{cls}", **settings}}, Path.cwd())[kind]
    given = {key: whole.pop(key) for key in ("name", "folder", "version")}
    own = sections.Plugin(given["folder"], given["version"])
    run = tiny.run({"model.depth": 2, **(changes or {})})
    return replace(run, **{kind: sections.Chosen(given["name"], whole, own)})


def line(text: str) -> int:
    """The number of the line of SOURCE that has the text, from 1."""
    [found] = [n for n, each in enumerate(SOURCE.splitlines(), 1) if text in each]
    return found


def told(run, baseline):
    """What the first steps say of a run beside its baseline."""
    return compare_rows(rehearse(run, 0, NOWHERE, CPU), rehearse(baseline, 0, NOWHERE, CPU))


# --- Shapes, in the user's file and line --------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "cls", "settings", "said", "mark"),
    [
        ("norm", "Wider", {}, r"\(1, 5, 33\) and not \(1, 5, 32\): expected tokens", "wider"),
        ("norm", "Doubles", {}, "float64 and not float32, the type of its input", "doubles"),
        ("norm", "Pair", {}, "a tuple and not a tensor", "pair"),
        ("block", "Joins", {}, r"\(1, 6, 32\) and not \(1, 5, 32\): .* model.registers", "joins"),
        (
            "stem",
            "Registered",
            {"says": 0},
            r"\(1, 7, 32\) and not \(1, 4, 32\): .*tokens_added = N",
            "registered",
        ),
        ("stem", "Registered", {"says": 2}, r".* not \(1, 6, 32\): .* the 2 of its", "registered"),
    ],
)
def test_a_wrong_shape_is_told_where_the_class_gives_it(folder, kind, cls, settings, said, mark):
    place = rf"\({folder / 'mine.py'}, line {begins(mark)}\)$"
    with pytest.raises(UserError, match=f"^{kind}: mine:{cls}: forward gives {said}.*{place}"):
        describe(with_own(kind, cls, **settings))


def begins(mark: str) -> int:
    """The line of SOURCE with the `forward` that has this comment."""
    lines = SOURCE.splitlines()[: line(f"# {mark}")]
    return max(n for n, each in enumerate(lines, 1) if "def forward" in each)


def test_an_error_of_the_backward_pass_names_the_users_file(folder):
    """It comes through no line of the user's: torch raises it when forward is long over."""
    run = with_own("norm", "InPlace")
    describe(run)
    place = f"{folder / 'mine.py'}, line {begins('in place')}"
    with (
        pytest.raises(UserError, match=rf"^norm: mine:InPlace: RuntimeError: .*\({place}\)$"),
        blame(*by_path(run)),
    ):
        rehearse(run, 0, NOWHERE, CPU)


def test_an_environment_in_the_users_folder_is_not_the_users(folder, monkeypatch):
    libraries = folder / "venv" / "lib" / "site-packages" / "helper.py"
    libraries.parent.mkdir(parents=True)
    libraries.write_text("def fails():\n    raise ValueError('inside')\n")
    (folder / "calls.py").write_text("import helper\n\ndef call():\n    helper.fails()\n")
    monkeypatch.setattr(sys, "path", [str(folder), str(libraries.parent), *sys.path])
    import calls

    with pytest.raises(ValueError, match="inside") as raised:
        calls.call()
    del sys.modules["calls"], sys.modules["helper"]
    assert own_line(raised.value, [folder]) == f"{folder / 'calls.py'}, line 4"
    assert own_line(raised.value, [folder / "other"]) is None
    assert own_line(raised.value, [f"{folder}"[:-1]]) is None  # no folder, but a beginning of one


def test_an_optimiser_is_tried_on_the_weights_of_the_model(folder):
    own = {"name": "mine:Flat", "lr": 0.1, "wd": 0.0, "settings": None}
    own = plugin.complete({"optim": own}, Path.cwd())["optim"]
    run = tiny.run({f"optim.{key}": value for key, value in own.items()})
    said = rf"^optim\.name: mine:Flat: \w+Error: .*mine\.py, line {line('# flat')}\)$"
    with pytest.raises(UserError, match=said), blame(*by_path(run)):
        rehearse(run, 0, NOWHERE, CPU)


def test_a_class_that_wants_more_images_than_a_few_gets_them(folder):
    run = with_own("norm", "Eights", {"train.batch": 16})
    assert told(run, tiny.run({"model.depth": 2, "train.batch": 16}))["same"] is False
    with pytest.raises(RuntimeError, match="unflatten"):
        rehearse(replace(run, train=replace(run.train, batch=6)), 0, NOWHERE, CPU)


# --- What changes nothing, and what nothing reaches ----------------------------------------------


def test_a_norm_that_does_nothing_changes_nothing(folder):
    plain = tiny.run({"model.depth": 2, "norm": "identity"})
    found = told(with_own("norm", "Pass"), plain)
    assert found["same"]
    assert found["idle"] == {
        f"blocks.{block}.{part}.pre.weight": "unused"
        for block in (0, 1)
        for part in ("attn", "mlp")
    }
    assert found["step"] > 0
    assert not told(with_own("norm", "Root"), plain)["same"]


def test_what_is_measured_on_images_is_measured():
    """Whitening, which is no number before. Two ways of it differ in nothing else."""
    plain = tiny.run({"stem": "whiten"})
    assert told(tiny.run({"stem": "whiten", "block.post": "branch"}), plain)["same"]
    assert not told(tiny.run({"stem": "whiten", "stem.kind": "pca"}), plain)["same"]


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"model.norm_eps": 1e-5}, False),
        ({"block.post": "branch"}, True),  # pre-norm has no norm that it moves
        ({"optim.lr": 0.0011}, False),
        ({"optim.warmup_epochs": 0, "optim.schedule": "linear", "optim.min_lr": 1e-4}, True),
        ({"train.ema": 0.9, "train.epochs": 7, "eval.every": 2}, True),
        ({"train.loss": "sigmoid"}, False),
        ({"augment.flip": True}, False),
        ({"model.registers": 1}, False),
    ],
)
def test_shipped_keys_by_what_they_do_in_the_first_steps(changes, same):
    found = told(tiny.run({"model.depth": 2, **changes}), tiny.run({"model.depth": 2}))
    assert (found["same"], found["idle"]) == (same, {})


TABLE = "blocks.{}.attn.f.core.table"
NORMS = [f"blocks.0.{part}.pre.weight" for part in ("attn", "mlp")]


@pytest.mark.parametrize(
    ("pool", "depth", "registers", "idle"),
    [
        ("tok", 1, 0, {TABLE.format(0): "class token"}),
        ("tok", 3, 0, {TABLE.format(2): "class token"}),
        ("gap", 1, 0, {}),
        ("map", 1, 2, {}),
    ],
)
def test_a_bias_of_patches_moves_nothing_in_the_last_block_before_a_class_token(
    folder, pool, depth, registers, idle
):
    """Which the head reads alone; in the blocks before, the class token sees the patches."""
    run = tiny.run_with_parts(
        model__attention="mine:Bias",
        model__pool=pool,
        model__depth=depth,
        model__registers=registers,
    )
    assert rehearse(run, 0, NOWHERE, CPU).idle == idle


@pytest.mark.parametrize("pool", ["gap", "map"])
def test_registers_of_the_last_block_are_read_by_no_head(folder, pool):
    run = tiny.run_with_parts(
        model__attention="mine:Marks", model__pool=pool, model__depth=2, model__registers=1
    )
    assert rehearse(run, 0, NOWHERE, CPU).idle == {"blocks.1.attn.f.core.mark": "patches"}


@pytest.mark.parametrize(("cls", "reason"), [("Pass", "unused"), ("Nothing", "zero")])
def test_a_class_token_is_no_reason_where_no_token_depends_on_the_weight(folder, cls, reason):
    run = with_own("norm", cls, {"model.depth": 1, "model.pool": "tok"})
    assert rehearse(run, 0, NOWHERE, CPU).idle == dict.fromkeys(NORMS, reason)


def test_a_loss_without_a_gradient_is_no_fault_of_the_tokens_that_are_read(folder):
    """Here nothing has a gradient, and the tokens depend on everything before them."""
    (folder / "flat.py").write_text("def Loss(logits, target):\n    return 0 * logits.sum()\n")
    run = tiny.run_with_parts(train__loss="flat:Loss", model__depth=1, model__pool="tok")
    assert {*rehearse(run, 0, NOWHERE, CPU).idle.values()} == {"zero"}


def test_the_plan_names_the_block_and_the_reason(folder, shell):
    words = ("model.arch=mu/4", "model.pool=tok", "data=digits", "launcher=inline")
    (folder / "sweeps").mkdir()
    (folder / "sweeps" / "idle.yaml").write_text(
        "seeds: 1\n"
        "variants:\n"
        "  - bias of one block: {model.attention: 'mine:Bias', model.depth: 1}\n"
        "  - bias of three: {model.attention: 'mine:Bias', model.depth: 3}\n"
        "  - norm of three: {norm: 'mine:Pass', model.depth: 3}\n"
        "  - mean of one block: {model.attention: 'mine:Bias', model.depth: 1, model.pool: gap}\n"
    )
    out = shell("plan", "idle", *words).out
    lines = [line for line in out.splitlines() if "no gradient" in line]
    assert len(lines) == 3
    for line, parts in zip(
        lines,
        [
            ("bias of one block:", TABLE.format(0), "model.pool=tok", "class token"),
            ("bias of three:", TABLE.format(2), "model.pool=tok", "class token"),
            ("norm of three:", "blocks.{0-2}.attn.pre.weight", "blocks.{0-2}.mlp.pre.weight"),
        ],
        strict=True,
    ):
        assert all(part in line for part in parts), line
    assert not re.search("token|pool", lines[2])


@pytest.mark.parametrize(
    ("names", "paths"),
    [
        (["blocks.3.w"], ["blocks.3.w"]),
        ([f"blocks.{n}.w" for n in (0, 1, 2, 4, 10)], ["blocks.{0-2,4,10}.w"]),
        (["blocks.0.w", "cls", "blocks.1.w"], ["blocks.{0-1}.w", "cls"]),
        (["layers.0.1.w", "layers.0.2.w"], ["layers.0.{1-2}.w"]),
        (["layers.0.1.w", "layers.1.2.w"], ["layers.0.1.w", "layers.1.2.w"]),
    ],
)
def test_names_of_parameters_that_differ_in_one_number_are_one(names, paths):
    assert rehearsals._alike(names) == paths


def test_the_plan_names_rows_and_parameters(folder, shell):
    (folder / "sweeps").mkdir()
    (folder / "sweeps" / "mine.yaml").write_text(
        "base: {recipe: quick, data: digits, norm: 'mine:Root', train.epochs: 1}\n"
        "seeds: 1\n"
        "variants:\n"
        "  - base: {}\n"
        "  - eps: {norm.eps: 1e-5}\n"
        "  - end: {optim.min_lr: 1e-5}\n"
        "  - none: {norm: identity}\n"
        "  - pass: {norm: 'mine:Pass', optim.lr_mult.head: 1}\n"
        "  - same: {norm: 'mine:Same'}\n"
    )
    said = shell("plan", "mine", "launcher=inline").out
    warnings = [each for each in said.splitlines() if each.startswith("warning: ")]
    assert warnings == [
        "warning: same: after 4 steps at the full rate every weight is that of base, bit for "
        "bit: norm=mine:Same changes nothing, or nothing so early",
        "warning: pass: no gradient reaches blocks.0.attn.pre.weight, blocks.0.mlp.pre.weight in "
        "4 steps: the forward pass does not use it",
    ]
    rows = re.findall(r"^ (\S.*?) {2,}.* (\d+\.\dx) ", said, re.M)
    assert [row for row, _ in rows] == ["base", "eps", "end", "none", "pass", "same"]
    assert rows[0][1] == "1.0x"
    tree = json.loads(shell("plan", "mine", "launcher=inline", "--format", "json").out)
    assert [f"warning: {text}" for text in tree["warnings"]] == warnings
    assert tree["variants"][0]["step"] == 1
    # what sweep tells before it trains is the same
    swept = shell("sweep", "mine", "launcher=inline", "train.steps=1").out
    assert [each for each in swept.splitlines() if each.startswith("warning: ")] == warnings


def test_the_plan_warns_of_a_loss_that_is_no_number_and_of_a_hidden_state(folder, shell):
    norms = ",".join(f"mine:{name}" for name in ("Root", "Nan", "Random", "Counts", "Buffered"))
    words = (f"norm={norms}", "model.arch=mu/4", "model.depth=1", "launcher=inline")
    said = shell("plan", *words).out.splitlines()
    warnings = [each for each in said if each.startswith("warning: ")]
    assert len(warnings) == 3
    assert warnings[0] == "warning: mine:Nan: the loss is not finite after 0 steps at the full rate"
    assert warnings[1].startswith("warning: mine:Random: a second training of the same 4 steps ")
    assert warnings[2].startswith("warning: mine:Counts: 4 steps that are stopped and resumed ")


# --- Who is asked, and when ----------------------------------------------------------------------


@pytest.fixture
def asked(folder):
    """`asked(words, multiply_adds)`: the warnings, and for how many rows the worker was asked."""
    store = Store(folder / "runs")

    def find(*words: str, multiply_adds: float = 1e5, own_only: bool = False):
        plan, _ = expand.plan_from_words(words, store=store.root)
        rows = []

        def ask(verb, question):
            assert verb == "rehearse"
            rows.extend(question["rows"])
            return answer_rehearse(question, lambda done, total: None)

        launcher = SimpleNamespace(device="cpu", remote=False, ask=ask)
        sizes = {(c.row, c.column): {"multiply_adds": multiply_adds} for c in plan.cells}
        found = rehearsals.rehearse_rows(plan, store, launcher, sizes, own_only=own_only)
        return list(found.warnings), len(rows)

    return find


def test_a_row_is_tried_once(folder, asked):
    words = ("norm=identity,mine:Pass",)
    first, rows = asked(*words)
    assert (len(first), rows) == (2, 2)
    assert asked(*words) == (first, 0)
    assert asked(*words, "seeds=5") == (first, 0)
    # The class declares its version, so its runs keep their ids; what was told is told anew.
    (folder / "mine.py").write_text(f"{SOURCE}\n# edited\n")
    assert asked(*words)[1] == 1
    (folder / "runs" / "cache" / "rehearsed.json").write_text('{"seal": "torn')
    assert asked(*words) == (first, 2)


def test_a_row_is_tried_against_each_baseline(asked):
    """It may be the same as one of them alone."""
    for baseline, same in (("identity", [True, False]), ("layernorm", [False])):
        lines, rows = asked(f"norm={baseline},mine:Pass")
        assert ["after 4 steps" in line for line in lines] == same
        assert rows == 2


def test_rows_that_can_not_be_tried_are_named_and_tried_again(asked, monkeypatch):
    """A device that fails may be free the next time."""

    def fail(*arguments):
        raise RuntimeError("CUDA error: unspecified launch failure\nmore")

    with monkeypatch.context() as failing:
        failing.setattr("ablate.training.answers.rehearse", fail)
        [line], rows = asked("norm=layernorm,rmsnorm")
    assert rows == 2
    assert line == (
        "layernorm, rmsnorm: the first 4 steps failed: "
        "RuntimeError: CUDA error: unspecified launch failure"
    )
    assert asked("norm=layernorm,rmsnorm") == ([], 2)
    assert asked("norm=layernorm,rmsnorm") == ([], 0)


def test_what_starts_from_runs_is_judged_by_what_it_shares_with_them(asked):
    """A key of the model is the parent's, too; the rate of a parent moves its child later."""
    parent = ("from.data=digits", "from.train.epochs=1")
    [line], _ = asked("norm=mine:Root,mine:Same", *parent)
    assert line.startswith("mine:Same: after 4 steps")
    assert asked("from.optim.lr=0.001,0.002", *parent)[0] == []
    assert asked("seeds=2", "eval.every=1,2")[0] == []


def test_large_models_of_shipped_parts_and_the_way_to_a_sweep_cost_nothing(asked):
    assert asked("stem=none,dpn", multiply_adds=6e7) == ([], 0)
    assert asked("stem=none,dpn", own_only=True) == ([], 0)
    assert asked("norm=identity,mine:Pass", multiply_adds=3e10) == ([], 0)
    assert asked("norm=layernorm,identity,mine:Root", own_only=True)[1] == 1


# --- Tokens that a stem adds ---------------------------------------------------------------------


@pytest.mark.parametrize("pool", ["tok", "gap", "map"])
def test_a_stem_that_adds_tokens_is_as_registers_are(folder, pool):
    """The same numbers as `model.registers` has, with the same weights: positions, pools, probes;
    norms that mix the tokens of the grid past the others."""
    mixing = {"norm": "dtn", "model.cls": "exclude"} if pool == "tok" else {}
    changes = {"model.pool": pool, "model.depth": 2, **mixing}
    theirs = with_own("stem", "Registered", changes)
    ours = tiny.run({**changes, "model.registers": 3})
    models = [build(run).eval() for run in (theirs, ours)]
    tiny.scramble(models[0])
    names = {"stem.token": "registers.token"}
    models[1].load_state_dict({names.get(k, k): v for k, v in models[0].state_dict().items()})
    images, seen = tiny.images(3, ours), []
    for run, model in zip((theirs, ours), models, strict=True):
        probes = [probe(run, model, 1) for probe in (TokenNorms, AttentionDistance)]
        hooks = [hook for probe in probes for hook in probe.hooks()]
        with torch.inference_mode():
            logits = model(images)
        norms, distances = (probe.arrays(1) for probe in probes)
        seen.append([logits.tolist(), norms["norms"].tolist(), distances["distance"].tolist()])
        for hook in hooks:
            hook.remove()
    assert seen[0] == seen[1]
    assert describe(theirs)["multiply_adds"] == describe(ours)["multiply_adds"]
