"""The stamp that ends a header: a checksum, or, where ranks share a secret, a tag that only they can make.

A checksum finds faults; anybody can make it. A tag is BLAKE2 under the key of the run, over the route of the
message (group, sender, receiver), the words of its header and its content. Among the words is the number of
the collective or message, so no two messages of a run have one tag, and none can be sent again; the key is
made from numbers that every rank drew for this run (`sancus.comm.hello`), so one of another run is refused.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
import xxhash

Route = tuple[str, int, int]  # group, sender, receiver; both are processes of the run
Word = int | torch.Tensor  # 64 bits; a tensor [] where only a device knows them
EVERYONE = -1  # as a receiver
ROW = 256  # bytes, of a checksum on a device
MULTIPLIER = 0x1B873593CC9E2D51


class Stamp(Protocol):
    """Makes the last words of a header."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of these words."""
        ...

    @property
    def wrong(self) -> str:
        """What is said of a message with another stamp; empty: the numbers themselves."""
        ...

    def words(self, route: Route, before: Sequence[int], content: torch.Tensor) -> Sequence[Word]:
        """The stamp of a message whose header has the words `before`, and whose content are these bytes."""
        ...


class Checksum:
    """63 bits of the content at memory speed, by xxhash on the host."""

    names: ClassVar[tuple[str, ...]] = ("checksum",)
    wrong: ClassVar[str] = ""

    def words(self, route: Route, before: Sequence[int], content: torch.Tensor) -> Sequence[Word]:
        return (checksum(content),)


class DeviceChecksum(Checksum):
    """64 bits of the content, made where it is: of messages that a GPU sends and receives itself.

    The bytes stand in rows of `ROW`. Sums of rows and sums of columns, each times an odd number of its own,
    are added up: any byte that changes changes it, and so do nearly all exchanges of two.
    """

    def words(self, route: Route, before: Sequence[int], content: torch.Tensor) -> Sequence[Word]:
        whole = len(content) // ROW * ROW
        body, rest = content[:whole].view(-1, ROW), content[whole:]
        by_column = body.sum(dim=0, dtype=torch.int64)  # [ROW]
        by_column[: len(rest)] += rest
        rows = torch.cat([body.sum(dim=1, dtype=torch.int64), rest.sum(dtype=torch.int64).view(1)])
        return ((by_column * _odd(by_column, 0)).sum() + (rows * _odd(rows, ROW)).sum(),)


def _odd(like: torch.Tensor, first: int) -> torch.Tensor:
    """An odd number for every place of `like [k]`, from `first` on."""
    places = torch.arange(first, first + len(like), device=like.device)
    return places * MULTIPLIER | 1


@dataclass(frozen=True)
class Tag:
    """256 bits under the key of a run."""

    names: ClassVar[tuple[str, ...]] = ("tag",) * 4
    wrong: ClassVar[str] = "was changed on its way, or comes from somebody without the secret"
    key: bytes = field(repr=False)  # of the run, 32 bytes

    def words(self, route: Route, before: Sequence[int], content: torch.Tensor) -> Sequence[int]:
        place = repr((route, tuple(before))).encode()
        tag = hashlib.blake2b(struct.pack("<q", len(place)), key=self.key, digest_size=32)
        tag.update(place)
        tag.update(content.cpu().numpy().data)
        return struct.unpack("<4q", tag.digest())


CHECKSUM: Stamp = Checksum()
DEVICE_CHECKSUM: Stamp = DeviceChecksum()


def checksum(content: torch.Tensor) -> int:
    """63 bits of contiguous bytes of the host."""
    return xxhash.xxh3_64_intdigest(content.numpy().data) >> 1
