"""Who sent when, and what owners measured, from the logs of the ranks: `decisions.npz` is made of them.

`logs/rank-N.jsonl` has a line an epoch; in it, for every stream that rank N owns, `[layer, direction, answer,
age, drift, codec_error, codec_noise]`, the last two not in older logs. Lines that cannot be read are left
out, as everywhere in a report. A long run has many of them, so rows are kept as arrays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sancus.report.ages import DIRECTIONS, LATER, SEND, SKIP, UNUSED, Decisions

ANSWERS = {"SEND": SEND, "SKIP": SKIP, "LATER": LATER}
MOST = 1_000_000  # epochs, layers or ranks: beyond that a number is damage
CHUNK = 4096  # rows that are Python objects at a time
MEASURED = ("drift", "codec_error", "codec_noise")
ROW = np.dtype(
    [
        ("epoch", np.int32),
        ("layer", np.int32),
        ("side", np.int8),
        ("owner", np.int32),
        ("answer", np.int8),
        *((name, np.float32) for name in MEASURED),
    ]
)
Rows = npt.NDArray[np.void]  # [k] of ROW: one stream in one epoch; NaN where nothing was measured
Measured = npt.NDArray[np.float32]


@dataclass(frozen=True)
class LogArrays:
    """The arrays of `decisions.npz`, all `[epochs, layers, 2, owners]`."""

    decisions: Decisions
    drift: Measured  # NaN where nothing was measured; the others likewise
    codec_error: Measured
    codec_noise: Measured


def read_rank_logs(folder: Path) -> LogArrays | None:
    """The logs of all ranks; None where they hold no decision."""
    owners: list[Rows] = []
    for path in sorted(folder.glob("rank-*.jsonl")):
        number = re.fullmatch(r"rank-(\d+)\.jsonl", path.name)
        if number is not None and int(number[1]) < MOST:
            owners.append(read_rows(path, int(number[1])))
    rows = np.concatenate(owners) if owners else np.zeros(0, ROW)
    if not len(rows):
        return None
    return arrays_of(rows, int(rows["epoch"].max()) + 1, int(rows["owner"].max()) + 1)


def read_rows(path: Path, owner: int, rest: bytes = b"") -> Rows:
    """What the log of one rank says, with the `rest` that is not in it yet; none where there is no file."""
    try:
        with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
            return rows_from(row for line in _with_rest(lines, rest) for row in _rows_of(line, owner))
    except OSError:
        return np.zeros(0, ROW)


def _with_rest(lines: Iterable[str], rest: bytes) -> Iterator[str]:
    """All lines; the rest goes on with the last one where that has no end."""
    last = ""
    for line in lines:
        if line.endswith("\n"):
            yield line
        else:
            last = line
    yield from (last + rest.decode(errors="replace")).splitlines()


def rows_from(values: Iterable[tuple[float, ...]]) -> Rows:
    """Rows of tuples in the order of `ROW`; values beyond float32 are infinite."""
    chunks, chunk = [np.zeros(0, ROW)], list[tuple[float, ...]]()
    with np.errstate(over="ignore"):
        for row in values:
            chunk.append(row)
            if len(chunk) == CHUNK:
                chunks.append(np.array(chunk, ROW))
                chunk = []
        return np.concatenate([*chunks, np.array(chunk, ROW)])


def arrays_of(rows: Rows, epochs: int, owners: int) -> LogArrays:
    """The rows of all owners in their places; of a repeated place the last row counts."""
    layers = int(rows["layer"].max()) + 1 if len(rows) else 0
    shape = (epochs, layers, len(DIRECTIONS), owners)
    inside = rows[(rows["epoch"] < epochs) & (rows["owner"] < owners)]
    place = inside["epoch"], inside["layer"], inside["side"], inside["owner"]
    decisions = np.full(shape, UNUSED, np.int8)
    decisions[place] = inside["answer"]
    measured = {name: np.full(shape, np.nan, np.float32) for name in MEASURED}
    for name, array in measured.items():
        array[place] = inside[name]
    return LogArrays(decisions, **measured)


def _rows_of(line: str, owner: int) -> Iterator[tuple[float, ...]]:
    try:
        record: Any = json.loads(line)
        epoch, streams = int(record["epoch"]), list(record["streams"])
        for layer, direction, answer, age, *measured in streams:
            place = (epoch, int(layer), DIRECTIONS.index(direction), owner)
            drift, *looks = [*map(_value, measured), *[_value(None)] * len(MEASURED)][: len(MEASURED)]
            if all(0 <= index < MOST for index in place):
                yield (*place, ANSWERS[answer], _value(None) if age is None else drift, *looks)
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return


def _value(measured: Any) -> float:
    """NaN stands for what was not measured."""
    return float("nan") if measured is None else float(measured)
