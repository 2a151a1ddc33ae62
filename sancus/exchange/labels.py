"""Label propagation (SuperGCN §3; Shi et al. 2020): labels of some training nodes are part of the input.

The input becomes `X + M Y E`: `Y [N, C]` has the labels of the training nodes, `E [C, F]` is learned, and `M`
keeps a share of the nodes, drawn anew every epoch; the other training nodes carry the loss. At evaluation all
training labels are in, and what is scored never is.

Which nodes are chosen is a hash of (seed, epoch, node), so a receiver knows it for its copies too. `Y` is
constant: like a sparse `X` it crosses once, and no epoch sends a label.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sancus.exchange.constant import SparseConstant
from sancus.exchange.dropout import DropoutKey, chosen_nodes
from sancus.kernels.matrix import SparseMatrix
from sancus.kernels.summed import Summed

LAYER = -1  # of the hash: no layer draws with this number


@dataclass(frozen=True)
class LabelDraw:
    """The nodes whose labels are input in an epoch; all of them where `rate` is 1."""

    rate: float
    seed: int
    epoch: int

    def chosen(self, nodes: torch.Tensor) -> torch.Tensor:
        """`[n]` bool, for the user's ids `nodes [n]`."""
        return chosen_nodes(nodes, self.rate, DropoutKey(self.seed, self.epoch, LAYER))

    def keep(self, y: SparseMatrix, nodes: torch.Tensor) -> SparseMatrix:
        """`M Y`."""
        return y.with_values(y.csr.value * self.chosen(nodes)[y.row_of_entries()].to(y.dtype))


class Labelled(Summed):
    """`X + M Y E [n_i, F]`, with the draw that `M` stands for."""

    def __init__(
        self, x: torch.Tensor | SparseMatrix, y: SparseMatrix, embedding: torch.Tensor, draw: LabelDraw
    ) -> None:
        """`y [n_i, C]` is `M Y`, `embedding [C, F]` is `E`."""
        super().__init__(x, y, embedding)
        self.draw = draw

    def propagate(self, constant: SparseConstant, weight: torch.Tensor | None) -> torch.Tensor:
        """`Â M Y E W` from own and received rows of `Y`, with no message."""
        projected = self.embedding if weight is None else self.embedding @ weight
        return constant.multiply(projected, self.draw.keep)
