"""Models for depth: a dense layer in, many graph layers of one width, a dense layer out."""

from __future__ import annotations

import abc
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import nn

from sancus.kernels.summed import Rowlike
from sancus.models.contract import Segment, State
from sancus.models.neighbourhood import Neighbourhood
from sancus.models.settings import ModelSettings
from sancus.models.stack import Dense, classifier_input, embed_by, join_layers, norms

Rows = tuple[torch.Tensor, ...]  # what goes from one graph layer to the next, each [n_i, hidden]


class DeepStack(nn.Module, abc.ABC):
    """`H^0 = X W_in`, then graph layers `[n_i, hidden]` to `[n_i, hidden]`, then `logits = H^L W_out`.

    Dropout falls on the input of every layer, dense or not. The dense layers never communicate.
    """

    normalisation: ClassVar[Literal["symmetric"]] = "symmetric"
    linear: ClassVar[bool] = True
    shrinks: ClassVar[bool] = True
    default_norm: ClassVar[str] = "none"  # what `--norm auto` means
    last_norm: ClassVar[bool] = False  # whether the rows after the last graph layer are normalised too
    carries: int  # how many tensors a graph layer takes from the one before; a class or property says it
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
    def begin(self, first: torch.Tensor) -> Rows:
        """From the rows of the dense layer: what the first graph layer takes, each `[n_i, hidden]`."""

    @abc.abstractmethod
    def step(self, depth: int, rows: Rows, exchange: Neighbourhood, dropout: float) -> Rows:
        """One graph layer: what the next one takes; the first of it is what is classified and joined."""

    def normed(self, h: torch.Tensor, exchange: Neighbourhood, depth: int) -> torch.Tensor:
        """The normalisation of a graph layer, if there is one."""
        return self.norms[depth](h, exchange) if len(self.norms) else h

    def forward(self, x: Rowlike, exchange: Neighbourhood) -> torch.Tensor:
        """Features `[n_i, F]` to logits `[n_i, C]` of the own rows."""
        return self.embed(x, exchange)[1]

    def embed(self, x: Rowlike, exchange: Neighbourhood) -> tuple[torch.Tensor, torch.Tensor]:
        """Last embeddings `[n_i, f]`, what the logits are made of, and the logits `[n_i, C]`."""
        return embed_by(self.segments(), x, exchange)

    def segments(self) -> list[Segment]:
        """The dense layer, one a graph layer, join with jumping knowledge, and the classifier."""
        layers: list[Segment] = [partial(self._layer, depth) for depth in range(len(self.layers))]
        join: list[Segment] = [] if self.settings.jumping == "none" else [self._join]
        return [self._enter, *layers, *join, self._classify]

    @property
    def _dropout(self) -> float:
        return self.settings.dropout if self.training else 0.0

    def _enter(self, state: State, exchange: Neighbourhood) -> State:
        """Features to the input of the first graph layer; the numbers of dense layers follow the graph's."""
        return self.begin(self.input(exchange.dropout(state[0], len(self.layers), self._dropout)))

    def _layer(self, depth: int, state: State, exchange: Neighbourhood) -> State:
        """One graph layer; behind what it uses, `state` has what jumping knowledge will join."""
        used, earlier = state[: self.carries], state[self.carries :]
        rows = tuple(h for h in used if isinstance(h, torch.Tensor))
        rows = self.step(depth, rows, exchange, self._dropout)
        return rows if self.settings.jumping == "none" else (*rows, *earlier, rows[0])

    def _join(self, state: State, exchange: Neighbourhood) -> State:
        """The rows after all layers to the embeddings."""
        return (join_layers(state[self.carries :], self.settings.jumping, exchange),)

    def _classify(self, state: State, exchange: Neighbourhood) -> State:
        """Embeddings to logits."""
        return (self.output(classifier_input(state, exchange, len(self.layers) + 1, self._dropout)),)
