"""A network that exists on paper: what ranks handed over, what has arrived, who is still there.

It promises as little as gloo and MPI do, so that whatever the protocol needs beyond that shows:

- collectives are paired by their order alone: the k-th of one rank meets the k-th of every other, whatever
  they are, and bytes are poured as far as they fit;
- memory that is being received into holds nonsense until the transfer is finished; memory that is being sent
  is read at any moment up to then;
- what travels in the background has an order of its own, and arrives at any moment;
- what a rank handed over before it died may reach some ranks and not others; and with one rank dead any wait
  of the others may fail.

Under `eager` a rank's part of a transfer is finished once it has what it needs itself: the library copied
what others have not fetched yet. Without it a rank also waits until all who receive from it have come.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from sancus.comm.transport import Transfer, Transport

NONSENSE = 0xA5  # in memory that nothing has arrived in
LOST = "connection closed by peer"
Way = tuple[str, ...] | tuple[str, int, int, int]  # a sequence of collectives, or of messages of two ranks


class Pauses(Protocol):
    """Where a rank stops, and lets others go on; a `RuntimeError` is a transfer that failed."""

    def before_start(self, rank: int, part: Part) -> None:
        """The rank is about to hand over."""
        ...

    def before_finish(self, rank: int, part: Part) -> None:
        """The rank is about to wait; it goes on when its part is complete."""
        ...


@dataclass(eq=False)
class Part:
    """What one rank has to do with one transfer."""

    way: Way
    number: int  # of the transfer on its way
    out: list[torch.Tensor]  # bytes for every rank, in the caller's memory until `finished`
    into: list[torch.Tensor]  # room for the bytes of every rank, in the caller's memory
    arrived: bool = False
    finished: bool = False

    @property
    def background(self) -> bool:
        """Whether it arrives by itself while its rank does something else."""
        return self.way == ("background",)

    def senders(self) -> list[int]:
        """The ranks from which something must come."""
        return [rank for rank, room in enumerate(self.into) if len(room)]

    def receivers(self) -> list[int]:
        """The ranks that must fetch something."""
        return [rank for rank, content in enumerate(self.out) if len(content)]


@dataclass
class Network:
    """All transfers between `size` ranks."""

    size: int
    eager: bool
    parts: dict[tuple[Way, int, int], Part] = field(default_factory=dict)  # (way, number, rank)
    dead: set[int] = field(default_factory=set)  # crashed, or ended by an error
    gone: set[int] = field(default_factory=set)  # these, and those that left in good order
    _numbers: defaultdict[tuple[Way, int], int] = field(default_factory=lambda: defaultdict(int))

    def next_part(
        self, way: Way, rank: int, out: Sequence[torch.Tensor], into: Sequence[torch.Tensor]
    ) -> Part:
        """A rank's part of its next transfer; whatever it would give itself is left out."""
        number = self._numbers[way, rank] = self._numbers[way, rank] + 1
        return Part(way, number, list(map(_bytes, out)), list(map(_bytes, into)))

    def start(self, rank: int, part: Part) -> None:
        """The library has it now."""
        for room in part.into:
            room.fill_(NONSENSE)
        self.parts[part.way, part.number, rank] = part

    def complete(self, rank: int, part: Part) -> bool:
        """Whether a wait for it can end well."""
        if not part.arrived and not self.arrives(part):
            return False
        return self.eager or all(self._other(part, receiver) for receiver in part.receivers())

    def arrives(self, part: Part) -> bool:
        """Whether everything that it needs was handed over."""
        return all(self._other(part, sender) for sender in part.senders())

    def hopeless(self, part: Part) -> bool:
        """Whether something that it waits for can never come; or whether a dead rank may have broken it."""
        missing = [rank for rank in part.senders() + part.receivers() if not self._other(part, rank)]
        return bool(self.dead) or any(rank in self.gone for rank in missing)

    def under_way(self) -> list[tuple[tuple[Way, int, int], Part]]:
        """What travels in the background, in the order of transfers and ranks."""
        return sorted(
            ((place, part) for place, part in self.parts.items() if part.background and not part.finished),
            key=lambda item: item[0][1:],
        )

    def pour(self, rank: int, part: Part) -> None:
        """What others handed over is in this rank's memory."""
        for sender in part.senders():
            other = self._other(part, sender)
            assert other is not None
            content, room = other.out[rank], part.into[sender]
            size = min(len(content), len(room))
            room[:size] = content[:size]
        part.arrived = True

    def finish(self, rank: int, part: Part) -> None:
        """The caller has its memory back; what others did not fetch yet was copied before."""
        if not part.arrived:
            self.pour(rank, part)
        part.out = [content.clone() for content in part.out]
        part.finished = True

    def _other(self, part: Part, rank: int) -> Part | None:
        return self.parts.get((part.way, part.number, rank))


class PaperTransport(Transport):
    """One rank's access to the network."""

    def __init__(self, rank: int, network: Network, pauses: Pauses) -> None:
        super().__init__(rank, network.size, timeout=0.0)
        self._network = network
        self._pauses = pauses

    def broadcast(self, tensor: torch.Tensor, owner: int, *, background: bool) -> Transfer:
        out, into = self._nothing(), self._nothing()
        if self.rank == owner:
            out = [_none() if rank == owner else tensor for rank in range(self.size)]
        else:
            into[owner] = tensor
        return self._start(_way(background), out, into)

    def all_to_all(
        self,
        send: torch.Tensor,
        send_counts: Sequence[int],
        receive: torch.Tensor,
        receive_counts: Sequence[int],
        *,
        background: bool,
    ) -> Transfer:
        out, into = send.split(list(send_counts)), receive.split(list(receive_counts))
        return self._start(_way(background), out, into)

    def all_gather(self, tensor: torch.Tensor, gathered: torch.Tensor) -> Transfer:
        gathered[self.rank] = tensor
        out, into = [tensor] * self.size, list(gathered.unbind())
        out[self.rank] = into[self.rank] = _none()
        return self._start(_way(False), out, into)

    def send(self, tensor: torch.Tensor, receiver: int, tag: int) -> Transfer:
        out = self._nothing()
        out[receiver] = tensor
        return self._start(("message", self.rank, receiver, tag), out, self._nothing())

    def receive(self, tensor: torch.Tensor, sender: int, tag: int) -> Transfer:
        into = self._nothing()
        into[sender] = tensor
        return self._start(("message", sender, self.rank, tag), self._nothing(), into)

    def split(self, members: Sequence[int]) -> Transport | None:
        raise NotImplementedError("the ranks of a model are parts of one graph")

    def progress(self) -> None:
        """Whatever is in the background may arrive at any moment."""

    def close(self) -> None:
        """The network sees the rank leave."""

    def abort(self) -> None:
        """The network sees the rank die."""

    def _nothing(self) -> list[torch.Tensor]:
        return [_none() for _ in range(self.size)]

    def _start(self, way: Way, out: Sequence[torch.Tensor], into: Sequence[torch.Tensor]) -> Transfer:
        part = self._network.next_part(way, self.rank, out, into)
        self._pauses.before_start(self.rank, part)
        self._network.start(self.rank, part)

        def finish() -> None:
            self._pauses.before_finish(self.rank, part)
            self._network.finish(self.rank, part)

        return Transfer(finish, lambda: None)


def _way(background: bool) -> Way:
    return ("background",) if background else ("foreground",)


def _none() -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor as bytes."""
    return tensor.detach().reshape(-1).view(torch.uint8) if tensor.numel() else _none()
