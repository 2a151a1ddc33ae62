"""What a crossing remembers, as tensors and plain values: all that a checkpoint needs to go on bit for bit.

    state = crossing.state()      # at the end of an epoch
    crossing.restore(state)       # in a fresh one with the same plan, policies, codecs and ranks

Histories, the copies that drift is measured by and the residuals of error feedback are all stores of payloads
by stream; a tensor is named `store/layer.direction.owner`. Nothing of a state grows with the epochs: who sent
when, and what was measured, is in the logs of the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
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


@dataclass(frozen=True)
class State:
    """Tensors and plain values of one rank; of older checkpoints also the log of decisions.

    What is not there is not restored.
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
        "looks": {write_stream(stream): epoch for stream, epoch in gauge.last.items()},
    }
    return State(tensors, plain)


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
        store, _, stream = name.rpartition("/")
        if store == SEEN:
            memory.drift.noisy = True
            continue
        memory.store(store).push(read_stream(stream), tensor.to(device), plain["versions"][name])
    for stream, (first, version) in plain.get("sent", {}).items():
        decisions.restore_sent(read_stream(stream), first, version)
    agreement.drift |= {read_stream(stream): drift for stream, drift in plain.get("drift", {}).items()}
    gauge.last |= {read_stream(stream): epoch for stream, epoch in plain.get("looks", {}).items()}
    for epoch, stream, drift in plain.get("measured", []):
        agreement.measured[epoch, read_stream(stream)] = drift
    for epoch, stream, error, noise in plain.get("codec_errors", []):
        gauge.note(read_stream(stream), epoch, Measurement(error, noise))
    if state.decisions is not None:
        decisions.restore(state.decisions)


def write_stream(stream: Stream) -> str:
    """`layer.direction.owner`."""
    return f"{stream.layer}.{stream.direction}.{stream.owner}"


def read_stream(text: str) -> Stream:
    """The stream that `write_stream` wrote."""
    layer, direction, owner = text.split(".")
    return Stream(int(layer), DIRECTIONS[DIRECTIONS.index(direction)], int(owner))
