"""A plan: what each rank makes of its rows for the others, and how it adds what arrives.

On rank `i`, one aggregation `T_i = Â_ii H_i + Σ_{j≠i} R_ij (S_ij H_j)`. The owner `j` sends the *payload*
`S_ij H_j`; its number of rows is exactly what crosses the wire. A plan has two *legs*: the forward leg
multiplies by `Â`, the backward leg by `Âᵀ`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch

from sancus.kernels.base import Kernel
from sancus.kernels.matrix import SparseMatrix
from sancus.plans.maps import Product, RowMap

PARTS = "parts"  # the axis of the process mesh along which the rows of one copy of the graph are spread


@dataclass(frozen=True)
class Move:
    """Every rank of an axis sends payloads of its rows to the others. Entries for oneself are never used."""

    axis: str
    broadcast: bool  # one payload for all receivers, moved owner after owner; else one a receiver
    make: Sequence[RowMap]  # [p] S: own rows -> payload for receiver r
    weight: Sequence[torch.Tensor]  # [p] how much receiver r's sums depend on each payload row: Σ entry² in R


@dataclass(frozen=True)
class Add:
    """What arrived is multiplied and added to the own rows of the result."""

    maps: Sequence[RowMap]  # [p] R: payload of owner j -> own rows; that for oneself is never used


@dataclass(frozen=True)
class Reduce:
    """The results of all ranks of an axis are added up, in the order of ranks; each then has the sum."""

    axis: str


Instruction = Move | Add | Reduce


@dataclass(frozen=True)
class Leg:
    """One direction of a plan on one rank: own rows to own rows, and a short program that adds the rest.

    The program is one `Move` and one `Add`, then a `Reduce` for every axis along which ranks share the work
    on the same rows.
    """

    diagonal: Product  # own rows to own rows: never crosses the wire
    program: tuple[Instruction, ...]

    def __post_init__(self) -> None:
        kinds = [type(instruction) for instruction in self.program]
        if kinds[:2] != [Move, Add] or any(kind is not Reduce for kind in kinds[2:]):
            names = ", ".join(kind.__name__ for kind in kinds)
            raise ValueError(f"a leg is a Move, an Add and any number of Reduce, not [{names}]")

    @property
    def move(self) -> Move:
        """What is sent."""
        assert isinstance(self.program[0], Move)
        return self.program[0]

    @property
    def add(self) -> Sequence[RowMap]:
        """`[p]` R: payload of owner j -> own rows."""
        assert isinstance(self.program[1], Add)
        return self.program[1].maps

    @property
    def broadcast(self) -> bool:
        """Whether one payload goes to all receivers, owner after owner."""
        return self.move.broadcast

    @property
    def make(self) -> Sequence[RowMap]:
        """`[p]` S: own rows -> payload for receiver r."""
        return self.move.make

    @property
    def weight(self) -> Sequence[torch.Tensor]:
        """`[p]` how much receiver r's sums depend on each payload row."""
        return self.move.weight


class Plan(Protocol):
    """A factorisation of the off-diagonal blocks of one operator."""

    forward: Leg
    backward: Leg
    picks_rows: bool  # payload rows are rows of H, not sums: what `FullGraph.rows` needs

    def local_rows(self) -> SparseMatrix:
        """Own rows of `Â` over the columns [own | payload of rank 0 | of rank 1 | …] (if `picks_rows`)."""
        ...


class ChangingPlan(Plan, Protocol):
    """A plan that sends other rows for every update of the weights.

    Its own legs are those of all rows that may ever cross: evaluation takes them, and what crosses once.
    What a receiver keeps of one update is of other rows than the next one's, so histories cannot serve it.
    """

    def at(self, key: int) -> EpochPlan:
        """The plan of one update; `key` is the same on all ranks, and another one for every update."""
        ...


class EpochPlan(Plan, Protocol):
    """The plan of one update."""

    @property
    def columns(self) -> torch.Tensor:
        """`[k]`: which columns of the whole plan's `local_rows` are those of its own, ascending."""
        ...


@dataclass(frozen=True)
class Workbench:
    """How plans make matrices: kernel, dtype and device of the run."""

    kernel: Kernel
    dtype: torch.dtype
    device: torch.device

    def matrix(self, scipy_matrix: object) -> SparseMatrix:
        """A scipy CSR as a `SparseMatrix` of the run."""
        return SparseMatrix.from_scipy(scipy_matrix, self.kernel, self.dtype, self.device)

    def side_by_side(self, blocks: Sequence[object]) -> SparseMatrix:
        """Scipy blocks with equal rows, joined from left to right."""
        return self.matrix(sp.csr_array(sp.hstack(blocks, format="csr")))

    def weights(self, values: object) -> torch.Tensor:
        """Weights of payload rows as a tensor of the run's device."""
        return torch.as_tensor(values, dtype=torch.float32, device=self.device)

    def index(self, ids: object) -> torch.Tensor:
        """Row numbers as a tensor of the run's device."""
        return torch.as_tensor(ids, dtype=torch.int64, device=self.device)


def row_squares(matrix: sp.csr_array) -> npt.NDArray[np.float64]:
    """Sum of the squared entries of each row."""
    return np.asarray(matrix.multiply(matrix).sum(axis=1), dtype=np.float64).ravel()
