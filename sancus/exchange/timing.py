"""Time of what autograd differentiates: the way back of an aggregation is aggregation as well."""

from __future__ import annotations

import torch

from sancus.comm.stopwatch import Activity, Stopwatch


def time_way_back(stopwatch: Stopwatch, inner: torch.Tensor, out: torch.Tensor) -> None:
    """In the backward pass, the rank is at "aggregation" from the gradient of `out` to that of `inner`.

    `out` was aggregated from `inner`. Autograd runs operations in the reverse order of the forward pass, so
    what lies between the two is what was computed between them. Where no gradient flows, nothing is noted.
    """
    if out.grad_fn is None or inner.grad_fn is None:
        return
    before: list[Activity] = []

    def begin(gradients: object) -> None:
        before.append(stopwatch.turn_to("aggregation"))

    def end(gradients: object) -> None:
        if before:
            stopwatch.turn_to(before.pop())

    out.grad_fn.register_prehook(begin)
    inner.grad_fn.register_prehook(end)
