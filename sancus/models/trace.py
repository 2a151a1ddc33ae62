"""What the segments of a model are: which have graph layers, what they hand on, what parameters they use.

Found by running them once on a graph of one node without features, so that nothing has to be declared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from sancus.errors import UserError
from sancus.kernels.base import Csr
from sancus.kernels.edges import Scorer
from sancus.kernels.matrix import SparseMatrix
from sancus.kernels.summed import R, Rowlike, Summed
from sancus.kernels.torch_csr import TorchKernel
from sancus.models.contract import State, traits_of


@dataclass(frozen=True)
class Piece:
    """One segment."""

    layers: frozenset[int]  # the numbers under which it looks at neighbours
    columns: tuple[int, ...]  # of the tensors that it hands on
    parameters: frozenset[str]  # that it uses, by name
    passes: frozenset[int]  # places in what it hands on of tensors that it was given, at the same place
    reads: Mapping[
        int, tuple[int, bool]
    ]  # of each layer: columns of what it sums, and whether that is the input


class OneNode:
    """A neighbourhood of one node, its own neighbour, that notes under which numbers it is looked at."""

    def __init__(self, features: int, like: torch.Tensor) -> None:
        self.input = like.new_zeros(1, features)
        one = torch.ones(1, dtype=torch.int64, device=like.device)
        csr = Csr(torch.cat([one - 1, one]), one - 1, like.new_ones(1), (1, 1))
        self.local_rows = SparseMatrix(csr, TorchKernel())
        self.layers: set[int] = set()
        self.reads: dict[int, tuple[int, bool]] = {}

    def propagate(
        self, h: Rowlike, layer: int, weight: torch.Tensor | None = None, dropout: float = 0.0
    ) -> torch.Tensor:
        """`h`, or `h W`."""
        self.layers.add(layer)
        dense = h if isinstance(h, torch.Tensor) else h.to_dense()
        self.reads[layer] = (dense.shape[1], dense.data_ptr() == self.input.data_ptr())
        return dense if weight is None else dense @ weight

    def rows(
        self, h: Rowlike, layer: int, dropout: float = 0.0, weight: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The same."""
        return self.propagate(h, layer, weight)

    def attend(
        self,
        h: Rowlike,
        layer: int,
        weight: torch.Tensor,
        query: Callable[[torch.Tensor], torch.Tensor],
        scorer: Scorer,
        *,
        dropout: float = 0.0,
        edge_dropout: float = 0.0,
    ) -> torch.Tensor:
        """The node's own values, whatever its score is."""
        values = self.propagate(h, layer, weight)
        return values + 0.0 * scorer.score(query(values), scorer.key(values)).sum()

    def transform(self, h: Rowlike, layer: int, weight: torch.Tensor, dropout: float = 0.0) -> torch.Tensor:
        """`h W`."""
        product: torch.Tensor = h @ weight
        return product

    def dropout(self, h: Rowlike, layer: int, share: float) -> Rowlike:
        """`h` itself."""
        return h

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The node's own."""
        return values

    def targets(self, h: R) -> R:
        """The node."""
        return h

    def labelled(self, embedding: torch.Tensor, rate: float) -> Summed:
        """No label is known."""
        raise UserError("--label-rate needs a model in one piece; leave it out, or choose --schedule full")


def trace(model: nn.Module, features: int) -> list[Piece]:
    """The segments of a model; one that has none is refused."""
    segments = traits_of(model).segments
    if segments is None:
        raise UserError(no_segments(type(model).__name__))
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    graph = OneNode(features, next(model.parameters()))
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    state: State = (graph.input,)
    pieces = []
    with torch.random.fork_rng():
        for segment in segments():
            graph.layers, graph.reads = set(), {}
            given: State = tuple(h.detach() if isinstance(h, torch.Tensor) else h for h in state)
            state = segment(given, graph)
            tensors = [h for h in state if isinstance(h, torch.Tensor)]
            if len(tensors) < len(state):
                raise UserError(f"model {type(model).__name__}: a segment hands on what is no tensor")
            pieces.append(
                Piece(
                    frozenset(graph.layers),
                    tuple(h.shape[1] for h in tensors),
                    _used(tensors, named),
                    frozenset(i for i, (a, b) in enumerate(zip(state, given, strict=False)) if a is b),
                    graph.reads,
                )
            )
    for module, mode in modes:
        module.training = mode
    return pieces


def no_segments(name: str) -> str:
    """Why a model cannot be cut."""
    return (
        f"model {name} has no segments, so its layers cannot run in stages; give it a method segments() "
        "(docs/pipeline.md), or choose --schedule full"
    )


def _used(tensors: Sequence[torch.Tensor], named: dict[str, nn.Parameter]) -> frozenset[str]:
    """The parameters that some tensors depend on."""
    total = sum((h.sum() for h in tensors if h.requires_grad), start=torch.zeros(()))
    if not isinstance(total, torch.Tensor) or not total.requires_grad:
        return frozenset()
    found = torch.autograd.grad(total, list(named.values()), allow_unused=True)
    return frozenset(name for name, gradient in zip(named, found, strict=True) if gradient is not None)
