"""Plan `prepost`: the fewest rows, some as they are and some summed by the owner (SuperGCN)."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch

from sancus.errors import UserError
from sancus.graphs.operator import Operator
from sancus.kernels.matrix import SparseMatrix
from sancus.plans.base import PARTS, Add, Leg, Move, Workbench, row_squares
from sancus.plans.cover import Cover, minimum_cover
from sancus.plans.maps import Above, Beside, Pick, Product, Scatter


class Prepost:
    """Hybrid pre-post-aggregation: a minimum vertex cover of every cut decides what crosses.

    `S_ij` picks the covered columns of `Â_ij` (post) and, below them, sums the remaining entries of every
    covered row (pre). `R_ij` multiplies the picked rows by the covered columns and adds the sums where they
    belong. Each entry is served once: by its column if that is covered. Backward is the transpose.
    """

    picks_rows = False
    cover = staticmethod(minimum_cover)  # which rows and columns of a block serve its entries

    def __init__(self, operator: Operator, bench: Workbench) -> None:
        self._bench = bench
        diagonal = Product(bench.matrix(operator.block(operator.rank)))
        make: list[Above] = []
        add: list[Beside] = []
        weights: list[torch.Tensor] = []
        back_weights: list[torch.Tensor] = []
        for rank in range(operator.ranks):
            own = rank == operator.rank
            nothing = sp.csr_array((operator.targets, operator.own))
            outgoing = nothing if own else sp.csr_array(operator.transposed_block(rank).T)
            incoming = nothing if own else operator.block(rank)
            outgoing.sort_indices()
            sent, received = self.cover(outgoing), self.cover(incoming)
            make.append(self._make(outgoing, sent))
            add.append(self._add(incoming, received))
            picked = row_squares(sp.csr_array(outgoing.T))[sent.columns]
            weights.append(bench.weights(np.append(picked, np.ones(len(sent.rows)))))
            summed = row_squares(_without_columns(incoming, received))[received.rows]
            back_weights.append(bench.weights(np.append(np.ones(len(received.columns)), summed)))
        back = Move(PARTS, False, [row_map.transposed for row_map in add], back_weights)
        self.forward = Leg(diagonal, (Move(PARTS, False, make, weights), Add(add)))
        self.backward = Leg(diagonal.transposed, (back, Add([row_map.transposed for row_map in make])))

    def local_rows(self) -> SparseMatrix:
        """Never: some of what arrives are sums, which are no rows of `H`."""
        raise UserError("plan prepost sends sums; what weighs edges by content needs --plan halo or block")

    def _make(self, block: sp.csr_array, cover: Cover) -> Above:
        """`S_ij`: picked rows, then sums; `block` is `Â_ij` as its owner holds it."""
        sums = sp.csr_array(_without_columns(block, cover)[cover.rows])
        return Above(
            Pick(self._bench.index(cover.columns), block.shape[1]), Product(self._bench.matrix(sums))
        )

    def _add(self, block: sp.csr_array, cover: Cover) -> Beside:
        """`R_ij`: the product of the picked rows, and the sums in place."""
        picked = sp.csr_array(block[:, cover.columns])
        return Beside(
            Product(self._bench.matrix(picked)), Scatter(self._bench.index(cover.rows), block.shape[0])
        )


def _without_columns(block: sp.csr_array, cover: Cover) -> sp.csr_array:
    """The entries that no covered column serves."""
    covered = np.zeros(block.shape[1], bool)
    covered[cover.columns] = True
    entries = sp.coo_array(block)
    left = ~covered[entries.coords[1]]
    rows, columns = (ids[left] for ids in entries.coords)
    return sp.csr_array((entries.data[left], (rows, columns)), shape=block.shape)
