"""Drift: how far an owner's current payload is from what its receivers hold.

The owner keeps a copy of every payload at the moment it was sent, before dropout, so the drift is the
true one under any plan. It costs the owner one payload a stream, counted apart from the histories.
"""

from __future__ import annotations

import torch

from sancus.comm.ledger import Stream
from sancus.exchange.history import History
from staleness.base import Norm


class DriftMeter:
    """What this rank last sent, by stream, and the distance from it."""

    def __init__(self) -> None:
        self._sent = History()

    def keep(self, stream: Stream, payload: torch.Tensor) -> None:
        """The payload `[rows, f]` is being sent now."""
        self._sent.push(stream, payload)

    def measure(self, stream: Stream, payload: torch.Tensor, norm: Norm) -> float:
        """Mean absolute difference; `relative` divides it by the payload's mean absolute value."""
        if not payload.numel():
            return 0.0
        difference = (payload - self._sent.pull(stream)).abs().mean().item()
        if norm == "mean" or difference == 0.0:
            return difference
        size = payload.abs().mean().item()
        return difference / size if size else float("inf")

    @property
    def nbytes(self) -> int:
        """Memory of the copies."""
        return self._sent.nbytes
