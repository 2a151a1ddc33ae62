"""What all layered models share: dropout before, norm, activation and residual after each layer."""

from __future__ import annotations

import abc
import itertools
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import nn

from sancus.kernels.summed import Rowlike
from sancus.models.contract import Segment, State
from sancus.models.neighbourhood import Neighbourhood
from sancus.models.norm import BatchNorm, LayerNorm
from sancus.models.settings import Jumping, ModelSettings


class LayerStack(nn.Module, abc.ABC):
    """`H^(ℓ) = dropout → layer ℓ → norm → activation (+ residual)`; the last layer gives the logits bare.

    With jumping knowledge (Xu et al. 2018) the last layer is like the others, and a dense layer makes the
    logits of all of them.
    """

    normalisation: ClassVar[Literal["symmetric", "mean", "sum"]]
    linear: ClassVar[bool] = True  # only sums neighbours, so that sums may cross for it
    shrinks: ClassVar[bool] = True  # it takes `targets` of what it adds to the sums over neighbours
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
        self, layer: nn.Module, h: Rowlike, exchange: Neighbourhood, depth: int, dropout: float
    ) -> torch.Tensor:
        """`[n_i, f_in]` to `[n_i, f_out]`, with dropout on the layer's input."""

    def activate(self, z: torch.Tensor) -> torch.Tensor:
        """The nonlinearity between layers."""
        return torch.relu(z)

    def forward(self, x: Rowlike, exchange: Neighbourhood) -> torch.Tensor:
        """Features `[n_i, F]` to logits `[n_i, C]` of the own rows."""
        return self.embed(x, exchange)[1]

    def embed(self, x: Rowlike, exchange: Neighbourhood) -> tuple[torch.Tensor, torch.Tensor]:
        """Last embeddings `[n_i, f]`, what the logits are made of, and the logits `[n_i, C]`."""
        return embed_by(self.segments(), x, exchange)

    def segments(self) -> list[Segment]:
        """One a graph layer, of which the last makes the logits; with jumping knowledge also join, output."""
        layers: list[Segment] = [partial(self._hidden, depth) for depth in range(len(self.layers))]
        if self.settings.jumping == "none":
            return [*layers[:-1], self._last]
        return [*layers, self._join, self._classify]

    @property
    def _dropout(self) -> float:
        return self.settings.dropout if self.training else 0.0

    def _hidden(self, depth: int, state: State, exchange: Neighbourhood) -> State:
        """A graph layer, from its input to its output; `state` also has what jumping knowledge will join."""
        h = state[0]
        z = self.apply_layer(self.layers[depth], h, exchange, depth, self._dropout)
        if len(self.norms):
            z = self.norms[depth](z, exchange)
        z = self.activate(z)
        if self.settings.residual:
            own = exchange.targets(h)
            if isinstance(own, torch.Tensor) and z.shape == own.shape:
                z = z + own
        return (z,) if self.settings.jumping == "none" else (z, *state[1:], z)

    def _last(self, state: State, exchange: Neighbourhood) -> State:
        """The last graph layer gives the logits bare."""
        depth = len(self.layers) - 1
        z = self.apply_layer(self.layers[depth], state[0], exchange, depth, self._dropout)
        return (exchange.targets(z),)

    def _join(self, state: State, exchange: Neighbourhood) -> State:
        """The rows after all layers to the embeddings."""
        return (join_layers(state[1:], self.settings.jumping, exchange),)

    def _classify(self, state: State, exchange: Neighbourhood) -> State:
        """Embeddings to logits."""
        return (self.output(classifier_input(state, exchange, len(self.layers), self._dropout)),)


def embed_by(
    segments: list[Segment], x: Rowlike, exchange: Neighbourhood
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the last of the segments takes and what it gives: embeddings `[n_i, f]` and logits `[n_i, C]`.

    A model of one segment has no embeddings but its logits.
    """
    state: State = (x,)
    for segment in segments[:-1]:
        state = segment(state, exchange)
    (logits,) = segments[-1](state, exchange)
    assert isinstance(logits, torch.Tensor)
    embeddings = state[0] if len(segments) > 1 else logits
    assert isinstance(embeddings, torch.Tensor)
    return (exchange.targets(embeddings) if len(segments) > 1 else logits), logits


def join_layers(layers: State, jumping: Jumping, exchange: Neighbourhood) -> torch.Tensor:
    """Jumping knowledge: the rows after every layer `[n_i, f]`, side by side or by their maximum."""
    rows = [exchange.targets(h) for h in layers if isinstance(h, torch.Tensor)]
    return torch.cat(rows, dim=1) if jumping == "cat" else torch.stack(rows).amax(dim=0)


def classifier_input(state: State, exchange: Neighbourhood, layer: int, dropout: float) -> Rowlike:
    """The rows of the embeddings that logits are made of, after dropout."""
    h = exchange.dropout(state[0], layer, dropout)
    assert isinstance(h, torch.Tensor)
    return exchange.targets(h)


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
