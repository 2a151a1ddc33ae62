"""The settings of asynchronous training (`--schedule async`, DIGEST-A). Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from sancus.errors import UserError

Merge = Literal["delta", "gradient"]
FREE = {"may_change": True}  # a resumed run may set it anew (see `sancus.config.settings`)


@dataclass(frozen=True)
class AsyncSettings:
    """How the steps of ranks that wait for nobody become one model."""

    merge: Merge = "delta"
    """What a rank sends of a step of --schedule async: how its weights changed, or its gradient."""
    max_delay: int = field(default=0, metadata=FREE)
    """A rank of --schedule async that is more steps ahead of the slowest waits for it; 0: nobody waits."""
    seconds: float = field(default=0.0, metadata=FREE)
    """End --schedule async after so many seconds of training, or after --epochs; 0: after --epochs."""

    def __post_init__(self) -> None:
        if self.max_delay < 0:
            raise UserError(f"--max-delay {self.max_delay}: must not be negative; 0 means nobody waits")
        if not math.isfinite(self.seconds) or self.seconds < 0:
            raise UserError(f"--seconds {self.seconds:g}: must be a number that is not negative")
