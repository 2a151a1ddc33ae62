"""Decisions and the ages that follow from them: what every receiver used, in every epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

SKIP, SEND, LATER, UNUSED = 0, 1, 2, -1  # in `decisions.npz`
DIRECTIONS = ("forward", "backward")
NO_AGE = -1

Decisions = npt.NDArray[np.int8]  # [epochs, layers, 2, owners]


def ages_of(decisions: Decisions) -> npt.NDArray[np.int32]:
    """The age of what was used `[epochs, layers, 2, owners]`: 0 when sent now, −1 where nothing was.

    After LATER the version is this epoch's, but this epoch goes on with the one before.
    """
    ages = np.full(decisions.shape, NO_AGE, np.int32)
    version = np.full(decisions.shape[1:], NO_AGE, np.int32)
    for epoch, answers in enumerate(decisions):
        from_history = (version != NO_AGE) & ((answers == SKIP) | (answers == LATER))
        ages[epoch][from_history] = epoch - version[from_history]
        ages[epoch][answers == SEND] = 0
        version[(answers == SEND) | (answers == LATER)] = epoch
    return ages


def used_streams(decisions: Decisions) -> list[tuple[int, int]]:
    """(layer, direction) of every stream that was ever used: forward first, layers from the input up."""
    in_use = (decisions != UNUSED).any(axis=(0, 3)) if decisions.size else np.zeros((0, 2), bool)
    return [(layer, side) for side in (0, 1) for layer in range(in_use.shape[0]) if in_use[layer, side]]


def age_counts(decisions: Decisions, side: int) -> dict[int, int]:
    """How often an age was used in one direction; uses for which nothing was ever sent count as −1."""
    ages, answers = ages_of(decisions)[:, :, side], decisions[:, :, side]
    values, counts = np.unique(ages[answers != UNUSED], return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def check_shape(array: Any) -> bool:
    """Whether an array can be one of decisions or drift."""
    return isinstance(array, np.ndarray) and array.ndim == 4 and array.shape[2] == len(DIRECTIONS)
