"""What the rest of the program may know of a crossing: figures of an epoch, and the log of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sancus.comm.ledger import Stream
from sancus.exchange.agreement import Agreement
from sancus.exchange.codec_error import ErrorGauge, Measurement
from sancus.exchange.decisions import Decisions
from sancus.exchange.memory import Memory
from sancus.staleness.base import Answer


class Remembers(Protocol):
    """What figures are read from: a crossing."""

    decisions: Decisions
    agreement: Agreement
    memory: Memory
    gauge: ErrorGauge


@dataclass(frozen=True)
class StreamFigures:
    """One stream of this rank in the current epoch."""

    stream: Stream
    answer: Answer
    age: int | None  # of what receivers held when the answer was given; None before the first send
    drift: float | None  # where it was measured
    codec_error: float | None  # where it was measured
    codec_noise: float | None  # likewise


@dataclass(frozen=True)
class Figures:
    """The current epoch on one rank."""

    sends: int  # over all owners
    skips: int
    max_age: int  # of the oldest history that was used
    max_drift: float | None  # of the streams of this rank, where it was measured
    codec_error: float | None  # the largest of the streams of this rank, where any was measured
    codec_noise: float | None  # likewise
    history_bytes: int
    drift_bytes: int
    residual_bytes: int
    place: tuple[int, ...]  # where this rank stands, the same on all ranks: see `Agreement.place`
    streams: tuple[StreamFigures, ...]  # of this rank


@dataclass(frozen=True)
class RunLog:
    """All epochs of this process that were not forgotten, and of an older checkpoint."""

    decisions: npt.NDArray[np.int8]  # [epochs, layers, 2, p]: see `Decisions.as_array`
    counts: dict[Stream, tuple[int, int]]  # sends and skips of every stream, of forgotten epochs too
    measured: list[list[float]]  # drift that this rank measured: see `Agreement.record`
    errors: list[list[float | None]]  # of its codecs: see `ErrorGauge.record`


def run_log(crossing: Remembers) -> RunLog:
    """The log of a run; the decisions are the same on all ranks."""
    decisions = crossing.decisions
    counts = {stream: decisions.counts_of(stream) for stream in decisions.streams()}
    return RunLog(decisions.as_array(), counts, crossing.agreement.record(), crossing.gauge.record())


def figures_of(crossing: Remembers, rank: int) -> Figures:
    """The current epoch on one rank."""
    decisions, agreement, memory = crossing.decisions, crossing.agreement, crossing.memory
    errors = crossing.gauge.current
    sends, skips = decisions.counts()
    return Figures(
        sends,
        skips,
        decisions.max_age,
        max(agreement.drifts.values(), default=None),
        max((one.error for one in errors.values()), default=None),
        max((one.noise for one in errors.values() if one.noise is not None), default=None),
        memory.history.nbytes,
        memory.drift.nbytes,
        memory.residual_bytes,
        tuple(agreement.place()),
        tuple(
            StreamFigures(stream, answer, age, agreement.drifts.get(stream), *_look(errors.get(stream)))
            for stream, answer, age in decisions.of_epoch(rank)
        ),
    )


def _look(measurement: Measurement | None) -> tuple[float | None, float | None]:
    """Error and noise, where they were measured."""
    return (None, None) if measurement is None else (measurement.error, measurement.noise)
