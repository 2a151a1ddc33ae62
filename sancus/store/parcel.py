"""Rows of features on their way: taken and packed by the owner, moved, unpacked by who asked for them.

Packing and unpacking are local work, which any thread may do; what moves bytes is for the thread that owns
the group, on all ranks in the same order. Dense rows go through a codec; sparse ones are told by their
lengths first, and go as columns and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from sancus.codecs.base import Codec, Moment
from sancus.comm.group import Group
from sancus.comm.handle import Handle
from sancus.comm.ledger import Entry, Stream
from sancus.errors import UserError
from sancus.kernels.base import Csr, index_dtype
from sancus.kernels.hashing import MASK64, splitmix_scalar
from sancus.kernels.matrix import SparseMatrix
from sancus.kernels.picked import Table, to_scipy
from sancus.kernels.rows import take

_SALT = 0x5EED_0F_F3A7  # no noise of a pull is that of a payload


@dataclass(frozen=True)
class Step:
    """Which step of the training rows are pulled for."""

    epoch: int
    number: int


@dataclass(frozen=True)
class Coding:
    """How rows are coded on the wire: rounded anew in every step, so that errors do not add up."""

    codec: Codec
    seed: int = 0
    epochs: int = 1

    def moment(self, step: Step, owner: int, receiver: int) -> Moment:
        """What the code of one message depends on."""
        noise = _SALT
        for value in (self.seed, step.epoch, step.number, owner, receiver):
            noise = splitmix_scalar((noise ^ value) & MASK64)
        return Moment(noise >> 1, self.stage(step))

    def stage(self, step: Step) -> float:
        """How far the training is: 0 in the first epoch, 1 in the last."""
        return min(1.0, step.epoch / max(1, self.epochs - 1))


@dataclass(frozen=True)
class Route:
    """The group in which rows travel, and how many of them go to and come from each rank."""

    group: Group
    going: list[int]
    coming: list[int]
    background: bool = False

    def start(self, rows: torch.Tensor, going: Sequence[int], coming: Sequence[int]) -> Moving:
        """Rows to those who asked for them, by rank."""
        received = rows.new_empty(sum(coming), *rows.shape[1:])
        entry = Entry("payload", Stream(0, "forward", self.group.members[self.group.rank]))
        handle = self.group.all_to_all(
            rows.contiguous(), going, received, coming, entry, background=self.background
        )
        return Moving(received, handle)


@dataclass(frozen=True, eq=False)
class Moving:
    """Rows that are on their way here."""

    received: torch.Tensor
    handle: Handle

    def wait(self) -> torch.Tensor:
        """The rows, when they are here."""
        self.handle.wait()
        return self.received


class Parcel(Protocol):
    """The rows of one pull."""

    def pack(self, rows: torch.Tensor) -> None:
        """Local: take own rows `[k]`, those of the first receiver first."""
        ...

    def send(self) -> None:
        """Start moving them; all ranks together."""
        ...

    def receive(self) -> None:
        """Wait for what comes."""
        ...

    def unpack(self) -> Table:
        """Local: the rows that came, those of the first owner first."""
        ...


class DenseParcel:
    """Dense rows, as a codec writes them; without one as they are."""

    def __init__(self, own: torch.Tensor, route: Route, coding: Coding | None, step: Step) -> None:
        self._own = own
        self._route = route
        self._coding = None if coding is None or coding.codec.lossless else coding
        self._step = step
        self._wire = own[:0]
        self._moving: Moving | None = None

    def pack(self, rows: torch.Tensor) -> None:
        """Local: take and code own rows `[k]`."""
        taken, route = take(self._own, rows), self._route
        if self._coding is None:
            self._wire = taken
            return
        mine = route.group.members[route.group.rank]
        parts = [self._room(0)]
        for receiver, part in enumerate(taken.split(route.going)):
            if len(part):
                moment = self._coding.moment(self._step, mine, route.group.members[receiver])
                parts.append(self._code(part, moment))
        self._wire = torch.cat(parts)

    def send(self) -> None:
        """Start moving them, and count what they would have been without a codec."""
        route, width = self._route, self._own.shape[1] * self._own.element_size()
        sizes = [self._lengths(counts) for counts in (route.going, route.coming)]
        self._moving = route.start(self._wire, *sizes)
        stream = Stream(0, "forward", route.group.members[route.group.rank])
        route.group.ledger.count_raw(stream, sum(route.going) * width)

    def receive(self) -> None:
        """Wait for what comes."""
        assert self._moving is not None, "a parcel is sent first"
        self._wire = self._moving.wait()

    def unpack(self) -> torch.Tensor:
        """Local: decode what came."""
        if self._coding is None:
            return self._wire
        stage, columns, dtype = self._coding.stage(self._step), self._own.shape[1], self._own.dtype
        parts = self._wire.split(self._lengths(self._route.coming))
        decoded = [
            self._coding.codec.decode(part, count, columns, dtype, stage)
            for part, count in zip(parts, self._route.coming, strict=True)
            if count
        ]
        return torch.cat([self._own[:0], *decoded])

    def _code(self, rows: torch.Tensor, moment: Moment) -> torch.Tensor:
        assert self._coding is not None
        try:
            return self._coding.codec.encode(rows, moment, torch.ones(len(rows)))
        except ValueError as refusal:
            raise UserError(f"features: {refusal}; correct them, or leave --feature-codec out") from refusal

    def _room(self, rows: int) -> torch.Tensor:
        """What so many rows take on the wire; holds no memory."""
        assert self._coding is not None
        own, stage = self._own, self._coding.stage(self._step)
        device = torch.device("meta") if rows else own.device
        room = self._coding.codec.wire(rows, own.shape[1], own.dtype, device, stage)
        return room if rows else room[:0]

    def _lengths(self, counts: list[int]) -> list[int]:
        """Rows of the wire, for so many rows of features by rank."""
        if self._coding is None:
            return counts
        return [len(self._room(count)) for count in counts]


class SparseParcel:
    """Sparse rows: how long each is, then their columns and values."""

    def __init__(self, own: SparseMatrix, route: Route) -> None:
        self._own = own
        self._route = route
        self._crow = self._lengths = torch.zeros(0, dtype=torch.int64)
        self._contents: list[torch.Tensor] = []
        self._moving: list[Moving] = []

    def pack(self, rows: torch.Tensor) -> None:
        """Local: take own rows `[k]`."""
        taken = to_scipy(self._own)[rows.numpy()]
        self._lengths = torch.from_numpy(np.diff(taken.indptr).astype(np.int64))
        column = torch.from_numpy(taken.indices).to(index_dtype(self._own.shape[1]))
        self._contents = [column, torch.from_numpy(taken.data)]

    def send(self) -> None:
        """Tell how long rows are, then start moving them."""
        route, ledger = self._route, self._route.group.ledger
        before = ledger.wire_of("payload")
        coming = route.start(self._lengths, route.going, route.coming).wait()
        sizes = [
            [int(part.sum()) for part in lengths.split(counts)]
            for lengths, counts in ((self._lengths, route.going), (coming, route.coming))
        ]
        self._crow = torch.cat([coming.new_zeros(1), coming.cumsum(0)])
        self._moving = [route.start(content, *sizes) for content in self._contents]
        stream = Stream(0, "forward", route.group.members[route.group.rank])
        ledger.count_raw(stream, ledger.wire_of("payload") - before)

    def receive(self) -> None:
        """Wait for what comes."""
        self._contents = [moving.wait() for moving in self._moving]

    def unpack(self) -> SparseMatrix:
        """Local: the rows that came."""
        column, value = self._contents
        shape = (len(self._crow) - 1, self._own.shape[1])
        return SparseMatrix(Csr(self._crow, column.to(torch.int64), value, shape), self._own.kernel)
