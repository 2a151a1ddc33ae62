"""What owners measured stream by stream, drift and codec errors, as arrays of `decisions.npz`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sancus.metrics.bill import StreamKey

Measurements = npt.NDArray[np.float32]  # [epochs, layers, 2, p]; NaN where nothing was measured
DIRECTIONS = ("forward", "backward")


def join_measurements(
    records: Iterable[Iterable[Sequence[Any]]], shape: tuple[int, ...], kinds: int = 1
) -> list[Measurements]:
    """One array a kind from every rank's record: epoch, layer, side, owner, and a value of each kind."""
    joined = [np.full(shape, np.nan, np.float32) for _ in range(kinds)]
    for record in records:
        for epoch, layer, side, owner, *values in record:
            for array, value in zip(joined, values, strict=True):
                array[epoch, layer, side, owner] = np.nan if value is None else value
    return joined


def means_by_stream(values: Measurements) -> dict[StreamKey, float]:
    """The mean over epochs, of every stream (layer, direction, owner) that was ever measured."""
    means: dict[StreamKey, float] = {}
    for layer, side, owner in np.ndindex(values.shape[1:]):
        column = values[:, layer, side, owner]
        measured = column[np.isfinite(column)]
        if measured.size:
            means[layer, DIRECTIONS[side], owner] = float(measured.mean())
    return means
