"""The functions of the C library, called on tensors: operands are checked, then passed as pointers.

A dense operand may have any distance between its rows; its columns are contiguous, or it is copied.
"""

from __future__ import annotations

import torch

from sancus.kernels.native.library import Library, library, threads
from sancus.kernels.native.operands import are_real, as_rows, has_rows, is_pattern

COPY, ADD_PICKED, ADD_PLACED = range(3)  # operations of sancus_move_rows

# Long rows of H are multiplied a panel of columns at a time, from a copy of the panel (docs/kernels.md).
LONG_ROW = 2048  # bytes: beyond this, fewer columns leave so many more rows in the cache that it pays
PANEL = 512  # bytes of a row
LEAST_REUSE = 16  # entries a row of H: with fewer, the copy costs more than it saves
LEAST_BYTES = 1 << 25  # of H: less is in a cache anyway, and short products lose by being many


def spmm(
    pattern: tuple[torch.Tensor, torch.Tensor],
    value: torch.Tensor,
    dense: torch.Tensor,
    out: torch.Tensor,
    *,
    accumulate: bool = False,
    native: Library | None = None,
) -> None:
    """`out [m, f] (+)= A H` with `pattern = (crow [m + 1], col [nnz])` and `H [n, f]`.

    `value [nnz]`, or `[nnz, heads]`: then the columns are `heads` groups of equal width, one weight each.
    """
    crow, col = pattern
    heads = value.shape[1] if value.dim() == 2 else 1
    dense = as_rows(dense)
    assert is_pattern(crow, col, len(out)) and value.is_contiguous() and len(value) == len(col)
    assert are_real(value, dense, out) and has_rows(out) and dense.shape[1] == out.shape[1]
    assert heads > 0 and out.shape[1] % heads == 0, f"{out.shape[1]} columns are not {heads} equal heads"
    if not out.numel():
        return
    native = native or library()
    if heads > 1 or not _pays_in_panels(len(col), dense):
        _spmm(native, pattern, value, heads, dense, out, accumulate)
        return
    width = PANEL // dense.element_size()
    scratch = dense.new_empty(len(dense), width)
    for first in range(0, out.shape[1], width):
        panel = dense[:, first : first + width]
        copy = scratch[:, : panel.shape[1]].copy_(panel)
        _spmm(native, pattern, value, 1, copy, out[:, first : first + width], accumulate)


def _pays_in_panels(entries: int, dense: torch.Tensor) -> bool:
    """Whether the rows of H are long, and read so often from memory that a copy is paid back."""
    rows, columns = dense.shape
    row_bytes = columns * dense.element_size()
    return row_bytes > LONG_ROW and entries >= LEAST_REUSE * rows and rows * row_bytes >= LEAST_BYTES


def _spmm(
    native: Library,
    pattern: tuple[torch.Tensor, torch.Tensor],
    value: torch.Tensor,
    heads: int,
    dense: torch.Tensor,
    out: torch.Tensor,
    accumulate: bool,
) -> None:
    """The call of the C function, on operands that were checked by `spmm`."""
    crow, col = pattern
    native.functions.sancus_spmm(
        native.isa,
        threads(),
        out.dtype == torch.float64,
        col.dtype == torch.int64,
        len(out),
        crow.data_ptr(),
        col.data_ptr(),
        value.data_ptr(),
        len(dense),
        dense.data_ptr(),
        dense.stride(0),
        out.data_ptr(),
        out.stride(0),
        heads,
        out.shape[1] // heads,
        accumulate,
    )


def move_rows(operation: int, index: torch.Tensor, dense: torch.Tensor, out: torch.Tensor) -> None:
    """`out[k] = dense[index[k]]` (COPY), `+=` (ADD_PICKED), or `out[index[k]] += dense[k]` (ADD_PLACED).

    For ADD_PLACED the numbers in `index [rows] int64` are distinct.
    """
    dense = as_rows(dense)
    short = dense if operation == ADD_PLACED else out
    assert index.dtype == torch.int64 and index.is_contiguous() and len(index) == len(short)
    assert are_real(dense, out) and has_rows(out) and dense.shape[1] == out.shape[1]
    if not short.numel():
        return
    library().functions.sancus_move_rows(
        threads(),
        out.dtype == torch.float64,
        operation,
        len(index),
        index.data_ptr(),
        dense.data_ptr(),
        dense.stride(0),
        out.data_ptr(),
        out.stride(0),
        out.shape[1],
    )


def drop(
    x: torch.Tensor,
    keys: tuple[torch.Tensor, torch.Tensor],
    bucket: int,
    scale: float,
    *,
    native: Library | None = None,
) -> torch.Tensor:
    """`x [n, f]` with entries zeroed or scaled by the hash of `keys`: of rows `[n]`, of columns `[f]`."""
    x, (rows, columns) = as_rows(x), keys
    assert are_real(x) and all(key.dtype == torch.int32 and key.is_contiguous() for key in keys)
    assert x.shape == (len(rows), len(columns))
    out = torch.empty(x.shape, dtype=x.dtype)
    if not out.numel():
        return out
    native = native or library()
    native.functions.sancus_drop(
        native.isa,
        threads(),
        x.dtype == torch.float64,
        *x.shape,
        rows.data_ptr(),
        columns.data_ptr(),
        bucket,
        scale,
        x.data_ptr(),
        x.stride(0),
        out.data_ptr(),
        out.stride(0),
    )
    return out


def keep_entries(
    pattern: tuple[torch.Tensor, torch.Tensor],
    value: torch.Tensor,
    keys: tuple[torch.Tensor, torch.Tensor],
    bucket: int,
    scale: float,
    *,
    native: Library | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """crow, col and value of `pattern = (crow, col)` without the entries that the hash drops."""
    (crow, col), (rows, columns) = pattern, keys
    assert all(key.dtype == torch.int32 and key.is_contiguous() for key in keys)
    assert is_pattern(crow, col, len(rows)) and are_real(value)
    assert value.is_contiguous() and len(value) == len(col)
    native = native or library()
    matrix = len(rows), crow.data_ptr(), col.data_ptr(), rows.data_ptr(), columns.data_ptr(), bucket
    long_index = col.dtype == torch.int64
    kept_crow = torch.zeros_like(crow)
    native.functions.sancus_count_kept(native.isa, threads(), long_index, *matrix, kept_crow[1:].data_ptr())
    kept_crow.cumsum_(0)
    kept_col, kept_value = col.new_empty(int(kept_crow[-1])), value.new_empty(int(kept_crow[-1]))
    native.functions.sancus_keep_entries(
        native.isa,
        threads(),
        value.dtype == torch.float64,
        long_index,
        *matrix,
        scale,
        value.data_ptr(),
        kept_crow.data_ptr(),
        kept_col.data_ptr(),
        kept_value.data_ptr(),
    )
    return kept_crow, kept_col, kept_value


def sddmm(
    pattern: tuple[torch.Tensor, torch.Tensor],
    left: torch.Tensor,
    right: torch.Tensor,
    heads: int,
    *,
    native: Library | None = None,
) -> torch.Tensor:
    """`[nnz, heads]`: for each entry (i, j) and head, `<left[i], right[j]>` over the head's columns."""
    crow, col = pattern
    left, right = as_rows(left), as_rows(right)
    assert is_pattern(crow, col, len(left)) and are_real(left, right)
    assert heads > 0 and left.shape[1] == right.shape[1] and left.shape[1] % heads == 0
    score = left.new_empty(len(col), heads)
    native = native or library()
    native.functions.sancus_sddmm(
        native.isa,
        threads(),
        left.dtype == torch.float64,
        col.dtype == torch.int64,
        len(left),
        crow.data_ptr(),
        col.data_ptr(),
        left.data_ptr(),
        left.stride(0),
        len(right),
        right.data_ptr(),
        right.stride(0),
        heads,
        left.shape[1] // heads,
        score.data_ptr(),
    )
    return score


def edge_softmax(crow: torch.Tensor, score: torch.Tensor, *, native: Library | None = None) -> torch.Tensor:
    """Softmax of `score [nnz, heads]` over the entries of each row."""
    score = score.contiguous()
    assert crow.dtype == torch.int64 and crow.is_contiguous() and are_real(score)
    share = torch.empty_like(score)
    native = native or library()
    native.functions.sancus_edge_softmax(
        native.isa,
        threads(),
        score.dtype == torch.float64,
        len(crow) - 1,
        crow.data_ptr(),
        score.data_ptr(),
        score.shape[1],
        share.data_ptr(),
    )
    return share


def edge_softmax_backward(
    crow: torch.Tensor, share: torch.Tensor, gradient: torch.Tensor, *, native: Library | None = None
) -> torch.Tensor:
    """The gradient of the scores `[nnz, heads]` from that of the shares."""
    share, gradient = share.contiguous(), gradient.contiguous()
    assert crow.dtype == torch.int64 and crow.is_contiguous()
    assert are_real(share, gradient) and share.shape == gradient.shape
    out = torch.empty_like(share)
    native = native or library()
    native.functions.sancus_edge_softmax_backward(
        native.isa,
        threads(),
        share.dtype == torch.float64,
        len(crow) - 1,
        crow.data_ptr(),
        share.data_ptr(),
        gradient.data_ptr(),
        share.shape[1],
        out.data_ptr(),
    )
    return out


def pack(
    x: torch.Tensor,
    bits: int,
    seed: int,
    row_ids: torch.Tensor,
    *,
    coarse: bool = False,
    native: Library | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Packed rows, zero points, scales, and which rows are finite; `x [n, c]` float32 with c > 0."""
    x = as_rows(x)
    rows, columns = x.shape
    assert x.dtype == torch.float32 and x.device.type == "cpu" and columns > 0
    assert row_ids.dtype == torch.int64 and row_ids.is_contiguous() and len(row_ids) == rows
    data = torch.empty(rows, (columns * bits + 7) // 8, dtype=torch.uint8)
    zero, scale = torch.empty(rows), torch.empty(rows)
    finite = torch.empty(rows, dtype=torch.bool)
    native = native or library()
    native.functions.sancus_pack(
        native.isa,
        threads(),
        bits,
        coarse,
        seed & (2**64 - 1),
        rows,
        columns,
        x.data_ptr(),
        x.stride(0),
        row_ids.data_ptr(),
        data.data_ptr(),
        zero.data_ptr(),
        scale.data_ptr(),
        finite.data_ptr(),
    )
    return data, zero, scale, finite


def unpack(
    data: torch.Tensor,
    zero: torch.Tensor,
    scale: torch.Tensor,
    bits: int,
    out: torch.Tensor,
    *,
    native: Library | None = None,
) -> None:
    """Decode into `out [n, c]` float32."""
    rows, columns = out.shape
    assert data.is_contiguous() and data.shape == (rows, (columns * bits + 7) // 8)
    assert all(t.dtype == torch.float32 and t.is_contiguous() and len(t) == rows for t in (zero, scale))
    assert data.dtype == torch.uint8 and out.dtype == torch.float32 and has_rows(out)
    native = native or library()
    native.functions.sancus_unpack(
        native.isa,
        threads(),
        bits,
        rows,
        columns,
        data.data_ptr(),
        zero.data_ptr(),
        scale.data_ptr(),
        out.data_ptr(),
        out.stride(0),
    )
