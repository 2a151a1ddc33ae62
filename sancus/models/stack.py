"""What all layered models share: dropout before, norm, activation and residual after each layer."""

from __future__ import annotations

import abc
import itertools
from typing import ClassVar, Literal

import torch
from torch import nn

from sancus.exchange.exchange import Exchange, Rowlike
from sancus.models.norm import BatchNorm, LayerNorm
from sancus.models.settings import ModelSettings


class LayerStack(nn.Module, abc.ABC):
    """`H^(ℓ) = dropout → layer ℓ → norm → activation (+ residual)`; the last layer gives the logits bare.

    With jumping knowledge (Xu et al. 2018) the last layer is like the others, and a dense layer makes the
    logits of all of them.
    """

    normalisation: ClassVar[Literal["symmetric", "mean", "sum"]]
    linear: ClassVar[bool] = True  # only sums neighbours, so that sums may cross for it
    one_weight: ClassVar[bool] = True  # a layer is one propagate with a weight [f_in, f_out]

    def __init__(self, features: int, classes: int, settings: ModelSettings) -> None:
        super().__init__()
        self.settings = settings
        widths = settings.widths(features, classes)
        self.widths = widths if self.one_weight else None  # what a run can predict its bytes from
        bare = settings.jumping == "none"
        pairs = list(itertools.pairwise(widths))
        self.layers = nn.ModuleList(
            self.make_layer(f_in, f_out, last=bare and depth == len(pairs) - 1)
            for depth, (f_in, f_out) in enumerate(pairs)
        )
        self.norms = norms(settings.norm, widths[1:-1] if bare else widths[1:])
        if not bare:
            joined = sum(widths[1:]) if settings.jumping == "cat" else settings.hidden
            self.output = Dense(joined, classes)

    @abc.abstractmethod
    def make_layer(self, f_in: int, f_out: int, *, last: bool) -> nn.Module:
        """The parameters of one layer; `last` where its result are the logits."""

    @abc.abstractmethod
    def apply_layer(
        self, layer: nn.Module, h: Rowlike, exchange: Exchange, depth: int, dropout: float
    ) -> torch.Tensor:
        """`[n_i, f_in]` to `[n_i, f_out]`, with dropout on the layer's input."""

    def activate(self, z: torch.Tensor) -> torch.Tensor:
        """The nonlinearity between layers."""
        return torch.relu(z)

    def forward(self, x: Rowlike, exchange: Exchange) -> torch.Tensor:
        """Features `[n_i, F]` to logits `[n_i, C]` of the own rows."""
        return self.embed(x, exchange)[1]

    def embed(self, x: Rowlike, exchange: Exchange) -> tuple[torch.Tensor, torch.Tensor]:
        """Last embeddings `[n_i, f]`, what the logits are made of, and the logits `[n_i, C]`."""
        dropout = self.settings.dropout if self.training else 0.0
        h: Rowlike = x
        made: list[torch.Tensor] = []
        for depth, layer in enumerate(self.layers):
            z = self.apply_layer(layer, h, exchange, depth, dropout)
            if self.settings.jumping == "none" and depth == len(self.layers) - 1:
                return (made[-1] if made else z), z
            if len(self.norms):
                z = self.norms[depth](z, exchange)
            z = self.activate(z)
            if self.settings.residual and isinstance(h, torch.Tensor) and z.shape == h.shape:
                z = z + h
            made.append(z)
            h = z
        joined = torch.cat(made, dim=1) if self.settings.jumping == "cat" else torch.stack(made).amax(dim=0)
        return joined, self.output(exchange.dropout(joined, len(self.layers), dropout))


class Dense(nn.Module):
    """`Z = H W + b`, for rows that may be sparse."""

    def __init__(self, f_in: int, f_out: int) -> None:
        super().__init__()
        self.weight = glorot(f_in, f_out)
        self.bias = nn.Parameter(torch.zeros(f_out))

    def forward(self, h: Rowlike) -> torch.Tensor:
        """`[n_i, f_in]` to `[n_i, f_out]`."""
        product: torch.Tensor = h @ self.weight
        return product + self.bias


def norms(kind: str, widths: list[int]) -> nn.ModuleList:
    """One normalisation a width, or none at all."""
    kinds: dict[str, type[LayerNorm] | type[BatchNorm]] = {"layer": LayerNorm, "batch": BatchNorm}
    return nn.ModuleList(kinds[kind](width) for width in widths if kind in kinds)


def glorot(f_in: int, f_out: int) -> nn.Parameter:
    """A weight `[f_in, f_out]`, uniform after Glorot and Bengio."""
    return nn.Parameter(nn.init.xavier_uniform_(torch.empty(f_in, f_out)))
