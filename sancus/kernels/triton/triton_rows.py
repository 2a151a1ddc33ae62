"""Rows by number in Triton: picked, added where they were picked, added where they belong."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

COPY, ADD_PICKED, ADD_PLACED = range(3)
BLOCK = 256  # columns of a program, at most


@triton.jit
def move_rows_kernel(
    index, dense, out, dense_stride, out_stride, columns, OPERATION: tl.constexpr, SIZE: tl.constexpr
):
    """`out[k] = dense[index[k]]` (0), `out[k] += dense[index[k]]` (1) or `out[index[k]] += dense[k]` (2)."""
    number = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    inside = column < columns
    there = tl.load(index + number)
    if OPERATION == 2:
        source, to = number, there
    else:
        source, to = there, number
    values = tl.load(dense + source * dense_stride + column, mask=inside)
    place = out + to * out_stride + column
    if OPERATION != 0:
        values = tl.load(place, mask=inside) + values
    tl.store(place, values, mask=inside)


def move_rows(operation: int, index: torch.Tensor, dense: torch.Tensor, out: torch.Tensor) -> None:
    """As `sancus.kernels.native.calls.move_rows`; the numbers of ADD_PLACED are distinct."""
    if not len(index) or not out.shape[1]:
        return
    dense = dense if dense.stride(1) == 1 else dense.contiguous()
    size = min(BLOCK, triton.next_power_of_2(out.shape[1]))
    move_rows_kernel[(len(index), triton.cdiv(out.shape[1], size))](
        index,
        dense,
        out,
        dense.stride(0),
        out.stride(0),
        out.shape[1],
        OPERATION=operation,
        SIZE=size,
        enable_fp_fusion=True,
    )
