"""The differentiable heart: autograd functions whose forward and backward cross ranks.

Notation as in the papers: `T = Â H`, `Z = T W`, `δ = ∂L/∂Z`. All ranks call these in the same order,
forward and backward, because whether a tensor needs a gradient is the same everywhere.
"""

from __future__ import annotations

from typing import Any

import torch

from sancus.exchange.mover import Mover


def aggregate(mover: Mover, layer: int, h: torch.Tensor, clean: torch.Tensor | None) -> torch.Tensor:
    """`Â h [n_i, f]`, differentiable; `clean` is `h` without dropout, for policies that measure drift."""
    result: torch.Tensor = Aggregate.apply(mover, layer, h, None if clean is None else clean.detach())
    return result


def clip(mover: Mover, result: torch.Tensor) -> torch.Tensor:
    """`result` itself, whose gradient on this rank is clipped before anything of it is sent (`--clip`)."""
    if mover.limit is None:
        return result
    clipped: torch.Tensor = Clip.apply(mover, result)
    return clipped


class Clip(torch.autograd.Function):
    """GRADIENT_CLIP of Algorithm 3, for calls whose backward pass takes more than one way to other ranks."""

    @staticmethod
    def forward(ctx: Any, mover: Mover, result: torch.Tensor) -> torch.Tensor:
        """`[n, f]` as it is."""
        ctx.mover = mover
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        """All that this rank holds of the gradient, at once."""
        return None, ctx.mover.clipped(gradient)


class Aggregate(torch.autograd.Function):
    """`T = Â H`, `dH = Âᵀ dT`."""

    @staticmethod
    def forward(
        ctx: Any, mover: Mover, layer: int, h: torch.Tensor, clean: torch.Tensor | None
    ) -> torch.Tensor:
        """`h [n_i, f]` to `[n_i, f]`."""
        ctx.mover, ctx.layer = mover, layer
        return mover.aggregate(h, layer, "forward", clean)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None, torch.Tensor, None]:
        """`dT [n_i, f]` travels."""
        return None, None, ctx.mover.aggregate(gradient, ctx.layer, "backward"), None


class AggregateThenTransform(torch.autograd.Function):
    """`Z = (Â H) W`; backward is SANCUS eq. 4-5: `δ` itself travels, `G = Âᵀ δ`, `dH = G Wᵀ`, `dW = Hᵀ G`.

    This is CAGNET's order: forward sends `f_in` columns, backward `f_out`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        mover: Mover,
        layer: int,
        h: torch.Tensor,
        weight: torch.Tensor,
        clean: torch.Tensor | None,
    ) -> torch.Tensor:
        """`h [n_i, f_in]`, `weight [f_in, f_out]` to `[n_i, f_out]`."""
        ctx.mover, ctx.layer = mover, layer
        ctx.save_for_backward(h, weight)
        return mover.aggregate(h, layer, "forward", clean) @ weight

    @staticmethod
    def backward(ctx: Any, delta: torch.Tensor) -> tuple[None, None, torch.Tensor, torch.Tensor, None]:
        """`δ [n_i, f_out]` travels."""
        h, weight = ctx.saved_tensors
        aggregated = ctx.mover.aggregate(delta, ctx.layer, "backward")
        return None, None, aggregated @ weight.T, h.T @ aggregated, None


class Rows(torch.autograd.Function):
    """Own rows and the rows that this rank needs of others, `[n_i + r_i, f]`."""

    @staticmethod
    def forward(
        ctx: Any, mover: Mover, layer: int, h: torch.Tensor, clean: torch.Tensor | None
    ) -> torch.Tensor:
        """`h [n_i, f]` to `[n_i + r_i, f]`."""
        ctx.mover, ctx.layer = mover, layer
        return mover.gather_rows(h, layer, clean)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None, torch.Tensor, None]:
        """Gradients of received rows travel back to their owners."""
        return None, None, ctx.mover.return_rows(gradient, ctx.layer), None
