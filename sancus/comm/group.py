"""A group: processes that act together, and what they may do: collectives, and messages to one another.

Four collectives, called by all members in the same order: `broadcast`, `all_to_all`, `all_gather` and
`all_reduce`; and `send` with its `receive`. What can travel while a rank computes returns a `Handle` at once;
the tensors belong to the group until `Handle.wait`. Every wait has a timeout. Tensors are contiguous and the
caller's own: receiving into a temporary is how a result gets lost. They may be on any device: messages are
made where the transport wants them, so tensors of a GPU are staged through the host where it must.

A group seals every message behind a header, counts its bytes in the ledger and checks what arrives
(`sancus.comm.header`); a `Transport` moves them. Collectives are numbered; a message that is not of the
collective in which it arrives is never used. Ranks are places in the group, from 0; `members` says which
process of the whole run each of them is, and the ledger and errors name those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import torch

from sancus.comm.clock import Clock
from sancus.comm.desk import Desk, OnDesk
from sancus.comm.errors import CommError
from sancus.comm.handle import Handle, reason
from sancus.comm.header import Header, Plain, blank, label_of, seal, size_of, unseal
from sancus.comm.ledger import AGREEMENT, PARAMETER, Entry, Ledger
from sancus.comm.notes import Notes
from sancus.comm.observer import Observer
from sancus.comm.ring import TAGS, Ring
from sancus.comm.stamp import DEVICE_CHECKSUM
from sancus.comm.stopwatch import Stopwatch, message_of
from sancus.comm.transport import Transfer, Transport

MESSAGE_TAG = TAGS  # of messages between two ranks; those of the ring are below


class Group:
    """Moves tensors between the processes of a group and counts every byte."""

    ledger = OnDesk[Ledger]()
    observer = OnDesk[Observer]()
    clock = OnDesk[Clock]()  # the same on all ranks at the same collective
    stopwatch = OnDesk[Stopwatch]()

    def __init__(
        self,
        transport: Transport,
        name: str = "all",
        members: Sequence[int] | None = None,
        desk: Desk | None = None,
    ) -> None:
        """The group of all processes; or `members` of them, at the `desk` that it shares with that group."""
        self.transport = transport
        self.rank = transport.rank
        self.size = transport.size
        self.name = name
        self.members = tuple(range(self.size) if members is None else members)
        self.description = f"{name} {self.members}"
        self.desk = desk or Desk()
        if desk is None and transport.device.type != "cpu":
            self.desk.stamp = DEVICE_CHECKSUM
        self.number = 0  # of the last collective, the same on all ranks
        self.ring = False  # broadcast around the ring of ranks, instead of by the library
        self._ring = Ring(transport)
        self._whole = members is None
        self._sent: Counter[int] = Counter()  # messages so far to each rank, and from each
        self._received: Counter[int] = Counter()

    def begin_epoch(self, epoch: int) -> None:
        """A training epoch starts; its number is the same on all ranks."""
        self.clock.begin_epoch(epoch)
        self.stopwatch.read()
        self.observer.begin_epoch(epoch)

    def broadcast(
        self, tensor: torch.Tensor, owner: int, entry: Entry, overhead: int = 0, *, background: bool = False
    ) -> Handle:
        """The owner's `tensor` arrives in everyone's `tensor` (same shape and dtype).

        The first `overhead` bytes of the message are a header that the caller checks; without one it gets a
        plain one. Both are counted as agreement, not as `entry`. In the background it makes progress while
        the ranks compute, and never goes around the ring, where every rank must help.
        """
        assert tensor.is_contiguous()
        message, on_arrival, device = tensor, None, self.transport.device
        if not overhead and entry.purpose != "probe":
            plain = self._plain("broadcast", entry, tensor.dtype, tensor.shape)
            overhead = plain.overhead
            headers = [plain.header(1, self.members[owner])]
            message = seal([tensor], headers, device) if self.rank == owner else blank(headers, device)
            on_arrival = _unsealing(self, message, headers, tensor)
        if self.rank == owner:
            self._count(entry, [message.nbytes] * self.size, overhead)

        def start() -> Transfer:
            if self.ring and not background:
                return self._ring.broadcast(message, owner)
            return self.transport.broadcast(message, owner, background=background)

        return self._start(start, entry, f"broadcast from rank {self.members[owner]}", on_arrival)

    def all_to_all(
        self,
        send: torch.Tensor,
        send_counts: Sequence[int],
        receive: torch.Tensor,
        receive_counts: Sequence[int],
        entry: Entry,
        overhead: int = 0,
        *,
        background: bool = False,
    ) -> Handle:
        """Rows of `send` go to ranks 0, 1, … by `send_counts`; `receive` fills likewise.

        Both are contiguous with equal trailing dimensions; the count for oneself is 0. The first `overhead`
        bytes of every message that is not empty are a header that the caller checks; without one it gets a
        plain one.
        """
        assert send.is_contiguous() and receive.is_contiguous()
        assert send_counts[self.rank] == receive_counts[self.rank] == 0
        out, into, sizes, coming, on_arrival = send, receive, list(send_counts), list(receive_counts), None
        device = self.transport.device
        if not overhead:
            plain, mine = (
                self._plain("all-to-all", entry, send.dtype, send.shape[1:]),
                self.members[self.rank],
            )
            overhead = plain.overhead
            going = [plain.header(rows, mine, to) for rows, to in zip(sizes, self.members, strict=True)]
            arriving = [plain.header(rows, by, mine) for rows, by in zip(coming, self.members, strict=True)]
            out, into = seal(send.split(sizes), going, device), blank(arriving, device)
            on_arrival = _unsealing(self, into, arriving, receive)
            sizes, coming = [size_of(header) for header in going], [size_of(header) for header in arriving]
        self._count(entry, [size * out.element_size() for size in sizes], overhead)
        return self._start(
            lambda: self.transport.all_to_all(out, sizes, into, coming, background=background),
            entry,
            "all-to-all",
            on_arrival,
        )

    def all_gather(self, tensor: torch.Tensor, entry: Entry = AGREEMENT) -> torch.Tensor:
        """Everyone's `tensor` (same shape and dtype on all ranks), stacked: `[p, …]`."""
        plain = self._plain("all-gather", entry, tensor.dtype, tensor.shape)
        headers = [plain.header(1, sender) for sender in self.members]
        mine = seal([tensor], [headers[self.rank]], self.transport.device)
        self._count(entry, [mine.nbytes] * self.size, plain.overhead)
        everyone = mine.new_zeros(self.size, len(mine))
        gathered = torch.empty((self.size, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
        on_arrival = _unsealing(self, everyone.view(-1), headers, gathered)
        self._start(lambda: self.transport.all_gather(mine, everyone), entry, "all-gather", on_arrival).wait()
        return gathered

    def all_reduce(self, tensor: torch.Tensor, entry: Entry = PARAMETER) -> None:
        """Sum a flat `[k]` tensor over ranks, in place.

        An all-to-all of slices, a local sum in the order of ranks, an all-gather of the sums: each rank
        sends `2 (p-1)/p k` values, as a ring does, and the order of summation, so every bit of the result,
        is the same on every rank and every transport.
        """
        assert tensor.dim() == 1 and tensor.is_contiguous()
        if self.size == 1:
            return
        slice_size = -(-tensor.numel() // self.size)
        padded = tensor.new_zeros(self.size, slice_size)
        padded.view(-1)[: tensor.numel()] = tensor
        parts = padded.new_empty(self.size, slice_size)
        counts = [1] * self.size
        counts[self.rank] = 0
        others = [rank for rank in range(self.size) if rank != self.rank]
        received = padded.new_empty(self.size - 1, slice_size)
        self.all_to_all(padded[others].contiguous(), counts, received, counts, entry).wait()
        parts[others] = received
        parts[self.rank] = padded[self.rank]
        summed = self.all_gather(parts.sum(dim=0), entry)
        tensor.copy_(summed.view(-1)[: tensor.numel()])

    def send(self, tensor: torch.Tensor, receiver: int, entry: Entry) -> Handle:
        """`tensor` goes to one rank, which calls `receive`; messages between two ranks keep their order.

        Only those two take part, so it is no collective and moves no number but that of their messages.
        """
        self._sent[receiver] += 1
        mine, other = self.members[self.rank], self.members[receiver]
        plain = self._plain("send", entry, tensor.dtype, tensor.shape, self._sent[receiver])
        message = seal([tensor], [plain.header(1, mine, other)], self.transport.device)
        self.ledger.count(entry, other, message.nbytes, plain.overhead)
        return self._start(
            lambda: self.transport.send(message, receiver, MESSAGE_TAG),
            entry,
            f"send to rank {other}",
            collective=False,
        )

    def receive(self, tensor: torch.Tensor, sender: int, entry: Entry) -> Handle:
        """The next message of `sender` arrives in `tensor` (same shape, dtype and purpose as it was sent)."""
        self._received[sender] += 1
        mine, other = self.members[self.rank], self.members[sender]
        plain = self._plain("send", entry, tensor.dtype, tensor.shape, self._received[sender])
        headers = [plain.header(1, other, mine)]
        message = blank(headers, self.transport.device)
        return self._start(
            lambda: self.transport.receive(message, sender, MESSAGE_TAG),
            entry,
            f"receive from rank {other}",
            _unsealing(self, message, headers, tensor),
            collective=False,
        )

    def progress(self) -> None:
        """Help background transfers along, where the library does not do so by itself."""
        self.transport.progress()

    def close(self) -> None:
        """All ranks leave together, so that nobody's connection breaks while others still talk.

        A peer that is already gone is no error where the library can do without it: nothing is left to say.
        """
        try:
            if self.size > 1:
                self.all_gather(torch.zeros(1, dtype=torch.uint8, device=self.transport.device))
        except CommError:
            if self.transport.leaves_together:
                raise
        self.transport.close()

    def abort(self) -> None:
        """Leave at once because this rank failed; the others must not wait for it."""
        self.transport.abort()

    def notes(self) -> Notes | None:
        """Where ranks can leave notes for each other outside all collectives, if the library has that."""
        return self.transport.notes()

    def _plain(
        self, operation: str, entry: Entry, dtype: torch.dtype, shape: Sequence[int], number: int = 0
    ) -> Plain:
        """What the messages of the next collective, or of message `number`, say; `shape` is of a row."""
        label = label_of(entry, self.clock)
        here, stamp = self.description, self.desk.stamp
        return Plain(operation, number or self.number + 1, label, dtype, tuple(shape), here, stamp)

    def _count(self, entry: Entry, sizes: Sequence[int], overhead: int) -> None:
        """Messages of so many bytes `[p]` are handed over, one to each other rank."""
        for receiver, size in enumerate(sizes):
            if size and receiver != self.rank:
                self.ledger.count(entry, self.members[receiver], size, overhead)

    def _start(
        self,
        start: Callable[[], Transfer],
        entry: Entry,
        what: str,
        on_arrival: Callable[[], None] | None = None,
        *,
        collective: bool = True,
    ) -> Handle:
        """Start a transfer; a collective, of all members, gets the next number."""
        if collective:
            self.number += 1
        if self._whole:
            self.desk.number = self.number
        self.observer.started(self.desk.number, what, entry.stream)
        describe = f"rank {self.members[self.rank]}: {what}"
        if entry.stream is not None:
            describe += f" ({entry.stream.direction}, layer {entry.stream.layer})"
        with self.stopwatch.at(message_of(entry)):
            try:
                transfer = start()
            except RuntimeError as error:
                raise CommError(self.observer.explain(f"{describe} failed: {reason(error)}")) from error
        return Handle(transfer, self.desk, entry, describe, on_arrival)


def _unsealing(
    group: Group, message: torch.Tensor, headers: Sequence[Header | None], out: torch.Tensor
) -> Callable[[], None]:
    """What is done with messages when they have arrived."""
    return partial(unseal, message, headers, out, group.members[group.rank], group.desk.checks)
