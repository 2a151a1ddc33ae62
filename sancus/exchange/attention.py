"""Attention: `out_i = Σ_j α_ij V_j`, with `α_i` the softmax of scores over all entries of row `i`.

Two ways to get rows, one result. Where all received rows come at once (`halo`), there is one block, of own
and received rows. Where blocks come owner after owner (`block`), each is used as it arrives and let go: a
running maximum keeps the exponentials in range, and everything summed so far is rescaled when the maximum
grows. So no rank ever holds all rows at once:

    m' = max(m, max_j e_ij)     s' = s exp(m − m') + Σ_j exp(e_ij − m')
    o' = o exp(m − m') + Σ_j exp(e_ij − m') V_j          out = o / s

Backward needs the blocks again (they travel again, unless they had to be kept) but no sum over all entries:
with `D_i = <dout_i, out_i>` a head, `de_ij = α_ij (<dout_i, V_j> − D_i)`.

A `LeakyScorer` on a matrix of the native kernel is one pass over the edges (`fused_attention`). For any other
scorer, and in torch, scores are tensors over the edges, as stated here.
"""

from __future__ import annotations

from typing import Any

import torch

from sancus.exchange.fused_attention import ALL, Blocks, EdgeMasks, FusedAttention, OneBlock
from sancus.kernels.attention import fuses
from sancus.kernels.edges import LeakyScorer, Scorer, edge_softmax, sddmm, spmm
from sancus.kernels.matrix import SparseMatrix


def attend_rows(
    matrix: SparseMatrix,
    query: torch.Tensor,
    values: torch.Tensor,
    scorer: Scorer,
    masks: EdgeMasks | None,
) -> torch.Tensor:
    """All rows at once: `matrix [n_i, m]`, `query [n_i, k]`, `values [m, heads·d]` to `[n_i, heads·d]`."""
    if fuses(matrix) and isinstance(scorer, LeakyScorer):
        parts = OneBlock(matrix), scorer, masks, values, query, *scorer.parameters()
        result: torch.Tensor = FusedAttention.apply(*parts)
        return result
    score = _scores(matrix, query, scorer.key(values), scorer)
    share = edge_softmax(matrix, score)
    return spmm(matrix, share if masks is None else share * masks(ALL).factors(matrix), values)


def attend_blocks(
    blocks: Blocks,
    own: SparseMatrix,
    query: torch.Tensor,
    values: torch.Tensor,
    scorer: Scorer,
    masks: EdgeMasks | None,
) -> torch.Tensor:
    """Owner after owner, of whose blocks `own` is one: `values [n_i, heads·d]` to `[n_i, heads·d]`."""
    fused = fuses(own) and isinstance(scorer, LeakyScorer)
    function = FusedAttention if fused else BlockAttention
    result: torch.Tensor = function.apply(blocks, scorer, masks, values, query, *scorer.parameters())
    return result


class BlockAttention(torch.autograd.Function):
    """Owner after owner, by a running maximum; the backward pass computes scores anew."""

    @staticmethod
    def forward(
        ctx: Any,
        blocks: Blocks,
        scorer: Scorer,
        masks: EdgeMasks | None,
        values: torch.Tensor,
        query: torch.Tensor,
        *parameters: torch.Tensor,
    ) -> torch.Tensor:
        """`values [n_i, heads·d]`, `query [n_i, k]` to `[n_i, heads·d]`; `parameters` are the scorer's."""
        most = query.new_full((len(query), scorer.heads), -torch.inf)
        total = torch.zeros_like(most)
        out = values.new_zeros(len(query), values.shape[1])
        for owner, matrix, rows in blocks.first(values):
            score = _scores(matrix, query, scorer.key(rows), scorer)
            entry_row = matrix.row_of_entries()
            top = most.scatter_reduce(0, entry_row[:, None].expand_as(score), score, "amax")
            fade = torch.where(top == most, 1.0, (most - top).exp())
            share = (score - top[entry_row]).exp()
            total = (total * fade).index_add_(0, entry_row, share)
            share = share if masks is None else share * masks(owner).factors(matrix)
            out = _by_head(out, fade) + spmm(matrix, share, rows)
            most = top
        total = torch.where(total > 0, total, 1.0)
        out = _by_head(out, 1.0 / total)
        ctx.blocks, ctx.scorer, ctx.masks = blocks, scorer, masks
        ctx.save_for_backward(values, query, out, most + total.log())
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of values, query and parameters."""
        values, query, out, log_total = ctx.saved_tensors
        scorer, masks = ctx.scorer, ctx.masks
        gradient = gradient.contiguous()
        inner = (gradient * out).unflatten(1, (scorer.heads, -1)).sum(dim=2)
        parameters = list(scorer.parameters())
        sums = [torch.zeros_like(tensor) for tensor in (query, *parameters)]

        def work(owner: int, matrix: SparseMatrix, rows: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                leaves = [rows.detach().requires_grad_(), query.detach().requires_grad_(), *parameters]
                score = _scores(matrix, leaves[1], scorer.key(leaves[0]), scorer)
            entry_row = matrix.row_of_entries()
            share = (score.detach() - log_total[entry_row]).exp()
            towards = sddmm(matrix, gradient, rows, scorer.heads)
            dropped = share
            if masks is not None:
                factor = masks(owner).factors(matrix)
                towards, dropped = towards * factor, share * factor
            d_score = share * (towards - inner[entry_row])
            d_rows, *others = torch.autograd.grad(score, leaves, d_score, materialize_grads=True)
            for total, part in zip(sums, others, strict=True):
                total += part
            order = matrix.transposition[2]
            return d_rows + spmm(matrix.transposed, dropped[order], gradient)

        d_values = ctx.blocks.again(values, work)
        return None, None, None, d_values, *sums


def _scores(matrix: SparseMatrix, query: torch.Tensor, key: torch.Tensor, scorer: Scorer) -> torch.Tensor:
    """`[nnz, heads]` of the entries of a matrix."""
    columns = matrix.csr.col.to(torch.int64)
    return scorer.score(query.index_select(0, matrix.row_of_entries()), key.index_select(0, columns))


def _by_head(rows: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """`rows [n, heads·d]` times `factor [n, heads]`."""
    return (rows.unflatten(1, (factor.shape[1], -1)) * factor[:, :, None]).flatten(1)
