"""An operator cut into chunks: rows that go through the layers together, columns that are known together.

The rows of a graph are cut into `K` chunks, and those of every rank are sorted by chunk (GNNPipe §3.3). When
chunk `k` has got its rows of a layer, they become *columns*: own rows of the chunk, then what other ranks
send of theirs, by a plan over the columns of that chunk alone. The columns of all chunks stand one after
another, so that own rows of chunk `k` are a product with a table of all of them:

    T[C_k] = M_k · [columns of chunk 0 | columns of chunk 1 | …]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch

from sancus.graphs.operator import Operator
from sancus.kernels.matrix import SparseMatrix
from sancus.plans.base import Plan, Workbench
from sancus.plans.maps import Beside, Identity, Product, RowMap, Scatter

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Selection:
    """The columns that some rows take from, own rows of the chunk first, and the matrix over them alone."""

    columns: torch.Tensor  # [u] of the table
    matrix: SparseMatrix  # [n_ik, u]


@dataclass(frozen=True)
class ChunkedOperator:
    """Own rows of `Â` chunk by chunk, over a table of the columns of all chunks."""

    rows: Sequence[slice]  # [K] own rows of each chunk
    columns: Sequence[slice]  # [K] of the table: own rows of the chunk, then what arrives for it
    matrices: Sequence[SparseMatrix]  # [K] own rows of a chunk over the table, [n_ik, M]
    plans: Sequence[Plan]  # [K] what of a chunk's rows crosses between the ranks

    @property
    def chunks(self) -> int:
        """`K`."""
        return len(self.rows)

    @property
    def width(self) -> int:
        """`M`, the rows of the table."""
        return self.columns[-1].stop

    @property
    def picks_rows(self) -> bool:
        """Whether all columns are rows of `H`: what arrives are rows, not sums."""
        return all(plan.picks_rows for plan in self.plans)

    def own_columns(self, chunk: int) -> slice:
        """The columns of a chunk that are own rows."""
        start, rows = self.columns[chunk].start, self.rows[chunk]
        return slice(start, start + rows.stop - rows.start)

    def select(self, chunk: int) -> Selection:
        """The columns that a chunk's rows take from."""
        own = self.own_columns(chunk)
        return select(self.matrices[chunk], torch.arange(own.start, own.stop))

    def entries(self) -> torch.Tensor:
        """`[K, K]`: how many entries rows of each chunk have in the columns of each chunk."""
        ends = torch.tensor([columns.stop for columns in self.columns])
        found = torch.zeros(self.chunks, self.chunks, dtype=torch.int64)
        for chunk, matrix in enumerate(self.matrices):
            place = torch.searchsorted(ends, matrix.csr.col.to("cpu", torch.int64), right=True)
            found[chunk] = torch.bincount(place, minlength=self.chunks)
        return found


def stale_share(entries: torch.Tensor, order: Sequence[int]) -> float:
    """The share of `entries [K, K]` whose column is of a chunk that comes after that of their row."""
    ordered = entries[list(order)][:, list(order)]
    return float(ordered.triu(1).sum()) / max(1, int(ordered.sum()))


def cut_operator(
    operator: Operator, sizes: Ids, make_plan: Callable[..., Plan], bench: Workbench
) -> ChunkedOperator:
    """Cut an operator; `sizes [p, K]` are the rows of every rank in each chunk, by which they are sorted."""
    ends = sizes.cumsum(axis=1)
    starts, own = ends - sizes, operator.rank
    rows = [slice(*pair) for pair in zip(starts[own].tolist(), ends[own].tolist(), strict=True)]
    plans, blocks = [], []
    for chunk in range(sizes.shape[1]):
        part = operator.only(starts[:, chunk], ends[:, chunk])
        plan = make_plan(operator=part)
        others = [row_map for rank, row_map in enumerate(plan.forward.add) if rank != own]
        plans.append(plan)
        blocks.append(sp.hstack([part.block(own), *map(_as_matrix, others)], format="csr"))
    widths = np.cumsum([0, *(block.shape[1] for block in blocks)]).tolist()
    table = sp.csr_array(sp.hstack(blocks, format="csr"))
    table.sort_indices()
    return ChunkedOperator(
        rows,
        [slice(*pair) for pair in itertools.pairwise(widths)],
        [bench.matrix(table[part]) for part in rows],
        plans,
    )


def select(matrix: SparseMatrix, first: torch.Tensor) -> Selection:
    """The columns of `matrix [n, m]` that have an entry, with `first [k]` before all others."""
    csr = matrix.csr
    column, device = csr.col.to(torch.int64), csr.col.device
    first = first.to(device)
    used = torch.zeros(csr.shape[1], dtype=torch.bool, device=device)
    used[column] = True
    used[first] = False
    columns = torch.cat([first, torch.nonzero(used).flatten()])
    place = torch.empty(csr.shape[1], dtype=torch.int64, device=device)
    place[columns] = torch.arange(len(columns), device=device)
    values = csr.value.cpu().numpy().copy()  # a copy: sorting moves them
    scipy_matrix = sp.csr_array(
        (values, place[column].cpu().numpy(), csr.crow.cpu().numpy()), shape=(csr.shape[0], len(columns))
    )
    scipy_matrix.sort_indices()
    return Selection(columns, SparseMatrix.from_scipy(scipy_matrix, matrix.kernel, csr.value.dtype, device))


def _as_matrix(row_map: RowMap) -> sp.csr_array:
    """What a payload is multiplied by, `[n_i, rows of the payload]`."""
    if isinstance(row_map, Product):
        csr = row_map.matrix.csr
        parts = (csr.value.cpu().numpy(), csr.col.cpu().numpy(), csr.crow.cpu().numpy())
        return sp.csr_array(parts, shape=csr.shape)
    if isinstance(row_map, Scatter):
        index = row_map.index.cpu().numpy()
        ones = np.ones(len(index), np.float64)
        shape = (row_map.rows_out, row_map.rows_in)
        return sp.csr_array((ones, (index, np.arange(len(index)))), shape=shape)
    if isinstance(row_map, Identity):
        return sp.csr_array(sp.eye_array(row_map.rows_in, format="csr"))
    assert isinstance(row_map, Beside), "payloads are added by products, in place, or by both side by side"
    return sp.csr_array(sp.hstack([_as_matrix(row_map.left), _as_matrix(row_map.right)], format="csr"))
