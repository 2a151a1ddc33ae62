"""A crossing: payloads of one layer and direction reach the other ranks, or histories serve instead.

Here policy, codec and transport meet: who sends is agreed by all ranks before anyone acts; what is sent now
arrives as it is consumed; what is sent LATER travels in the background and is the history of the next use.
Which rows a payload has is the plan's business, what they mean the model's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch

from sancus.codecs.base import Codec
from sancus.codecs.full import FullPrecision
from sancus.comm.group import Group
from sancus.comm.ledger import DIRECTIONS, Direction, Stream
from sancus.exchange.agreement import Agree, Agreement
from sancus.exchange.decisions import Decisions
from sancus.exchange.delivery import Arrivals, Delivery, Outgoing, Use
from sancus.exchange.drift import DriftMeter
from sancus.exchange.encoding import Encoder
from sancus.exchange.health import Health
from sancus.exchange.history import History
from sancus.plans.base import Leg
from sancus.staleness.base import LATER, SEND, SKIP, Answer, Norm, Policy


class Crossing:
    """Policies × codecs × transport for one rank, with everything they remember."""

    def __init__(
        self,
        group: Group,
        policies: Mapping[Direction, Policy],
        codecs: Mapping[Direction, Codec],
        needed: Mapping[Direction, list[bool]],
        *,
        agree: Agree,
        feedback: bool,
        configuration: bytes,
        seed: int,
        epochs: int,
        device: torch.device,
    ) -> None:
        """`needed[direction][owner]`: whether any other rank has a nonzero block for the owner's rows."""
        self.policies = policies
        self.decisions = Decisions(group.size)
        self.history = History()
        self.drift = DriftMeter()
        self.agreement = Agreement(
            policies,
            group,
            self.decisions,
            needed,
            agree=agree,
            configuration=configuration,
            device=device,
        )
        self.clock = group.clock
        self.noisy = False  # whether a model drops out in training
        self.device = device
        self.health = Health(group)
        self._group = group
        self.sequence = 0
        self._deliveries = {
            side: Delivery(group, Encoder(codec, seed=seed, epochs=epochs, feedback=feedback), self.health)
            for side, codec in codecs.items()
        }
        self._exact_delivery = Delivery(group, Encoder(FullPrecision()), self.health)
        self._pending: dict[tuple[int, Direction], Arrivals] = {}

    def begin_epoch(self, epoch: int) -> None:
        """A training epoch starts; its number is the same on all ranks."""
        self.health.check_over()
        self.decisions.begin_epoch(epoch)
        self.agreement.begin_epoch()

    def absent(self, direction: Direction) -> bool:
        """Whether remote rows count as zero in the present mode."""
        return self.policies[direction].absent and not self.clock.exact

    def drifts(self, direction: Direction) -> bool:
        """Whether drift is measured in the present mode."""
        return self.policies[direction].drift_norm is not None and not self.clock.exact

    def deliver(
        self,
        leg: Leg,
        outgoing: Outgoing,
        layer: int,
        direction: Direction,
        clean: Outgoing | None = None,
    ) -> Arrivals:
        """One use of the streams of a layer: what the other ranks' rows are now, owner after owner.

        `clean` is `outgoing` without dropout, for policies that measure drift.
        """
        self._group.progress()
        self.sequence += 1
        stream, policy = Stream(layer, direction, self._group.rank), self.policies[direction]
        delivery = self._deliveries[direction]
        if self.clock.exact:
            if policy.drift_norm and self.noisy:
                self.drift.see(stream, outgoing.joined(), self.clock.epoch)
            return move(leg, outgoing, self.exact_use(layer, direction, "evaluation"), self._exact_delivery)
        self._finish(layer, direction)
        echo: list[torch.Tensor] | None = None
        if policy.drift_norm:
            now = self.drift.current(stream, (clean or outgoing).joined(), noisy=self.noisy)
            answers = self._decide_by_drift(stream, now, policy.drift_norm)
            echo = None if delivery.encoder.codec.lossless or self.noisy else []
        else:
            answers = self.agreement.decide(layer, direction)
        use = replace(self._use(layer, direction, answers, SEND), echo=echo)
        if answers[stream.owner] == SKIP:
            receivers = self._group.size - 1 if leg.broadcast else 1
            delivery.count_saved(outgoing, stream, self.clock.epoch, receivers)
        arrivals = move(leg, outgoing, use, delivery)
        if LATER in answers:
            later = replace(self._use(layer, direction, answers, LATER), background=True, echo=echo)
            self._pending[layer, direction] = move(leg, outgoing, later, delivery)
        if echo:
            self.drift.keep(stream, torch.cat(echo), self.clock.epoch)
        return arrivals

    def drain(self) -> None:
        """Wait for all that is under way; the histories then hold it, as the next use would find it."""
        for layer, direction in list(self._pending):
            self._finish(layer, direction)

    def exact_use(self, layer: int, direction: Direction, purpose: Literal["payload", "evaluation"]) -> Use:
        """A use at which everyone sends, outside policy, codec and history."""
        everyone = [True] * self._group.size
        return Use(layer, direction, everyone, self.sequence, self.clock.epoch, purpose=purpose)

    def repeatable(self) -> bool:
        """Whether owners could send again exactly what arrived forward: no history, no lossy codec."""
        return not self.policies["forward"].max_age and self._deliveries["forward"].encoder.codec.lossless

    def repeat_use(self, layer: int) -> Use:
        """The use at which rows travel once more, for the backward pass; counted as forward payload."""
        self.sequence += 1
        return self.exact_use(layer, "forward", "payload")

    def stepwise_use(self, layer: int) -> Use | None:
        """The use at which gradients return owner after owner; None where a policy looks at all of them."""
        policy = self.policies["backward"]
        if policy.max_age or policy.absent or policy.drift_norm:
            return None
        self.sequence += 1
        return self._use(layer, "backward", self.agreement.decide(layer, "backward"), SEND)

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
        self.sequence += 1
        return self.exact_use(layer, "forward", "evaluation" if self.clock.exact else "payload")

    def stores(self) -> dict[str, History]:
        """Every store of payloads by name."""
        found = {"history": self.history, "drift/sent": self.drift.sent, "drift/seen": self.drift.seen}
        for side, delivery in self._deliveries.items():
            for receiver, residual in (delivery.encoder.residuals or {}).items():
                found[f"residual/{side}/{receiver}"] = residual
        return found

    def store(self, name: str) -> History:
        """One of them; that of a residual is made where it is not there yet."""
        kind, *where = name.split("/")
        if kind == "residual":
            side, receiver = DIRECTIONS[DIRECTIONS.index(where[0])], int(where[1])
            residuals = self._deliveries[side].encoder.residuals
            assert residuals is not None, "residuals belong to error feedback"
            return residuals.setdefault(receiver, History())
        return self.stores()[name]

    @property
    def residual_bytes(self) -> int:
        """Memory of what error feedback keeps."""
        return sum(delivery.encoder.nbytes for delivery in self._deliveries.values())

    def _use(self, layer: int, direction: Direction, answers: Sequence[Answer], wanted: Answer) -> Use:
        policy = self.policies[direction]
        return Use(
            layer,
            direction,
            [answer == wanted for answer in answers],
            self.sequence,
            self.clock.epoch,
            self.history if policy.max_age else None,
            policy.absent,
            policy.max_age,
        )

    def _decide_by_drift(self, stream: Stream, now: torch.Tensor, norm: Norm) -> list[Answer]:
        """Measure, agree, and remember what is sent."""
        drift = 0.0
        if self.agreement.needs_drift(stream.layer, stream.direction):
            drift = self.drift.measure(stream, now, norm)
        answers = self.agreement.decide(stream.layer, stream.direction, drift)
        if answers[stream.owner] != SKIP:
            self.drift.keep(stream, now, self.clock.epoch)
        return answers

    def _finish(self, layer: int, direction: Direction) -> None:
        """What travelled in the background since the last use has arrived in the history."""
        for _ in self._pending.pop((layer, direction), ()):
            pass


def move(leg: Leg, outgoing: Outgoing, use: Use, delivery: Delivery) -> Arrivals:
    """Start a leg's collective; what arrives is waited for as it is consumed."""
    rows = [row_map.rows_in for row_map in leg.add]
    if leg.broadcast:
        return delivery.broadcast(outgoing, rows, use)
    return delivery.all_to_all(outgoing, rows, use)
