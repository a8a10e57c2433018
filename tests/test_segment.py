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
from conftest import refused, wait_for
from safetensors.torch import load_file
from sklearn.metrics import accuracy_score, confusion_matrix, jaccard_score
from support.images import png
from support.masks import (
    CLASSES,
    SEGMENT_WORDS,
    image_and_mask,
    masked_data,
    masked_settings,
    write_masks,
)
from support.processes import kill, workers
from support.trainings import CPU, train_to_end
from torch import Tensor

from ablate.analysis.paper import published_figures
from ablate.planning import expand
from ablate.run.metrics.segment import SEGMENT, guessed, segmentation_scores
from ablate.run.run import Run
from ablate.run.rundir import RunDir
from ablate.run.sections import NO_CLASS
from ablate.training.calibrate import random_split
from ablate.training.model import build
from ablate.training.optim import Lengths, learning_rate
from ablate.training.ranks import ALONE
from ablate.training.starting_weights import begin, check_shapes
from ablate.training.task.segment import Segment, Windows
from ablate.training.training import Training, arithmetic

# --- Mean IoU -----------------------------------------------------------------------------------


def run(**changes: Any) -> Run:
    return tiny.run(
        {**masked_settings(), "model.width": 16, "model.heads": 2, "model.depth": 2, **changes}
    )


def painted(images: Tensor) -> Tensor:
    """Logits that say of each pixel the class that its red is."""
    return F.one_hot(images[..., 0].long(), CLASSES).permute(0, 3, 1, 2).float()


painted.ranks = ALONE


def scene(random: np.random.Generator, shape: tuple[int, int], right: float) -> list[np.ndarray]:
    """A mask with holes, in which class 3 is not; what is said of it, so much of it right, and
    class 4 only said."""
    mask = random.choice([0, 1, 2, NO_CLASS], shape, p=[0.6, 0.25, 0.05, 0.1])
    said = np.where(random.random(shape) < right, mask, random.choice([0, 1, 2, 4], shape))
    return [mask.astype(np.uint8), np.where(said == NO_CLASS, 0, said).astype(np.uint8)]


def test_mean_iou_is_that_of_one_confusion_matrix_of_all_pictures():
    random = np.random.default_rng(0)
    shapes = {(48, 48): 0.5, (70, 131): 0.9, (200, 60): 0.1}
    scenes = [scene(random, *given) for given in shapes.items()]
    tensors = [list(map(torch.from_numpy, one)) for one in scenes]
    batches = [(said[None, ..., None].expand(-1, -1, -1, 3), mask[None]) for mask, said in tensors]
    scores, table = Segment(run()).evaluate(painted, batches)
    known = [[part[mask != NO_CLASS] for part in (mask, said)] for mask, said in scenes]
    truth, said = (np.concatenate(parts) for parts in zip(*known, strict=True))
    labels = [0, 1, 2, 4]  # 3 is neither there nor said: left out; 4 is said alone: 0
    expected = jaccard_score(truth, said, labels=labels, average="macro")
    assert scores["n"] == 3
    assert scores["miou"] == pytest.approx(expected, abs=1e-12)
    assert scores["pixels"] == pytest.approx(accuracy_score(truth, said), abs=1e-12)
    for row, pixels in zip(table, known, strict=True):
        matrix = confusion_matrix(*pixels, labels=range(CLASSES))
        counts = [matrix.sum(1), matrix.sum(0), matrix.diagonal()]
        np.testing.assert_array_equal([row["label"], row["said"], row["same"]], counts)
    each = [segmentation_scores(table[n : n + 1], CLASSES)["miou"] for n in range(3)]
    assert scores["miou"] != pytest.approx(np.mean(each), abs=1e-3)  # no mean over pictures
    assert segmentation_scores(table, CLASSES) == scores  # which `verify` makes again
    assert table.dtype.itemsize == 3 * 4 * CLASSES


def test_guessing_gets_the_chance_that_is_declared():
    for classes in (2, 11):
        truth, said = np.random.default_rng(classes).integers(0, classes, (2, 400_000))
        found = jaccard_score(truth, said, average="macro")
        assert found == pytest.approx(guessed(classes), abs=0.002)
        assert SEGMENT.metrics[1].chance(classes) == pytest.approx(1 / classes)


# --- The window ---------------------------------------------------------------------------------


def test_windows_are_anchored_as_the_reference_has_them():
    windows = Windows.for_run(run(**{"data.size": 512, "model.arch": "mu/16"}))
    expected = {512: [0], 513: [0, 1], 853: [0, 341], 854: [0, 341, 342]}
    expected[1706] = [0, 341, 682, 1023, 1194]
    assert {size: windows.anchors(size) for size in expected} == expected


@pytest.fixture(scope="module")
def model():
    """Whose answer hangs on the place in its window: it has positions."""
    made = build(run(**{"data.size": 16, "model.arch": "mu/4"}))
    tiny.scramble(made)
    return made.eval()


def picture(tall: int, wide: int) -> Tensor:
    return 2 * torch.rand(1, tall, wide, 3, generator=torch.Generator().manual_seed(tall)) - 1


@torch.no_grad()
def test_one_window_is_the_whole_picture(model):
    image = picture(16, 16)
    assert torch.equal(Windows(16, 5, 8).logits(model, image), model(image)[0])


@torch.no_grad()
@pytest.mark.parametrize("shape", [(16, 39), (21, 16), (31, 44)])
def test_a_picture_is_the_mean_of_its_windows_at_every_pixel(model, shape):
    image, stride = picture(*shape), 7
    seen = {
        (y, x): model(image[:, y : y + 16, x : x + 16])[0]
        for y, x in itertools.product(*([*range(0, n - 16, stride), n - 16] for n in shape))
    }
    expected = torch.zeros(CLASSES, *shape)
    for row, column in itertools.product(*map(range, shape)):
        places = {(row - y, column - x): logits for (y, x), logits in seen.items()}
        some = [one[:, y, x] for (y, x), one in places.items() if 0 <= y < 16 and 0 <= x < 16]
        expected[:, row, column] = torch.stack(some).mean(0)
    for at_once in (1, 3, 100):
        found = Windows(16, stride, at_once).logits(model, image)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_picture_below_a_window_is_enlarged_and_its_logits_brought_back(model):
    image = picture(11, 25)
    large = F.interpolate(image.permute(0, 3, 1, 2), (16, int(25 * 16 / 11)), mode="bilinear")
    inner = Windows(16, 7, 4).logits(model, large.permute(0, 2, 3, 1))
    expected = F.interpolate(inner[None], (11, 25), mode="bilinear")[0]
    found = Windows(16, 7, 4).logits(model, image)
    torch.testing.assert_close(found, expected)


def test_evaluation_holds_one_picture_and_a_few_windows_at_a_time():
    alive, shown = [], []

    def pictures():
        for n in range(3):
            alive.append(n)
            yield torch.zeros(1, 100, 150, 3), torch.zeros(1, 100, 150, dtype=torch.uint8)

    def predict(images):
        shown.append((len(alive), len(images)))
        return painted(images)

    predict.ranks = ALONE
    Segment(run(**{"eval.batch": 4, "eval.stride": 20})).evaluate(predict, pictures())
    windows = 4 * 7  # 0 20 40 52 by 0 20 40 60 80 100 102
    assert [number for number, _ in shown] == sorted(number for number, _ in shown)
    assert sum(size for number, size in shown if number == 1) == windows
    assert {size for _, size in shown} == {4}


# --- The decoder, and what it starts from -------------------------------------------------------


def test_the_decoder_reads_the_last_blocks_tokens_without_the_norm():
    made = build(run(**{"model.pool": "tok", "model.registers": 2, "model.rep": True})).eval()
    tiny.scramble(made)
    kept: list[Tensor] = []
    made.get_submodule("blocks")[-1].register_forward_hook(lambda *given: kept.append(given[2]))
    image = tiny.images(2, run())
    with torch.no_grad():
        found = made(image)
        patches = kept[0][:, 3:]  # behind the class token and two registers
        assert patches.shape == (2, 36, 16)
        logits = patches @ made.head.weight.T + made.head.bias
        grid = logits.view(2, 6, 6, CLASSES).permute(0, 3, 1, 2)
        expected = F.interpolate(grid, (48, 48), mode="bilinear", align_corners=False)
    torch.testing.assert_close(found, expected)
    assert not [name for name, _ in made.named_parameters() if name.startswith(("norm.", "rep."))]


def test_the_head_has_the_size_and_the_initial_weights_of_segmenters():
    made = build(run(**{"data.classes": 150, "model.width": 768, "model.heads": 12}))
    head = made.get_submodule("head")
    assert sum(parameter.numel() for parameter in head.parameters()) == 115_350
    weight, bias = (parameter.detach() for parameter in head.parameters())
    assert float(weight.std()) == pytest.approx(0.02, rel=0.01)
    assert float(weight.abs().max()) > 0.08  # cut at 2, which is as good as not at all
    assert not bias.any()


def test_it_starts_from_a_classifier_with_positions_on_its_grid():
    settings = {"model.pool": "tok", "model.rep": True, "model.width": 16, "model.heads": 2}
    parent = build(tiny.run({**settings, "data.size": 32, "model.arch": "mu/8", "seed": 1}))
    tiny.scramble(parent)
    child = build(run(**{**settings, "model.depth": 1}))
    head = {name: value.clone() for name, value in child.head.named_parameters()}
    tensors = parent.state_dict()
    begin(child, tensors)
    found = child.state_dict()
    for name, value in found.items():
        if name == "posemb":
            grid = tensors[name][0].view(4, 4, 16).numpy()
            zoomed = scipy.ndimage.zoom(grid, (6 / 4, 6 / 4, 1), order=1)
            np.testing.assert_allclose(value[0].numpy(), zoomed.reshape(36, 16), atol=1e-5)
        else:
            kept = head.get(name.removeprefix("head.")) if "head." in name else tensors[name]
            assert torch.equal(value, kept), name
    shapes = [{name: v.shape for name, v in state.items()} for state in (found, tensors)]
    with refused(r"has weights norm"):  # of a classifier nothing is left
        check_shapes(*shapes)
    del tensors["blocks.0.attn.pre.weight"]
    with refused(r"has no weights for blocks\.0\.attn\.pre\.weight"):
        begin(child, tensors)


# --- Loss and schedule --------------------------------------------------------------------------


def test_the_loss_is_a_mean_over_the_pixels_of_the_batch_however_it_is_split():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, CLASSES, 6, 6, generator=generator, dtype=torch.float64)
    masks = torch.randint(CLASSES, (8, 6, 6), generator=generator)
    masks[0], masks[1, :5], masks[5:, :, 2:] = NO_CLASS, NO_CLASS, NO_CLASS  # unequal shares
    task = Segment(run(**{"train.batch": 8}))

    class Given:
        sum_over_rows = staticmethod(lambda count: count)

        def at(self, step):
            return torch.zeros(8, 6, 6, 3), masks

    _, target = task.inputs(Given(), 0, torch.float64)
    whole = logits.clone().requires_grad_()
    expected = F.cross_entropy(whole, masks, ignore_index=NO_CLASS)
    expected.backward()
    for micro in (8, 4, 2, 1):
        given = logits.clone().requires_grad_()
        parts = zip(given.split(micro), target.split(micro), strict=True)
        total = sum(task.loss(*part) * (micro / 8) for part in parts)
        total.backward()
        torch.testing.assert_close(total, expected)
        torch.testing.assert_close(given.grad, whole.grad)
    masks[:] = NO_CLASS
    _, target = task.inputs(Given(), 0, torch.float64)
    assert float(task.loss(logits, target)) == 0.0


def test_the_polynomial_schedule_is_its_formula():
    optim = dataclasses.replace(run().optim, lr=3e-5, schedule="poly", warmup_epochs=0.0)
    least = dataclasses.replace(optim, min_lr=1e-5)  # Segmenter's own
    total = 161_664  # 128 epochs of 1263
    # (3/4)^.9, (1/2)^.9, (1/4)^.9
    at = {0: 1.0, 40_416: 0.7718895, 80_832: 0.5358867, 121_248: 0.2871746, total: 0.0}
    for step, share in at.items():
        for warmup in (0, 100):
            lengths = Lengths(total + warmup, warmup, 0)
            found = [learning_rate(one, warmup + step, lengths) for one in (optim, least)]
            assert found == pytest.approx([3e-5 * share, 1e-5 + 2e-5 * share], rel=1e-6)


def test_a_step_is_the_same_in_micro_batches():
    ends = []
    for micro in (None, 4, 1):
        made = run(**{"train.micro_batch": micro, "train.batch": 8, "train.steps": 3})
        torch.manual_seed(0)
        training = Training(made, random_split(made.data, 8, CPU), CPU)
        for _ in range(3):
            training.step()
        ends.append(training.model.head.weight.detach())
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("precision", ["fp64", "bf16"])
def test_logits_are_enlarged_in_single_precision_at_least(precision):
    made = run(**{"train.precision": precision, "train.batch": 2, "train.steps": 1})
    training = Training(made, random_split(made.data, 2, CPU), CPU)
    images, target = training.inputs()
    with arithmetic(CPU, training.dtype):
        logits = training.model(images)
    assert logits.dtype == (torch.float64 if precision == "fp64" else torch.float32)
    loss = training.part(images, target, slice(None))
    expected = F.cross_entropy(logits, target[:, 1:].view(2, 48, 48))
    torch.testing.assert_close(loss, expected)


# --- From a sweep to its table ------------------------------------------------------------------


@pytest.fixture
def streets(shell):
    """A folder with 20 pictures of checkers whose colours say what is where."""
    pairs = [image_and_mask(60 + n, 80 - n) for n in range(20)]
    file = shell.folder / "streets" / "train.parquet"
    write_masks(file, *([png(one[n]) for one in pairs] for n in (0, 1)))
    return shell


@pytest.mark.whole
def test_a_sweep_of_segmentation_from_its_runs_to_its_table(streets):
    streets("sweep", *SEGMENT_WORDS, "seeds=1", "train.steps=6", "eval.every=1", "launcher=inline")
    facts = streets.facts()
    assert {f["row"] for f in facts if f["quantity"] == "miou"} == {"none", "dpn"}
    assert "mean iou" in streets("table", "--show", "miou,pixels,gain").out.lower()
    streets("verify")
    for folder in (streets.folder / "runs" / "runs").iterdir():
        result = json.loads((folder / "result.json").read_text())
        spec = RunDir(folder).read_spec()
        if spec.get("task") != "segment":
            assert spec["model"].get("input", "range") == "range"
            continue
        assert spec["model"]["input"] == "imagenet"
        rows = np.load(folder / "predictions.npy")
        assert result["test"] == segmentation_scores(rows, CLASSES)
        weights = load_file(folder / "weights.safetensors")
        assert not [name for name in weights if name.startswith(("norm.", "rep."))]
    # The very file that a run wrote, with a pixel moved: named.
    path = next((streets.folder / "runs" / "runs").glob("*/predictions.npy"))
    content = bytearray(path.read_bytes())
    content[-4] ^= 1
    path.write_bytes(content)
    assert path.parent.name[:6] in streets("verify", code=1).out


FILES = ("weights.safetensors", "predictions.npy", "metrics.jsonl")
KILLED = """
import json, os, signal, sys
from support.trainings import train_to_end

def killed(steps):
    if steps == 5:
        os.kill(os.getpid(), signal.SIGKILL)

train_to_end(json.loads(sys.argv[1]), sys.argv[2], killed)
"""


@pytest.mark.faults
def test_a_run_that_is_killed_in_the_middle_goes_on_with_the_same_bits(streets, tmp_path):
    """kill -9 within an epoch, by micro-batches, with everything drawn that can be."""
    own = masked_data(streets.folder / "streets", fraction=0.9, test=4, validation=3)
    data = {f"data.{key}": value for key, value in vars(own).items()}
    changes = {**data, "train.batch": 4, "train.micro_batch": 2, "train.steps": 9, "eval.every": 1}
    drawn = {"augment.flip": True, "augment.rescale": 2.0, "augment.class_share": 0.75}
    drawn |= {"augment.photometric": True, "model.drop_path": 0.2, "optim.schedule": "poly"}
    tree = run(**changes, **drawn).spec.tree
    calm, killed = (str(tmp_path / name) for name in ("calm", "killed"))
    assert "training from step 0 of 9, 3 an epoch, on cpu" in train_to_end(tree, calm)
    command = [sys.executable, "-c", KILLED, json.dumps(tree), killed]
    ended = subprocess.run(command, cwd=Path(__file__).parent, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert "training from step 4 of 9, 3 an epoch, on cpu" in train_to_end(tree, killed)
    one, other = ([(Path(f) / name).read_bytes() for name in FILES] for f in (calm, killed))
    assert one == other


@pytest.mark.whole
def test_table_5_is_planned_at_paper_scale_with_its_parents_once(shell):
    """100 runs from 20 parents, of which those of seeds 0, 1 and 2 are runs of Table 1. The images
    of each share and the cost of a window are told before anything is fetched."""
    words = ("plan", "table5", "--on", "h100:8")
    planned = shell(*words).out
    assert "2 variants x 5 columns x 10 seeds = 100 runs, from 20 parents (120 planned)" in planned
    # 12 D^2 + 2 N D a token and block, N = 1025, and the patches', in B/16 at 512 pixels.
    told = 12 * 1025 * (12 * 768**2 + 2 * 1025 * 768) + 1024 * 768 * (768 + 150)
    assert f"{told / 1e9:.0f} G" in planned
    tree = json.loads(shell(*words, "--format", "json").out)
    assert told in {variant["multiply_adds"] for variant in tree["variants"]}
    store = Path("runs")
    with contextlib.chdir(shell.folder):
        five, one = (
            expand.plan_from_words([name], store=store)[0] for name in ("table5", "table1")
        )
    parents = {run for cell in five.parents() for run in cell.ids.values()}
    assert len(parents) == 20
    assert len(parents & {run for cell in one.cells for run in cell.ids.values()}) == 6
    tree = five.cell("ViT", "1/16").spec.tree
    assert (tree["model"]["input"], tree["parent"]["model"]["input"]) == ("imagenet", "range")
    found = published_figures(five, store)
    assert {column for _, column in found} == {"1/16", "1/8", "1/4", "1/2", "1"}
    assert {theirs.differs for theirs in found.values()} == {""}
    assert found["Dual PatchNorm", "1/16"].printed == "28.0 ± 0.21, +0.7"


# --- Table 5 on CamVid --------------------------------------------------------------------------


@pytest.mark.slow
def test_streets_are_learnt_from_any_share_of_them(shell, data_folder):
    """CamVid, whole, with a kill -9 of driver and workers on the way. Its table: `pytest -s`."""
    words = ("sweep", "table5", "--scale", "smoke", "seeds=3")
    words += (f"data.path={data_folder('camvid')}", "--yes")
    began = os.times()
    driver = shell.start(*words)
    wait_for(lambda: len([*shell.folder.glob("runs/runs/*/result.json")]) > 8, 600)
    kill([driver.pid, *workers(shell.folder)])
    driver.wait()
    shell(*words)
    print(shell("table").out)
    facts = [f for f in shell.facts() if f["quantity"] == "miou"]
    above = {(f["row"], f["column"]): float(f["value"]) - 100 * guessed(11) for f in facts}
    spent = sum(os.times()[:4]) - sum(began[:4])
    print(f"points above chance: {above}; {spent:.0f} CPU seconds")
    assert len(above) == 4
    assert min(above.values()) > 8.0  # points of mean IoU, every row in every column
    shell("verify")
