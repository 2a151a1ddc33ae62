"""What all layered models share: dropout before, norm, activation and residual after each layer."""

from __future__ import annotations

import abc
import itertools
from typing import ClassVar, Literal

import torch
from torch import nn

from sancus.exchange.exchange import Exchange, Rowlike
from sancus.models.settings import ModelSettings


class LayerStack(nn.Module, abc.ABC):
    """`H^(ℓ) = dropout → layer ℓ → norm → ReLU (+ residual)`; the last layer gives the logits bare."""

    normalisation: ClassVar[Literal["symmetric", "mean", "sum"]]

    def __init__(self, features: int, classes: int, settings: ModelSettings) -> None:
        super().__init__()
        self.settings = settings
        widths = settings.widths(features, classes)
        self.layers = nn.ModuleList(
            self.make_layer(f_in, f_out) for f_in, f_out in itertools.pairwise(widths)
        )
        hidden = widths[1:-1]
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in hidden if settings.norm == "layer")

    @abc.abstractmethod
    def make_layer(self, f_in: int, f_out: int) -> nn.Module:
        """The parameters of one layer."""

    @abc.abstractmethod
    def apply_layer(
        self, layer: nn.Module, h: Rowlike, exchange: Exchange, depth: int, dropout: float
    ) -> torch.Tensor:
        """`[n_i, f_in]` to `[n_i, f_out]`, with dropout on the layer's input."""

    def forward(self, x: Rowlike, exchange: Exchange) -> torch.Tensor:
        """Features `[n_i, F]` to logits `[n_i, C]` of the own rows."""
        dropout = self.settings.dropout if self.training else 0.0
        h: Rowlike = x
        last = len(self.layers) - 1
        for depth, layer in enumerate(self.layers):
            z = self.apply_layer(layer, h, exchange, depth, dropout)
            if depth == last:
                return z
            if len(self.norms):
                z = self.norms[depth](z)
            z = torch.relu(z)
            if self.settings.residual and isinstance(h, torch.Tensor) and z.shape == h.shape:
                z = z + h
            h = z
        raise AssertionError("a model has at least one layer")


def glorot(f_in: int, f_out: int) -> nn.Parameter:
    """A weight `[f_in, f_out]`, uniform after Glorot and Bengio."""
    return nn.Parameter(nn.init.xavier_uniform_(torch.empty(f_in, f_out)))
