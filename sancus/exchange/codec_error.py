"""The error of a codec, measured while it runs: what receivers decode against what their owner encoded.

The owner decodes some rows of a message that it has just encoded: the true error, of real rounding, not a
bound. To cost next to nothing it looks at few rows, of one receiver, at every fourth epoch in which a stream
is sent; rows and receivers change from epoch to epoch, by rules that depend on the epoch alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from sancus.comm.ledger import DIRECTIONS, Stream
from sancus.exchange.encoding import Encoder

EVERY = 4  # epochs from one look at a stream to the next
ROWS = 64  # at most, of a look


class ErrorGauge:
    """Relative errors `‖x̂ − x‖ / ‖x‖` of what this rank sent, by stream."""

    def __init__(self) -> None:
        self.current: dict[Stream, float] = {}  # measured in the current epoch
        self.measured: dict[tuple[int, Stream], float] = {}  # (epoch, stream) -> error
        self._last: dict[Stream, int] = {}  # epoch of the last look

    def begin_epoch(self) -> None:
        """Nothing is measured yet in this epoch."""
        self.current = {}

    def due(self, stream: Stream, epoch: int) -> bool:
        """Whether it is time for another look."""
        last = self._last.get(stream)
        return last is None or epoch >= last + EVERY

    def look(
        self, stream: Stream, epoch: int, payload: torch.Tensor, wire: torch.Tensor, encoder: Encoder
    ) -> None:
        """Compare rows of `payload [rows, f]` with what receivers will make of `wire`."""
        rows = len(payload)
        step = -(-rows // ROWS)
        chosen = slice(epoch % step, None, step)
        sample = payload[chosen]
        if encoder.row_by_row:
            decoded = encoder.decode(wire[chosen].contiguous(), len(sample), payload, epoch)
        else:
            decoded = encoder.decode(wire, rows, payload, epoch)[chosen]
        self.note(stream, epoch, relative_error(sample, decoded))

    def note(self, stream: Stream, epoch: int, error: float) -> None:
        """The error of a stream in an epoch, measured here or read from a checkpoint."""
        self.current[stream] = self.measured[epoch, stream] = error
        self._last[stream] = max(epoch, self._last.get(stream, epoch))

    def record(self) -> list[list[float]]:
        """JSON-ready: epoch, layer, side (0 forward), owner and error of every look."""
        return [
            [epoch, stream.layer, DIRECTIONS.index(stream.direction), stream.owner, error]
            for (epoch, stream), error in self.measured.items()
        ]


def relative_error(true: torch.Tensor, decoded: torch.Tensor) -> float:
    """`‖decoded − true‖ / ‖true‖` over all values; of zeros, 0 where they are exact."""
    norms = torch.stack([torch.linalg.vector_norm(decoded - true), torch.linalg.vector_norm(true)])
    error, size = norms.tolist()
    if error == 0.0:
        return 0.0
    return error / size if size else sys.float_info.max


def receiver_to_look_at(payloads: Sequence[torch.Tensor], epoch: int) -> int | None:
    """One of the receivers that get any rows, in turn; None where nobody does."""
    receivers = [rank for rank, payload in enumerate(payloads) if len(payload)]
    return receivers[epoch % len(receivers)] if receivers else None
