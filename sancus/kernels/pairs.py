"""Scores of pairs of rows, with few rows of either side in memory at once."""

from __future__ import annotations

from typing import Any

import torch

PIECE = 1 << 16  # pairs


class PairScores(torch.autograd.Function):
    """`s_k = ⟨z_i, z_j⟩` of pairs `(i, j)`; no row is kept for backward but `z` itself."""

    @staticmethod
    def forward(ctx: Any, z: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
        """`z [n, d]`, `pairs [k, 2]` int64 to `[k]`."""
        ctx.save_for_backward(z, pairs)
        parts = [(z[piece[:, 0]] * z[piece[:, 1]]).sum(dim=1) for piece in pairs.split(PIECE)]
        return torch.cat(parts) if parts else z.new_zeros(0)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """`dz_i += ds z_j`, and the other way round."""
        z, pairs = ctx.saved_tensors
        dz = torch.zeros_like(z)
        for piece, ds in zip(pairs.split(PIECE), gradient.split(PIECE), strict=True):
            left, right = piece[:, 0], piece[:, 1]
            dz.index_add_(0, left, ds[:, None] * z[right])
            dz.index_add_(0, right, ds[:, None] * z[left])
        return dz, None
