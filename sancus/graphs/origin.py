"""Where a graph comes from: the user's ids of nodes and classes, and what is worth saying of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Origin:
    """Names of the user's own, and notes of the reader; all of it may be absent."""

    ids: npt.NDArray[Any] | None = None  # [N] words or numbers; None: nodes are their row numbers
    classes: tuple[str, ...] = ()  # the word of every class; empty: classes are their numbers
    notes: tuple[str, ...] = ()  # what was done with the data that its user may not expect

    def key(self) -> bytes:
        """Differs where any of it does; empty where there is nothing."""
        ids = b"" if self.ids is None else np.ascontiguousarray(self.ids).tobytes()
        named = (self.classes, self.notes)
        return ids + (repr(named).encode() if any(named) else b"")
