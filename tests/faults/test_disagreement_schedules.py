"""Random schedules in which one rank slips: leaves out a collective, makes one too many, sends wrong things.

Ranks are threads over a transport that pairs whatever comes, byte for byte, as gloo and MPI can do. A run
without a slip says what every rank uses of each of its collectives; with a slip, whatever a rank still uses
must be exactly that, and at least one rank must fail.
"""

from __future__ import annotations

import copy
import os
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import xxhash

from sancus.comm.errors import CommError, DisagreementError
from sancus.comm.group import Group
from sancus.comm.handle import Handle
from sancus.comm.ledger import AGREEMENT, Entry
from sancus.comm.transport import DONE, Transfer
from sancus.config.settings import Config, FactorSettings
from sancus.exchange.delivery import Delivery
from sancus.graphs.shards import Shard, open_shard
from sancus.models.build import make_model
from sancus.models.settings import ModelSettings
from sancus.runs.build import make_trainer
from sancus.training.settings import TrainingSettings
from tests.faults.record import record
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.threads import Board, ThreadTransport, results, run_threads

RANKS, EPOCHS = 3, 3
SCHEDULES = 1000 if "SANCUS_FAULTS" in os.environ else 60
SLIPS = ("skip", "extra", "dtype", "shape", "number", "content", "epoch")
OTHER = {  # a dtype of the same size
    torch.float64: torch.int64,
    torch.int64: torch.float64,
    torch.float32: torch.int32,
    torch.int32: torch.float32,
    torch.uint8: torch.int8,
}
FACTORS = [
    FactorSettings(plan="block", broadcast="library"),
    FactorSettings(plan="halo", staleness="epoch-fixed:bound=1"),
    FactorSettings(plan="prepost", codec="int8"),
    FactorSettings(plan="halo", staleness="variation-gap:gap=0.01"),
    FactorSettings(plan="block", broadcast="library", staleness="pipelined", backward="pipelined"),
]

Spoil = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Slip:
    """What one rank does wrong in its collective number `at`."""

    rank: int
    at: int
    how: str


class Sloppy(Group):
    """Slips once, and keeps what it receives."""

    def __init__(self, rank: int, size: int, board: Board, slip: Slip | None = None) -> None:
        super().__init__(Careless(rank, size, board, self._spoil))
        self._slip = slip if slip is not None and slip.rank == rank else None
        self._calls = 0
        self.slipped = False
        self.received: list[str] = []

    def broadcast(self, tensor: torch.Tensor, owner: int, *arguments: Any, **flags: Any) -> Handle:
        if self._slips("skip"):
            return self._nothing()
        self._before()
        handle = super().broadcast(tensor, owner, *arguments, **flags)
        return handle if "overhead" in flags else self._kept(handle, tensor)

    def all_to_all(
        self,
        send: torch.Tensor,
        send_counts: Sequence[int],
        receive: torch.Tensor,
        receive_counts: Sequence[int],
        *arguments: Any,
        **flags: Any,
    ) -> Handle:
        if self._slips("skip"):
            return self._nothing()
        stamped = "overhead" not in flags and len(send) > 0
        if stamped and self._slips("dtype"):
            send = send.view(OTHER[send.dtype])
        if stamped and self._slips("shape"):
            send = send.unsqueeze(-1)
        self._before()
        handle = super().all_to_all(send, send_counts, receive, receive_counts, *arguments, **flags)
        return handle if "overhead" in flags else self._kept(handle, receive)

    def all_gather(self, tensor: torch.Tensor, entry: Entry = AGREEMENT) -> torch.Tensor:
        if self._slips("skip"):
            self._calls += 1
            return torch.stack([tensor] * self.size)
        if self._slips("dtype"):
            tensor = tensor.view(OTHER[tensor.dtype])
        if self._slips("shape"):
            tensor = tensor.unsqueeze(0)
        self._before()
        gathered = super().all_gather(tensor, entry)
        self.keep(gathered)
        return gathered

    def keep(self, tensor: torch.Tensor) -> None:
        """Remember what a caller got."""
        self.received.append(xxhash.xxh3_64_hexdigest(tensor.contiguous().numpy().tobytes()))

    def _slips(self, how: str) -> bool:
        slip = self._slip
        now = slip is not None and slip.how == how and slip.at == self._calls
        self.slipped = self.slipped or now
        return now

    def _kept(self, handle: Handle, tensor: torch.Tensor) -> Handle:
        """A handle that remembers what arrived."""
        return Handle(
            Transfer(lambda: (handle.wait(), self.keep(tensor))[1], DONE.ended), self.desk, AGREEMENT, ""
        )

    def _nothing(self) -> Handle:
        self._calls += 1
        return Handle(DONE, self.desk, AGREEMENT, "")

    def _before(self) -> None:
        """What goes wrong before a collective that this rank makes like the others."""
        if self._slips("extra"):
            super().all_gather(torch.zeros(3))
        if self._slips("number"):
            self.number += 1
        if self._slips("epoch"):
            self.clock.epoch += 1
        self._calls += 1

    def _spoil(self, part: torch.Tensor) -> torch.Tensor:
        """The bytes that go out, with one bit of the wrong kind."""
        spoilt, slip = part.clone(), self._slip
        if len(part) and slip is not None and slip.how == "content" and slip.at == self._calls - 1:
            spoilt[random.Random(slip.at).randrange(len(part))] ^= 64
            self.slipped = True
        return spoilt


class Careless(ThreadTransport):
    """Hands over whatever bytes the others gave in the same round."""

    def __init__(self, rank: int, size: int, board: Board, spoil: Spoil) -> None:
        super().__init__(rank, size, board)
        self._spoil = spoil

    def broadcast(self, tensor: torch.Tensor, owner: int, *, background: bool) -> Transfer:
        given = tensor.view(-1).view(torch.uint8)
        out = [given if self.rank == owner else given[:0]] * self.size
        got = self._hand_over(out)
        if self.rank != owner:
            _pour(torch.cat(got), given)
        return DONE

    def all_to_all(
        self,
        send: torch.Tensor,
        send_counts: Sequence[int],
        receive: torch.Tensor,
        receive_counts: Sequence[int],
        *,
        background: bool,
    ) -> Transfer:
        _pour(torch.cat(self._hand_over(list(send.split(list(send_counts))))), receive.view(-1))
        return DONE

    def all_gather(self, tensor: torch.Tensor, gathered: torch.Tensor) -> Transfer:
        _pour(torch.cat(self._hand_over([tensor] * self.size)), gathered.view(-1))
        return DONE

    def _hand_over(self, out: list[torch.Tensor]) -> list[torch.Tensor]:
        given = self._board.exchange(self.rank, [self._spoil(part) for part in out])
        return [row[self.rank] for row in given]


def _pour(given: torch.Tensor, into: torch.Tensor) -> None:
    """As much as there is, as much as fits."""
    size = min(len(given), len(into))
    into[:size] = given[:size]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Shard]:
    folder = shards_of(awkward_graph(), "random", RANKS, tmp_path_factory.mktemp("shards"))
    return [open_shard(folder, rank) for rank in range(RANKS)]


@dataclass(frozen=True)
class Story:
    """How each rank ended, and what each received, collective after collective."""

    outcomes: list[Any]
    received: list[list[str]]
    slipped: bool


def train(shards: list[Shard], factors: FactorSettings, slip: Slip | None = None) -> Story:
    """Train on threads, of which one may slip."""
    config = Config(
        factors=factors,
        shape=ModelSettings(layers=2, hidden=4, dropout=0.0),
        training=TrainingSettings(epochs=EPOCHS, dtype="float64", check=2),
    )
    graph = shards[0].manifest["graph"]
    torch.manual_seed(0)  # threads share torch's generator, so the model is made here
    model = make_model("gcn", graph["features"], graph["classes"], config.shape).double()
    models = [copy.deepcopy(model) for _ in range(RANKS)]
    transports: dict[int, Sloppy] = {}

    def rank(group: Group) -> None:
        assert isinstance(group, Sloppy)
        transports[group.rank] = group
        mine = group.rank
        trainer = make_trainer(config, shards[mine], group, torch.device("cpu"), models[mine])
        for _ in trainer.epochs():
            pass
        group.all_gather(torch.zeros(1))

    make = lambda number, size, board: Sloppy(number, size, board, slip)  # noqa: E731
    outcomes = run_threads(RANKS, rank, make)
    slipped = any(group.slipped for group in transports.values())
    return Story(outcomes, [transports[number].received for number in range(RANKS)], slipped)


def test_no_wrong_tensor_is_ever_used(shards: list[Shard], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)  # times are gathered too, and may not differ
    opened = Delivery._open

    def used(delivery: Delivery, *arguments: Any) -> torch.Tensor:
        payload = opened(delivery, *arguments)
        delivery._group.keep(payload)  # type: ignore[attr-defined]
        return payload

    monkeypatch.setattr(Delivery, "_open", used)
    usual = [train(shards, factors) for factors in FACTORS]
    assert all(results(story.outcomes) == [None] * RANKS for story in usual)
    draw, slips = random.Random(9), 0
    for schedule in range(SCHEDULES):
        place, rank, how = draw.randrange(len(FACTORS)), draw.randrange(RANKS), draw.choice(SLIPS)
        expected = usual[place].received
        slip = Slip(rank, draw.randrange(len(expected[rank])), how)
        story = train(shards, FACTORS[place], slip)
        tale = f"schedule {schedule}: {FACTORS[place]}, {slip}: {story.outcomes}"
        for number, received in enumerate(story.received):
            if number != rank or not story.slipped:
                assert received == expected[number][: len(received)], tale
        if story.slipped:
            slips += 1
            errors = [outcome for outcome in story.outcomes if outcome is not None]
            assert errors, tale
            assert all(isinstance(error, DisagreementError | CommError) for error in errors), tale
            named = [str(error) for error in errors if isinstance(error, DisagreementError)]
            assert all(re.search(r"rank \d", line) for line in named), tale
        else:
            assert results(story.outcomes) == [None] * RANKS, tale
    assert slips > SCHEDULES / 2
    record("a rank slips: skip, extra, wrong dtype, shape, number, bit, epoch", "threads", slips, slips)
