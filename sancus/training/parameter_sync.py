"""How replicas of a model stay equal: what happens to parameters before and after the update.

The loss of a rank is already divided by the global number of training nodes, so the gradient of the whole is
the plain sum over the ranks that hold the same parameters. Either that sum is made before the update, and all
optimisers do the same; or each replica takes a step of its own, and the weights are averaged after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import xxhash
from torch import nn

from sancus.comm.group import Group
from sancus.errors import UserError
from sancus.exchange.full_graph import FullGraph
from sancus.exchange.health import ADVICE, Health, finite
from sancus.parameters import EXACT, PARAMETER_CODECS
from sancus.parameters.base import ParameterCodec
from sancus.parameters.full import FullPrecision
from sancus.plugins import build
from sancus.training.settings import AVERAGE_IN_FULL, Parameters


class ParameterSync(Protocol):
    """Called by all replicas at the same moments: after backward, and after the optimiser."""

    replicated: bool  # whether the optimisers of all replicas hold the same state
    codec: ParameterCodec  # how tensors are added up, and what it remembers

    def before_update(self, model: nn.Module) -> None:
        """Leave in every parameter's `grad` what the optimiser of this replica shall use."""
        ...

    def after_update(self, model: nn.Module) -> None:
        """Leave weights that are the same on all replicas."""
        ...


class SumOfGradients:
    """The gradient of all that is trained, added up over the replicas."""

    replicated = True

    def __init__(
        self, replicas: Group, health: Health, codec: ParameterCodec | None = None, seed: int = 0
    ) -> None:
        """`codec` is in full precision where none is given; `seed` is that of the run."""
        self.codec = codec or FullPrecision()
        self._replicas = replicas
        self._health = health
        self._seed = seed

    def before_update(self, model: nn.Module) -> None:
        """Sum; where a number of this epoch is not finite on any rank, all ranks stop with the same error."""
        gradients = _gradients(model, self._replicas, self._health)
        total = _sum(gradients, "gradients", self.codec, self._replicas, self._health, self._seed)
        for parameter, part in zip(_trained(model).values(), total, strict=True):
            parameter.grad = part

    def after_update(self, model: nn.Module) -> None:
        """Nothing: equal gradients made equal weights."""


class AverageOfWeights:
    """Each replica takes a step of its own; then all take the mean of their weights (DIGEST, Algorithm 1).

    DIGEST's part `m` descends its local loss, `1/|V_m| Σ_v loss` (eq. 3). A rank's loss here is its share
    of the mean over the whole graph (§2: `1/|V| Σ_v loss`), so its gradient is taken `p` times: that is eq. 3
    for parts with equally many training nodes, and where they have not, the mean of the steps still descends
    the loss of the whole graph. Plain SGD, with momentum or without, then gives the weights of the sum; Adam
    does not, as its steps are not in proportion to the gradient. Its moments differ from rank to rank.
    """

    replicated = False

    def __init__(
        self, replicas: Group, health: Health, codec: ParameterCodec | None = None, seed: int = 0
    ) -> None:
        """Weights are averaged in full: an error in them would stay, as no later gradient makes up for it."""
        self.codec = codec or FullPrecision()
        if not self.codec.lossless:
            raise UserError(AVERAGE_IN_FULL)
        self._replicas = replicas
        self._health = health

    def before_update(self, model: nn.Module) -> None:
        """The gradient of this replica's own loss."""
        gradients = _gradients(model, self._replicas, self._health)
        for parameter, gradient in zip(_trained(model).values(), gradients, strict=True):
            parameter.grad = gradient * self._replicas.size

    def after_update(self, model: nn.Module) -> None:
        """The mean; where a number of this epoch is not finite on any rank, all stop with the same error."""
        weights = [parameter.detach() for parameter in _trained(model).values()]
        total = _sum(weights, "weights", self.codec, self._replicas, self._health, 0)
        for weight, part in zip(weights, total, strict=True):
            weight.copy_(part / self._replicas.size)


SYNCS: dict[Parameters, Callable[[Group, Health, ParameterCodec | None, int], ParameterSync]] = {
    "sum": SumOfGradients,
    "average": AverageOfWeights,
}


def sum_gradients(model: nn.Module, exchange: FullGraph) -> None:
    """Add up every parameter's gradient over the ranks of an exchange, for a training loop of one's own.

    It comes between `backward()` and the update.
    """
    make_sync(exchange).before_update(model)


def make_sync(
    exchange: FullGraph,
    parameters: Parameters = "sum",
    parameter_codec: str = EXACT,
    seed: int = 0,
) -> ParameterSync:
    """How the ranks of an exchange keep equal weights, for a training loop of one's own.

    `before_update(model)` comes between `backward()` and the optimiser's step, `after_update(model)` after.
    A `parameter_codec` is a spec as `--parameter-codec` takes it; it remembers, so keep what is returned.
    """
    codec = make_parameter_codec(parameter_codec)
    return SYNCS[parameters](exchange.group, exchange.crossing.health, codec, seed)


def make_parameter_codec(spec: str) -> ParameterCodec:
    """The codec of a spec, with nothing to remember yet."""
    codec: ParameterCodec = build("parameter-codec", PARAMETER_CODECS, spec)
    return codec


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that learn, by name; one that is frozen neither crosses nor moves."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _gradients(model: nn.Module, replicas: Group, health: Health) -> list[torch.Tensor]:
    """Gradients of all that is trained, zeros where there is none; health hears of one that is not finite."""
    trained = _trained(model)
    check_gradients(model, replicas, health)
    return [p.grad if p.grad is not None else torch.zeros_like(p) for p in trained.values()]


def check_gradients(model: nn.Module, replicas: Group, health: Health) -> None:
    """Health hears of the first gradient of this rank that is not finite."""
    where = f"rank {replicas.members[replicas.rank]}, backward, epoch {replicas.clock.epoch}"
    for name, parameter in _trained(model).items():
        if parameter.grad is None:
            continue
        what = f"{where}: the gradient of {name} holds NaN or infinity; {ADVICE}"
        if parameter.grad.device.type != "cpu":
            health.note_later(~torch.isfinite(parameter.grad).all(), what)
        elif not finite(parameter.grad):
            health.note(what)
            return


def _sum(
    tensors: list[torch.Tensor],
    what: str,
    codec: ParameterCodec,
    replicas: Group,
    health: Health,
    seed: int,
) -> list[torch.Tensor]:
    """The sums over the replicas, by a codec; NaN goes round where this rank met a bad number."""
    tensors = health.poisoned(tensors)
    clock = replicas.clock
    moment = xxhash.xxh3_64_intdigest(f"{seed} {clock.epoch} {clock.step}".encode()) >> 1
    total = codec.sum(tensors, replicas, moment)
    shapes, itemsize = [tensor.shape for tensor in tensors], tensors[0].element_size()
    replicas.ledger.count_raw_parameters(
        FullPrecision().wire_bytes(shapes, replicas.size, itemsize) // replicas.size
    )
    if not _all_finite(total, replicas):
        epoch = clock.epoch
        health.stop(f"epoch {epoch}: a sum of {what} is infinite; {ADVICE}", total[0].device)
    return total


def _all_finite(total: list[torch.Tensor], replicas: Group) -> bool:
    """Whether all sums are; on a device this is the moment when everything in doubt is asked, in one copy."""
    if total[0].device.type == "cpu":
        return all(map(finite, total))
    sums = torch.stack([torch.isfinite(part).all() for part in total]).all()
    return replicas.desk.checks.read(sums)[0]
