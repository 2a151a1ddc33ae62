"""An accountant: a transport of threads that counts what really leaves, and a group that says what for.

The ledger is not asked. What a message is for is noted where a collective is called; what leaves is counted
where the library is handed the bytes, receiver by receiver. Headers are agreement: 40 bytes of a plain
message, 64 of a payload, none of a probe.
"""

from __future__ import annotations

import queue
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from sancus.comm.group import Group
from sancus.comm.handle import Handle
from sancus.comm.ledger import AGREEMENT, PARAMETER, Entry
from sancus.comm.transport import DONE, Transfer
from tests.helpers.threads import Board, ThreadTransport

PLAIN_BYTES = 40


class CountingTransport(ThreadTransport):
    """Counts what leaves: all of it, and by purpose without headers."""

    def __init__(self, rank: int, size: int, board: Board) -> None:
        super().__init__(rank, size, board)
        self.left: Counter[int] = Counter()  # receiver -> bytes
        self.books: Counter[tuple[str, int]] = Counter()  # (purpose, receiver) -> bytes
        self.purpose, self.header = "", 0  # of the collective under way
        mail = board.__dict__.setdefault("mail", defaultdict(queue.Queue))
        self._mail: defaultdict[tuple[int, int, int], queue.Queue[torch.Tensor]] = mail

    def leaves(self, receiver: int, size: int) -> None:
        if size and receiver != self.rank:
            assert size >= self.header
            self.left[receiver] += size
            self.books[self.purpose, receiver] += size - self.header
            self.books["agreement", receiver] += self.header

    def broadcast(self, tensor: torch.Tensor, owner: int, *, background: bool) -> Transfer:
        if owner == self.rank:
            for receiver in range(self.size):
                self.leaves(receiver, tensor.nbytes)
        return super().broadcast(tensor, owner, background=background)

    def all_to_all(
        self,
        send: torch.Tensor,
        send_counts: Sequence[int],
        receive: torch.Tensor,
        receive_counts: Sequence[int],
        *,
        background: bool,
    ) -> Transfer:
        for receiver, part in enumerate(send.split(list(send_counts))):
            self.leaves(receiver, part.nbytes)
        return super().all_to_all(send, send_counts, receive, receive_counts, background=background)

    def all_gather(self, tensor: torch.Tensor, gathered: torch.Tensor) -> Transfer:
        for receiver in range(self.size):
            self.leaves(receiver, tensor.nbytes)
        return super().all_gather(tensor, gathered)

    def send(self, tensor: torch.Tensor, receiver: int, tag: int) -> Transfer:
        self.leaves(receiver, tensor.nbytes)
        self._mail[self.rank, receiver, tag].put(tensor.clone())
        return DONE

    def receive(self, tensor: torch.Tensor, sender: int, tag: int) -> Transfer:
        def finish() -> None:
            tensor.copy_(self._mail[sender, self.rank, tag].get(timeout=self.timeout))

        return Transfer(finish, lambda: None)


class AuditedGroup(Group):
    """A group that tells its counting transport what each collective is for."""

    transport: CountingTransport

    def _begin(self, entry: Entry, overhead: int) -> None:
        plain = 0 if entry.purpose == "probe" else PLAIN_BYTES
        self.transport.purpose, self.transport.header = entry.purpose, overhead or plain

    def broadcast(
        self, tensor: torch.Tensor, owner: int, entry: Entry, overhead: int = 0, *, background: bool = False
    ) -> Handle:
        self._begin(entry, overhead)
        return super().broadcast(tensor, owner, entry, overhead, background=background)

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
        self._begin(entry, overhead)
        return super().all_to_all(
            send, send_counts, receive, receive_counts, entry, overhead, background=background
        )

    def all_gather(self, tensor: torch.Tensor, entry: Entry = AGREEMENT) -> torch.Tensor:
        self._begin(entry, 0)
        return super().all_gather(tensor, entry)

    def all_reduce(self, tensor: torch.Tensor, entry: Entry = PARAMETER) -> None:
        super().all_reduce(tensor, entry)

    def send(self, tensor: torch.Tensor, receiver: int, entry: Entry) -> Handle:
        self._begin(entry, 0)
        return super().send(tensor, receiver, entry)


def audited_group(rank: int, size: int, board: Board) -> Group:
    """One rank of a board, for `run_threads`."""
    return AuditedGroup(CountingTransport(rank, size, board))


def assert_books_agree(group: Any) -> None:
    """The ledger has every byte that left, for each purpose and receiver, and no other."""
    transport: CountingTransport = group.transport
    ledger: Counter[tuple[str, int]] = Counter()
    for (entry, receiver), wire in group.ledger.wire.items():
        ledger[entry.purpose, receiver] += wire
    assert {place: size for place, size in ledger.items() if size} == {
        place: size for place, size in transport.books.items() if size
    }
    everything: Counter[int] = Counter()
    for (_, receiver), wire in ledger.items():
        everything[receiver] += wire
    assert everything == transport.left
