"""What a crossing remembers, as tensors and plain values: all that a checkpoint needs to go on bit for bit.

    state = crossing.state()      # at the end of an epoch
    crossing.restore(state)       # in a fresh one with the same plan, policies, codecs and ranks

Histories, the copies that drift is measured by and the residuals of error feedback are all stores of payloads
by stream; a tensor is named `store/layer.direction.owner`. What was measured epoch after epoch is a tensor
too, a row a measurement: as text it would outgrow the header of a checkpoint's file in a long run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sancus.comm.ledger import DIRECTIONS, Stream
from sancus.exchange.agreement import Agreement
from sancus.exchange.codec_error import ErrorGauge, Measurement
from sancus.exchange.decisions import Decisions
from sancus.exchange.memory import Memory

SEEN = "drift/seen"  # a store of older checkpoints
DRIFTS, ERRORS = (
    "log/drift",
    "log/codec_error",
)  # [k, 5] and [k, 6] float64: epoch, layer, side, owner, values


@dataclass(frozen=True)
class State:
    """Tensors and plain values of one rank, and the log of decisions, which all ranks have in common.

    Checkpoints keep the two apart, so either may be left out; what is not there is not restored.
    """

    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    plain: Mapping[str, Any] = field(default_factory=dict)
    decisions: npt.NDArray[np.int8] | None = None


def save(memory: Memory, decisions: Decisions, agreement: Agreement, gauge: ErrorGauge) -> State:
    """Everything of one rank, when nothing is under way any more."""
    tensors: dict[str, torch.Tensor] = {}
    versions: dict[str, int] = {}
    for store, history in memory.stores().items():
        for stream in history.streams():
            name = f"{store}/{write_stream(stream)}"
            tensors[name] = history.pull(stream)
            versions[name] = history.version(stream)
    plain = {
        "versions": versions,
        "sent": {write_stream(stream): list(epochs) for stream, epochs in decisions.sent().items()},
        "noisy": memory.drift.noisy,
        "drift": {write_stream(stream): drift for stream, drift in agreement.drift.items()},
    }
    tensors[DRIFTS] = _rows(agreement.record(), 5)
    tensors[ERRORS] = _rows(gauge.record(), 6)
    return State(tensors, plain, decisions.as_array())


def load(
    state: State,
    memory: Memory,
    decisions: Decisions,
    agreement: Agreement,
    gauge: ErrorGauge,
    device: torch.device,
) -> None:
    """Put it where nothing was sent yet; what only older checkpoints have is ignored.

    Among it are payloads that evaluations saw, which they kept where the model dropped out.
    """
    plain = state.plain
    memory.drift.noisy |= plain.get("noisy", False)
    for name, tensor in state.tensors.items():
        if name in (DRIFTS, ERRORS):
            continue
        store, _, stream = name.rpartition("/")
        if store == SEEN:
            memory.drift.noisy = True
            continue
        memory.store(store).push(read_stream(stream), tensor.to(device), plain["versions"][name])
    for stream, (first, version) in plain.get("sent", {}).items():
        decisions.restore_sent(read_stream(stream), first, version)
    agreement.drift |= {read_stream(stream): drift for stream, drift in plain.get("drift", {}).items()}
    _load_measurements(state, agreement, gauge)
    if state.decisions is not None:
        decisions.restore(state.decisions)


def _load_measurements(state: State, agreement: Agreement, gauge: ErrorGauge) -> None:
    """Drifts and codec errors of all epochs; older checkpoints have them among the plain values."""
    for epoch, name, drift in state.plain.get("measured", []):
        agreement.measured[epoch, read_stream(name)] = drift
    for epoch, name, error, noise in state.plain.get("codec_errors", []):
        gauge.note(read_stream(name), epoch, Measurement(error, noise))
    for (drift,), epoch, stream in _measurements(state.tensors.get(DRIFTS)):
        agreement.measured[epoch, stream] = drift
    for (error, noise), epoch, stream in _measurements(state.tensors.get(ERRORS)):
        gauge.note(stream, epoch, Measurement(error, None if math.isnan(noise) else noise))


def _rows(record: Sequence[Sequence[float | None]], columns: int) -> torch.Tensor:
    """Measurements as a tensor `[k, columns]`, NaN for None; float64 holds every one of them exactly."""
    rows = [[math.nan if value is None else value for value in row] for row in record]
    return torch.tensor(rows, dtype=torch.float64).view(len(rows), columns)


def _measurements(rows: torch.Tensor | None) -> Iterator[tuple[list[float], int, Stream]]:
    """Values, epoch and stream of what `_rows` wrote."""
    for epoch, layer, side, owner, *values in [] if rows is None else rows.tolist():
        yield values, int(epoch), Stream(int(layer), DIRECTIONS[int(side)], int(owner))


def write_stream(stream: Stream) -> str:
    """`layer.direction.owner`."""
    return f"{stream.layer}.{stream.direction}.{stream.owner}"


def read_stream(text: str) -> Stream:
    """The stream that `write_stream` wrote."""
    layer, direction, owner = text.split(".")
    return Stream(int(layer), DIRECTIONS[DIRECTIONS.index(direction)], int(owner))
