"""The envelope of a payload: a header that says what this is, checked before anything is used.

If one rank makes a collective that another does not, the next one may hand it the wrong tensor, with no error
from the transport. So every payload travels behind 64 bytes: eight int64 of (sequence, owner, layer
and direction, version, rows, columns, element size, checksum of the content). The receiver knows what it
expects; anything else is a `DisagreementError` that names the owner, before history or result is touched.
Headers are counted as agreement. The checksum is xxhash's, at memory speed; on a CUDA device it would need a
copy on the host, and is left out (0).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sancus.comm.errors import DisagreementError
from sancus.comm.ledger import DIRECTIONS, Stream
from sancus.comm.stamp import checksum

FIELDS = ("sequence", "owner", "stream", "version", "rows", "columns", "element size", "checksum")
HEADER = 8 * len(FIELDS)


@dataclass(frozen=True)
class Label:
    """What a payload must say of itself."""

    sequence: int  # from 1, so that silence is not one
    stream: Stream
    version: int

    def words(self, wire: torch.Tensor) -> list[int]:
        """The header's numbers for a wire tensor `[rows, w]`, but for the checksum."""
        place = self.stream.layer * len(DIRECTIONS) + DIRECTIONS.index(self.stream.direction)
        shape = (wire.shape[0], wire.shape[1], wire.element_size())
        return [self.sequence, self.stream.owner, place, self.version, *shape]


def size_of(wire: torch.Tensor) -> int:
    """Bytes of the envelope of a wire tensor; nothing at all for no rows."""
    return HEADER + wire.nbytes if len(wire) else 0


def seal(wires: list[torch.Tensor], label: Label, device: torch.device) -> torch.Tensor:
    """Header and content of each wire tensor, one after another, as bytes."""
    envelope = torch.empty(sum(map(size_of, wires)), dtype=torch.uint8, device=device)
    start = 0
    for wire in wires:
        if len(wire):
            content = envelope[start + HEADER : start + size_of(wire)]
            content.view(wire.dtype).view(wire.shape).copy_(wire)
            header = torch.tensor([*label.words(wire), checksum(content)], dtype=torch.int64, device=device)
            envelope[start : start + HEADER] = header.view(torch.uint8)
            start += size_of(wire)
    return envelope


def blank(sizes: list[int], device: torch.device) -> torch.Tensor:
    """Room to receive envelopes of these sizes into; headers are zeroed, so that silence is not one."""
    envelope = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    for part in envelope.split(sizes):
        part[:HEADER] = 0
    return envelope


def unseal(envelope: torch.Tensor, like: torch.Tensor, label: Label, rank: int) -> torch.Tensor:
    """The content `[rows, w]` of an envelope, if it is what `label` and the shape of `like` promise."""
    words = envelope[:HEADER].clone().view(torch.int64).tolist()
    expected = [*label.words(like), checksum(envelope[HEADER:])]
    if words != expected:
        name, got, wanted = next((n, g, w) for n, g, w in zip(FIELDS, words, expected, strict=True) if g != w)
        raise DisagreementError(
            f"rank {rank}: the payload from rank {label.stream.owner} ({label.stream.direction}, layer "
            f"{label.stream.layer}, epoch {label.version}) has {name} {got}, not {wanted}: the ranks disagree"
        )
    return envelope[HEADER:].view(like.dtype).view(like.shape)
