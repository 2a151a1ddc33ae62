"""The transport's contract, and what every transport shares.

Four collectives, called by all ranks in the same order: `broadcast`, `all_to_all`, `all_gather` and
`all_reduce`. The first two return a `Handle` at once; the tensors belong to the transport until
`Handle.wait`. Every wait has a timeout. Tensors are contiguous and owned by the caller: receiving into a
temporary is how a result gets lost. Collectives are numbered; a message that is not of the collective in
which it arrives is never used (`sancus.comm.header`).
"""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from sancus.comm.clock import Clock
from sancus.comm.errors import CommError
from sancus.comm.header import PLAIN_HEADER, Plain, as_bytes, blank, label_of, seal, size_of, unseal
from sancus.comm.ledger import Entry, Ledger
from sancus.comm.notes import Notes
from sancus.comm.observer import Observer

PARAMETER = Entry("parameter")
AGREEMENT = Entry("agreement")
RING_CHUNK = 1 << 19
MAX_TAG = 1 << 14


@dataclass(frozen=True)
class Transfer:
    """What a library has under way."""

    finish: Callable[[], None]  # block until it ends, within the timeout
    ended: Callable[[], float | None]  # the moment at which it was seen to have ended (perf_counter)


DONE = Transfer(lambda: None, lambda: None)  # of a transport where everything happens when it starts


class Handle:
    """A collective on its way."""

    def __init__(
        self,
        transfer: Transfer,
        transport: Group,
        entry: Entry,
        describe: str,
        opened: Callable[[], None] | None = None,
    ) -> None:
        """`opened` checks what has arrived, and puts it where the caller expects it."""
        self._transfer = transfer
        self._ledger = transport.ledger
        self._observer = transport.observer
        self._number = transport.number
        self._entry = entry
        self._describe = describe
        self._opened = opened
        self._begun = time.perf_counter()

    def wait(self) -> None:
        """Block until the tensors are ours again; a failure or timeout is a `CommError`.

        Only this time is exposed; what passed since the start of the transfer, until here or until the
        transfer ended, was hidden behind other work.
        """
        started = time.perf_counter()
        self._observer.waits(self._number)
        try:
            self._transfer.finish()
        except RuntimeError as error:
            waited = time.perf_counter() - started
            failed = f"{self._describe} failed after {waited:.1f} s: {_reason(error)}"
            raise CommError(self._observer.explain(failed)) from error
        self._observer.goes_on()
        if self._opened is not None:
            self._opened()
        self._ledger.wait(self._entry.purpose, time.perf_counter() - started)
        if self._entry.purpose == "payload":
            self._ledger.hide(min(started, self._transfer.ended() or started) - self._begun)


class Group(abc.ABC):
    """Moves tensors between ranks and counts every byte in its ledger."""

    def __init__(self, rank: int, size: int, timeout: float) -> None:
        self.rank = rank
        self.size = size
        self.timeout = timeout
        self.ledger = Ledger()
        self.observer = Observer()
        self.number = 0  # of the last collective, the same on all ranks
        self.clock = Clock()  # likewise
        self.ring = False  # broadcast around the ring of ranks, instead of by the library
        self._rings = 0

    def begin_epoch(self, epoch: int) -> None:
        """A training epoch starts; its number is the same on all ranks."""
        self.clock.begin_epoch(epoch)
        self.observer.begin_epoch(epoch)

    def broadcast(
        self, tensor: torch.Tensor, owner: int, entry: Entry, overhead: int = 0, *, background: bool = False
    ) -> Handle:
        """The owner's `tensor` arrives in everyone's `tensor` (same shape and dtype).

        `overhead` bytes of the message are a header that the caller checks; without one it gets a plain one.
        Both are counted as agreement, not as `entry`. In the background it makes progress while the ranks
        compute, and never goes around the ring, where every rank must help.
        """
        assert tensor.is_contiguous()
        message, opened = tensor, None
        if not overhead and entry.purpose != "probe":
            headers, overhead = (
                [self._plain("broadcast", entry, tensor.dtype, tensor.shape).header(1, owner)],
                PLAIN_HEADER,
            )
            mine, device = self.rank == owner, tensor.device
            message = seal([tensor], headers, device) if mine else blank(headers, device)
            opened = partial(unseal, message, headers, tensor, self.rank)
        if self.rank == owner:
            for receiver in self._others():
                self._count(entry, receiver, message.nbytes, overhead)
        what = f"broadcast from rank {owner}"
        if self.ring and not background:
            return self._handle(lambda: self._ring(message, owner), entry, what, opened)
        return self._handle(
            lambda: self._broadcast(message, owner, background=background), entry, what, opened
        )

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

        Both are contiguous with equal trailing dimensions; the count for oneself is 0. `overhead` bytes of
        every message that is not empty are a header that the caller checks; without one it gets a plain one.
        """
        assert send.is_contiguous() and receive.is_contiguous()
        assert send_counts[self.rank] == receive_counts[self.rank] == 0
        out, into, sizes, coming, opened = send, receive, list(send_counts), list(receive_counts), None
        if not overhead:
            plain, overhead = self._plain("all-to-all", entry, send.dtype, send.shape[1:]), PLAIN_HEADER
            going = [plain.header(rows, self.rank) for rows in sizes]
            arriving = [plain.header(rows, sender) for sender, rows in enumerate(coming)]
            out, into = seal(send.split(sizes), going, send.device), blank(arriving, receive.device)
            opened = partial(unseal, into, arriving, receive, self.rank)
            sizes, coming = [size_of(header) for header in going], [size_of(header) for header in arriving]
        for receiver in self._others():
            self._count(entry, receiver, sizes[receiver] * out.element_size(), overhead)
        return self._handle(
            lambda: self._all_to_all(out, sizes, into, coming, background=background),
            entry,
            "all-to-all",
            opened,
        )

    def all_gather(self, tensor: torch.Tensor, entry: Entry = AGREEMENT) -> torch.Tensor:
        """Everyone's `tensor` (same shape and dtype on all ranks), stacked: `[p, …]`."""
        plain = self._plain("all-gather", entry, tensor.dtype, tensor.shape)
        headers = [plain.header(1, sender) for sender in range(self.size)]
        mine = seal([tensor], [headers[self.rank]], tensor.device)
        for receiver in self._others():
            self._count(entry, receiver, mine.nbytes, PLAIN_HEADER)
        everyone = mine.new_zeros(self.size, len(mine))
        gathered = torch.empty((self.size, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
        opened = partial(unseal, everyone.view(-1), headers, gathered, self.rank)
        self._handle(lambda: self._all_gather(mine, everyone), entry, "all-gather", opened).wait()
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

    def _ring(self, tensor: torch.Tensor, owner: int) -> Transfer:
        """Ring-based pipelined broadcast: owner → owner + 1 → … in chunks (SANCUS §4.3.2, Figure 13).

        A rank passes a chunk on as soon as it has it, so all links are busy at once and a long block
        takes the time of one transfer plus a chunk per hop. The tag keeps rounds that overlap apart.
        """
        self._rings += 1
        tag = self._rings % MAX_TAG
        place = (self.rank - owner) % self.size
        before, after = (self.rank - 1) % self.size, (self.rank + 1) % self.size
        chunks = as_bytes(tensor).split(RING_CHUNK)
        passes_on = place < self.size - 1
        receives = [self._receive(chunk, before, tag) for chunk in chunks] if place else []
        sends = [] if place else [self._send(chunk, after, tag) for chunk in chunks]

        def finish() -> None:
            for chunk, receive in zip(chunks, receives, strict=False):
                receive.finish()
                if passes_on:
                    sends.append(self._send(chunk, after, tag))
            for send in sends:
                send.finish()

        return Transfer(finish, lambda: None)

    def _plain(self, operation: str, entry: Entry, dtype: torch.dtype, shape: Sequence[int]) -> Plain:
        """What the messages of the next collective say of themselves; `shape` is that of a row."""
        return Plain(operation, self.number + 1, label_of(entry, self.clock.epoch), dtype, tuple(shape))

    def _count(self, entry: Entry, receiver: int, size: int, overhead: int) -> None:
        if size:
            self.ledger.count(entry, receiver, size - overhead)
            self.ledger.count(AGREEMENT, receiver, overhead)

    def _others(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.rank]

    def _handle(
        self, start: Callable[[], Transfer], entry: Entry, what: str, opened: Callable[[], None] | None = None
    ) -> Handle:
        self.number += 1
        self.observer.started(self.number, what, entry.stream)
        describe = f"rank {self.rank}: {what}"
        if entry.stream is not None:
            describe += f" ({entry.stream.direction}, layer {entry.stream.layer})"
        started = time.perf_counter()
        try:
            transfer = start()
        except RuntimeError as error:
            raise CommError(self.observer.explain(f"{describe} failed: {_reason(error)}")) from error
        self.ledger.wait(entry.purpose, time.perf_counter() - started)
        return Handle(transfer, self, entry, describe, opened)

    def notes(self) -> Notes | None:
        """Where ranks can leave notes for each other outside all collectives, if the library has that."""
        return None

    @abc.abstractmethod
    def _broadcast(self, tensor: torch.Tensor, owner: int, *, background: bool) -> Transfer:
        """Start a broadcast."""

    @abc.abstractmethod
    def _send(self, tensor: torch.Tensor, receiver: int, tag: int) -> Transfer:
        """Start to send to one rank."""

    @abc.abstractmethod
    def _receive(self, tensor: torch.Tensor, sender: int, tag: int) -> Transfer:
        """Start to receive from one rank."""

    @abc.abstractmethod
    def _all_to_all(
        self,
        send: torch.Tensor,
        send_counts: Sequence[int],
        receive: torch.Tensor,
        receive_counts: Sequence[int],
        *,
        background: bool,
    ) -> Transfer:
        """Start a variable all-to-all."""

    @abc.abstractmethod
    def _all_gather(self, tensor: torch.Tensor, gathered: torch.Tensor) -> Transfer:
        """Start a fixed-shape all-gather."""

    @abc.abstractmethod
    def progress(self) -> None:
        """Help background transfers along, where the library does not do so by itself."""

    @abc.abstractmethod
    def close(self) -> None:
        """Leave the group in good order: all ranks are here."""

    @abc.abstractmethod
    def abort(self) -> None:
        """Leave at once because this rank failed; the others must not wait for it."""


def _reason(error: Exception) -> str:
    """One line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
