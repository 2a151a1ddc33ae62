"""The error of a codec, measured while it runs: what receivers decode against what their owner encoded.

The owner decodes some rows of a message that it has just encoded: the true error, of real rounding, not a
bound. To cost next to nothing it looks at few rows, of one receiver, at every eighth epoch in which a stream
is sent; rows and receivers change from look to look, by a hash of the epoch.

Two figures come out of a look, for `x` what was encoded and `x̂` what is decoded:

- *error*, `‖x̂ − x‖ / ‖x‖`;
- *noise*, of embeddings: what the errors add to a row that receivers compute, over how much rows differ from
  each other, over what training was seen to stand of that. Sums over many neighbours average errors away, so
  that a GCN stands an error that attention, which may look at one neighbour alone, does not: see `Origin`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sancus.comm.ledger import DIRECTIONS, Stream
from sancus.exchange.encoding import Encoder
from sancus.kernels.hashing import splitmix_scalar

EVERY = 8  # epochs from one look at a stream to the next
ROWS = 64  # at most, of a look
_OF_ROWS, _OF_RECEIVERS = 1, 2  # what a number is drawn for
SUMS_STAND, ATTENTION_STANDS = 2.0, 1.0  # errors of rows, over how much rows differ: docs/composition.md


@dataclass(frozen=True)
class Reach:
    """How far errors of rows that cross get into the rows that this rank computes, in every epoch alike."""

    row_sum: float  # of `Â`, mean of the own rows
    foreign: float  # share of the entries of `Â` in own rows that belong to other owners


@dataclass(frozen=True)
class Origin:
    """What payload rows are made of and used for, to weigh their errors by.

    Where rows are summed by `Â`, an error `e_k` of payload row `k` adds `w_k ‖e_k‖²` to the squares of the
    receivers' rows, `w_k = Σ_i R_ik²`. That is spread over as many rows as this rank has itself. Where edges
    are weighed by content nothing is averaged for sure: a receiver's row may be that of one neighbour, who is
    somebody else's row as often as entries are foreign.
    """

    h: torch.Tensor  # [n_i, f] own rows, before a plan picks or sums them
    reach: Reach
    summed: bool  # by `Â`; else edges are weighed by content

    def noise(self, errors: torch.Tensor, weight: torch.Tensor, rows: int) -> float | None:
        """From squared errors `[k]` of some of `rows` payload rows and their weights `[k]`; 1 is too much.

        None where all own rows are alike: there is nothing to compare with.
        """
        sample = self.h[:: -(-len(self.h) // ROWS)]
        spread = sample.var(dim=0, correction=0).sum()
        if self.summed:
            energy = (errors * weight.to(errors)).mean() * (rows / len(self.h) / self.reach.row_sum**2)
        else:
            energy = errors.mean() * self.reach.foreign
        error, difference = torch.stack([energy, spread]).sqrt().tolist()
        stands = SUMS_STAND if self.summed else ATTENTION_STANDS
        return error / difference / stands if difference else None


@dataclass(frozen=True)
class Measurement:
    """One look at one stream."""

    error: float
    noise: float | None  # of embeddings alone: gradients bear errors that embeddings do not


class ErrorGauge:
    """Errors of what this rank sent, by stream."""

    def __init__(self) -> None:
        self.current: dict[Stream, Measurement] = {}  # in the current epoch
        self.measured: dict[tuple[int, Stream], Measurement] = {}  # by epoch and stream, until `forget`
        self.last: dict[Stream, int] = {}  # epoch of the last look

    def begin_epoch(self) -> None:
        """Nothing is measured yet in this epoch."""
        self.current = {}

    def due(self, stream: Stream, epoch: int) -> bool:
        """Whether it is time for another look."""
        last = self.last.get(stream)
        return last is None or epoch >= last + EVERY

    def note(self, stream: Stream, epoch: int, measurement: Measurement) -> None:
        """A look at a stream, made here or read from an older checkpoint."""
        self.current[stream] = self.measured[epoch, stream] = measurement
        self.last[stream] = max(epoch, self.last.get(stream, epoch))

    def record(self) -> list[list[float | None]]:
        """JSON-ready: epoch, layer, side (0 forward), owner, error and noise of every look."""
        return [
            [epoch, stream.layer, DIRECTIONS.index(stream.direction), stream.owner, one.error, one.noise]
            for (epoch, stream), one in self.measured.items()
        ]

    def forget(self) -> None:
        """What was measured so far is somewhere else now; when the next look is due stays."""
        self.measured = {}


@dataclass(frozen=True)
class Sent:
    """A payload as it was sent to one receiver, or to all."""

    payload: torch.Tensor  # [rows, f]
    wire: torch.Tensor
    weight: torch.Tensor  # [rows]
    rows: int  # of this owner's payloads of all receivers
    origin: Origin | None


def look(sent: Sent, encoder: Encoder, epoch: int) -> Measurement:
    """Compare some rows of a payload with what receivers will make of its code."""
    rows = len(sent.payload)
    step = -(-rows // ROWS)
    chosen = slice(_draw(epoch, _OF_ROWS, step), None, step)
    true = sent.payload[chosen]
    if encoder.row_by_row:
        decoded = encoder.decode(sent.wire[chosen].contiguous(), len(true), sent.payload, epoch)
    else:
        decoded = encoder.decode(sent.wire, rows, sent.payload, epoch)[chosen]
    errors = (decoded - true).square().sum(dim=1)  # [k]
    error = _ratio(*torch.stack([errors.sum(), true.square().sum()]).sqrt().tolist())
    noise = None if sent.origin is None else sent.origin.noise(errors, sent.weight[chosen], sent.rows)
    return Measurement(error, noise)


def receiver_to_look_at(payloads: Sequence[torch.Tensor], epoch: int) -> int | None:
    """One of the receivers that get any rows, by chance; None where nobody does."""
    receivers = [rank for rank, payload in enumerate(payloads) if len(payload)]
    return receivers[_draw(epoch, _OF_RECEIVERS, len(receivers))] if receivers else None


def _draw(epoch: int, purpose: int, size: int) -> int:
    """A number below `size`, the same on every machine: looks come at any rhythm, and must see all."""
    return splitmix_scalar(splitmix_scalar(epoch) ^ purpose) % size


def _ratio(part: float, whole: float) -> float:
    """0 where there is no error; very much where there is one, but nothing to compare it with."""
    if part == 0.0 or math.isnan(part):
        return 0.0
    return part / whole if whole else sys.float_info.max
