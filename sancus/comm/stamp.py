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
EVERYONE = -1  # as a receiver


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

    def words(self, route: Route, before: Sequence[int], content: torch.Tensor) -> Sequence[int]:
        """The stamp of a message whose header has the words `before`, and whose content are these bytes."""
        ...


class Checksum:
    """63 bits of the content at memory speed; 0 on a CUDA device, which would need a copy on the host."""

    names: ClassVar[tuple[str, ...]] = ("checksum",)
    wrong: ClassVar[str] = ""

    def words(self, route: Route, before: Sequence[int], content: torch.Tensor) -> Sequence[int]:
        return (checksum(content),)


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


def checksum(content: torch.Tensor) -> int:
    """63 bits of contiguous bytes; 0 on a CUDA device."""
    return xxhash.xxh3_64_intdigest(content.numpy().data) >> 1 if content.device.type == "cpu" else 0
