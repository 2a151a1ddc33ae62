"""A crossing: payloads of one layer and direction reach the other ranks, or histories serve instead.

Here policy, codec and group meet: who sends is agreed by all ranks before anyone acts; what is sent now
arrives as it is consumed; what is sent LATER travels in the background and is the history of the next use.
Which rows a payload has is the plan's business, what they mean the model's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch

from sancus.codecs.base import Codec
from sancus.codecs.full import FullPrecision
from sancus.comm.group import Group
from sancus.comm.ledger import Direction, Stream
from sancus.errors import UserError
from sancus.exchange.agreement import Agree, Agreement
from sancus.exchange.codec_error import ErrorGauge
from sancus.exchange.courier import Courier
from sancus.exchange.decisions import Decisions
from sancus.exchange.delivery import Arrivals, Delivery, Outgoing, Recall, Use
from sancus.exchange.drift import DriftMeter
from sancus.exchange.encoding import Encoder
from sancus.exchange.figures import Figures, figures_of
from sancus.exchange.health import Health
from sancus.exchange.memory import Memory
from sancus.exchange.picked_rows import merged, part_of, pick, rest_of, tell
from sancus.exchange.state import State, load, save
from sancus.plans.base import Leg
from sancus.staleness.base import LATER, SEND, SKIP, Answer, Norm, Policy, RowPolicy


@dataclass(frozen=True)
class CrossingSettings:
    """How ranks agree and payloads are encoded; the same on all ranks."""

    agree: Agree = "layer"
    feedback: bool = False  # adds what a codec left out of a send to the next
    configuration: bytes = b""  # identifies the run in agreements
    seed: int = 0
    epochs: int = 1  # that will be trained

    def __post_init__(self) -> None:
        if self.agree not in get_args(Agree):
            raise ValueError(f"agree must be one of {', '.join(get_args(Agree))}, not {self.agree!r}")
        if self.epochs < 0:
            raise ValueError(f"epochs must be at least 0, not {self.epochs}")


class Crossing:
    """Policies × codecs × group for one rank; what they remember is in its `memory` and `decisions`."""

    def __init__(
        self,
        group: Group,
        policies: Mapping[Direction, Policy],
        codecs: Mapping[Direction, Codec],
        needed: Mapping[Direction, list[bool]],
        settings: CrossingSettings,
        device: torch.device,
        health: Health | None = None,
    ) -> None:
        """`needed[direction][owner]`: whether any other rank has a nonzero block for the owner's rows.

        `health` speaks for all ranks of the run, where the group is not all of them.
        """
        self.policies = policies
        self.clock = group.clock
        self.health = health or Health(group)
        self.decisions = Decisions(group.size, group.clock)
        self.agreement = Agreement(
            policies,
            group,
            self.decisions,
            needed,
            agree=settings.agree,
            configuration=settings.configuration,
            device=device,
        )
        encoders = {
            side: Encoder(codec, seed=settings.seed, epochs=settings.epochs, feedback=settings.feedback)
            for side, codec in codecs.items()
        }
        self.memory = Memory(encoders)
        self.gauge = ErrorGauge()
        self._group = group
        self._device = device
        self._deliveries = {
            side: Delivery(group, coder, self.health, self.gauge) for side, coder in encoders.items()
        }
        self._exact_delivery = Delivery(group, Encoder(FullPrecision()), self.health)
        self._pending: dict[tuple[int, Direction], Arrivals] = {}  # under way since the last use
        self.courier: Courier | None = None  # carries payloads of training, once nobody waits any more

    def begin_epoch(self) -> None:
        """The training epoch of the clock starts."""
        self.health.check_over()
        self.decisions.begin_epoch()
        self.agreement.begin_epoch()
        self.gauge.begin_epoch()

    def absent(self, direction: Direction) -> bool:
        """Whether remote rows count as zero in the present pass."""
        return self.policies[direction].absent and not self.clock.exact

    def wants_clean(self, layer: int) -> bool:
        """Whether drift is measured forward, and nothing but a payload without its dropout can say it."""
        if self.policies["forward"].drift_norm is None or self.clock.current_pass != "training":
            return False
        return not self.memory.drift.saw(Stream(layer, "forward", self._group.rank), self.clock.epoch)

    def deliver(
        self,
        leg: Leg,
        outgoing: Outgoing,
        layer: int,
        direction: Direction,
        clean: Outgoing | None = None,
    ) -> Arrivals:
        """One use of the streams of a layer: what the other ranks' rows are now, owner after owner.

        `clean` is `outgoing` without its own dropout, where `wants_clean` asks for it.
        """
        self._group.progress()
        stream, policy = Stream(layer, direction, self._group.rank), self.policies[direction]
        delivery, drift = self._deliveries[direction], self.memory.drift
        if self.clock.exact:
            use = exact_use(self._group, layer, direction, "evaluation")
            return move(leg, outgoing, use, self._exact_delivery)
        if self.courier is not None:
            return self.courier.deliver(leg, outgoing, layer, direction)
        _finish(self._pending.pop((layer, direction), None))
        if self.clock.silent:
            drift.see(stream, outgoing.joined(), self.clock.epoch)
            return _held(leg, self.memory, stream)
        echo: list[torch.Tensor] | None = None
        if policy.drift_norm:
            now = drift.current(stream, (clean or outgoing).joined(), self.clock.epoch)
            if isinstance(policy, RowPolicy) and policy.max_age:
                return _deliver_rows(self, leg, outgoing, stream, policy, now)
            answers = _decide_by_drift(self.agreement, drift, stream, now, policy.drift_norm)
            if answers[stream.owner] != SKIP:
                drift.keep(stream, now, self.clock.epoch)
            echo = None if delivery.encoder.codec.lossless else []
        else:
            answers = self.agreement.decide(layer, direction)
        if answers[stream.owner] == SKIP:
            receivers = self._group.size - 1 if leg.broadcast else 1
            delivery.count_saved(outgoing, stream, self.clock.epoch, receivers)
        recall = _recall(policy, self.memory)
        use = _use(self._group, stream, answers, SEND, recall)
        arrivals = move(leg, outgoing, use, delivery, echo)
        if LATER in answers:
            later = replace(_use(self._group, stream, answers, LATER, recall), background=True)
            self._pending[layer, direction] = move(leg, outgoing, later, delivery, echo)
        if echo:
            drift.keep_decoded(stream, torch.cat(echo), outgoing.joined(), self.clock.epoch)
        return arrivals

    def drain(self) -> None:
        """Wait for all that is under way; the histories then hold it, as the next use would find it."""
        for place in list(self._pending):
            _finish(self._pending.pop(place))

    def repeatable(self) -> bool:
        """Whether owners could send again exactly what arrived forward: no history, no lossy codec."""
        return not self.policies["forward"].max_age and self._deliveries["forward"].encoder.codec.lossless

    def stepwise_use(self, layer: int) -> Use | None:
        """The use at which gradients return owner after owner; None where a policy looks at all of them."""
        policy, own = self.policies["backward"], self._group.rank
        if policy.max_age or policy.absent or policy.drift_norm:
            return None
        answers = self.agreement.decide(layer, "backward")
        return _use(self._group, Stream(layer, "backward", own), answers, SEND, _recall(policy, self.memory))

    def shift(self, payload: torch.Tensor, step: int, rows: int, use: Use) -> torch.Tensor:
        """`payload` goes to rank `i − step`; what comes from rank `i + step` has `rows` rows."""
        own, size = self._group.rank, self._group.size
        payloads, coming = [payload[:0]] * size, [0] * size
        payloads[(own - step) % size] = payload.contiguous()
        coming[(own + step) % size] = rows
        weights = [torch.ones(len(part), device=payload.device) for part in payloads]
        arrivals = self._deliveries[use.direction].all_to_all(Outgoing(payloads, weights), coming, use)
        return next((part for _, part in arrivals), payload[:0])

    def once(self, leg: Leg, outgoing: Outgoing, layer: int) -> Arrivals:
        """A transfer that happens once in a run: fresh and in full precision."""
        return move(leg, outgoing, self.once_use(layer), self._exact_delivery)

    def once_use(self, layer: int) -> Use:
        """The use of a transfer that happens once; counted for the pass that needs it."""
        return exact_use(self._group, layer, "forward", "evaluation" if self.clock.exact else "payload")

    def figures(self) -> Figures:
        """What there is to know of the current epoch."""
        return figures_of(self, self._group.rank)

    def forget(self) -> None:
        """Drop the log of all epochs so far, which somebody has written down: memory stays as it is."""
        self.decisions.forget()
        self.agreement.forget()
        self.gauge.forget()

    def state(self) -> State:
        """Everything that a checkpoint keeps. What travels in the background is waited for first."""
        self.drain()
        return save(self.memory, self.decisions, self.agreement, self.gauge)

    def restore(self, state: State) -> None:
        """Go on where another process stopped, before anything is sent here."""
        load(state, self.memory, self.decisions, self.agreement, self.gauge, self._device)


def make_courier(crossing: Crossing) -> Courier:
    """What carries embeddings of a crossing without a collective, as often as the policy's bound says."""
    encoder, policy = crossing._deliveries["forward"].encoder, crossing.policies["forward"]
    period = None if policy.absent else policy.max_age
    return Courier(crossing._group, encoder, crossing.memory.history, crossing.health, period)


def move(
    leg: Leg,
    outgoing: Outgoing,
    use: Use,
    delivery: Delivery,
    echo: list[torch.Tensor] | None = None,
    rows: Sequence[int] | None = None,
) -> Arrivals:
    """Start a leg's collective; what arrives is waited for as it is consumed.

    `rows[j]` come from owner `j`: those that the leg says, if not given.
    """
    rows = rows or [row_map.rows_in for row_map in leg.add]
    if leg.broadcast:
        return delivery.broadcast(outgoing, rows, use, echo)
    return delivery.all_to_all(outgoing, rows, use, echo)


def exact_use(
    group: Group, layer: int, direction: Direction, purpose: Literal["payload", "evaluation"]
) -> Use:
    """A use at which everyone sends, outside policy, codec and history."""
    everyone, clock = [True] * group.size, group.clock
    return Use(layer, direction, everyone, group.number + 1, clock.epoch, purpose=purpose)


def _use(group: Group, stream: Stream, answers: Sequence[Answer], wanted: Answer, recall: Recall) -> Use:
    """The use at which those owners send whose answer is `wanted`.

    Its number is that of the next collective, so it is the same on all ranks, and above 0.
    """
    sends = [answer == wanted for answer in answers]
    return Use(stream.layer, stream.direction, sends, group.number + 1, group.clock.epoch, recall)


def _recall(policy: Policy, memory: Memory) -> Recall:
    """What receivers go on with under a policy where an owner skips."""
    return Recall(memory.history if policy.max_age else None, policy.absent, policy.max_age)


def _deliver_rows(
    crossing: Crossing, leg: Leg, outgoing: Outgoing, stream: Stream, policy: RowPolicy, now: torch.Tensor
) -> Arrivals:
    """A use at which rows cross one by one: all of them at the first, then those that the policy picks."""
    group, meter, epoch = crossing._group, crossing.memory.drift, crossing.clock.epoch
    first = crossing.decisions.age(stream) is None
    picked, drift = torch.ones(len(now), dtype=torch.bool, device=now.device), 0.0
    if not first:
        try:
            picked, drift = pick(policy, meter, stream, now, epoch)
        except UserError as error:  # all rows cross, as the others wait; the epoch ends with this error
            crossing.health.note(str(error))
    answers = crossing.agreement.decide(stream.layer, stream.direction, drift)
    part, delivery = part_of(outgoing, picked), crossing._deliveries[stream.direction]
    echo: list[torch.Tensor] | None = None if delivery.encoder.codec.lossless else []
    if first:
        use = _use(group, stream, answers, SEND, _recall(policy, crossing.memory))
        arrivals = move(leg, outgoing, use, delivery, echo)
    else:
        receivers = group.size - 1 if leg.broadcast else 1
        delivery.count_saved(rest_of(outgoing, part), stream, epoch, receivers)
        coming = tell(group, leg, part.masks)
        rows = [int(mask.sum()) for mask in coming]
        rows[stream.owner] = len(part.outgoing.payloads[0])  # of a broadcast
        use = _use(group, stream, answers, SEND, Recall())
        parts = move(leg, part.outgoing, use, delivery, echo, rows)
        arrivals = merged(parts, coming, crossing.memory.history, use)
    left_out = torch.cat(echo) - part.outgoing.joined() if echo else None
    meter.keep_rows(stream, picked, now[picked], left_out, epoch)
    crossing.decisions.max_age = max(crossing.decisions.max_age, meter.oldest(stream, epoch))
    return arrivals


def _held(leg: Leg, memory: Memory, own: Stream) -> Arrivals:
    """What this rank last received of the other owners, whatever its age; nothing crosses."""
    for owner, row_map in enumerate(leg.add):
        if owner != own.owner and row_map.rows_in:
            stream = replace(own, owner=owner)
            if not memory.history.holds(stream):
                raise UserError(
                    f"the model uses layer {own.layer} in eval mode alone; where it drops out and "
                    "--staleness measures drift, eval mode must use the layers of training"
                )
            yield owner, memory.history.pull(stream)


def _decide_by_drift(
    agreement: Agreement, meter: DriftMeter, stream: Stream, now: torch.Tensor, norm: Norm
) -> list[Answer]:
    """Measure how far `now` is from what was sent last, where anything was; and agree."""
    drift = 0.0
    if agreement.needs_drift(stream.layer, stream.direction):
        drift = meter.measure(stream, now, norm)
    return agreement.decide(stream.layer, stream.direction, drift)


def _finish(pending: Arrivals | None) -> None:
    """What travelled in the background since the last use has arrived in the history."""
    for _ in pending or ():
        pass
