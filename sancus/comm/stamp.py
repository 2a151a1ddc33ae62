"""Stamps: every message of a collective says which collective it is of.

If one rank leaves out a collective, or makes one too many, libraries may hand the others bytes of another
one, with no error (LESSONS §2). So every message that has no envelope of its own travels behind 40 bytes:
its kind (operation and dtype), the collective's running number, what it is for (purpose, layer, direction,
epoch), its shape, and a checksum of its content. A receiver knows what it expects; anything else is a
`DisagreementError` that names the sender, before a byte is used. Counted as agreement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import xxhash

from sancus.comm.errors import DisagreementError
from sancus.comm.ledger import DIRECTIONS, PURPOSES, Entry

FIELDS = ("kind", "number", "label", "shape", "checksum")
STAMP = 8 * len(FIELDS)
DTYPES = (
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.bool,
)
OPERATIONS = ("broadcast", "all-to-all", "all-gather")


@dataclass(frozen=True)
class Stamp:
    """What the messages of a collective must say of themselves, but for their number of rows."""

    operation: str
    number: int
    label: int  # what it is for
    dtype: torch.dtype
    shape: tuple[int, ...]  # of a row

    @property
    def width(self) -> int:
        """Bytes a row."""
        return math.prod(self.shape) * self.dtype.itemsize

    def words(self, rows: int) -> list[int]:
        """The stamp's numbers for a message of so many rows, but for the checksum."""
        kind = OPERATIONS.index(self.operation) * len(DTYPES) + DTYPES.index(self.dtype)
        return [kind, self.number, self.label, hash((rows, *self.shape))]

    def size(self, rows: int) -> int:
        """Bytes of a message; nothing at all for no rows."""
        return STAMP + rows * self.width if rows else 0

    def seal(self, tensor: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Messages of `counts` rows of a contiguous `tensor`, each behind its stamp, as bytes."""
        content = as_bytes(tensor)
        sealed = content.new_empty(sum(map(self.size, counts)))
        start, read = 0, 0
        for rows in filter(None, counts):
            end = start + self.size(rows)
            part = content[read : read + rows * self.width]
            stamp = torch.tensor([*self.words(rows), checksum(part)], device=tensor.device)
            sealed[start : start + STAMP] = stamp.view(torch.uint8)
            sealed[start + STAMP : end] = part
            start, read = end, read + rows * self.width
        return sealed

    def blank(self, counts: Sequence[int], device: torch.device) -> torch.Tensor:
        """Room to receive messages of `counts` rows; stamps are zeroed, so that silence is not one."""
        room = torch.empty(sum(map(self.size, counts)), dtype=torch.uint8, device=device)
        for part in room.split([self.size(rows) for rows in counts]):
            part[:STAMP] = 0
        return room

    def unseal(self, sealed: torch.Tensor, counts: Sequence[int], out: torch.Tensor, rank: int) -> None:
        """Check every message and copy its rows to a contiguous `out`; message `j` is from rank `j`."""
        content, start = as_bytes(out), 0
        for sender, part in enumerate(sealed.split([self.size(rows) for rows in counts])):
            if len(part):
                self.check(part, counts[sender], sender, rank)
                content[start : start + len(part) - STAMP] = part[STAMP:]
                start += len(part) - STAMP

    def check(self, message: torch.Tensor, rows: int, sender: int, rank: int) -> None:
        """`message` must be what is expected of `sender`."""
        words = message[:STAMP].clone().view(torch.int64).tolist()
        expected = [*self.words(rows), checksum(message[STAMP:])]
        for name, got, wanted in zip(FIELDS, words, expected, strict=True):
            if got != wanted:
                raise DisagreementError(
                    f"rank {rank}: {self.operation} {self.number}: what came from rank {sender} has "
                    f"{name} {got}, not {wanted}: the ranks disagree"
                )


def label_of(entry: Entry, epoch: int) -> int:
    """A number for what a collective is for; whose rows they are is left out."""
    stream = entry.stream
    place = (stream.layer, DIRECTIONS.index(stream.direction)) if stream is not None else (-1, -1)
    return hash((PURPOSES.index(entry.purpose), *place, epoch))


def checksum(content: torch.Tensor) -> int:
    """63 bits of contiguous bytes; 0 on a CUDA device, where it would need a copy on the host."""
    return xxhash.xxh3_64_intdigest(content.numpy().data) >> 1 if content.device.type == "cpu" else 0


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's own memory as bytes."""
    if not tensor.numel():  # a mapped array without entries has strides that cannot be viewed
        return torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return tensor.detach().view(-1).view(torch.uint8)
