"""Plan `block`: whole blocks, owner after owner (CAGNET 1D; SANCUS Algorithm 3)."""

from __future__ import annotations

import scipy.sparse as sp
import torch

from sancus.graphs.operator import Operator
from sancus.kernels.matrix import SparseMatrix
from sancus.plans.base import PARTS, Add, Leg, Move, Workbench, row_squares
from sancus.plans.maps import Identity, Product


class Block:
    """Every owner broadcasts its whole block; `S_ij` is the identity, `R_ij = Â_ij`.

    Backward is the same plan of `Âᵀ`: owners broadcast their rows of the gradient, and the receiver
    multiplies by `(Âᵀ)_ij` (SANCUS eq. 4: `δ` is what travels). The volume is that of the transposed
    forward leg, `(p-1) N` rows.
    """

    picks_rows = True

    def __init__(self, operator: Operator, bench: Workbench) -> None:
        self._operator = operator
        self._bench = bench
        ranks, own = range(operator.ranks), operator.rank
        forward = [Product(bench.matrix(operator.block(rank))) for rank in ranks]
        backward = [Product(bench.matrix(operator.transposed_block(rank))) for rank in ranks]
        there = Move(
            PARTS,
            True,
            [Identity(operator.own)] * operator.ranks,
            self._weights(operator.transposed_rows, operator.transposed_block(own)),
        )
        back = Move(
            PARTS,
            True,
            [Identity(operator.targets)] * operator.ranks,
            self._weights(operator.rows, operator.block(own)),
        )
        self.forward = Leg(forward[own], (there, Add(forward)))
        self.backward = Leg(backward[own], (back, Add(backward)))

    def _weights(self, entries: sp.csr_array, own: sp.csr_array) -> list[torch.Tensor]:
        """What all receivers together make of own rows: `entries [n_i, N]` without the own columns."""
        weight = self._bench.weights(row_squares(entries) - row_squares(own))
        return [weight] * self._operator.ranks

    def local_rows(self) -> SparseMatrix:
        """Own rows of `Â` over all rows: own block first, then the others by rank."""
        operator = self._operator
        others = [rank for rank in range(operator.ranks) if rank != operator.rank]
        return self._bench.side_by_side([operator.block(rank) for rank in (operator.rank, *others)])
