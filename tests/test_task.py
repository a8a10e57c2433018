"""Losses, metrics and predictions of classification."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import log_loss, top_k_accuracy_score

from ablate.task.classify import PREDICTION, evaluate, loss, prior_loss


def draw(n: int, classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        3 * torch.randn(n, classes, generator=generator),
        torch.randint(0, classes, (n,), generator=generator),
    )


def test_loss_equals_its_definition() -> None:
    logits, labels = draw(20, 7)
    target = torch.full((20, 7), 0.1 / 7).scatter_add_(1, labels[:, None], torch.full((20, 1), 0.9))
    expected = -(target * logits.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(loss(logits, labels, 0.1), expected)
    torch.testing.assert_close(loss(logits, labels, 0.0), F.cross_entropy(logits, labels))


def test_micro_batches_weighted_by_rows_are_the_global_batch() -> None:
    logits, labels = draw(24, 5)
    logits = logits.double().requires_grad_()
    whole = loss(logits, labels, 0.1)
    (expected,) = torch.autograd.grad(whole, logits)
    pieces = [slice(0, 10), slice(10, 13), slice(13, 24)]
    parts = [loss(logits[p], labels[p], 0.1) * len(labels[p]) / 24 for p in pieces]
    (got,) = torch.autograd.grad(sum(parts), logits)
    torch.testing.assert_close(sum(parts), whole, rtol=0, atol=1e-14)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-14)


def test_half_precision_logits_are_summed_in_single() -> None:
    logits, labels = draw(512, 10)
    half = logits.bfloat16()
    assert loss(half, labels, 0.0).dtype == torch.float32
    assert loss(half, labels, 0.0) == loss(half.float(), labels, 0.0)
    assert loss(logits.double(), labels, 0.0).dtype == torch.float64


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


def test_the_prior_is_the_best_constant_prediction() -> None:
    labels = torch.tensor([0] * 5 + [1] * 3 + [3] * 2)
    by_hand = -(0.5 * math.log(0.5) + 0.3 * math.log(0.3) + 0.2 * math.log(0.2))
    assert prior_loss(labels, 4) == pytest.approx(by_hand, rel=1e-12)
    assert prior_loss(torch.arange(10), 10, 0.1) == pytest.approx(math.log(10), rel=1e-12)
    for smoothing in (0.0, 0.2):
        counted = torch.tensor([0.5, 0.3, 1e-300, 0.2], dtype=torch.float64)
        constant = ((1 - smoothing) * counted + smoothing / 4).log().requires_grad_()
        value = loss(constant.expand(10, 4), labels, smoothing)
        (slope,) = torch.autograd.grad(value, constant)
        assert slope.abs().max() < 1e-12  # the loss is convex: no constant does better
        assert prior_loss(labels, 4, smoothing) == pytest.approx(value.item(), rel=1e-12)
