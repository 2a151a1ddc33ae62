"""Drift: how far an owner's current payload is from what its receivers hold.

The owner keeps a copy of every payload as it was sent, so the drift is the true one under any plan. Dropout
is noise, not drift, and it reaches a layer's rows from every layer below. So where there is dropout,
payloads are compared as the last fresh, exact evaluation made them, which has none; before the first
evaluation, as they are before this layer's own dropout. The copies are counted apart from the histories.
"""

from __future__ import annotations

import sys

import torch

from sancus.comm.ledger import Stream
from sancus.exchange.history import History
from sancus.staleness.base import Norm


class DriftMeter:
    """What this rank last sent, by stream, and the distance from it."""

    def __init__(self) -> None:
        self.sent = History()
        self.seen = History()

    def see(self, stream: Stream, payload: torch.Tensor, epoch: int) -> None:
        """The payload `[rows, f]` in a fresh, exact pass, without any dropout."""
        self.seen.push(stream, payload, epoch)

    def current(self, stream: Stream, payload: torch.Tensor, *, noisy: bool) -> torch.Tensor:
        """The payload to measure by: the last exact one where dropout makes this one noisy."""
        if noisy and self.seen.holds(stream) and self.seen.pull(stream).shape == payload.shape:
            return self.seen.pull(stream)
        return payload

    def keep(self, stream: Stream, payload: torch.Tensor, epoch: int) -> None:
        """What is being sent now, as `current` gave it."""
        self.sent.push(stream, payload, epoch)

    def measure(self, stream: Stream, payload: torch.Tensor, norm: Norm) -> float:
        """Mean absolute difference; `relative` divides it by the payload's mean absolute value."""
        if not payload.numel():
            return 0.0
        difference = (payload - self.sent.pull(stream)).abs().mean().item()
        if norm == "mean" or difference == 0.0:
            return difference
        size = payload.abs().mean().item()
        return difference / size if size else sys.float_info.max

    @property
    def nbytes(self) -> int:
        """Memory of the copies."""
        return self.sent.nbytes + self.seen.nbytes
