"""Drift: how far an owner's current payload is from what its receivers hold.

The owner keeps a copy of every payload as it was sent, so the drift is the true one under any plan. Dropout
is noise, not drift, and it reaches a layer's rows from every layer below. So where a model drops out, forward
payloads are compared as the clean pass at the start of the epoch made them (`sancus.exchange.clean_pass`):
without any dropout, now and when they were last sent. The first epoch has no clean pass, because nothing was
received yet; its payloads, which all cross, count as they are before their own layer's dropout. Under a lossy
codec receivers hold what they decode, so its error belongs to the copy. The copies are counted apart from the
histories.
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
        self.versions = History()  # the epoch in which each row was sent, where rows are picked one by one
        self.noisy = False  # whether what training sends differs from epoch to epoch by chance
        self.has_model = False  # whether this epoch's clean pass has, or would have, a model to run
        self._clean = History()  # of the last clean pass
        self._random: list[torch.Tensor] | None = None  # torch's random state when an epoch last began

    def see(self, stream: Stream, payload: torch.Tensor, epoch: int) -> None:
        """The payload `[rows, f]` in the clean pass of an epoch."""
        self._clean.push(stream, payload, epoch)

    def saw(self, stream: Stream, epoch: int) -> bool:
        """Whether the clean pass of this epoch made the payload."""
        return self._clean.holds(stream) and self._clean.version(stream) == epoch

    def current(self, stream: Stream, payload: torch.Tensor, epoch: int) -> torch.Tensor:
        """The payload to measure by: that of this epoch's clean pass, where there was one."""
        return self._clean.pull(stream) if self.saw(stream, epoch) else payload

    def keep(self, stream: Stream, payload: torch.Tensor, epoch: int) -> None:
        """What is being sent now, as `current` gave it."""
        self.sent.push(stream, payload, epoch)

    def keep_decoded(self, stream: Stream, decoded: torch.Tensor, payload: torch.Tensor, epoch: int) -> None:
        """What was kept of this epoch, as receivers hold it: they decode `decoded [rows, f]` from `payload`.

        Where a clean payload was kept, the error of the codec is added to that.
        """
        if self.noisy:
            decoded = self.sent.pull(stream) + (decoded - payload)
        self.sent.push(stream, decoded, epoch)

    def note_random(self, state: list[torch.Tensor]) -> None:
        """Torch's random state as an epoch begins: if it moved since the last, that epoch drew numbers.

        So dropout is noticed of which no exchange is told, as `torch.nn.functional.dropout`.
        """
        if self._random is not None and not all(map(torch.equal, self._random, state)):
            self.noisy = True
        self._random = state

    def measure(self, stream: Stream, payload: torch.Tensor, norm: Norm) -> float:
        """Mean absolute difference; `relative` divides it by the payload's mean absolute value."""
        if not payload.numel():
            return 0.0
        difference = (payload - self.sent.pull(stream)).abs().mean().item()
        if norm == "mean" or difference == 0.0:
            return difference
        size = payload.abs().mean().item()
        return difference / size if size else sys.float_info.max

    def of_rows(self, stream: Stream, payload: torch.Tensor, norm: Norm) -> torch.Tensor:
        """The same of each row `[rows]`; `relative` divides it by the mean absolute value of all rows."""
        difference = (payload - self.sent.pull(stream)).abs().mean(dim=1)
        if norm == "mean":
            return difference
        return torch.where(difference == 0, difference, difference / payload.abs().mean())

    def keep_rows(
        self, stream: Stream, picked: torch.Tensor, rows: torch.Tensor, error: torch.Tensor | None, epoch: int
    ) -> None:
        """The rows `[k, f]` that are `picked [rows]` are sent now; receivers decode them with an `error`.

        At the first use all rows are picked.
        """
        kept = rows if error is None else rows + error
        if not self.versions.holds(stream):
            self.versions.push(stream, torch.full(picked.shape, epoch, device=picked.device), epoch)
            self.sent.push(stream, kept, epoch)
            return
        everything, versions = self.sent.pull(stream).clone(), self.versions.pull(stream).clone()
        everything[picked], versions[picked] = kept, epoch
        self.sent.push(stream, everything, epoch)
        self.versions.push(stream, versions, epoch)

    def oldest(self, stream: Stream, epoch: int) -> int:
        """Age of the row that crossed longest ago."""
        versions = self.versions.pull(stream)
        return epoch - int(versions.min()) if len(versions) else 0

    @property
    def nbytes(self) -> int:
        """Memory of the copies."""
        return self.sent.nbytes + self._clean.nbytes + self.versions.nbytes
