"""Losses, metrics and predictions of classification."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F
from sklearn.metrics import log_loss, top_k_accuracy_score

from ablate.training.model import build
from ablate.training.task.classify import PREDICTION, evaluate, loss, prior_loss, targets

KINDS = ("softmax", "sigmoid")


def draw(n: int, classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, classes, generator=generator)
    return logits, torch.randint(0, classes, (n,), generator=generator)


def test_the_loss_of_labels_is_torchs() -> None:
    logits, labels = draw(20, 7)
    torch.testing.assert_close(loss(logits, labels, 0.0), F.cross_entropy(logits, labels))


def test_sigmoid_is_a_binary_cross_entropy_for_each_class_summed() -> None:
    logits, labels = draw(20, 7)
    shares, truth = logits.double().sigmoid().numpy(), F.one_hot(labels).bool().numpy()
    expected = sum(log_loss(truth[:, c], shares[:, c], labels=[False, True]) for c in range(7))
    assert loss(logits.double(), labels, 0.0, "sigmoid").item() == pytest.approx(expected)
    each = loss(logits, labels, 0.0, "sigmoid", reduction="none")
    assert each.shape == (20,)
    assert each.mean().item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_no_constant_prediction_does_better_than_the_prior_which_mixing_does_not_move(
    kind, smoothing
) -> None:
    labels = torch.tensor([0, 3, 0, 1, 1, 0, 3, 0, 1, 0])
    share = torch.tensor([0.5, 0.3, 1e-300, 0.2], dtype=torch.float64)
    share = (1 - smoothing) * share + smoothing / 4
    constant = share.log() - (torch.log1p(-share) if kind == "sigmoid" else 0)
    value = loss(constant.requires_grad_().expand(10, 4), labels, smoothing, kind)
    (slope,) = torch.autograd.grad(value, constant)
    assert slope.abs().max() < 1e-12  # the loss is convex
    prior = prior_loss(labels, 4, smoothing, kind)
    assert prior == pytest.approx(value.item(), rel=1e-12)
    soft = targets(labels, 4, smoothing, torch.float64)
    mixed = 0.7 * soft + 0.3 * soft.roll(1, 0)
    assert not torch.equal(mixed, soft)
    value = loss(constant.expand(10, 4), mixed, smoothing, kind).item()
    assert prior == pytest.approx(value, rel=1e-12)


def test_the_first_sigmoid_loss_is_the_papers() -> None:
    """7.90728: a head of zeros with a bias of -6.9 on 1000 classes, whatever sums to 1."""
    run = tiny.run({"data.classes": 1000, "model.head_bias": -6.9})
    logits = build(run)(tiny.images(2, run))
    labels = torch.tensor([3, 7])
    own = targets(labels, 1000, 0.1)
    for target in (labels, own, 0.6 * own + 0.4 * own.flip(0)):
        assert loss(logits, target, 0.0, "sigmoid").item() == pytest.approx(7.90728, abs=1e-5)


def test_losses_of_soft_targets_equal_timms(oracle) -> None:
    timm = oracle("timm.loss")
    logits, labels = draw(20, 7)
    soft = 0.3 * targets(labels, 7, 0.1) + 0.7 * targets(labels, 7, 0.1).roll(1, 0)
    for smoothing in (0.0, 0.5):  # which soft targets have had
        expected = timm.SoftTargetCrossEntropy()(logits, soft)
        torch.testing.assert_close(loss(logits, soft, smoothing), expected)
        expected = timm.BinaryCrossEntropy(smoothing=0.0, sum_classes=True)(logits, soft)
        torch.testing.assert_close(loss(logits, soft, smoothing, "sigmoid"), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_targets_are_the_labels_smoothed_as_timm_does(kind, oracle) -> None:
    logits, labels = draw(20, 7)
    soft = targets(labels, 7, 0.1)
    assert soft.dtype == torch.float32
    torch.testing.assert_close(soft, oracle("timm.data.mixup").mixup_target(labels, 7, 1.0, 0.1))
    torch.testing.assert_close(loss(logits, soft, 0.0, kind), loss(logits, labels, 0.1, kind))
    assert loss(logits, labels, 0.1, kind) != loss(logits, labels, 0.0, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_micro_batches_weighted_by_rows_are_the_global_batch(kind) -> None:
    logits, labels = draw(24, 5)
    logits = logits.double().requires_grad_()
    whole = loss(logits, labels, 0.1, kind)
    (expected,) = torch.autograd.grad(whole, logits)
    pieces = [slice(0, 10), slice(10, 13), slice(13, 24)]
    parts = [loss(logits[p], labels[p], 0.1, kind) * len(labels[p]) / 24 for p in pieces]
    (got,) = torch.autograd.grad(sum(parts), logits)
    torch.testing.assert_close(sum(parts), whole, rtol=0, atol=1e-14)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("soft", [False, True])
def test_half_precision_logits_are_summed_in_single(kind, soft) -> None:
    logits, labels = draw(512, 10)
    target = targets(labels, 10, 0.1) if soft else labels
    half = logits.bfloat16()
    assert loss(half, target, 0.0, kind).dtype == torch.float32
    assert loss(half, target, 0.0, kind) == loss(half.float(), target, 0.0, kind)
    assert loss(logits.double(), target, 0.0, kind).dtype == torch.float64


def test_metrics_equal_scikit_learns() -> None:
    logits, labels = draw(300, 12)
    parts = [slice(0, 128), slice(128, 256), slice(256, 300)]
    metrics, predictions = evaluate((logits[p], labels[p]) for p in parts)
    scores, classes = logits.numpy(), np.arange(12)
    assert metrics["n"] == 300
    for k in (1, 5):
        expected = top_k_accuracy_score(labels, scores, k=k, labels=classes)
        assert metrics[f"top{k}"] == pytest.approx(expected, abs=1e-15)
    shares = logits.double().softmax(1).numpy()
    assert metrics["loss"] == pytest.approx(log_loss(labels, shares, labels=classes), rel=1e-12)
    assert predictions.dtype == PREDICTION
    np.testing.assert_array_equal(predictions["class"], scores.argmax(1))
    order = np.argsort(-scores, axis=1)
    ranks = (order == labels.numpy()[:, None]).argmax(1)
    np.testing.assert_array_equal(predictions["rank"], ranks)
    np.testing.assert_allclose(predictions["loss"], -np.log(shares[range(300), labels]), rtol=1e-6)


def test_what_is_measured_is_the_loss_that_was_trained() -> None:
    logits, labels = draw(30, 7)
    metrics, predictions = evaluate([(logits, labels)], "sigmoid")
    wide, true = logits.double(), F.one_hot(labels, 7).double()
    each = F.binary_cross_entropy_with_logits(wide, true, reduction="none").sum(1)
    assert metrics["loss"] == pytest.approx(each.mean().item(), rel=1e-12)
    np.testing.assert_allclose(predictions["loss"], each, rtol=1e-6)
    softmax, same = evaluate([(logits, labels)])
    assert softmax["top1"] == metrics["top1"]
    np.testing.assert_array_equal(predictions["rank"], same["rank"])


def test_top5_begins_at_ten_classes() -> None:
    assert "top5" not in evaluate([draw(4, 9)])[0]
    assert "top5" in evaluate([draw(4, 10)])[0]


def test_ties_and_nan_count_against() -> None:
    nan = math.nan
    logits = torch.tensor(
        [
            [1.0, 1.0, 0.0],  # tied with another: rank 1
            [0.0, 0.0, 0.0],  # says nothing: rank 2
            [2.0, 1.0, 0.0],  # best: rank 0
            [2.0, nan, 0.0],  # one other is NaN: rank 1
            [nan, 1.0, 0.0],  # itself NaN: last
        ]
    )
    metrics, predictions = evaluate([(logits, torch.zeros(5, dtype=torch.int64))])
    assert predictions["rank"].tolist() == [1, 2, 0, 1, 2]
    assert metrics["top1"] == 0.2
    assert math.isnan(metrics["loss"])
