"""Attention over the entries of a matrix in Triton: scores, and their softmax by row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 128  # columns of a step
ENTRIES = 64  # of a step of the softmax


@triton.jit
def sddmm_kernel(
    crow, col, left, right, score, left_stride, right_stride, width, HEADS: tl.constexpr, SIZE: tl.constexpr
):
    """`<left[i], right[j]>` of the entries of a row; one program a row and head."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    left += row * left_stride + head * width
    for entry in range(tl.load(crow + row), tl.load(crow + row + 1)):
        source = right + tl.load(col + entry).to(tl.int64) * right_stride + head * width
        total = tl.zeros((SIZE,), score.dtype.element_ty)
        for start in range(0, width, SIZE):
            column = start + tl.arange(0, SIZE)
            inside = column < width
            mine = tl.load(left + column, mask=inside, other=0.0)
            total += mine * tl.load(source + column, mask=inside, other=0.0)
        tl.store(score + entry * HEADS + head, tl.sum(total, axis=0))


@triton.jit
def softmax_kernel(crow, score, share, HEADS: tl.constexpr, SIZE: tl.constexpr):
    """The softmax of one head over the entries of a row."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    begin, end = tl.load(crow + row), tl.load(crow + row + 1)
    most = tl.full((SIZE,), float("-inf"), share.dtype.element_ty)
    for start in range(begin, end, SIZE):
        entry = start + tl.arange(0, SIZE)
        values = tl.load(score + entry * HEADS + head, mask=entry < end, other=float("-inf"))
        most = tl.maximum(most, values)
    top = tl.max(most, axis=0)
    total = tl.zeros((SIZE,), share.dtype.element_ty)
    for start in range(begin, end, SIZE):
        entry = start + tl.arange(0, SIZE)
        values = tl.load(score + entry * HEADS + head, mask=entry < end, other=float("-inf"))
        total += tl.exp(values - top)
    whole = tl.sum(total, axis=0)
    for start in range(begin, end, SIZE):
        entry = start + tl.arange(0, SIZE)
        inside = entry < end
        values = tl.load(score + entry * HEADS + head, mask=inside, other=float("-inf"))
        tl.store(share + entry * HEADS + head, tl.exp(values - top) / whole, mask=inside)


@triton.jit
def softmax_back_kernel(crow, share, gradient, out, HEADS: tl.constexpr, SIZE: tl.constexpr):
    """`share (gradient − Σ share · gradient)` of one head over the entries of a row."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    begin, end = tl.load(crow + row), tl.load(crow + row + 1)
    total = tl.zeros((SIZE,), out.dtype.element_ty)
    for start in range(begin, end, SIZE):
        entry = start + tl.arange(0, SIZE)
        part = tl.load(share + entry * HEADS + head, mask=entry < end, other=0.0)
        total += part * tl.load(gradient + entry * HEADS + head, mask=entry < end, other=0.0)
    whole = tl.sum(total, axis=0)
    for start in range(begin, end, SIZE):
        entry = start + tl.arange(0, SIZE)
        inside = entry < end
        part = tl.load(share + entry * HEADS + head, mask=inside, other=0.0)
        here = tl.load(gradient + entry * HEADS + head, mask=inside, other=0.0)
        tl.store(out + entry * HEADS + head, part * (here - whole), mask=inside)


def sddmm(
    pattern: tuple[torch.Tensor, torch.Tensor], left: torch.Tensor, right: torch.Tensor, heads: int
) -> torch.Tensor:
    """`[nnz, heads]`: `<left[i], right[j]>` of every entry `(i, j)`, a head's columns at a time."""
    crow, col = pattern
    left, right = (x if x.stride(1) == 1 else x.contiguous() for x in (left, right))
    score = left.new_empty(len(col), heads)
    width = left.shape[1] // heads
    if len(col):
        size = min(BLOCK, triton.next_power_of_2(max(1, width)))
        sddmm_kernel[(len(crow) - 1, heads)](
            crow,
            col,
            left,
            right,
            score,
            left.stride(0),
            right.stride(0),
            width,
            HEADS=heads,
            SIZE=size,
            enable_fp_fusion=True,
        )
    return score


def edge_softmax(crow: torch.Tensor, score: torch.Tensor) -> torch.Tensor:
    """Softmax of `score [nnz, heads]` over the entries of each row."""
    score = score.contiguous()
    share = torch.empty_like(score)
    if score.numel():
        grid, heads = (len(crow) - 1, score.shape[1]), score.shape[1]
        softmax_kernel[grid](crow, score, share, HEADS=heads, SIZE=ENTRIES, enable_fp_fusion=True)
    return share


def edge_softmax_backward(crow: torch.Tensor, share: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """The gradient of the scores `[nnz, heads]` from that of the shares."""
    share, gradient = share.contiguous(), gradient.contiguous()
    out = torch.empty_like(share)
    if share.numel():
        grid, heads = (len(crow) - 1, share.shape[1]), share.shape[1]
        softmax_back_kernel[grid](
            crow, share, gradient, out, HEADS=heads, SIZE=ENTRIES, enable_fp_fusion=True
        )
    return out
