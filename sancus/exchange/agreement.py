"""Agreement: no two ranks ever act on different decisions.

A policy that looks at replicated values is asked by every rank for every owner, and needs no message. A
policy that looks at drift is asked by the owner; its answer is gathered, with a record that says
where the rank believes it is, before anyone acts:

- `--agree layer`: at every use, on the drift of this moment (Algorithm 3, where `F(i)` is set just
  before the next broadcast);
- `--agree epoch`: once, when the epoch begins, for all streams that are known, on the drift that was measured
  in the epoch before. One message instead of two a layer, decisions that lag by one epoch.

When an epoch begins under any policy that may skip, all ranks also compare the answers that they will act on
alone. So a policy that is not a pure function of its view is found out before a collective, and
the rank is named. A policy that fails on one rank is the same error on all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
import xxhash

from sancus.comm.errors import DisagreementError
from sancus.comm.group import Group
from sancus.comm.ledger import AGREEMENT, DIRECTIONS, Direction, Stream
from sancus.comm.records import gather_json
from sancus.errors import UserError
from sancus.exchange.decisions import Decisions
from sancus.staleness.base import SEND, SKIP, Answer, Policy, RowPolicy, View, check_policy

Agree = Literal["layer", "epoch"]
RECORD = ("sequence", "epoch", "configuration", "stream", "answers")
FAILED = -1  # in the place of the answers' digest: a policy failed on this rank
_BITS = 63


class Agreement:
    """Asks the policies, and makes sure that all ranks act on the same answers."""

    def __init__(
        self,
        policies: Mapping[Direction, Policy],
        group: Group,
        decisions: Decisions,
        needed: Mapping[Direction, list[bool]],
        *,
        agree: Agree = "layer",
        configuration: bytes = b"",
        device: torch.device | None = None,
    ) -> None:
        """`needed[direction][owner]`: whether any other rank has a nonzero block for the owner's rows."""
        for policy in policies.values():
            try:
                check_policy(policy)
            except ValueError as error:
                raise UserError(f"policy {type(policy).__name__}: {error}") from error
        self.policies = policies
        self._group = group
        self._clock = group.clock
        self._decisions = decisions
        self._needed = needed
        self._agree = agree
        self._configuration = xxhash.xxh3_64_intdigest(configuration) >> 1
        self._device = device or torch.device("cpu")
        self._planned: dict[Stream, Answer] = {}
        self.drift: dict[Stream, float] = {}  # own streams, after the last use
        self.drifts: dict[Stream, float] = {}  # measured by this rank in the current epoch
        self.measured: dict[tuple[int, Stream], float] = {}  # (epoch, own stream) -> drift, until `forget`

    def begin_epoch(self) -> None:
        """Plan the epoch: all answers that can be known now, compared or gathered once."""
        self.drifts = {}
        self._planned = {}
        if self._group.size == 1 or not any(policy.max_age for policy in self.policies.values()):
            return
        drifts: dict[Stream, float] = {}  # of every stream that is decided now
        own: list[Stream] = []
        for stream in self._decisions.streams():
            policy = self.policies[stream.direction]
            if policy.absent or isinstance(policy, RowPolicy) or self._decisions.age(stream) is None:
                continue
            if policy.drift_norm is None:
                drifts[stream] = 0.0
            elif self._agree == "epoch" and stream.owner == self._group.rank:
                drifts[stream] = self.drift[stream]
                own.append(stream)
        answers, failure = self._answers(drifts)
        self._planned = {stream: answer for stream, answer in answers.items() if stream not in own}
        place = _digest([(s.layer, s.direction, s.owner) for s in self._planned])
        mine = [answers[stream] for stream in own]
        rows = self._gather(place, _digest(list(self._planned.values())), mine, failure)
        for owner, row in enumerate(rows):
            for stream, answer in zip(own, row, strict=True):
                self._planned[Stream(stream.layer, stream.direction, owner)] = Answer(answer)

    def place(self) -> list[int]:
        """Where this rank stands: collectives so far, epoch, configuration; the same on all ranks."""
        return [self._group.number, self._clock.epoch, self._configuration]

    def needs_drift(self, layer: int, direction: Direction) -> bool:
        """Whether the owner must measure drift at this use (not before there is something to compare)."""
        if self.policies[direction].drift_norm is None:
            return False
        return self._decisions.age(Stream(layer, direction, self._group.rank)) is not None

    def decide(self, layer: int, direction: Direction, drift: float = 0.0) -> list[Answer]:
        """The answer for every owner `[p]` at this use; the same list on all ranks."""
        policy, mine = self.policies[direction], self._group.rank
        streams = [Stream(layer, direction, owner) for owner in range(self._group.size)]
        if policy.absent:
            answers = [SKIP] * len(streams)
        elif self._decisions.age(streams[0]) is None or isinstance(policy, RowPolicy):
            answers = [SEND] * len(streams)
        elif streams[0] in self._planned:
            answers = [self._planned[stream] for stream in streams]
        elif policy.drift_norm is None:
            answers = [self._ask(stream) for stream in streams]
        else:
            own, failure = self._answers({streams[mine]: drift})
            rows = self._gather(_digest([layer, direction]), 0, [own[streams[mine]]], failure)
            answers = [Answer(answer) for (answer,) in rows]
        if policy.drift_norm is not None:
            if self._decisions.age(streams[mine]) is not None:
                self.measured[self._clock.epoch, streams[mine]] = drift
            self.drift[streams[mine]] = drift if answers[mine] == SKIP else 0.0
            self.drifts[streams[mine]] = drift
        for stream, answer in zip(streams, answers, strict=True):
            self._decisions.note(stream, answer, needed=self._needed[direction][stream.owner])
        return answers

    def record(self) -> list[list[float]]:
        """JSON-ready: epoch, layer, side (0 forward), owner and drift of what was measured here."""
        return [
            [epoch, stream.layer, DIRECTIONS.index(stream.direction), stream.owner, drift]
            for (epoch, stream), drift in self.measured.items()
        ]

    def forget(self) -> None:
        """What was measured so far is somewhere else now."""
        self.measured = {}

    def _answers(self, drifts: Mapping[Stream, float]) -> tuple[dict[Stream, Answer], UserError | None]:
        """The answer for each stream and its drift; or why there is none, which stops all ranks."""
        answers = dict.fromkeys(drifts, SKIP)
        try:
            for stream, drift in drifts.items():
                answers[stream] = self._ask(stream, drift)
        except UserError as error:
            return answers, error
        return answers, None

    def _ask(self, stream: Stream, drift: float = 0.0) -> Answer:
        """The policy's answer, inside its hard cap; whatever else a policy does is the user's error."""
        policy = self.policies[stream.direction]
        needed = self._needed[stream.direction][stream.owner]
        age = self._decisions.age(stream)
        assert age is not None
        if age > policy.max_age and (needed or not policy.max_age):
            return SEND
        view = View(
            self._clock.epoch,
            stream.layer,
            stream.direction,
            stream.owner,
            self._group.size,
            age,
            self._decisions.since_first(stream),
            needed,
            drift,
        )
        where = f"policy {type(policy).__name__}, epoch {view.epoch}, layer {view.layer}, {view.direction}"
        try:
            answer = policy.decide(view)
        except Exception as error:
            raise UserError(f"{where}: decide raised {type(error).__name__}: {error}") from error
        if not isinstance(answer, bool | Answer):
            raise UserError(f"{where}: decide returned {answer!r}, which is not SEND, SKIP or LATER")
        return Answer(answer)

    def _gather(
        self, place: int, replicated: int, answers: list[Answer], failure: UserError | None
    ) -> list[list[int]]:
        """Everyone's answers `[p, k]`, after checking that everyone stands at the same place.

        `replicated` is a digest of the answers that ranks act on without a message.
        """
        outcome = FAILED if failure else replicated
        record = [self._group.number + 1, self._clock.epoch, self._configuration, place, outcome]
        mine = torch.tensor([*record, *answers], dtype=torch.int64, device=self._device)
        everyone = self._group.all_gather(mine, AGREEMENT).tolist()
        if any(row[len(RECORD) - 1] == FAILED for row in everyone):
            reasons = gather_json(self._group, str(failure) if failure else None, self._device)
            raise UserError(next(filter(None, reasons))) from failure
        for rank, row in enumerate(everyone):
            for name, value, expected in zip(RECORD, row, everyone[0], strict=False):
                if value != expected:
                    raise DisagreementError(
                        f"rank {rank} disagrees with rank 0 in epoch {self._clock.epoch}: "
                        f"its {name} is {value}, not {expected}"
                    )
        return [row[len(RECORD) :] for row in everyone]


def _digest(value: object) -> int:
    """63 bits of a list of plain values."""
    return xxhash.xxh3_64_intdigest(repr(value).encode()) >> (64 - _BITS)
