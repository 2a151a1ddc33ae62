"""The drift that owners measured, stream by stream: the array `drift` of `decisions.npz`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt


def join_drift(
    records: Iterable[Iterable[Sequence[float]]], shape: tuple[int, ...]
) -> npt.NDArray[np.float32]:
    """`[epochs, layers, 2, p]` from every rank's record; NaN where nothing was measured."""
    drift = np.full(shape, np.nan, np.float32)
    for record in records:
        for *place, value in record:
            drift[tuple(int(index) for index in place)] = value
    return drift
