"""Normalisation of hidden rows; both kinds take the neighbourhood, and only one of them uses it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from sancus.models.neighbourhood import Neighbourhood

EPSILON = 1e-5
MOMENTUM = 0.1


class LayerNorm(nn.Module):
    """Every row `[f]` to mean 0 and variance 1, then scaled and shifted (Ba, Kiros and Hinton 2016)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, h: torch.Tensor, exchange: Neighbourhood) -> torch.Tensor:
        """`[n_i, f]` to `[n_i, f]`; needs no other rank."""
        return F.layer_norm(h, h.shape[1:], self.weight, self.bias, EPSILON)


class BatchNorm(nn.Module):
    """Every column to mean 0 and variance 1 over the rows of *all ranks* (Ioffe and Szegedy 2015).

    Two sums cross in training: of the rows, then of their squared distance from the mean, which loses no
    digits; backward the same two. Evaluation uses the running statistics, as `nn.BatchNorm1d` does.
    """

    running_mean: torch.Tensor
    running_var: torch.Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def forward(self, h: torch.Tensor, exchange: Neighbourhood) -> torch.Tensor:
        """`[n_i, f]` to `[n_i, f]`."""
        if not self.training:
            scale = self.weight * torch.rsqrt(self.running_var + EPSILON)
            return (h - self.running_mean) * scale + self.bias
        sums = exchange.sum(torch.cat([h.sum(dim=0), h.new_full((1,), len(h))]))
        count = sums[-1].detach()
        mean = sums[:-1] / count
        centred = h - mean
        variance = exchange.sum(centred.square().sum(dim=0)) / count
        with torch.no_grad():
            unbiased = variance * count / (count - 1).clamp(min=1)
            self.running_mean.lerp_(mean, MOMENTUM)
            self.running_var.lerp_(unbiased, MOMENTUM)
        return centred * torch.rsqrt(variance + EPSILON) * self.weight + self.bias
