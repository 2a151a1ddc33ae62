"""The weighted sparse product in Triton: `out (+)= A H`, one program a row and block of columns.

Rows with very many entries (hubs) would keep one program busy when all others are done. Their entries are
cut into segments, each with a program of its own. The sums of segments are added up by the same kernel, in
order, so that no bit depends on which program came first.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from sancus.kernels.base import Csr

HUB = 4096  # entries: a row with more is cut
BLOCK = 128  # columns of a program, at most


@triton.jit
def spmm_kernel(
    first,  # [rows] int64: where the entries of a row begin
    last,  # [rows] int64
    row,  # [rows] int64: of `out`; not read where ALL
    col,
    value,  # [nnz, HEADS]
    dense,
    out,
    dense_stride,
    out_stride,
    columns,
    width,  # columns of a head
    HEADS: tl.constexpr,
    WEIGHTED: tl.constexpr,
    ALL: tl.constexpr,  # rows in order, without hubs
    ADD: tl.constexpr,
    LIMIT: tl.constexpr,  # entries of a row that is no hub
    SIZE: tl.constexpr,
):
    """Sums of weighted rows of `dense`."""
    number = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    inside = column < columns
    begin = tl.load(first + number)
    end = tl.load(last + number)
    if ALL:
        to = number
        entries = end - begin
        end = tl.where(entries <= LIMIT, end, begin)
        inside = column < tl.where(entries <= LIMIT, columns, 0)
    else:
        to = tl.load(row + number)
    total = tl.zeros((SIZE,), out.dtype.element_ty)
    for entry in range(begin, end):
        source = tl.load(col + entry).to(tl.int64)
        values = tl.load(dense + source * dense_stride + column, mask=inside, other=0.0)
        if WEIGHTED:
            if HEADS == 1:
                total += tl.load(value + entry) * values
            else:
                head = column // width
                weight = tl.load(value + entry * HEADS + head, mask=inside, other=0.0)
                total += weight * values
        else:
            total += values
    place = out + to * out_stride + column
    if ADD:
        total += tl.load(place, mask=inside, other=0.0)
    tl.store(place, total, mask=inside)


@dataclass(frozen=True)
class Hubs:
    """The rows of a matrix that are cut."""

    rows: torch.Tensor  # [k] int64
    first: torch.Tensor  # [s] of every segment
    last: torch.Tensor  # [s]
    crow: torch.Tensor  # [k + 1]: the segments of each row

    @property
    def segments(self) -> int:
        """How many."""
        return len(self.first)


@dataclass(frozen=True)
class Prepared:
    """A matrix, and its hubs, None where it has none."""

    matrix: Csr
    limit: int  # entries of a row that is no hub
    hubs: Hubs | None


def prepare(matrix: Csr, limit: int = HUB) -> Prepared:
    """Look for hubs, once a matrix."""
    counts = matrix.crow[1:] - matrix.crow[:-1]
    rows = torch.nonzero(counts > limit).flatten()
    if not len(rows):
        return Prepared(matrix, limit, None)
    segments = (counts[rows] + limit - 1) // limit
    crow = torch.cat([segments.new_zeros(1), segments.cumsum(0)])
    of = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), segments)
    place = torch.arange(len(of), device=rows.device) - crow[of]
    first = matrix.crow[rows][of] + place * limit
    last = torch.minimum(first + limit, matrix.crow[rows + 1][of])
    return Prepared(matrix, limit, Hubs(rows, first, last, crow))


def spmm(
    prepared: Prepared,
    value: torch.Tensor,
    dense: torch.Tensor,
    out: torch.Tensor,
    *,
    accumulate: bool = False,
) -> None:
    """`out [m, f] (+)= A H` for `value [nnz]` or `[nnz, heads]` and `H [n, f]`."""
    matrix, hubs = prepared.matrix, prepared.hubs
    if not out.numel():
        return
    dense = dense if dense.stride(1) == 1 else dense.contiguous()
    heads = value.shape[1] if value.dim() == 2 else 1
    value = value.contiguous()
    whole = prepared.limit if hubs is not None else None
    _launch(matrix.crow[:-1], matrix.crow[1:], None, matrix.col, value, dense, out, heads, accumulate, whole)
    if hubs is None:
        return
    parts = out.new_empty(hubs.segments, out.shape[1])
    order = torch.arange(hubs.segments, device=out.device)
    _launch(hubs.first, hubs.last, order, matrix.col, value, dense, parts, heads, False, None)
    _launch(hubs.crow[:-1], hubs.crow[1:], hubs.rows, order, None, parts, out, 1, accumulate, None)


def spmm_of_entries(
    crow: torch.Tensor, col: torch.Tensor, value: torch.Tensor, dense: torch.Tensor
) -> torch.Tensor:
    """`A H [m, f]` for entries `value [nnz]` or `[nnz, heads]` that change; no row is cut."""
    out = dense.new_empty(len(crow) - 1, dense.shape[1])
    shape = len(out), len(dense)
    spmm(Prepared(Csr(crow, col, value, shape), HUB, None), value, dense, out)
    return out


def _launch(
    first: torch.Tensor,
    last: torch.Tensor,
    row: torch.Tensor | None,
    col: torch.Tensor,
    value: torch.Tensor | None,
    dense: torch.Tensor,
    out: torch.Tensor,
    heads: int,
    add: bool,
    limit: int | None,
) -> None:
    """One kernel over rows or segments; `row` is None for all rows of `out`, `limit` for no hubs."""
    columns = out.shape[1]
    size = min(BLOCK, triton.next_power_of_2(columns))
    spmm_kernel[(len(first), triton.cdiv(columns, size))](
        first,
        last,
        first if row is None else row,
        col,
        out if value is None else value,
        dense,
        out,
        dense.stride(0),
        out.stride(0),
        columns,
        columns // heads,
        HEADS=heads,
        WEIGHTED=value is not None,
        ALL=row is None,
        ADD=add,
        LIMIT=1 << 62 if limit is None else limit,
        SIZE=size,
        enable_fp_fusion=True,
    )
