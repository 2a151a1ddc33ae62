"""What the segments of a model cost, measured before the first epoch: `--balance cost`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from sancus.comm.group import Group
from sancus.exchange.full_graph import FullGraph
from sancus.models.contract import Segment, State

PASSES = 2  # the first also makes what is made once


def measured_costs(
    model: nn.Module, segments: Sequence[Segment], whole: FullGraph, everyone: Group
) -> list[float]:
    """Seconds of every segment in an exact pass over all rows, mean of the ranks: the same on all of them.

    All ranks call it together, each with the whole model.
    """
    model.eval()
    now = whole.group.stopwatch.now
    with torch.no_grad(), whole.exact():
        for _ in range(PASSES):
            state: State = (whole.input,)
            moments = [now()]
            for segment in segments:
                state = segment(state, whole)
                moments.append(now())
    seconds = torch.tensor(moments, dtype=torch.float64, device=whole.nodes.device).diff()
    return [float(mean) for mean in everyone.all_gather(seconds).mean(dim=0)]
