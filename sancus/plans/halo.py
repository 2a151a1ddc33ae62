"""Plan `halo`: only the rows that a receiver needs (DGL, Sylvie)."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch

from sancus.graphs.operator import Operator
from sancus.kernels.matrix import SparseMatrix
from sancus.plans.base import PARTS, Add, Leg, Move, Workbench, row_squares
from sancus.plans.maps import Pick, Product


class Halo:
    """The owner picks the rows that a receiver's block has columns for; all payloads cross at once.

    `S_ij` picks the halo of `i` in `j`; `R_ij` is `Â_ij` with its empty columns removed. Backward is the
    transpose: the receiver sends `R_ijᵀ dT_i`, one row per halo row, and the owner adds it in place.
    """

    picks_rows = True

    def __init__(self, operator: Operator, bench: Workbench) -> None:
        self._operator = operator
        self._bench = bench
        diagonal = Product(bench.matrix(operator.block(operator.rank)))
        picks, compact, weights = [], [], []
        for rank in range(operator.ranks):
            own = rank == operator.rank
            boundary = operator.boundary(rank)[: 0 if own else None]
            picks.append(Pick(bench.index(boundary), operator.own))
            weights.append(bench.weights(row_squares(operator.transposed_block(rank))[boundary]))
            compact.append(diagonal if own else Product(bench.matrix(_compact(operator.block(rank)))))
        back = Move(
            PARTS,
            False,
            make=[product.transposed for product in compact],
            weight=[torch.ones(product.rows_in, device=bench.device) for product in compact],
        )
        self.forward = Leg(diagonal, (Move(PARTS, False, picks, weights), Add(compact)))
        self.backward = Leg(diagonal.transposed, (back, Add([pick.transposed for pick in picks])))

    def local_rows(self) -> SparseMatrix:
        """Own rows of `Â` over own rows first, then the halo rows by owner."""
        operator = self._operator
        others = [rank for rank in range(operator.ranks) if rank != operator.rank]
        halos = [_compact(operator.block(rank)) for rank in others]
        return self._bench.side_by_side([operator.block(operator.rank), *halos])


def _compact(block: sp.csr_array) -> sp.csr_array:
    """Columns renumbered so that only those with an entry remain; their order is kept."""
    used, position = np.unique(block.indices, return_inverse=True)
    return sp.csr_array((block.data, position, block.indptr), shape=(block.shape[0], len(used)))
