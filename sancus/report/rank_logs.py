"""Decisions of a run that was killed before it wrote `decisions.npz`: from the logs of its ranks.

`logs/rank-N.jsonl` has a line an epoch; in it, for every stream that rank N owns, `[layer, direction, answer,
age, drift, codec_error]`, the last of them not in older logs. Lines that cannot be read are left out, as
everywhere in a report.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sancus.report.ages import DIRECTIONS, LATER, SEND, SKIP, UNUSED, Decisions

ANSWERS = {"SEND": SEND, "SKIP": SKIP, "LATER": LATER}
MOST = 1_000_000  # epochs, layers or ranks: beyond that a number is damage
Measured = npt.NDArray[np.float32]
Place = tuple[int, int, int, int]  # epoch, layer, side, owner


def read_rank_logs(folder: Path) -> tuple[Decisions, Measured, Measured] | None:
    """Decisions, drift and codec errors `[epochs, layers, 2, owners]`; None where no log holds any."""
    decisions_at: dict[Place, tuple[int, float, float]] = {}
    for path in sorted(folder.glob("rank-*.jsonl")):
        number = re.fullmatch(r"rank-(\d+)\.jsonl", path.name)
        if number is not None and int(number[1]) < MOST:
            decisions_at.update(_decisions_of(path, int(number[1])))
    if not decisions_at:
        return None
    epochs, layers, _, owners = (1 + max(place[axis] for place in decisions_at) for axis in range(4))
    decisions = np.full((epochs, layers, len(DIRECTIONS), owners), UNUSED, np.int8)
    drift, errors = (np.full(decisions.shape, np.nan, np.float32) for _ in range(2))
    for place, values in decisions_at.items():
        decisions[place], drift[place], errors[place] = values
    return decisions, drift, errors


def _decisions_of(path: Path, owner: int) -> Iterator[tuple[Place, tuple[int, float, float]]]:
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            record: Any = json.loads(line)
            epoch, streams = int(record["epoch"]), list(record["streams"])
            for layer, direction, answer, age, *measured in streams:
                place = (epoch, int(layer), DIRECTIONS.index(direction), owner)
                drift, error = [*map(_value, measured), _value(None)][:2]
                if all(0 <= index < MOST for index in place):
                    yield place, (ANSWERS[answer], _value(None) if age is None else drift, error)
        except (ValueError, TypeError, LookupError, OverflowError):
            continue


def _value(measured: Any) -> float:
    """NaN stands for what was not measured."""
    return float("nan") if measured is None else float(measured)
