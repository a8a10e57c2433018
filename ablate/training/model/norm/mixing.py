"""Norms whose statistics are over tokens, some also over the batch. All (B, N, D) -> (B, N, D).

Also finds the modules that keep running statistics from step to step: our own norms and torch's.

Used by `norm=batchnorm`, `instancenorm`, `groupnorm` and `switchnorm`, through run/choices.py
`NORMS`; `running` and `has_statistics` by training/micro_batches.py and training/loop.py. A new
setting or norm also needs its entry in `NORMS`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ablate.shared import UserError
from ablate.training.model.norm.shape import Norm, Shape, precise


def needs_tokens(shape: Shape, norm: str) -> None:
    """Raise UserError for fewer than two tokens, over which there is no unbiased variance."""
    if shape.tokens < 2:
        raise UserError(
            f"norm={norm}: an unbiased variance over tokens needs at least 2 tokens, got "
            f"{shape.tokens}: use smaller patches (model.arch=SIZE/PATCH)"
        )


class BatchNorm(Norm):
    """(x - mean) / sqrt(var + eps) of each channel over all tokens of the batch, scale and bias.

    var is biased, its running value unbiased; in evaluation the running values are used. As torch's
    BatchNorm1d on (B, D, N): Ioffe, Szegedy 2015 (arXiv 1502.03167), DTN's us_instancenorm.py.
    """

    mixes_tokens = batch_statistics = True
    mean: Tensor  # (D,)
    var: Tensor  # (D,)

    def __init__(self, shape: Shape, *, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(shape.width)
        self.eps = eps
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(shape.width))
        self.register_buffer("var", torch.ones(shape.width))

    def forward(self, x: Tensor) -> Tensor:
        rows = precise(x).flatten(0, -2)  # (B*N, D): torch is fastest on these
        settings = self.training, self.momentum, self.eps
        y = F.batch_norm(rows, self.mean, self.var, self.weight, self.bias, *settings)
        return y.view(x.shape)


class OneChannelBatchNorm(BatchNorm):
    """BatchNorm2d of (B, 1, N, D): one mean and one variance for all values of the batch."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(replace(shape, width=1))

    def forward(self, x: Tensor) -> Tensor:  # (B, N, D) -> the same
        return super().forward(x.unsqueeze(-1)).squeeze(-1)


class InstanceNorm(Norm):
    """(x - mean) / sqrt(var + eps) of each channel over the tokens of one image, scale and bias.

    Ulyanov, Vedaldi, Lempitsky 2016 (arXiv 1607.08022). `unbiased`: var divides by N - 1, as in
    DTN's us_instancenorm.py; torch's InstanceNorm1d divides by N.
    """

    mixes_tokens = True

    def __init__(self, shape: Shape, *, eps: float = 1e-5, unbiased: bool = True) -> None:
        super().__init__(shape.width)
        if unbiased:
            needs_tokens(shape, "instancenorm")
        self.group = shape.tokens
        self.eps = eps
        self.unbiased = unbiased

    def forward(self, x: Tensor) -> Tensor:
        x = precise(x)
        var, mean = torch.var_mean(x, 1, correction=int(self.unbiased), keepdim=True)  # (B, 1, D)
        return torch.addcmul(self.bias, x - mean, self.weight * (var + self.eps).rsqrt())


class GroupNorm(Norm):
    """(x - mean) / sqrt(var + eps) over a group of channels, var biased; then scale and bias.

    Wu, He 2018 (arXiv 1803.08494). `scope`: over the group's channels of all tokens of an image
    (sequence: GroupNorm on (B, D, N), DTN's us_groupnorm.py) or of one token (token: powernorm's
    mask_groupnorm.py). `groups`: null is one a head.
    """

    def __init__(
        self, shape: Shape, *, eps: float = 1e-5, groups: int | None = None, scope: str = "sequence"
    ) -> None:
        super().__init__(shape.width)
        self.groups = shape.heads if groups is None else groups
        channels = shape.head_dim(self.groups, "norm.groups")
        self.mixes_tokens = scope == "sequence"
        self.group = channels * (shape.tokens if self.mixes_tokens else 1)
        self.eps = eps
        self.grouped = {"sequence": grouped_over_tokens, "token": grouped_by_token}[scope]

    def forward(self, x: Tensor) -> Tensor:
        return self.grouped(precise(x), self.groups, self.weight, self.bias, self.eps)


def grouped_over_tokens(x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Apply GroupNorm over the group's channels of all tokens. (B, N, D) -> the same."""
    images = x.transpose(1, 2).unsqueeze(-1)  # (B, D, N, 1), torch's channels-last: no copy
    return F.group_norm(images, groups, weight, bias, eps).squeeze(-1).transpose(1, 2)


def grouped_by_token(x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Apply GroupNorm over the group's channels of one token. (B, N, D) -> the same."""
    x = x.unflatten(-1, (groups, -1))
    return torch.addcmul(bias, F.layer_norm(x, x.shape[-1:], eps=eps).flatten(-2), weight)


class SwitchNorm(Norm):
    """(x - sum_k w_k mean_k) / sqrt(sum_k w'_k var_k + eps), k in {IN, LN, BN}; scale and bias.

    w, w' = softmax of 3 logits each. With mean_in, var_in (unbiased) of a channel over the tokens
    and t = var_in + mean_in^2: LN has the means over channels of mean_in and t, BN those over the
    batch, and their variance is mean(t) - mean^2. Luo et al. 2018 (arXiv 1806.10779),
    switchable_norm.py SwitchNorm2d on (B, D, N, 1), whose momentum 0.9 is what is *kept*; running
    mean and variance both start at 0. `layer`: LN's statistics of a whole sample, or of a token.
    """

    mixes_tokens = batch_statistics = True
    mean: Tensor  # (D,)
    var: Tensor  # (D,)

    def __init__(
        self, shape: Shape, *, eps: float = 1e-5, momentum: float = 0.9, layer: str = "sample"
    ) -> None:
        super().__init__(shape.width)
        needs_tokens(shape, "switchnorm")
        self.group = shape.tokens
        self.eps = eps
        self.momentum = momentum
        self.layer_moments = {"sample": moments_of_sample, "token": moments_of_tokens}[layer]
        self.mean_logits = nn.Parameter(torch.empty(3))  # IN, LN, BN
        self.var_logits = nn.Parameter(torch.empty(3))
        self.starts = {"mean_logits": 1, "var_logits": 1}
        self.register_buffer("mean", torch.zeros(shape.width))
        self.register_buffer("var", torch.zeros(shape.width))

    def forward(self, x: Tensor) -> Tensor:
        x = precise(x)
        var_in, mean_in = torch.var_mean(x, 1, correction=1, keepdim=True)  # (B, 1, D)
        square = var_in + mean_in.square()
        var_ln, mean_ln = self.layer_moments(x, mean_in, square)
        if self.training:
            mean_bn = mean_in.mean((0, 1))  # (D,)
            var_bn = square.mean((0, 1)) - mean_bn.square()
            with torch.no_grad():
                self.mean.lerp_(mean_bn, 1 - self.momentum)
                self.var.lerp_(var_bn, 1 - self.momentum)
        else:
            mean_bn, var_bn = self.mean, self.var
        a, b, c = self.mean_logits.softmax(0)
        mean = a * mean_in + b * mean_ln + c * mean_bn
        a, b, c = self.var_logits.softmax(0)
        var = a * var_in + b * var_ln + c * var_bn
        return torch.addcmul(self.bias, x - mean, self.weight * (var + self.eps).rsqrt())


def moments_of_sample(x: Tensor, mean: Tensor, square: Tensor) -> tuple[Tensor, Tensor]:
    """Return variance and mean (B, 1, 1) of a sample, from the mean and mean square (B, 1, D) of
    each channel."""
    sample_mean = mean.mean(-1, keepdim=True)
    return square.mean(-1, keepdim=True) - sample_mean.square(), sample_mean


def moments_of_tokens(x: Tensor, mean: Tensor, square: Tensor) -> tuple[Tensor, Tensor]:
    """Return variance and mean (B, N, 1) of each token's channels."""
    var, token_mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    return var, token_mean


def has_statistics(model: nn.Module) -> bool:
    """Return whether any module of the model keeps running statistics."""
    return any(running(module) is not None for module in model.modules())


def running(module: nn.Module) -> tuple[float, list[Tensor]] | None:
    """Return the share that a new value has in a module's running statistics, and these tensors;
    None where the module keeps none, or weighs all steps alike."""
    if isinstance(module, BatchNorm):
        return module.momentum, [module.mean, module.var]
    if isinstance(module, SwitchNorm):
        return 1 - module.momentum, [module.mean, module.var]
    if isinstance(module, _BatchNorm) and module.running_mean is not None:
        assert module.running_var is not None
        if module.momentum is not None:  # else a mean over all steps, which torch counts itself
            return module.momentum, [module.running_mean, module.running_var]
    return None
