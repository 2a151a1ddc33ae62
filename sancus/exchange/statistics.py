"""A sum over ranks, as statistics of all rows need it (batch normalisation)."""

from __future__ import annotations

from typing import Any

import torch

from sancus.comm.group import Group


class SumOverRanks(torch.autograd.Function):
    """`s = Σ_i v_i`, the same on all ranks; every rank's loss depends on `s`, so `dv_i = Σ_k ∂L_k/∂s`.

    Counted as what parameters cost: like their gradients it is a flat all-reduce whose size does not depend
    on the graph.
    """

    @staticmethod
    def forward(ctx: Any, group: Group, values: torch.Tensor) -> torch.Tensor:
        """`values [k]` to `[k]`."""
        ctx.group = group
        return _summed(group, values)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        """The gradients of all ranks add up."""
        return None, _summed(ctx.group, gradient)


def _summed(group: Group, values: torch.Tensor) -> torch.Tensor:
    total = values.detach().clone(memory_format=torch.contiguous_format)
    group.all_reduce(total)
    return total
