"""Attention in one pass over the edges (`sancus.kernels.attention`), as a function of autograd.

The same for all rows at once (`halo`) and for blocks that come owner after owner (`block`); the backward pass
takes the blocks again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from sancus.kernels.attention import Attended, AttentionGradients, RunningAttention, Weighing
from sancus.kernels.edges import LeakyScorer
from sancus.kernels.masks import EdgeMask
from sancus.kernels.matrix import SparseMatrix

EdgeMasks = Callable[[int], EdgeMask]  # owner of the columns to the mask of its block
Work = Callable[[int, SparseMatrix, torch.Tensor], torch.Tensor]
ALL = -1  # in the place of an owner


class Blocks(Protocol):
    """The blocks of one layer, owner after owner: own block first."""

    def first(self, values: torch.Tensor) -> Iterator[tuple[int, SparseMatrix, torch.Tensor]]:
        """(owner, own rows over the owner's columns, the owner's values), in the forward pass."""
        ...

    def again(self, values: torch.Tensor, work: Work) -> torch.Tensor:
        """The same in the backward pass; `work` gives the gradient of the values, which goes to the owner."""
        ...


class OneBlock:
    """All rows at once, own and received."""

    def __init__(self, matrix: SparseMatrix) -> None:
        self._matrix = matrix

    def first(self, values: torch.Tensor) -> Iterator[tuple[int, SparseMatrix, torch.Tensor]]:
        """The only block."""
        yield ALL, self._matrix, values

    def again(self, values: torch.Tensor, work: Work) -> torch.Tensor:
        """The gradient of all values."""
        return work(ALL, self._matrix, values)


class FusedAttention(torch.autograd.Function):
    """`values [n, heads·d]`, `query [n_i, k]` to `[n_i, heads·d]`; `parameters` are the scorer's."""

    @staticmethod
    def forward(
        ctx: Any,
        blocks: Blocks,
        scorer: LeakyScorer,
        masks: EdgeMasks | None,
        values: torch.Tensor,
        query: torch.Tensor,
        *parameters: torch.Tensor,
    ) -> torch.Tensor:
        """Block after block; nothing is kept of an edge."""
        weighing, width = _weighing(scorer), values.shape[1] // scorer.heads
        running = RunningAttention(query, width, weighing, differentiable=any(ctx.needs_input_grad))
        for owner, matrix, rows in blocks.first(values):
            running.add(matrix, rows, scorer.key(rows), None if masks is None else masks(owner))
        attended = running.finish()
        ctx.blocks, ctx.scorer, ctx.masks, ctx.weighing = blocks, scorer, masks, weighing
        ctx.save_for_backward(values, query, attended.out, attended.log_total, attended.tilted, attended.tilt)
        return attended.out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of values, query and parameters."""
        values, query, *attended = ctx.saved_tensors
        scorer, masks = ctx.scorer, ctx.masks
        gradients = AttentionGradients(query, ctx.weighing, Attended(*attended), gradient.contiguous())
        parameters = list(scorer.parameters())
        sums = [torch.zeros_like(tensor) for tensor in parameters]

        def add(made: torch.Tensor, d_made: torch.Tensor, *inputs: torch.Tensor) -> list[torch.Tensor]:
            """The gradient of the parameters that `made` was made with, and of other inputs."""
            found = torch.autograd.grad(made, [*inputs, *parameters], d_made, materialize_grads=True)
            for total, part in zip(sums, found[len(inputs) :], strict=True):
                total += part
            return list(found[: len(inputs)])

        def work(owner: int, matrix: SparseMatrix, rows: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                leaf = rows.detach().requires_grad_()
                key = scorer.key(leaf)
            mask = None if masks is None else masks(owner)
            d_rows, d_key = gradients.of_block(matrix, leaf.detach(), key.detach(), mask)
            return d_rows.add_(*add(key, d_key, leaf))

        d_values = ctx.blocks.again(values, work)
        d_query, d_mix = gradients.finish()
        if d_mix is not None:
            with torch.enable_grad():
                mix = scorer.mix()
            add(mix, d_mix)
        return None, None, None, d_values, d_query, *sums


def _weighing(scorer: LeakyScorer) -> Weighing:
    mix = scorer.mix()
    return Weighing(scorer.heads, scorer.slope, None if mix is None else mix.detach().contiguous())
