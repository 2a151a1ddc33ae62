"""What owners measured stream by stream: means of the arrays of `decisions.npz`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sancus.metrics.bill import StreamKey

Measurements = npt.NDArray[np.float32]  # [epochs, layers, 2, p]; NaN where nothing was measured
DIRECTIONS = ("forward", "backward")


def means_by_stream(values: Measurements) -> dict[StreamKey, float]:
    """The mean over epochs, of every stream (layer, direction, owner) that was ever measured."""
    means: dict[StreamKey, float] = {}
    for layer, side, owner in np.ndindex(values.shape[1:]):
        column = values[:, layer, side, owner]
        measured = column[np.isfinite(column)]
        if measured.size:
            means[layer, DIRECTIONS[side], owner] = float(measured.mean())
    return means
