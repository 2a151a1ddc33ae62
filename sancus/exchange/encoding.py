"""Encoding at the owner: the codec, its random numbers, and the residual that error feedback keeps.

The random numbers of a payload are a hash of the run's seed, the epoch, the stream and the receiver, so a run
with a codec is reproducible, and its payloads are rounded independently of each other.
"""

from __future__ import annotations

import struct

import torch
import xxhash

from sancus.codecs.base import Codec, Moment
from sancus.comm.ledger import DIRECTIONS, Stream
from sancus.errors import UserError
from sancus.exchange.history import History

EVERYONE = -1  # the receiver of a broadcast


class Encoder:
    """One direction's codec on one rank.

    With `feedback`, what rounding left out of a send is kept here and added to the next send of the same
    rows to the same receiver, so that errors do not add up (as in PowerSGD and 1-bit SGD). A residual row is
    kept no longer than the row that it comes from: between a row's least and largest value two levels can be
    further off than the row is long, and such residuals would grow without end.
    """

    def __init__(self, codec: Codec, *, seed: int = 0, epochs: int = 1, feedback: bool = False) -> None:
        self.codec = codec
        self._seed = seed
        self._last = max(1, epochs - 1)
        self.residuals: dict[int, History] | None = {} if feedback and not codec.lossless else None

    @property
    def row_by_row(self) -> bool:
        """Whether any rows of the wire are the code of the same rows of the payload; a codec may say so."""
        return getattr(self.codec, "row_by_row", False)

    def stage(self, epoch: int) -> float:
        """How far the training is: 0 in the first epoch, 1 in the last."""
        return min(1.0, max(0, epoch) / self._last)

    def wire(self, rows: int, like: torch.Tensor, epoch: int) -> torch.Tensor:
        """The shape of what crosses for `rows` rows of `like [·, f]`; holds no memory."""
        return self.codec.wire(rows, like.shape[1], like.dtype, torch.device("meta"), self.stage(epoch))

    def encode(
        self, payload: torch.Tensor, weight: torch.Tensor, stream: Stream, receiver: int, epoch: int
    ) -> torch.Tensor:
        """What crosses for `payload [rows, f]` of this rank."""
        moment = Moment(_hash(self._seed, epoch, stream, receiver), self.stage(epoch))
        residual = None if self.residuals is None else self.residuals.setdefault(receiver, History())
        whole = payload  # with what the last send left out
        if residual is not None and residual.holds(stream):
            whole = payload + residual.pull(stream)
        try:
            wire = self.codec.encode(whole, moment, weight)
        except ValueError as refusal:
            raise UserError(
                f"rank {stream.owner}, layer {stream.layer}, {stream.direction}, epoch {epoch}: {refusal}; "
                "lower --lr, or look at the features"
            ) from refusal
        if residual is not None:
            error = whole - self.decode(wire, len(payload), payload, epoch)
            residual.push(stream, _no_longer_than(payload, error), epoch)
        return wire

    def decode(self, wire: torch.Tensor, rows: int, like: torch.Tensor, epoch: int) -> torch.Tensor:
        """The payload `[rows, f]` as receivers see it."""
        return self.codec.decode(wire, rows, like.shape[1], like.dtype, self.stage(epoch))

    @property
    def nbytes(self) -> int:
        """Memory of the residuals."""
        return sum(history.nbytes for history in (self.residuals or {}).values())


def _no_longer_than(rows: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    """`error [n, f]`, each row shortened to the L2 norm of the same row of `rows` where it is longer."""
    limit, length = rows.norm(dim=1, keepdim=True), error.norm(dim=1, keepdim=True)
    return torch.where(length > limit, error * (limit / length), error)


def _hash(seed: int, epoch: int, stream: Stream, receiver: int) -> int:
    side = DIRECTIONS.index(stream.direction)
    words = struct.pack("<6q", seed, epoch, stream.layer, side, stream.owner, receiver)
    return xxhash.xxh3_64_intdigest(words) >> 1
