"""Segmentation: what is minimised, the decoder, the sliding window, mean IoU; and runs of it.

Oracles: scikit-learn's confusion matrix and Jaccard score, torch's interpolate and
cross-entropy, scipy's zoom, and a sliding window that goes pixel by pixel.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.ndimage
import tiny
import torch
import torch.nn.functional as F
from conftest import Shell
from safetensors.torch import load_file
from sklearn.metrics import accuracy_score, confusion_matrix, jaccard_score
from test_data import png
from test_kill import kill, wait_for, workers
from test_masks import CLASSES, masked, pair, sample, write
from torch import Tensor

from ablate.analysis.paper import beside
from ablate.planning import expand
from ablate.shared import spec
from ablate.shared.build import build_run
from ablate.shared.errors import UserError
from ablate.shared.metrics.segment import SEGMENT, guessed, score
from ablate.shared.rundir import RunDir
from ablate.shared.sections import NO_CLASS
from ablate.shared.spec import Run
from ablate.training import journal
from ablate.training.calibrate import random_split
from ablate.training.loop import Machine, train
from ablate.training.model import Segmenter, build
from ablate.training.optim import Lengths, learning_rate
from ablate.training.ranks import ALONE
from ablate.training.starting_weights import begin, check_shapes
from ablate.training.task.segment import Segment, Windows
from ablate.training.training import Training, arithmetic

# --- Mean IoU -----------------------------------------------------------------------------------


def run(**changes: Any) -> Run:
    return tiny.run({**masked(), "model.width": 16, "model.heads": 2, "model.depth": 2, **changes})


def painted(classes: int) -> Any:
    """Logits that say of each pixel the class that its red is."""

    def predict(images: Tensor) -> Tensor:
        return F.one_hot(images[..., 0].long(), classes).permute(0, 3, 1, 2).float()

    predict.ranks = ALONE  # type: ignore[attr-defined]
    return predict


def scene(
    random: np.random.Generator, shape: tuple[int, int], right: float
) -> tuple[np.ndarray, np.ndarray]:
    """A mask with holes, in which class 3 is not; what is said of it, so much of it right, and
    class 4 only said."""
    mask = random.choice([0, 1, 2, NO_CLASS], shape, p=[0.6, 0.25, 0.05, 0.1])
    said = np.where(random.random(shape) < right, mask, random.choice([0, 1, 2, 4], shape))
    return mask, np.where(said == NO_CLASS, 0, said)


def test_mean_iou_is_that_of_one_confusion_matrix_of_all_pictures() -> None:
    random = np.random.default_rng(0)
    shapes = {(48, 48): 0.5, (70, 131): 0.9, (200, 60): 0.1}
    scenes = [scene(random, *given) for given in shapes.items()]
    batches = (
        (
            torch.from_numpy(np.stack([said] * 3, 2)).float()[None],
            torch.from_numpy(mask.astype(np.uint8))[None],
        )
        for mask, said in scenes
    )
    scores, table = Segment(run()).evaluate(painted(CLASSES), batches)
    known = [mask != NO_CLASS for mask, _ in scenes]
    truth, said = (
        np.concatenate([one[n][some] for one, some in zip(scenes, known, strict=True)])
        for n in (0, 1)
    )
    labels = [0, 1, 2, 4]  # 3 is neither there nor said: left out; 4 is said alone: 0
    expected = jaccard_score(truth, said, labels=labels, average="macro")
    assert scores["n"] == 3
    assert scores["miou"] == pytest.approx(expected, abs=1e-12)
    assert scores["pixels"] == pytest.approx(accuracy_score(truth, said), abs=1e-12)
    each = []
    for row, (mask, one), some in zip(table, scenes, known, strict=True):
        matrix = confusion_matrix(mask[some], one[some], labels=range(CLASSES))
        assert row["label"].tolist() == matrix.sum(1).tolist()
        assert row["said"].tolist() == matrix.sum(0).tolist()
        assert row["same"].tolist() == matrix.diagonal().tolist()
        each.append(score(table[len(each) : len(each) + 1], CLASSES)["miou"])
    assert scores["miou"] != pytest.approx(np.mean(each), abs=1e-3)  # no mean over pictures
    assert score(table, CLASSES) == scores  # which `verify` makes again
    assert table.dtype.itemsize == 3 * 4 * CLASSES


def test_guessing_gets_the_chance_that_is_declared() -> None:
    for classes in (2, 11):
        truth, said = np.random.default_rng(classes).integers(0, classes, (2, 400_000))
        found = jaccard_score(truth, said, average="macro")
        assert found == pytest.approx(guessed(classes), abs=0.002)
        assert SEGMENT.metrics[1].chance(classes) == pytest.approx(1 / classes)


# --- The window ---------------------------------------------------------------------------------


def test_windows_are_anchored_as_the_reference_has_them() -> None:
    windows = Windows.of(run(**{"data.size": 512, "model.arch": "mu/16"}))
    assert windows.stride == 341
    assert windows.anchors(512) == [0]
    assert windows.anchors(513) == [0, 1]
    assert windows.anchors(853) == [0, 341]
    assert windows.anchors(854) == [0, 341, 342]
    assert windows.anchors(1706) == [0, 341, 682, 1023, 1194]


@pytest.fixture(scope="module")
def model() -> Segmenter:
    """Whose answer hangs on the place in its window: it has positions."""
    made = build(run(**{"data.size": 16, "model.arch": "mu/4"}))
    tiny.scramble(made)
    assert isinstance(made, Segmenter)
    return made.eval()


def picture(tall: int, wide: int) -> Tensor:
    return 2 * torch.rand(1, tall, wide, 3, generator=torch.Generator().manual_seed(tall)) - 1


@torch.no_grad()
def test_one_window_is_the_whole_picture(model: Segmenter) -> None:
    image = picture(16, 16)
    assert torch.equal(Windows(16, 5, 8).logits(model, image), model(image)[0])


@torch.no_grad()
@pytest.mark.parametrize("shape", [(16, 39), (21, 16), (31, 44)])
def test_a_picture_is_the_mean_of_its_windows_at_every_pixel(
    model: Segmenter, shape: tuple[int, int]
) -> None:
    image, stride = picture(*shape), 7
    tops, lefts = ([*range(0, n - 16, stride), n - 16] for n in shape)
    seen = {
        (y, x): model(image[:, y : y + 16, x : x + 16])[0]
        for y, x in itertools.product(tops, lefts)
    }
    expected = torch.zeros(CLASSES, *shape)
    for row, column in itertools.product(*map(range, shape)):
        some = [
            logits[:, row - y, column - x]
            for (y, x), logits in seen.items()
            if 0 <= row - y < 16 and 0 <= column - x < 16
        ]
        assert some
        expected[:, row, column] = torch.stack(some).mean(0)
    for at_once in (1, 3, 100):
        found = Windows(16, stride, at_once).logits(model, image)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_picture_below_a_window_is_enlarged_and_its_logits_brought_back(model: Segmenter) -> None:
    image = picture(11, 25)
    large = F.interpolate(image.permute(0, 3, 1, 2), (16, int(25 * 16 / 11)), mode="bilinear")
    inner = Windows(16, 7, 4).logits(model, large.permute(0, 2, 3, 1))
    expected = F.interpolate(inner[None], (11, 25), mode="bilinear")[0]
    found = Windows(16, 7, 4).logits(model, image)
    torch.testing.assert_close(found, expected)


def test_evaluation_holds_one_picture_and_a_few_windows_at_a_time() -> None:
    alive, shown = [], []

    def pictures() -> Any:
        for n in range(3):
            alive.append(n)
            yield torch.zeros(1, 100, 150, 3), torch.zeros(1, 100, 150, dtype=torch.uint8)

    def predict(images: Tensor) -> Tensor:
        shown.append((len(alive), len(images)))
        return painted(CLASSES)(images)

    predict.ranks = ALONE  # type: ignore[attr-defined]
    Segment(run(**{"eval.batch": 4, "eval.stride": 20})).evaluate(predict, pictures())
    windows = 4 * 7  # 0 20 40 52 by 0 20 40 60 80 100 102
    assert [number for number, _ in shown] == sorted(number for number, _ in shown)
    assert sum(size for number, size in shown if number == 1) == windows
    assert {size for _, size in shown} == {4}


# --- The decoder, and what it starts from -------------------------------------------------------


def test_the_decoder_reads_the_last_blocks_tokens_without_the_norm() -> None:
    made = build(run(**{"model.pool": "tok", "model.registers": 2, "model.rep": True})).eval()
    tiny.scramble(made)
    kept: list[Tensor] = []
    made.get_submodule("blocks")[-1].register_forward_hook(lambda *given: kept.append(given[2]))
    image = tiny.images(2, run())
    with torch.no_grad():
        found = made(image)
        patches = kept[0][:, 3:]  # behind the class token and two registers
        assert patches.shape == (2, 36, 16)
        logits = patches @ made.head.weight.T + made.head.bias  # type: ignore[operator, union-attr]
        grid = logits.view(2, 6, 6, CLASSES).permute(0, 3, 1, 2)
        expected = F.interpolate(grid, (48, 48), mode="bilinear", align_corners=False)
    torch.testing.assert_close(found, expected)
    assert not [name for name, _ in made.named_parameters() if name.startswith(("norm.", "rep."))]


def test_the_head_has_the_size_and_the_initial_weights_of_segmenters() -> None:
    made = build(run(**{"data.classes": 150, "model.width": 768, "model.heads": 12}))
    head = made.get_submodule("head")
    assert sum(parameter.numel() for parameter in head.parameters()) == 115_350
    weight, bias = (parameter.detach() for parameter in head.parameters())
    assert float(weight.std()) == pytest.approx(0.02, rel=0.01)
    assert float(weight.abs().max()) > 0.08  # cut at 2, which is as good as not at all
    assert not bias.any()


def test_it_starts_from_a_classifier_with_positions_on_its_grid() -> None:
    settings = {"model.pool": "tok", "model.rep": True, "model.width": 16, "model.heads": 2}
    parent = build(tiny.run({**settings, "data.size": 32, "model.arch": "mu/8", "seed": 1}))
    tiny.scramble(parent)
    child = build(run(**{**settings, "model.depth": 1}))
    head = {name: value.clone() for name, value in child.head.named_parameters()}
    tensors = parent.state_dict()
    begin(child, tensors)
    for name, value in child.state_dict().items():
        if name.startswith("head."):
            assert torch.equal(value, head[name.removeprefix("head.")])
        elif name == "posemb":
            grid = tensors[name][0].view(4, 4, 16).numpy()
            zoomed = scipy.ndimage.zoom(grid, (6 / 4, 6 / 4, 1), order=1)
            np.testing.assert_allclose(value[0].numpy(), zoomed.reshape(36, 16), atol=1e-5)
        else:
            assert torch.equal(value, tensors[name])
    other = {name: value for name, value in tensors.items() if name != "blocks.0.attn.pre.weight"}
    with pytest.raises(UserError, match=r"has no weights for blocks\.0\.attn\.pre\.weight"):
        begin(child, other)
    with pytest.raises(UserError, match=r"has weights norm"):  # of a classifier nothing is left
        check_shapes(
            {name: v.shape for name, v in child.state_dict().items()},
            {name: v.shape for name, v in tensors.items()},
        )


# --- Loss and schedule --------------------------------------------------------------------------


def test_the_loss_is_a_mean_over_the_pixels_of_the_batch_however_it_is_split() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, CLASSES, 6, 6, generator=generator, dtype=torch.float64)
    masks = torch.randint(CLASSES, (8, 6, 6), generator=generator)
    masks[0], masks[1, :5], masks[5:, :, 2:] = NO_CLASS, NO_CLASS, NO_CLASS  # unequal shares
    task = Segment(run(**{"train.batch": 8}))

    class Given:
        over = staticmethod(lambda count: count)

        def at(self, step: int) -> tuple[Tensor, Tensor]:
            return torch.zeros(8, 6, 6, 3), masks

    _, target = task.inputs(Given(), 0, torch.float64)  # type: ignore[arg-type]
    expected = F.cross_entropy(logits, masks, ignore_index=NO_CLASS)
    for micro in (8, 4, 2, 1):
        given = logits.clone().requires_grad_()
        total = sum(
            task.loss(given[n : n + micro], target[n : n + micro]) * (micro / 8)
            for n in range(0, 8, micro)
        )
        total.backward()  # type: ignore[union-attr]
        torch.testing.assert_close(total, expected)
        if micro == 8:
            whole = given.grad
        torch.testing.assert_close(given.grad, whole)
    masks[:] = NO_CLASS
    _, target = task.inputs(Given(), 0, torch.float64)  # type: ignore[arg-type]
    assert float(task.loss(logits, target)) == 0.0


def test_the_polynomial_schedule_is_its_formula() -> None:
    optim = dataclasses.replace(run().optim, lr=3e-5, schedule="poly", warmup_epochs=0.0)
    total = 161_664  # 128 epochs of 1263
    at = {0: 1.0, 40_416: 0.7718895, 80_832: 0.5358867, 121_248: 0.2871746, total: 0.0}
    for step, share in at.items():  # (3/4)^.9, (1/2)^.9, (1/4)^.9
        found = learning_rate(optim, step, Lengths(total, 0, 0))
        assert found == pytest.approx(3e-5 * share, rel=1e-6)
    least = dataclasses.replace(optim, min_lr=1e-5)  # Segmenter's own
    found = learning_rate(least, 80_832, Lengths(total, 0, 0))
    assert found == pytest.approx(1e-5 + 2e-5 * 0.5358867, rel=1e-6)
    begun = Lengths(total + 100, 100, 0)  # behind a warm-up
    assert learning_rate(optim, 100 + 40_416, begun) == pytest.approx(3e-5 * 0.7718895, rel=1e-6)


def test_a_step_is_the_same_in_micro_batches() -> None:
    ends = []
    for micro in (None, 4, 1):
        made = run(**{"train.micro_batch": micro, "train.batch": 8, "train.steps": 3})
        torch.manual_seed(0)
        training = Training(
            made, random_split(made.data, 8, torch.device("cpu")), torch.device("cpu")
        )
        for _ in range(3):
            training.step()
        ends.append(training.model.head.weight.detach())  # type: ignore[union-attr]
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0], atol=1e-5, rtol=1e-4)
    scores, table = training.evaluate(random_split(made.data, 2, torch.device("cpu")))
    assert scores["n"] == len(table) == 2


@pytest.mark.parametrize("precision", ["fp64", "bf16"])
def test_logits_are_enlarged_in_single_precision_at_least(precision: str) -> None:
    device = torch.device("cpu")
    made = run(**{"train.precision": precision, "train.batch": 2, "train.steps": 1})
    training = Training(made, random_split(made.data, 2, device), device)
    images, target = training.inputs()
    with arithmetic(device, training.dtype):
        logits = training.model(images)
    assert logits.dtype == (torch.float64 if precision == "fp64" else torch.float32)
    loss = training.part(images, target, slice(None))
    expected = F.cross_entropy(logits, target[:, 1:].view(2, 48, 48))
    torch.testing.assert_close(loss, expected)


# --- From a sweep to its table ------------------------------------------------------------------

SMALL = {
    **{"data.size": 48, "data.classes": CLASSES, "data.cache": "encoded", "data.labels": "masks"},
    **{"data.image": "image", "data.label": "annotation", "data.validation": 3, "data.test": 4},
}
WORDS = (
    *("stem=none,dpn", "recipe=segment", "data=parquet", "data.path=streets", "model.arch=mu/8"),
    *(f"{key}={value}" for key, value in SMALL.items()),
    *("train.precision=fp32", "train.micro_batch=2", "train.batch=4", "optim.lr=0.003"),
    *("from.recipe=quick", "from.data=mnist5k", "from.data.size=16", "from.data.channels=3"),
    *("from.train.steps=2", "from.optim.warmup_epochs=0", "from.model.input=range"),
)


@pytest.fixture
def streets(shell: Shell) -> Shell:
    """A folder with 20 pictures of checkers whose colours say what is where."""
    folder = shell.folder / "streets"
    folder.mkdir()
    pairs = [pair(60 + n, 80 - n) for n in range(20)]
    write(folder / "train.parquet", *([png(one[n]) for one in pairs] for n in (0, 1)))
    return shell


def test_a_sweep_of_segmentation_from_its_runs_to_its_table(streets: Shell) -> None:
    streets("sweep", *WORDS, "seeds=1", "train.steps=6", "eval.every=1", "launcher=inline")
    facts = streets.facts()
    assert {f["row"] for f in facts if f["quantity"] == "miou"} == {"none", "dpn"}
    table = streets("table", "--show", "miou,pixels,gain").out
    assert "mean IoU" in table or "Mean IoU" in table
    streets("verify")
    for folder in (streets.folder / "runs" / "runs").iterdir():
        result = json.loads((folder / "result.json").read_text())
        tree = json.loads((folder / "run.json").read_text())
        spec = tree.get("spec", tree)
        if spec.get("task") != "segment":
            assert spec["model"].get("input", "range") == "range"
            continue
        assert spec["model"]["input"] == "imagenet"
        rows = np.load(folder / "predictions.npy")
        assert result["test"] == score(rows, CLASSES)
        weights = load_file(folder / "weights.safetensors")
        assert not [name for name in weights if name.startswith(("norm.", "rep."))]
    # The very file that a run wrote, with a pixel moved: named.
    path = next(iter((streets.folder / "runs" / "runs").glob("*/predictions.npy")))
    content = bytearray(path.read_bytes())
    content[-4] ^= 1
    path.write_bytes(content)
    assert path.parent.name[:6] in streets("verify", code=1).out


FILES = ("weights.safetensors", "predictions.npy", "metrics.jsonl")
KILLED = """
import json, os, signal, sys
from test_segment import trained

def killed(steps):
    if steps == 5:
        os.kill(os.getpid(), signal.SIGKILL)

trained(json.loads(sys.argv[1]), sys.argv[2], killed)
"""


def trained(tree: dict[str, Any], folder: str, after: Any = lambda steps: None) -> list[str]:
    """Train to the end, a checkpoint each step; what was said. `after`: called after each step."""
    said: list[str] = []
    steps = itertools.count(1)
    machine = Machine(
        device=torch.device("cpu"),
        cache=Path(folder).parent / "cache",
        checkpoint_s=0.0,
        stopping=lambda: bool(after(next(steps))),
        beat=lambda **notes: None,
        say=said.append,
    )
    before, share = torch.get_num_threads(), journal.CHECKPOINT_SHARE
    torch.set_num_threads(1)
    journal.CHECKPOINT_SHARE = 1e9
    try:
        Path(folder).mkdir(exist_ok=True)
        train(build_run(tree), RunDir(Path(folder)), machine)
    finally:
        torch.set_num_threads(before)
        journal.CHECKPOINT_SHARE = share
    return said


@pytest.mark.faults
def test_a_run_that_is_killed_in_the_middle_goes_on_with_the_same_bits(
    streets: Shell, tmp_path: Path
) -> None:
    """kill -9 within an epoch, by micro-batches, with everything drawn that can be."""
    own = sample(streets.folder / "streets", fraction=0.9, test=4, validation=3)
    data = {f"data.{key}": value for key, value in vars(own).items()}
    changes = {**data, "train.batch": 4, "train.micro_batch": 2, "train.steps": 9, "eval.every": 1}
    drawn = {"augment.flip": True, "augment.rescale": 2.0, "augment.class_share": 0.75}
    drawn |= {"augment.photometric": True, "model.drop_path": 0.2, "optim.schedule": "poly"}
    tree = spec.to_tree(run(**changes, **drawn))
    calm, killed = (str(tmp_path / name) for name in ("calm", "killed"))
    assert "training from step 0 of 9, 3 an epoch, on cpu" in trained(tree, calm)
    command = [sys.executable, "-c", KILLED, json.dumps(tree), killed]
    ended = subprocess.run(command, cwd=Path(__file__).parent, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert "training from step 4 of 9, 3 an epoch, on cpu" in trained(tree, killed)
    one, other = ([(Path(f) / name).read_bytes() for name in FILES] for f in (calm, killed))
    assert one == other


def test_table_5_is_planned_at_paper_scale_with_its_parents_once(shell: Shell) -> None:
    """100 runs from 20 parents, of which those of seeds 0, 1 and 2 are runs of Table 1. The images
    of each share and the cost of a window are told before anything is fetched."""
    planned = shell("plan", "table5", "--on", "h100:8").out
    assert "2 variants x 5 columns x 10 seeds = 100 runs, from 20 parents (120 planned)" in planned
    # 12 D^2 + 2 N D a token and block, N = 1025, and the patches', in B/16 at 512 pixels.
    told = 12 * 1025 * (12 * 768**2 + 2 * 1025 * 768) + 1024 * 768 * (768 + 150)
    assert f"{told / 1e9:.0f} G" in planned
    tree = json.loads(shell("plan", "table5", "--on", "h100:8", "--format", "json").out)
    assert told in {variant["multiply_adds"] for variant in tree["variants"]}
    store, fractions = Path("runs"), ("1/16", "1/8", "1/4", "1/2", "1")
    with contextlib.chdir(shell.folder):
        five, one = (expand.plan([name], store=store)[0] for name in ("table5", "table1"))
    parents = {run for cell in five.parents() for run in cell.ids.values()}
    assert len(parents) == 20
    assert len(parents & {run for cell in one.cells for run in cell.ids.values()}) == 6
    cell = five.cell("ViT", "1/16")
    assert cell is not None
    assert cell.spec["model"]["input"] == "imagenet"
    assert cell.spec["parent"]["model"]["input"] == "range"
    found = beside(five, store)
    assert {column for _, column in found} == {*fractions}
    assert {theirs.differs for theirs in found.values()} == {""}
    assert found["Dual PatchNorm", "1/16"].printed == "28.0 ± 0.21, +0.7"


# --- The small scale of Table 5 -----------------------------------------------------------------

LEAST = 8.0  # points of mean IoU above chance that every row has in every column


@pytest.mark.slow
def test_streets_are_learnt_from_any_share_of_them(shell: Shell, data_folder: Any) -> None:
    """CamVid, whole, with a kill -9 of driver and workers on the way. Its table: `pytest -s`."""
    words = ("sweep", "table5", "--scale", "camvid", f"data.path={data_folder('camvid')}", "--yes")
    began = os.times()
    driver = shell.start(*words)
    wait_for(lambda: len([*shell.folder.glob("runs/runs/*/result.json")]) > 8, 600)
    kill([driver.pid, *workers(shell.folder)])
    driver.wait()
    shell(*words)
    print(shell("table").out)
    facts = shell.facts()
    chance = 100 * guessed(11)
    above = {
        (f["row"], f["column"]): float(f["value"]) - chance
        for f in facts
        if f["quantity"] == "miou"
    }
    spent = sum(os.times()[:4]) - sum(began[:4])
    print(f"points above chance ({chance:.1f} %): {above}; {spent:.0f} CPU seconds")
    assert len(above) == 4
    assert min(above.values()) > LEAST
    shell("verify")
