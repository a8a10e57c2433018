"""Stems that decorrelate the values of a patch by a fixed map, fitted on the training images.

The paper gives no formula (Dual PatchNorm, appendix A). PCA is as in big_vision's
models/proj/jetformer/patch_pca.py; ZCA is Kessy, Lewin, Strimmer 2018 (arXiv 1512.00809).

Used by `stem=whiten` and `stem=whiten_ln`, through run/choices.py `STEMS`; model/host.py fits the
map. A new setting also needs its entry in `STEMS`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.shared import make_folder, write_whole
from ablate.training import sealed_file
from ablate.training.model.norm import LayerNorm
from ablate.training.model.norm.shape import unrounded
from ablate.training.model.stem import Patches, Stem

RIDGE = 1e-5  # of the mean variance, added to each: a pixel that never varies stays finite


def moments(batches: Iterable[Tensor], patches: Patches) -> tuple[Tensor, Tensor]:
    """Return the mean (K,) and biased covariance (K, K) of all patches of all images, float64."""
    number = 0
    total = products = torch.zeros((), dtype=torch.float64)
    for images in batches:
        rows = patches.cut(images).flatten(0, 1).double()
        number += len(rows)
        total = total + rows.sum(0)
        products = products + rows.T @ rows
    mean = total / number
    return mean, products / number - mean.outer(mean)


def whitening(covariance: Tensor, kind: str) -> Tensor:
    """Return the (K, K) map whose output has unit covariance: L^-1/2 U^T (pca) or U L^-1/2 U^T
    (zca).

    U L U^T is the covariance with `RIDGE` * mean(L) added to each of L. Components are ordered by
    falling variance; signs are such that the largest entry of each is positive.
    """
    values, vectors = torch.linalg.eigh(covariance)
    values, vectors = values.flip(0), vectors.flip(1)
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    vectors = vectors * largest.sign()
    scaled = (values.clamp(min=0) + RIDGE * values.mean()).rsqrt()[:, None] * vectors.T
    return {"pca": scaled, "zca": vectors @ scaled}[kind]


class Whiten(nn.Module):
    """A (p - mean): NaN until it is fitted. Mean and A are buffers, so checkpoints have them."""

    mean: Tensor  # (K,)
    matrix: Tensor  # (K, K)

    def __init__(self, patches: Patches, kind: str) -> None:
        super().__init__()
        self.patches = patches
        self.kind = kind
        size = patches.values
        self.register_buffer("mean", torch.full((size,), torch.nan))
        self.register_buffer("matrix", torch.full((size, size), torch.nan))

    def fit(self, batches: Iterable[Tensor], memo: Path | None = None) -> None:
        """Fit the mean and the map to images, see `Host.fit`."""
        path = memo and memo.with_name(f"{memo.name}-moments-{self.patches.patch}.safetensors")
        try:
            if path is None:
                raise FileNotFoundError
            tensors, _ = sealed_file.read_tensors(path)
            mean, covariance = tensors["mean"], tensors["covariance"]
        except (OSError, sealed_file.Rotten, KeyError):
            mean, covariance = (moment.cpu() for moment in moments(batches, self.patches))
            if path is not None:
                make_folder(path.parent)
                write_whole(path, *sealed_file.to_bytes({"mean": mean, "covariance": covariance}))
        self.mean.copy_(mean)
        self.matrix.copy_(whitening(covariance, self.kind))

    def forward(self, p: Tensor) -> Tensor:  # (B, N, K) -> (B, N, K)
        with unrounded(p.device):  # its entries differ by magnitudes
            return F.linear(p.to(self.matrix.dtype) - self.mean, self.matrix)


class WhitenStem(Stem):
    """W A (p - mean) + b."""

    def __init__(self, patches: Patches, width: int, *, kind: str = "zca") -> None:
        super().__init__(patches, width, before=Whiten(patches, kind))


class WhitenNormStem(Stem):
    """W LN(A (p - mean)) + b: LN "right after the decorrelated patches"."""

    def __init__(
        self, patches: Patches, width: int, *, kind: str = "zca", eps: float = 1e-6
    ) -> None:
        norm = LayerNorm(patches.shape(patches.values), eps=eps)
        super().__init__(patches, width, before=nn.Sequential(Whiten(patches, kind), norm))
