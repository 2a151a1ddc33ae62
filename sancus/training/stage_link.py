"""The link of a stage to its neighbours: rows of a chunk go to the next stage, their gradients come back.

Nobody ever waits in a send: all receives of a pass are posted before it begins, and sends are waited for
when it is over. What travels counts as `boundary`; chunk, direction and epoch are in every message's header,
so that a rank with another order of chunks is found out.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from sancus.comm.group import Group
from sancus.comm.handle import Handle
from sancus.comm.ledger import Direction, Entry, Stream
from sancus.errors import UserError
from sancus.exchange.encoding import Encoder
from sancus.exchange.health import ADVICE, Health, finite

Columns = tuple[int, ...]  # of the tensors that are handed on


@dataclass(frozen=True)
class Coming:
    """A message that is expected."""

    handle: Handle | None  # None where there are no rows
    wire: torch.Tensor
    rows: int


class StageLink:
    """One process of one stage; the same rows of the graph are in the same place of every stage."""

    def __init__(
        self, stages: Group, columns: Sequence[Columns], encoder: Encoder, like: torch.Tensor
    ) -> None:
        """`columns [S]` are those of what each stage hands on; `like` has dtype and device of all rows."""
        self.stage = stages.rank
        self.stages = stages.size
        self._group = stages
        self._columns = columns
        self._encoder = encoder
        self.like = like
        self._coming: dict[tuple[Direction, int], Coming] = {}
        self._going: list[Handle] = []
        self.tainted = False  # what came was not finite: another rank knows why

    @property
    def first(self) -> bool:
        """Whether nobody hands rows to this stage."""
        return self.stage == 0

    @property
    def last(self) -> bool:
        """Whether this stage makes the logits."""
        return self.stage == self.stages - 1

    def expect(self, direction: Direction, order: Sequence[int], rows: Sequence[int]) -> None:
        """The messages of a pass will come in this order; `rows [K]` are those of every chunk."""
        sender = self._neighbour(direction, receiving=True)
        for chunk in order if sender is not None else ():
            wire = self._encoder.wire(rows[chunk], self._blank(direction), self._group.clock.epoch)
            room = torch.empty(wire.shape, dtype=wire.dtype, device=self.like.device)
            handle = None
            if rows[chunk]:
                assert sender is not None
                entry = Entry("boundary", self._stream(direction, chunk, receiving=True))
                handle = self._group.receive(room, sender, entry)
            self._coming[direction, chunk] = Coming(handle, room, rows[chunk])

    def receive(
        self, direction: Direction, chunk: int, waiting: AbstractContextManager[None]
    ) -> list[torch.Tensor]:
        """The rows of a chunk, or gradients of what was handed on: a tensor for each, `[n_ik, f]`.

        Until they are here, this rank is inside of `waiting`.
        """
        coming = self._coming.pop((direction, chunk))
        with waiting:
            if coming.handle is not None:
                coming.handle.wait()
        like, columns = self._blank(direction), self._columns_of(direction, receiving=True)
        with self._group.stopwatch.at("codec"):
            rows = self._encoder.decode(coming.wire, coming.rows, like, self._group.clock.epoch)
        self.tainted |= not finite(rows)
        return [part.contiguous() for part in rows.split(columns, dim=1)]

    def send(self, direction: Direction, chunk: int, tensors: Sequence[torch.Tensor], health: Health) -> None:
        """Hand on the rows of a chunk, or the gradients of those that came."""
        receiver = self._neighbour(direction, receiving=False)
        if receiver is None or not len(tensors[0]):
            return
        rows, epoch = torch.cat([tensor.detach() for tensor in tensors], dim=1), self._group.clock.epoch
        stream = self._stream(direction, chunk, receiving=False)
        if not (self.tainted or finite(rows)):
            who = self._group.members[self._group.rank]
            health.note(
                f"rank {who}, stage {self.stage}, {direction}, epoch {epoch}: what it hands on of chunk "
                f"{chunk} holds NaN or infinity; {ADVICE}"
            )
        weight = torch.ones(len(rows), device=rows.device)
        with self._group.stopwatch.at("codec"):
            try:
                wire = self._encoder.encode(rows, weight, stream, receiver, epoch)
            except UserError as error:  # zeros go, as others wait; the epoch ends with the first error
                if not self.tainted:
                    health.note(str(error))
                wire = self._encoder.encode(torch.zeros_like(rows), weight, stream, receiver, epoch)
        self._going.append(self._group.send(wire.contiguous(), receiver, Entry("boundary", stream)))

    def finish(self) -> None:
        """All that was sent has arrived; the epoch's messages are over."""
        while self._going:
            self._going.pop(0).wait()
        assert not self._coming, "every message that was expected was used"

    def pass_on(self, tensors: Sequence[torch.Tensor]) -> None:
        """Hand on all rows `[n_i, f]` in full precision, for an exact pass."""
        if not self.last:
            rows = torch.cat([tensor.detach() for tensor in tensors], dim=1)
            if len(rows):
                self._group.send(rows, self.stage + 1, exact_entry(self.stage)).wait()

    def take_over(self, rows: int) -> list[torch.Tensor]:
        """What the stage before hands on in an exact pass, `rows` of each tensor."""
        columns = self._columns[self.stage - 1]
        room = self.like.new_empty(rows, sum(columns))
        if rows:
            self._group.receive(room, self.stage - 1, exact_entry(self.stage - 1)).wait()
        return [part.contiguous() for part in room.split(columns, dim=1)]

    def share_last(self, rows: torch.Tensor) -> torch.Tensor:
        """The last stage's rows `[n_i, f]`, on all stages; the others pass room for them."""
        if self.stages > 1 and rows.numel():
            self._group.broadcast(rows, self.stages - 1, Entry("evaluation")).wait()
        return rows

    def _neighbour(self, direction: Direction, *, receiving: bool) -> int | None:
        """The stage at the other end; None where there is none."""
        other = self.stage + (1 if (direction == "forward") != receiving else -1)
        return other if 0 <= other < self.stages else None

    def _boundary(self, direction: Direction, *, receiving: bool) -> int:
        """The number of the boundary that is crossed: that of the stage before it."""
        return self.stage - 1 if (direction == "forward") == receiving else self.stage

    def _columns_of(self, direction: Direction, *, receiving: bool) -> Columns:
        return self._columns[self._boundary(direction, receiving=receiving)]

    def _blank(self, direction: Direction) -> torch.Tensor:
        """No rows, as wide as what comes."""
        return self.like.new_empty(0, sum(self._columns_of(direction, receiving=True)))

    def _stream(self, direction: Direction, chunk: int, *, receiving: bool) -> Stream:
        return Stream(self._boundary(direction, receiving=receiving), direction, chunk)


def exact_entry(boundary: int) -> Entry:
    """What all rows at once are counted as: an exact pass is evaluation, also where it fills histories."""
    return Entry("evaluation", Stream(boundary, "forward", 0))
