"""Label propagation (SuperGCN §3; Shi et al. 2020): labels of some training nodes are part of the input.

The input becomes `X + M Y E`: `Y [N, C]` has the labels of the training nodes, `E [C, F]` is learned, and `M`
keeps a share of the nodes; the other training nodes carry the loss. `M` is drawn once, before training
(SuperGCN), or anew every epoch (Shi et al.). At evaluation all training labels are in, and what is scored
never is.

Which nodes show their labels is a hash of (seed, epoch, node), so a receiver knows it for its copies too. `Y`
is constant: like a sparse `X` it crosses once, and no epoch sends a label.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sancus.exchange.constant_input import ConstantRows
from sancus.exchange.dropout import DropoutKey, draw_nodes
from sancus.kernels.matrix import SparseMatrix
from sancus.kernels.summed import Summed

LAYER = -1  # of the hash: no layer draws with this number
FIRST_EPOCH = 0


@dataclass(frozen=True)
class LabelDraw:
    """The nodes whose labels are input in an epoch; all of them where `rate` is 1."""

    rate: float
    seed: int
    epoch: int

    @classmethod
    def at(cls, epoch: int, rate: float, seed: int, *, once: bool) -> LabelDraw:
        """That of an epoch; `once`: the draw of the first epoch is that of all epochs."""
        return cls(rate, seed, FIRST_EPOCH if once else epoch)

    def shown(self, nodes: torch.Tensor) -> torch.Tensor:
        """`[n]` bool, for the user's ids `nodes [n]`."""
        return draw_nodes(nodes, self.rate, DropoutKey(self.seed, self.epoch, LAYER))

    def keep(self, y: SparseMatrix, nodes: torch.Tensor) -> SparseMatrix:
        """`M Y`."""
        return y.with_values(y.csr.value * self.shown(nodes)[y.row_of_entries()].to(y.dtype))


class Labelled(Summed):
    """`X + M Y E [n_i, F]`, which also knows the labels of received rows."""

    def __init__(
        self, x: torch.Tensor | SparseMatrix, labels: ConstantRows, embedding: torch.Tensor, draw: LabelDraw
    ) -> None:
        """`labels` are `Y`, `draw` is `M`, `embedding [C, F]` is `E`."""
        super().__init__(x, draw.keep(labels.own, labels.nodes), embedding)
        self._labels = labels
        self._draw = draw

    def propagate_labels(self, layer: int, weight: torch.Tensor | None) -> torch.Tensor:
        """`Â M Y E W` from own and received rows of `Y`, with no message after the first."""
        projected = self.embedding if weight is None else self.embedding @ weight
        return self._labels.received(layer).multiply(projected, self._draw.keep)


class LabelInput:
    """The labels of the own training rows, as an input of the model."""

    def __init__(self, labels: ConstantRows, seed: int, *, once: bool = False) -> None:
        """`labels` are rows `Y [n_i, C]` with a 1 for each label; those of other nodes are empty.

        `once`: the draw of the first epoch is that of all epochs.
        """
        self._labels = labels
        self._seed = seed
        self._once = once

    def draw(self, rate: float, epoch: int) -> LabelDraw:
        """Which nodes show their labels in this epoch; a loss must leave them out."""
        return LabelDraw.at(epoch, rate, self._seed, once=self._once)

    def constant(self, rate: float) -> bool:
        """Whether all epochs show the same labels: what is drawn in each is noise to who measures drift."""
        return self._once or rate in (0.0, 1.0)

    def added_to(self, x: torch.Tensor | SparseMatrix, embedding: torch.Tensor, draw: LabelDraw) -> Labelled:
        """`X + M Y E` for `x [n_i, F]` and `embedding [C, F]`."""
        return Labelled(x, self._labels, embedding, draw)
