"""Rows by index: `out = h[index]`, `out += h[index]`, `out[index] += h`; how plans pick and place payloads.

Native where its library loads, Triton on a GPU, torch elsewhere; all give the same bits: nothing to choose.
torch's `index_add_` adds row after row on one thread; ours does not. All of it is outside autograd.
"""

from __future__ import annotations

import torch

from sancus.kernels import gpu
from sancus.kernels.native import calls
from sancus.kernels.native.library import available


def take(h: torch.Tensor, index: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """`h[index]` for `h [n, f]` and `index [k]` int64, written straight into `out [k, f]` if it is given."""
    if out is None:
        out = h.new_empty(len(index), h.shape[1])
    if _moved(calls.COPY, index, h, out):
        return out
    return torch.index_select(h, 0, index, out=out)


def add_taken(h: torch.Tensor, index: torch.Tensor, out: torch.Tensor) -> None:
    """`out [k, f] += h[index]`, with no copy of the rows."""
    if not _moved(calls.ADD_PICKED, index, h, out):
        out += h.index_select(0, index)


def add_at(h: torch.Tensor, index: torch.Tensor, out: torch.Tensor) -> None:
    """`out[index] += h` for `h [k, f]`; the numbers in `index [k]` are distinct."""
    if not _moved(calls.ADD_PLACED, index, h, out):
        out.index_add_(0, index, h)


def _moved(operation: int, index: torch.Tensor, h: torch.Tensor, out: torch.Tensor) -> bool:
    """Move rows by a kernel of ours; False where none takes these tensors, and nothing has moved."""
    on_cpu = h.device.type == "cpu"
    if __debug__ and on_cpu and len(index):  # a GPU would have to tell the host
        bound = len(out) if operation == calls.ADD_PLACED else len(h)
        least, most = torch.aminmax(index)
        assert int(least) >= 0 and int(most) < bound, f"a row is outside 0 … {bound - 1}"
    plain = h.dtype == out.dtype and h.dtype in (torch.float32, torch.float64)
    rows = out.dim() == 2 and out.stride(1) == 1 and h.dim() == 2 and index.is_contiguous()
    if not (plain and rows):
        return False
    if gpu.compiles(h):
        from sancus.kernels.triton import triton_rows as kernels  # takes seconds to import

        kernels.move_rows(operation, index, h, out)
        return True
    if on_cpu and available():
        calls.move_rows(operation, index, h, out)
        return True
    return False
