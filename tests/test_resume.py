"""What you get after an interruption is what you would have got without it, bit for bit."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.trainings import answer, digits, outcome, train_until

from ablate.data.cache import prepare_cache
from ablate.run.run import Run
from ablate.run.rundir import RunDir
from ablate.training import calibrate, journal, sealed_file
from ablate.training.model import build, sublayers
from ablate.training.numerics import choose
from ablate.training.optim import Average, learning_rate, lengths
from ablate.training.task.classify import prior_loss
from ablate.training.training import Training, TrainState

pytestmark = pytest.mark.usefixtures("one_thread")


def farthest(one: Path, other: Path) -> float:
    """The greatest difference of two runs' weights."""
    a, b = (load_file(folder / "weights.safetensors") for folder in (one, other))
    return max((a[name] - b[name]).abs().max().item() for name in a)


def resumed(run: Run, folder: Path, cache: Path, *stops: int) -> dict:
    """The result of a training, which is that of one that is stopped after so many steps, each
    time, and resumed."""
    straight = train_until(run, folder / "a", cache)
    for stop_at in stops:
        assert train_until(run, folder / "b", cache, stop_at) is None
    assert outcome(folder / "a", straight) == outcome(
        folder / "b", train_until(run, folder / "b", cache)
    )
    return straight


def test_a_checkpoint_is_of_the_step_in_its_name(tmp_path):
    """A file under another name is none, whichever of both steps is the larger."""
    progress = json.dumps(vars(TrainState(step=4)))
    content = sealed_file.to_bytes({"w": torch.ones(2)}, progress=progress, metrics="{}")
    path = tmp_path / "checkpoint"
    path.write_bytes(b"".join(content))
    assert journal.read_checkpoint(path, 4).state.step == 4
    assert journal.read_checkpoint(path, 3) is None
    assert journal.read_checkpoint(path, 5) is None


EVERYTHING = {
    **{"augment.crop_area": 0.3, "augment.flip": True, "augment.randaug": 2, "augment.jitter": 0.2},
    **{"augment.rotate": 20.0, "augment.erase": 0.25, "augment.mixup": 0.8, "augment.cutmix": 1.0},
    **{"augment.repeats": 2, "eval.crop": 0.875, "eval.augment": True, "model.input": "unit"},
    **{"train.loss": "sigmoid", "train.ema": 0.9},
}


# What a step may carry to the next beside AdamW's moments. 18 steps are an epoch.
OTHERWISE = {
    **{"optim.name": "sgd", "optim.lr": 0.05, "optim.schedule": "rsqrt", "optim.timescale": 10},
    **{"optim.warmup_steps": 4, "optim.cooldown_steps": 9, "train.steps": 25, "train.ema": 0.9},
    **{"train.loss": "sigmoid", "eval.every": 1, "norm": "batchnorm"},
}
RANDOM = {"model.dropout": 0.1, "model.drop_path": 0.1, "model.depth": 2, "train.epochs": 4}
RANDOM |= {"augment.flip": True, "augment.crop_pad": 1}
RESUMED = [  # each placement once in either sublayer; stopped at an epoch's end and within one
    *(
        ({"block.attn": attn, "block.mlp": mlp, "stem": stem, **RANDOM}, (36, 21))
        for attn, mlp, stem in (
            ("pre", "post", "none"),
            ("post", "pre+post", "dpn"),
            ("pre+post", "pre", "none"),
        )
    ),
    *(({**EVERYTHING, "augment.style": s, "train.epochs": 2}, (7,)) for s in ("tf", "timm")),
    ({"optim.name": "muon", "train.epochs": 2}, (7,)),  # two optimisers in one run
    *(({**OTHERWISE, "optim.name": name}, (6, 7, 10)) for name in ("sgd", "adamw")),
]


@pytest.mark.whole
@pytest.mark.parametrize(("settings", "stops"), RESUMED)
def test_straight_equals_stopped_and_resumed(settings, stops, tmp_path, cache):
    run = digits(**settings)
    straight = resumed(run, tmp_path, cache, *stops)
    assert straight["train_loss"] < (10 * math.log(2) if "train.loss" in settings else math.log(10))
    assert 0 < straight["utilisation"] < 1
    whole = lengths(run.optim, run.train, 18)
    last = RunDir(tmp_path / "a").read_metrics()[-1]
    assert last["lr"] == learning_rate(run.optim, whole.total - 1, whole)


@pytest.mark.whole
def test_a_pruned_run_comes_to_its_last_step_again_after_a_crash(tmp_path, cache, monkeypatch):
    """The driver saw an epoch that the newest checkpoint does not have."""
    monkeypatch.setattr(journal, "BEAT_S", 0.0)
    run = digits(**{"train.epochs": 4, "eval.every": 1})
    last = prepare_cache(run.data, cache).counts["train"] // run.train.batch  # of the first epoch
    for side, stop in (("a", last + 2), ("b", last - 3)):
        assert train_until(run, tmp_path / side, cache, stop_at=stop) is None
        RunDir(tmp_path / side).write_prune(last)
    straight, resumed = (train_until(run, tmp_path / side, cache) for side in "ab")
    assert (straight["status"], straight["step"]) == ("pruned", last)
    assert answer(straight) == answer(resumed)
    assert len(RunDir(tmp_path / "b").read_metrics()) == 1


@pytest.mark.whole
def test_a_prune_step_that_nobody_measured_ends_nothing(tmp_path, cache, monkeypatch):
    """prune.json with a flipped bit still parses: the driver names steps of metrics.jsonl."""
    monkeypatch.setattr(journal, "BEAT_S", 0.0)
    run = digits(**{"train.epochs": 2, "eval.every": 1})
    for side, step in (("early", 3), ("before", -1)):
        RunDir(tmp_path / side).path.mkdir()
        RunDir(tmp_path / side).write_prune(step)
        assert train_until(run, tmp_path / side, cache)["status"] == "finished"


@pytest.mark.whole
def test_an_automatic_micro_batch_is_kept_when_memory_changes(tmp_path, cache, monkeypatch):
    run = digits(**{"train.micro_batch": "auto", "train.epochs": 2})
    assert train_until(run, tmp_path / "whole", cache)["micro_batch"] == 64
    monkeypatch.setattr(calibrate, "free_bytes", lambda: 400_000)
    straight = train_until(run, tmp_path / "a", cache)
    assert 1 < straight["micro_batch"] < 64
    assert train_until(run, tmp_path / "b", cache, stop_at=7) is None
    monkeypatch.setattr(calibrate, "free_bytes", lambda: 1e12)
    resumed = train_until(run, tmp_path / "b", cache)
    assert outcome(tmp_path / "a", straight) == outcome(tmp_path / "b", resumed)
    assert farthest(tmp_path / "whole", tmp_path / "a") < 2e-3  # the same batches


@pytest.mark.whole
def test_a_torn_checkpoint_gives_way_to_the_one_before(tmp_path, cache):
    run = digits(**{"train.epochs": 3})
    straight = train_until(run, tmp_path / "a", cache)
    for stop_at in (5, 6):
        assert train_until(run, tmp_path / "b", cache, stop_at) is None
    (newest, path), (older, _) = RunDir(tmp_path / "b").checkpoints()
    assert (newest, older) == (11, 5)
    whole = path.read_bytes()
    for length in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        copied = shutil.copytree(tmp_path / "b", tmp_path / f"c{length}")
        assert train_until(run, copied, cache, stop_at=1) is None
        assert older + 1 in dict(RunDir(copied).checkpoints())
        assert outcome(copied, train_until(run, copied, cache)) == outcome(tmp_path / "a", straight)


@pytest.mark.whole
def test_two_micro_batches_are_the_batch_in_float64(tmp_path, cache):
    settings = {"train.precision": "fp64", "train.epochs": 2}
    settings |= {"model.dropout": 0.1, "model.drop_path": 0.1}
    whole, split = (digits(**settings, **{"train.micro_batch": micro}) for micro in (None, 32))
    assert whole.id != split.id
    for run, side in ((whole, "a"), (split, "b")):
        assert train_until(run, tmp_path / side, cache)["status"] == "finished"
    assert 0 < farthest(tmp_path / "a", tmp_path / "b") < 1e-9


def test_a_non_finite_loss_ends_the_run_as_diverged_at_its_step(tmp_path, cache):
    run = digits(**{"optim.lr": 1e30, "optim.clip": None, "optim.warmup_epochs": 0})
    result = train_until(run, tmp_path, cache)
    assert result["status"] == "diverged"
    assert 1 <= result["step"] < 10
    assert "test" not in result
    json.dumps(result, allow_nan=False)
    assert train_until(run, tmp_path, cache)["step"] == result["step"]


def test_test_scores_that_are_not_finite_end_the_run_as_diverged(tmp_path, cache, monkeypatch):
    """An image of the test set may overflow where none of the validation set does."""
    evaluate = Training.evaluate

    def overflowed(training, split, data=None):
        scores, predictions = evaluate(training, split, data)
        return scores | {"loss": math.nan}, predictions

    finished = journal.Journal.finished

    def finish(self, data):
        with monkeypatch.context() as patch:
            patch.setattr(Training, "evaluate", overflowed)
            return finished(self, data)

    monkeypatch.setattr(journal.Journal, "finished", finish)
    result = train_until(run := digits(**{"train.epochs": 1}), tmp_path, cache)
    assert (result["status"], "test" in result) == ("diverged", False)
    assert result["step"] > 0
    json.dumps(result, allow_nan=False)
    assert train_until(run, tmp_path, cache)["status"] == "diverged"


@pytest.mark.whole
def test_a_run_that_learns_nothing_is_collapsed_and_one_that_learns_is_not(tmp_path, cache):
    good = train_until(digits(), tmp_path / "good", cache)
    assert not good["collapsed"]
    assert good["test"]["top1"] > 0.5
    assert train_until(digits(**{"optim.lr": 1e-12}), tmp_path / "flat", cache)["collapsed"]


@pytest.mark.whole
def test_bfloat16_trains_and_resumes_to_the_same_bits(tmp_path, cache, monkeypatch):
    def fused(q: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        assert q.device.type == "meta"  # what is counted, not computed
        return q

    monkeypatch.setitem(sublayers.KERNELS, "sdpa", fused)
    run = digits(**{"train.precision": "bf16", "train.epochs": 2})
    resumed(run, tmp_path, cache, 20)
    assert choose(run, torch.device("cpu")).kernel == "explicit"  # as it is


def test_what_is_measured_and_saved_is_the_average(tmp_path, cache, monkeypatch):
    run, own, update = digits(**OTHERWISE), [], Average.update

    def spy(average):
        update(average)
        own.append({name: p.detach().clone() for name, p in average._model.named_parameters()})

    monkeypatch.setattr(Average, "update", spy)
    result = train_until(run, tmp_path / "a", cache)
    expected = {name: p.detach().clone() for name, p in build(run).named_parameters()}
    for step in own:
        expected = {name: 0.9 * mean + 0.1 * step[name] for name, mean in expected.items()}
    saved = load_file(tmp_path / "a" / "weights.safetensors")
    for name, mean in expected.items():
        torch.testing.assert_close(saved[name], mean)
    assert len(own) == 25
    cached = prepare_cache(run.data, cache)
    training = Training(run, cached.split("train"), torch.device("cpu"))
    training.model.load_state_dict(saved)
    for split in ("validation", "test"):
        assert result[split] == training.measure(cached.split(split))[0]
    seldom = train_until(digits(**{**OTHERWISE, "eval.every": 9}), tmp_path / "b", cache)
    assert seldom["weights_sha256"] == result["weights_sha256"]  # to measure changes nothing


def test_a_sigmoid_run_is_judged_by_its_own_prior(tmp_path, cache):
    still = {"optim.lr": 1e-12, "train.loss": "sigmoid", "model.head_bias": -2.0}
    run = digits(**still, **{"train.epochs": 1, "eval.every": 1})
    result = train_until(run, tmp_path, cache)
    first = 10 * math.log1p(math.exp(-2)) + 2  # ten classes at a bias of -2, one of them is true
    for told in (result["train_loss"], result["validation"]["loss"]):
        assert told == pytest.approx(first, rel=1e-5)
    labels = prepare_cache(run.data, cache).split("train").labels
    assert result["prior_loss"] == prior_loss(labels, 10, 0.0, "sigmoid") < first
    assert result["collapsed"]


def test_all_variants_of_a_seed_see_the_same_batches(tmp_path, cache, monkeypatch):
    """Batches and augmentations, byte for byte, as the model is given them."""
    forward = torch.nn.Module.__call__
    seen = {"pre": [], "post": []}
    for name, images in seen.items():
        post = {"block.attn": "post", "stem": "dpn", "model.dropout": 0.3} if name == "post" else {}
        augmented = {"augment.flip": True, "augment.crop_pad": 1, "train.epochs": 1}

        def spy(module, *args, images=images):
            if type(module).__name__ == "ViT" and module.training:
                images.append(args[0].clone())
            return forward(module, *args)

        monkeypatch.setattr(torch.nn.Module, "__call__", spy)
        train_until(digits(**post, **augmented), tmp_path / name, cache)
    assert len(seen["pre"]) > 10
    assert all(torch.equal(a, b) for a, b in zip(*seen.values(), strict=True))
