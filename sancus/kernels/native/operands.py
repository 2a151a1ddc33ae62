"""What the C library demands of the tensors that are passed to it as pointers.

Checks are for assertions, since a wrong operand is a mistake of ours: `python -O` leaves them out.
"""

from __future__ import annotations

import torch


def as_rows(dense: torch.Tensor) -> torch.Tensor:
    """`dense [n, f]` with contiguous columns: itself where that is so."""
    return dense if dense.stride(1) == 1 or dense.shape[1] <= 1 else dense.contiguous()


def check_indices(crow: torch.Tensor, col: torch.Tensor, columns: int) -> None:
    """Assert that a pattern stays inside its matrix; the C code itself checks no index."""
    assert len(crow) and int(crow[0]) == 0 and int(crow[-1]) == len(col), "crow does not span the entries"
    assert bool((crow[1:] >= crow[:-1]).all()), "crow descends"
    if len(col):
        least, most = torch.aminmax(col)
        assert int(least) >= 0 and int(most) < columns, f"a column is outside 0 … {columns - 1}"


def is_pattern(crow: torch.Tensor, col: torch.Tensor, rows: int) -> bool:
    """Whether `crow [rows + 1]` and `col [nnz]` have the dtypes and the memory that the C code reads."""
    return (
        crow.dtype == torch.int64
        and col.dtype in (torch.int32, torch.int64)
        and len(crow) == rows + 1
        and crow.is_contiguous()
        and col.is_contiguous()
    )


def are_real(*tensors: torch.Tensor) -> bool:
    """Whether all are on the CPU and of the same one of the two dtypes, float32 and float64."""
    dtype = tensors[0].dtype
    real = dtype in (torch.float32, torch.float64)
    return real and all(t.dtype == dtype and t.device.type == "cpu" for t in tensors)


def has_rows(out: torch.Tensor) -> bool:
    """Whether `out [n, f]` can be written row by row."""
    return out.dim() == 2 and (out.stride(1) == 1 or out.shape[1] <= 1)
