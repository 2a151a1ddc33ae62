"""The clean pass: what a rank would send if the model did not drop out, for policies that measure drift.

A mask of dropout differs from epoch to epoch, so payloads of a training pass differ even where nothing was
learnt. Where a policy measures drift (SANCUS Definition 3) and the model drops out, every training epoch
therefore begins with a pass of the model in eval mode. In it nothing crosses: own rows are computed, the rows
of others are those that this rank received last. The drift meter takes the own payloads of that pass, and
the training pass decides by their distance from those of the epoch in which they were last sent. So decisions
depend on training alone, not on when or whether anybody evaluates.

The pass leaves modes, statistics and random state of the model as they are. Gradients stay enabled, though
none is computed: the order of products then follows from the same rule as in training, also right after a
resume. What is constant, as the input, crosses in it where a resumed process does not have it yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from sancus.errors import UserError
from sancus.exchange.crossing import Crossing

REFUSAL = (
    "in eval mode, but where a model drops out and a policy measures drift, "
    "eval mode must do without messages; choose --dropout 0, or another --staleness: epoch-fixed:bound=1"
)


def make_clean_pass(crossing: Crossing, model: nn.Module | None, *arguments: object) -> None:
    """Call the model with these arguments in the epoch that begins, where there is something to measure."""
    meter, policy = crossing.memory.drift, crossing.policies["forward"]
    meter.has_model = model is not None
    if model is None or policy.drift_norm is None or not policy.max_age:
        return
    meter.noisy |= _drops_out(model)
    meter.note_random(_random_state(model))
    if meter.noisy and any(stream.direction == "forward" for stream in crossing.decisions.sent()):
        with _as_it_was(model), crossing.clock.during("measurement"):
            model(*arguments)


def note_chance(crossing: Crossing) -> None:
    """A pass drops out, or draws labels: what training sends differs from epoch to epoch by chance alone."""
    if crossing.clock.current_pass != "training":
        return
    meter = crossing.memory.drift
    meter.noisy = True
    if crossing.policies["forward"].drift_norm is not None and not meter.has_model:
        raise UserError(
            "the model drops out or draws labels, --staleness measures drift, which needs a pass without; "
            "call exchange.begin_epoch(epoch, model), with the model as second argument"
        )


def _drops_out(model: nn.Module) -> bool:
    """Whether the model has dropout of torch's own, which no exchange is told of."""
    return any(isinstance(module, _DropoutNd) and module.p > 0 for module in model.modules())


@contextmanager
def _as_it_was(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in eval mode; afterwards modes and random state are those of before."""
    modes = [(module, module.training) for module in model.modules()]
    state, *states = _random_state(model)
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        torch.set_rng_state(state)
        for device, state_there in zip(_devices(model), states, strict=True):
            torch.get_device_module(device).set_rng_state(state_there, device)


def _random_state(model: nn.Module) -> list[torch.Tensor]:
    """Torch's random state: of the processor, then of the devices that the model is on."""
    there = [torch.get_device_module(device).get_rng_state(device) for device in _devices(model)]
    return [torch.get_rng_state(), *there]


def _devices(model: nn.Module) -> list[torch.device]:
    """Those of the model's parameters, without the processor."""
    return sorted({p.device for p in model.parameters() if p.device.type != "cpu"}, key=str)
