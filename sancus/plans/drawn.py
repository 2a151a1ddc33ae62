"""Plan `drawn`: some rows of the halo, drawn anew for every update of the weights (BNS-GCN).

C. Wan and others, "BNS-GCN: efficient full-graph training of graph convolutional networks with
partition-parallelism and random boundary node sampling", MLSys 2022, Algorithm 1. Partition `i` draws each of
its boundary nodes with probability `p`, keeps those, `U_i`, beside its own, and trains on them as if there
were no others. Rows of `U_i` are divided by `p`, so that sums are right on average:

    T_i = Â_ii H_i + Σ_{j≠i} (1/p) Â_ij[:, U_ij] H_j[U_ij]          E[T_i] = Â_ii H_i + Σ_{j≠i} Â_ij H_j

One draw serves all layers and both directions of an update: gradients return through the rows that came.
Every receiver draws for itself. In the paper it then tells the owners what it drew. Here the draw is a hash
of the update, the receiver and the row, so the owner knows it, and no index crosses.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch

from sancus.graphs.operator import Operator
from sancus.kernels.hashing import MASK64, signed, splitmix, splitmix_scalar
from sancus.kernels.matrix import SparseMatrix
from sancus.plans.base import PARTS, Add, Leg, Move, Workbench
from sancus.plans.halo import Halo
from sancus.plans.maps import Pick, Product

RATE = 0.1  # what the paper recommends
_BITS = 53  # of a random number
SMALLEST = 0.5**_BITS  # no row is ever drawn below


class Drawn(Halo):
    """A share `rate` of the halo rows, drawn anew every epoch and divided by `rate` (BNS-GCN).

    Itself it is the plan of all halo rows, as evaluation and what crosses once need it; `at` is the plan of
    one update. Where rows themselves are wanted, for attention, they come as they are: a softmax over own and
    drawn neighbours needs no scale.
    """

    subset_of: ClassVar[str] = "halo"

    def __init__(self, operator: Operator, bench: Workbench, rate: float = RATE) -> None:
        self.check_settings(rate)
        super().__init__(operator, bench)
        self._rate = rate
        self._rank = operator.rank
        ranks, first = range(operator.ranks), operator.offsets.tolist()
        # Rows by their number in the partitioned graph, which owner and receiver both know.
        self._boundary = [bench.index(first[self._rank] + operator.boundary(rank)) for rank in ranks]
        self._halo = [bench.index(first[rank] + operator.halo(rank)) for rank in ranks]
        self._last: tuple[int, DrawnRows] | None = None

    @staticmethod
    def check_settings(rate: float = RATE) -> None:
        """A `ValueError` unless `rate` is a share that lets something through."""
        if not SMALLEST <= rate <= 1.0:
            raise ValueError(f"rate={rate!r} must be at least {SMALLEST:.2g} and at most 1")

    @staticmethod
    def share(rate: float = RATE) -> float:
        """The share of the rows of `subset_of` that crosses on average."""
        return rate

    def at(self, key: int) -> DrawnRows:
        """The plan of the update `key`, the same object as long as it lasts."""
        if self._last is None or self._last[0] != key:
            self._last = key, self._drawn_rows(key)
        return self._last[1]

    def local_rows(self) -> SparseMatrix:
        """Own rows of `Â` over own rows first, then all halo rows by owner."""
        return self._local_rows

    @cached_property
    def _local_rows(self) -> SparseMatrix:
        return super().local_rows()

    def _drawn_rows(self, key: int) -> DrawnRows:
        leg, device = self.forward, self._bench.device
        make, add, weight = list(leg.make), list(leg.add), list(leg.weight)
        scales = [torch.ones(leg.diagonal.rows_in, dtype=self._bench.dtype, device=device)]
        for rank in range(len(make)):
            pick, product = make[rank], add[rank]
            if rank == self._rank:
                continue
            assert isinstance(pick, Pick) and isinstance(product, Product)
            sent = draw(self._boundary[rank], receiver=rank, key=key, rate=self._rate)
            make[rank] = Pick(pick.index[sent], pick.rows_in)
            weight[rank] = weight[rank][sent] / self._rate**2
            received = draw(self._halo[rank], receiver=self._rank, key=key, rate=self._rate)
            scales.append(received.to(self._bench.dtype) / self._rate)
            add[rank] = Product(product.matrix.weighted_columns(scales[-1]))
        back = Move(
            PARTS,
            False,
            make=[product.transposed for product in add],
            weight=[torch.ones(product.rows_in, device=device) for product in add],
        )
        return DrawnRows(
            Leg(leg.diagonal, (Move(PARTS, False, make, weight), Add(add))),
            Leg(self.backward.diagonal, (back, Add([pick.transposed for pick in make]))),
            torch.cat(scales),
            self,
        )


@dataclass(eq=False)
class DrawnRows:
    """The plan of one update: all own rows, and of the halo those that were drawn."""

    forward: Leg
    backward: Leg
    scale: torch.Tensor  # [n_i + r_i] of own and halo rows: 1, 1/rate, or 0 where a row was not drawn
    whole: Drawn

    picks_rows: ClassVar[bool] = True

    @cached_property
    def columns(self) -> torch.Tensor:
        """The places of own and drawn rows among own and halo rows, ascending."""
        return torch.nonzero(self.scale).flatten()

    def local_rows(self) -> SparseMatrix:
        """Own rows of `Â` over own rows first, then the drawn rows by owner, whose entries are scaled."""
        return self._local_rows

    @cached_property
    def _local_rows(self) -> SparseMatrix:
        return self.whole.local_rows().weighted_columns(self.scale)


def draw(rows: torch.Tensor, *, receiver: int, key: int, rate: float) -> torch.Tensor:
    """`[k]` bool: which of `rows [k]` a receiver draws in the update `key`, each with probability `rate`.

    A pure function, so owner and receiver have the same answer; draws of two receivers are independent.
    """
    state = splitmix_scalar((splitmix_scalar(key & MASK64) ^ receiver) & MASK64)
    noise = (splitmix(rows ^ signed(state)) >> (64 - _BITS)) & ((1 << _BITS) - 1)
    return noise < int(rate * (1 << _BITS))
