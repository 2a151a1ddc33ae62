"""Attention over the entries of a sparse matrix, as torch operators with gradients.

An entry (i, j) carries one value a head, `[nnz, heads]`; dense columns are `heads` groups of equal width.
Graph attention is three calls:

    score = sddmm(matrix, query, key, heads)       # <query_i, key_j> for each entry and head
    share = edge_softmax(matrix, score)            # over the entries of each row
    out   = spmm(matrix, share, values)            # Σ_j share_ij values_j

The operators are `sancus::spmm`, `sancus::sddmm` and `sancus::edge_softmax`; `kernel` is "native",
"triton" or "torch". A sum `left_i + right_j` is the `sddmm` of `[left, 1]` and `[1, right]`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from sancus.kernels import edges_torch, gpu
from sancus.kernels.matrix import SparseMatrix
from sancus.kernels.native import calls
from sancus.kernels.native.operands import check_indices


class Scorer(Protocol):
    """How an edge is weighed, from what both of its ends offer."""

    heads: int

    def key(self, values: Tensor) -> Tensor:
        """`[m, k]` of rows, from their values `[m, heads·d]`."""
        ...

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        """`[E, heads]` of edges, from both ends `[E, k]`."""
        ...

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """The parameters of the three."""
        ...


@runtime_checkable
class LeakyScorer(Scorer, Protocol):
    """A scorer of the form `Σ_c mix_c LeakyReLU(q_ic + k_jc)` a head: it needs no tensor over the edges."""

    slope: float  # of LeakyReLU below 0

    def mix(self) -> Tensor | None:
        """`[heads, d]`, where the keys are the values; None: one column a head, that counts as it is."""
        ...


def spmm(matrix: SparseMatrix, value: Tensor, dense: Tensor) -> Tensor:
    """`[m, f]`: the product with `value [nnz]` or `[nnz, heads]` in place of the matrix's own values."""
    result: Tensor = torch.ops.sancus.spmm(*_structure(matrix), value, dense, _implementation(matrix))
    return result


def sddmm(matrix: SparseMatrix, left: Tensor, right: Tensor, heads: int = 1) -> Tensor:
    """`[nnz, heads]`: `<left[i], right[j]>` a head, for `left [m, f]` and `right [n, f]`."""
    result: Tensor = torch.ops.sancus.sddmm(*_structure(matrix), left, right, heads, _implementation(matrix))
    return result


def edge_softmax(matrix: SparseMatrix, score: Tensor) -> Tensor:
    """`[nnz, heads]`: shares that add up to 1 over the entries of each row."""
    result: Tensor = torch.ops.sancus.edge_softmax(matrix.csr.crow, score, _implementation(matrix))
    return result


def _structure(matrix: SparseMatrix) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """crow, col, and for the gradients the transpose's crow, col, and the order of its entries."""
    return matrix.csr.crow, matrix.csr.col, *matrix.transposition


def _implementation(matrix: SparseMatrix) -> str:
    """`native`, `triton` or `torch`: what the matrix's kernel names in `edges`, or `edges_on_gpu`."""
    if gpu.compiles(matrix.csr.col):
        return getattr(matrix.kernel, "edges_on_gpu", "torch")
    on_cpu = matrix.csr.col.device.type == "cpu"
    return getattr(matrix.kernel, "edges", "torch") if on_cpu else "torch"


@torch.library.custom_op("sancus::spmm", mutates_args=())
def _spmm(
    crow: Tensor,
    col: Tensor,
    crow_t: Tensor,
    col_t: Tensor,
    order: Tensor,
    value: Tensor,
    dense: Tensor,
    kernel: str,
) -> Tensor:
    if kernel == "torch":
        return edges_torch.spmm(crow, col, value, dense)
    if kernel == "triton":
        from sancus.kernels.triton import spmm as product  # takes seconds to import

        return product.spmm_of_entries(crow, col, value, dense)
    if __debug__:
        check_indices(crow, col, len(dense))
    out = dense.new_empty(len(crow) - 1, dense.shape[1])
    calls.spmm((crow, col), value.contiguous(), dense, out)
    return out


@torch.library.custom_op("sancus::sddmm", mutates_args=())
def _sddmm(
    crow: Tensor,
    col: Tensor,
    crow_t: Tensor,
    col_t: Tensor,
    order: Tensor,
    left: Tensor,
    right: Tensor,
    heads: int,
    kernel: str,
) -> Tensor:
    if kernel == "torch":
        return edges_torch.sddmm(crow, col, left, right, heads)
    if kernel == "triton":
        from sancus.kernels.triton import triton_edges as kernels

        return kernels.sddmm((crow, col), left, right, heads)
    if __debug__:
        check_indices(crow, col, len(right))
    return calls.sddmm((crow, col), left, right, heads)


@torch.library.custom_op("sancus::edge_softmax", mutates_args=())
def _edge_softmax(crow: Tensor, score: Tensor, kernel: str) -> Tensor:
    if kernel == "torch":
        return edges_torch.edge_softmax(crow, score)
    if kernel == "triton":
        from sancus.kernels.triton import triton_edges as kernels

        return kernels.edge_softmax(crow, score)
    assert int(crow[0]) == 0 and int(crow[-1]) == len(score), "crow does not span the entries"
    return calls.edge_softmax(crow, score)


@torch.library.custom_op("sancus::edge_softmax_backward", mutates_args=())
def _edge_softmax_backward(crow: Tensor, share: Tensor, gradient: Tensor, kernel: str) -> Tensor:
    if kernel == "torch":
        return edges_torch.edge_softmax_backward(crow, share, gradient)
    if kernel == "triton":
        from sancus.kernels.triton import triton_edges as kernels

        return kernels.edge_softmax_backward(crow, share, gradient)
    return calls.edge_softmax_backward(crow, share, gradient)


@_spmm.register_fake
def _(
    crow: Tensor, col: Any, crow_t: Any, col_t: Any, order: Any, value: Any, dense: Tensor, kernel: str
) -> Tensor:
    return dense.new_empty(crow.shape[0] - 1, dense.shape[1])


@_sddmm.register_fake
def _(
    crow: Any,
    col: Tensor,
    crow_t: Any,
    col_t: Any,
    order: Any,
    left: Tensor,
    right: Any,
    heads: int,
    kernel: str,
) -> Tensor:
    return left.new_empty(col.shape[0], heads)


@_edge_softmax.register_fake
def _(crow: Tensor, score: Tensor, kernel: str) -> Tensor:
    return torch.empty_like(score, memory_format=torch.contiguous_format)


@_edge_softmax_backward.register_fake
def _(crow: Tensor, share: Tensor, gradient: Tensor, kernel: str) -> Tensor:
    return torch.empty_like(share, memory_format=torch.contiguous_format)


def _save_spmm(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.kernel = inputs
    ctx.save_for_backward(*tensors)


def _spmm_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    """`dH = Aᵀ dY`, and `dA_ij = <dY_i, H_j>`."""
    crow, col, crow_t, col_t, order, value, dense = ctx.saved_tensors
    d_value = d_dense = None
    if ctx.needs_input_grad[5]:
        heads = value.shape[1] if value.dim() == 2 else 1
        d_value = _sddmm(crow, col, crow_t, col_t, order, gradient, dense, heads, ctx.kernel)
        d_value = d_value.reshape(value.shape)
    if ctx.needs_input_grad[6]:
        d_dense = _flipped(crow, col, crow_t, col_t, order, value, gradient, ctx.kernel)
    return None, None, None, None, None, d_value, d_dense, None


def _save_sddmm(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, _, ctx.kernel = inputs
    ctx.save_for_backward(*tensors)


def _sddmm_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    """`d left = G right`, `d right = Gᵀ left`, with the gradients `G` of the scores as entries."""
    crow, col, crow_t, col_t, order, left, right = ctx.saved_tensors
    d_left = d_right = None
    if ctx.needs_input_grad[5]:
        d_left = _spmm(crow, col, crow_t, col_t, order, gradient, right, ctx.kernel)
    if ctx.needs_input_grad[6]:
        d_right = _flipped(crow, col, crow_t, col_t, order, gradient, left, ctx.kernel)
    return None, None, None, None, None, d_left, d_right, None, None


def _flipped(
    crow: Tensor,
    col: Tensor,
    crow_t: Tensor,
    col_t: Tensor,
    order: Tensor,
    value: Tensor,
    dense: Tensor,
    kernel: str,
) -> Tensor:
    """`Aᵀ dense` for the entries `value` of `A`.

    The order that leads back from `Aᵀ` to `A` is left empty: only a second derivative would need it.
    """
    result: Tensor = _spmm(crow_t, col_t, crow, col, order[:0], value[order], dense, kernel)
    return result


def _save_softmax(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    crow, _, ctx.kernel = inputs
    ctx.save_for_backward(crow, output)


def _softmax_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    crow, share = ctx.saved_tensors
    return None, _edge_softmax_backward(crow, share, gradient, ctx.kernel), None


_spmm.register_autograd(_spmm_backward, setup_context=_save_spmm)
_sddmm.register_autograd(_sddmm_backward, setup_context=_save_sddmm)
_edge_softmax.register_autograd(_softmax_backward, setup_context=_save_softmax)
