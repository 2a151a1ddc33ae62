"""Models for depth: a dense layer in, many graph layers of one width, a dense layer out."""

from __future__ import annotations

import abc
from typing import ClassVar, Literal

import torch
from torch import nn

from sancus.exchange.exchange import Exchange, Rowlike
from sancus.models.settings import ModelSettings
from sancus.models.stack import Dense, norms


class DeepStack(nn.Module, abc.ABC):
    """`H^0 = X W_in`, then graph layers `[n_i, hidden]` to `[n_i, hidden]`, then `logits = H^L W_out`.

    Dropout falls on the input of every layer, dense or not. The dense layers never communicate.
    """

    normalisation: ClassVar[Literal["symmetric"]] = "symmetric"
    linear: ClassVar[bool] = True
    default_norm: ClassVar[str] = "none"  # what `--norm auto` means
    last_norm: ClassVar[bool] = False  # whether the rows after the last graph layer are normalised too
    widths = None  # the first graph layer's input is no constant: no bytes are predicted

    def __init__(self, features: int, classes: int, settings: ModelSettings) -> None:
        super().__init__()
        self.settings = settings
        self.input = Dense(features, settings.hidden)
        self.layers = nn.ModuleList(self.make_layer() for _ in range(settings.layers))
        kind = self.default_norm if settings.norm == "auto" else settings.norm
        self.norms = norms(kind, [settings.hidden] * (settings.layers + self.last_norm))
        joined = settings.hidden * (settings.layers if settings.jumping == "cat" else 1)
        self.output = Dense(joined, classes)

    @abc.abstractmethod
    def make_layer(self) -> nn.Module:
        """The parameters of one graph layer."""

    @abc.abstractmethod
    def steps(self, first: torch.Tensor, exchange: Exchange, dropout: float) -> list[torch.Tensor]:
        """The rows `[n_i, hidden]` after each graph layer, from those of the dense layer."""

    def normed(self, h: torch.Tensor, exchange: Exchange, depth: int) -> torch.Tensor:
        """The normalisation of a graph layer, if there is one."""
        return self.norms[depth](h, exchange) if len(self.norms) else h

    def forward(self, x: Rowlike, exchange: Exchange) -> torch.Tensor:
        """Features `[n_i, F]` to logits `[n_i, C]` of the own rows."""
        return self.embed(x, exchange)[1]

    def embed(self, x: Rowlike, exchange: Exchange) -> tuple[torch.Tensor, torch.Tensor]:
        """Last embeddings `[n_i, f]`, what the logits are made of, and the logits `[n_i, C]`."""
        depth = len(self.layers)  # numbers of graph layers are streams; dense layers take the next two
        dropout = self.settings.dropout if self.training else 0.0
        first = self.input(exchange.dropout(x, depth, dropout))
        made = self.steps(first, exchange, dropout)
        if self.settings.jumping == "none":
            joined = made[-1]
        elif self.settings.jumping == "cat":
            joined = torch.cat(made, dim=1)
        else:
            joined = torch.stack(made).amax(dim=0)
        return joined, self.output(exchange.dropout(joined, depth + 1, dropout))
