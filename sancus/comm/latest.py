"""The latest of everything: what ranks that wait for nobody leave for each other, beside the collectives.

An owner puts its payloads on its own *shelf*, one place for each stream and receiver, and a new one takes the
place of the old: memory is bounded however slow a reader is. A receiver asks for what is newer than it has,
and goes on; answers are taken when they are there. One rank also answers *calls*: it holds the weights.

    store.publish(Stream(1, "forward", owner=2), receiver=0, parcel=Parcel(version=7, message=sealed))
    store.ask(Stream(1, "forward", owner=2), newer_than=3)     # returns at once
    for stream, parcel in store.arrived(): ...                 # what came since
    answer = store.call(request)                               # of rank 0: waits, at most the timeout

Messages are bytes behind a header (`sancus.comm.header`), which who reads them checks. `MemoryStore` is for
ranks of one process; `sancus.comm.zmq_store` has the same contract between processes.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from sancus.comm.header import PAYLOAD_WORDS, overhead
from sancus.comm.ledger import PARAMETER, Entry, Ledger, Stream
from sancus.comm.stamp import Stamp

OWNER = 0  # the rank that answers calls
Answering = Callable[[int, torch.Tensor], torch.Tensor]  # caller and its message, to the answer


@dataclass(frozen=True)
class Parcel:
    """A message and the version of what is in it."""

    version: int
    message: torch.Tensor  # [bytes] uint8, header and content
    raw: int = 0  # bytes of the content before the codec


class LatestStore(Protocol):
    """What every such store can do, on one rank."""

    def publish(self, stream: Stream, receiver: int, parcel: Parcel) -> None:
        """Leave a payload of this rank for one receiver, in place of the last one."""
        ...

    def ask(self, stream: Stream, newer_than: int) -> None:
        """Ask the stream's owner for its latest payload; nothing, where an answer is still awaited."""
        ...

    def arrived(self) -> list[tuple[Stream, Parcel]]:
        """What has come since the last time; returns at once."""
        ...

    def call(self, message: torch.Tensor) -> torch.Tensor:
        """The answer of the rank that holds the weights."""
        ...

    def settle(self, ledger: Ledger, stamp: Stamp) -> None:
        """Enter what this rank handed over since the last time."""
        ...

    def close(self) -> None:
        """Leave; whoever asks later gets no answer."""
        ...


class Tally:
    """Bytes that one rank handed over, noted by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: Counter[tuple[Entry, int]] = Counter()
        self._bytes: Counter[tuple[Entry, int]] = Counter()
        self._raw: Counter[Entry] = Counter()

    def note(self, entry: Entry, receiver: int, size: int, raw: int = 0) -> None:
        """A message of so many bytes went to a receiver; before the codec its content had `raw`."""
        with self._lock:
            self._messages[entry, receiver] += 1
            self._bytes[entry, receiver] += size
            self._raw[entry] += raw

    def settle(self, ledger: Ledger, stamp: Stamp) -> None:
        """Enter everything; headers are overhead."""
        header = overhead(PAYLOAD_WORDS, stamp)
        with self._lock:
            messages, sizes, raws = self._messages, self._bytes, self._raw
            self._messages, self._bytes, self._raw = Counter(), Counter(), Counter()
        for (entry, receiver), size in sizes.items():
            ledger.count(entry, receiver, size, min(size, header * messages[entry, receiver]))
        for entry, raw in raws.items():
            if entry.stream is not None:
                ledger.count_raw(entry.stream, raw)
            else:
                ledger.count_raw_parameters(raw)


class Shelf:
    """What one owner offers: the latest payload of each stream for each receiver."""

    def __init__(self) -> None:
        self.tally = Tally()
        self._lock = threading.Lock()
        self._parcels: dict[tuple[Stream, int], Parcel] = {}

    def put(self, stream: Stream, receiver: int, parcel: Parcel) -> None:
        """Take the place of what was there; versions never go back."""
        with self._lock:
            held = self._parcels.get((stream, receiver))
            assert held is None or parcel.version > held.version, "versions never go back"
            self._parcels[stream, receiver] = parcel

    def get(self, stream: Stream, receiver: int, newer_than: int) -> Parcel | None:
        """What is there, if it is newer; it counts as handed over."""
        with self._lock:
            held = self._parcels.get((stream, receiver))
        if held is None or held.version <= newer_than:
            return None
        self.tally.note(Entry("payload", stream), receiver, held.message.numel(), held.raw)
        return held

    @property
    def nbytes(self) -> int:
        """Memory of all that is offered."""
        with self._lock:
            return sum(parcel.message.nbytes for parcel in self._parcels.values())


class MemoryStore:
    """One rank's store among ranks of the same process: what is asked for is there at once."""

    def __init__(self, rank: int, shelves: Mapping[int, Shelf], answering: Answering) -> None:
        """`shelves` are those of all owners; `answering` is what the owner of the weights says to calls."""
        self._rank = rank
        self._shelves = shelves
        self._answering = answering
        self._arrived: list[tuple[Stream, Parcel]] = []

    def publish(self, stream: Stream, receiver: int, parcel: Parcel) -> None:
        """On the own shelf."""
        self._shelves[self._rank].put(stream, receiver, parcel)

    def ask(self, stream: Stream, newer_than: int) -> None:
        """Look at the owner's shelf."""
        parcel = self._shelves[stream.owner].get(stream, self._rank, newer_than)
        if parcel is not None:
            self._arrived.append((stream, parcel))

    def arrived(self) -> list[tuple[Stream, Parcel]]:
        """All that was asked for."""
        arrived, self._arrived = self._arrived, []
        return arrived

    def call(self, message: torch.Tensor) -> torch.Tensor:
        """Answered at once."""
        answer = self._answering(self._rank, message)
        if self._rank != OWNER:
            self._shelves[self._rank].tally.note(PARAMETER, OWNER, message.numel(), message.numel())
            self._shelves[OWNER].tally.note(PARAMETER, self._rank, answer.numel(), answer.numel())
        return answer

    def settle(self, ledger: Ledger, stamp: Stamp) -> None:
        """From the own shelf's tally."""
        self._shelves[self._rank].tally.settle(ledger, stamp)

    def close(self) -> None:
        """Nothing to leave."""
