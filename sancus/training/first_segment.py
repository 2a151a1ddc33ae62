"""What all stages make by the first segment, instead of being handed it (h⁰ of GCNII): exact, and no bytes.

Every stage then has the parameters of that segment. Their gradients are summed over the stages before weights
move, so that all keep the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from sancus.comm.group import Group
from sancus.models.contract import Segment, State
from sancus.models.neighbourhood import Neighbourhood
from sancus.training.stages import Stages


def joined(split: Stages, came: Sequence[torch.Tensor], first: Segment, graph: Neighbourhood) -> State:
    """What a stage begins with: what came, and what the first segment makes of the input here."""
    if not split.carried:
        return tuple(came)
    made, others = first((graph.input,), graph), iter(came)
    return tuple(h if place in split.carried else next(others) for place, h in enumerate(made))


def handed_on(split: Stages, made: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What a stage that is not the last hands on of what it made."""
    return [h for place, h in enumerate(made) if place not in split.carried]


def sum_shared(split: Stages, model: nn.Module, stages: Group) -> None:
    """Gradients of the parameters that all stages have, summed over the stages."""
    shared = [value for name, value in model.named_parameters() if name in split.shared]
    if not shared or stages.size == 1:
        return
    gradients = [torch.zeros_like(value) if value.grad is None else value.grad for value in shared]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    stages.all_reduce(flat)
    for value, part in zip(shared, flat.split([value.numel() for value in shared]), strict=True):
        value.grad = part.view_as(value).clone()
