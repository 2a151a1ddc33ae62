"""Normalised adjacencies `Â`, as a scaling of rows and columns: `Â_vu = A_vu · left_v · right_u`.

| name        | matrix                          | model     |
|-------------|---------------------------------|-----------|
| `symmetric` | `D^-1/2 (A + I) D^-1/2`         | GCN       |
| `mean`      | `D^-1 A`                        | GraphSAGE |
| `sum`       | `A`                             | GIN       |

`D` is the diagonal of row sums: of `A + I` for `symmetric`, as in PyG's `gcn_norm` (a node that
already has a self-loop keeps its weight), of `A` for `mean`. A node without neighbours has a zero row.
Because both factors are per node, a rank that knows the row sums of its own and of its neighbouring
nodes can normalise its rows of `Â`, and of `Âᵀ`, alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from sancus.partitioners.pieces import csr_pieces

Normalisation = Literal["symmetric", "mean", "sum"]
Vector = npt.NDArray[np.float64]
OWN_TRANSPOSE = ("symmetric", "sum")  # of an undirected graph: `Âᵀ = Â`


@dataclass(frozen=True)
class RowSums:
    """Row sums of the raw adjacency: without, and with, the self-loops that `symmetric` adds."""

    plain: Vector
    looped: Vector


@dataclass(frozen=True)
class _Scaling:
    loops: bool
    left: Callable[[RowSums], Vector]
    right: Callable[[RowSums], Vector]


def row_sums(adjacency: sp.csr_array, start: int = 0) -> RowSums:
    """Row sums `[n]` of an adjacency `[n, N]` whose first row is row `start` of the graph."""
    plain = np.zeros(adjacency.shape[0])
    looped = np.zeros(adjacency.shape[0], bool)
    for rows in csr_pieces(adjacency.indptr):
        piece = adjacency[rows]
        plain[rows] = np.asarray(piece.astype(np.float64).sum(axis=1)).ravel()
        looped[rows] = _has_loop(piece, start + rows.start)
    return RowSums(plain, plain + ~looped)


def normalise(
    kind: Normalisation, rows: sp.csr_array, start: int, sums: Callable[[npt.NDArray[np.int64]], RowSums]
) -> sp.csr_array:
    """Rows `start … start + n` of `Â`, from the same rows of `A` `[n, N]`, in float64."""
    return _scale(kind, rows, start, sums, transposed=False)


def normalise_transposed(
    kind: Normalisation, columns: sp.csr_array, start: int, sums: Callable[[npt.NDArray[np.int64]], RowSums]
) -> sp.csr_array:
    """Rows `start … start + n` of `Âᵀ`, from the same rows of `Aᵀ` `[n, N]`, in float64."""
    return _scale(kind, columns, start, sums, transposed=True)


def scales(kind: Normalisation, sums: RowSums) -> tuple[bool, Vector, Vector]:
    """Whether self-loops are added; the factors `left [n]`, `right [n]` of nodes with these row sums."""
    scaling = _SCALINGS[kind]
    return scaling.loops, scaling.left(sums), scaling.right(sums)


def _scale(
    kind: Normalisation,
    rows: sp.csr_array,
    start: int,
    sums: Callable[[npt.NDArray[np.int64]], RowSums],
    *,
    transposed: bool,
) -> sp.csr_array:
    scaling = _SCALINGS[kind]
    matrix = rows.astype(np.float64)
    if scaling.loops:
        matrix = _add_loops(matrix, start)
    own = np.arange(start, start + matrix.shape[0], dtype=np.int64)
    of_row, of_column = (scaling.right, scaling.left) if transposed else (scaling.left, scaling.right)
    row_scale = np.repeat(of_row(sums(own)), np.diff(matrix.indptr))
    matrix.data *= row_scale
    matrix.data *= _column_scales(matrix, lambda ids: of_column(sums(ids)))
    return matrix


def _column_scales(
    matrix: sp.csr_array, scale_of: Callable[[npt.NDArray[np.int64]], Vector]
) -> npt.NDArray[np.float64]:
    """`[nnz]`: the scale of every entry's column. It is looked up in a table `[N]` where that is smaller."""
    if matrix.shape[1] > matrix.nnz:
        columns, position = np.unique(matrix.indices, return_inverse=True)
        return scale_of(columns.astype(np.int64))[position]
    has_entry = np.zeros(matrix.shape[1], bool)
    has_entry[matrix.indices] = True
    columns = np.flatnonzero(has_entry)
    table = np.zeros(matrix.shape[1])
    table[columns] = scale_of(columns)
    return table[matrix.indices]


def _has_loop(rows: sp.csr_array, start: int) -> npt.NDArray[np.bool_]:
    """Whether row `start + k` stores the entry `(start + k, start + k)`."""
    has_loop = np.zeros(rows.shape[0], bool)
    row_of_entry = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    has_loop[row_of_entry[rows.indices == row_of_entry + start]] = True
    return has_loop


def _add_loops(rows: sp.csr_array, start: int) -> sp.csr_array:
    loopless = np.flatnonzero(~_has_loop(rows, start))
    loops = sp.csr_array((np.ones(loopless.size), (loopless, loopless + start)), shape=rows.shape)
    return sp.csr_array(rows + loops)


def _power(values: Vector, exponent: float) -> Vector:
    out = np.zeros_like(values)
    np.power(values, exponent, out=out, where=values > 0)
    return out


_SCALINGS: dict[Normalisation, _Scaling] = {
    "symmetric": _Scaling(True, lambda s: _power(s.looped, -0.5), lambda s: _power(s.looped, -0.5)),
    "mean": _Scaling(False, lambda s: _power(s.plain, -1.0), lambda s: np.ones_like(s.plain)),
    "sum": _Scaling(False, lambda s: np.ones_like(s.plain), lambda s: np.ones_like(s.plain)),
}
