"""What one rank keeps of payloads from one epoch to the next, in stores by stream.

Three kinds: the history of what others sent, the copies by which drift is measured, and the residuals of
error feedback. Each store has a name, by which a checkpoint finds it again.
"""

from __future__ import annotations

from collections.abc import Mapping

from sancus.comm.ledger import DIRECTIONS, Direction
from sancus.exchange.drift import DriftMeter
from sancus.exchange.encoding import Encoder
from sancus.exchange.history import History


class Memory:
    """History, drift copies and residuals of one rank."""

    def __init__(self, encoders: Mapping[Direction, Encoder]) -> None:
        """`encoders` own the residuals, if they keep any."""
        self.history = History()
        self.drift = DriftMeter()
        self._encoders = encoders

    def stores(self) -> dict[str, History]:
        """Every store by its name."""
        stores = {
            "history": self.history,
            "drift/sent": self.drift.sent,
            "drift/versions": self.drift.versions,
        }
        for side, encoder in self._encoders.items():
            for receiver, residual in (encoder.residuals or {}).items():
                stores[f"residual/{side}/{receiver}"] = residual
        return stores

    def store(self, name: str) -> History:
        """The store of a name; that of a residual may be new, as there is none before the first send."""
        kind, *where = name.split("/")
        if kind == "residual":
            side, receiver = DIRECTIONS[DIRECTIONS.index(where[0])], int(where[1])
            residuals = self._encoders[side].residuals
            assert residuals is not None, "residuals belong to error feedback"
            return residuals.setdefault(receiver, History())
        return self.stores()[name]

    @property
    def residual_bytes(self) -> int:
        """Memory of what error feedback keeps."""
        return sum(encoder.nbytes for encoder in self._encoders.values())
