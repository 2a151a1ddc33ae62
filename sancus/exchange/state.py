"""What an exchange remembers, as tensors and plain values: all that a checkpoint needs to go on bit for bit.

    tensors, plain = save(crossing)      # at the end of an epoch
    load(crossing, tensors, plain)       # in a fresh exchange with the same plan, policies, codecs and ranks

Histories, the copies that drift is measured by and the residuals of error feedback are all stores of payloads
by stream; a tensor is named `store/layer.direction.owner`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from sancus.comm.ledger import DIRECTIONS, Stream
from sancus.exchange.crossing import Crossing

Tensors = dict[str, torch.Tensor]


def save(crossing: Crossing) -> tuple[Tensors, dict[str, Any]]:
    """Everything of one rank. What travels in the background is waited for first."""
    crossing.drain()
    tensors: Tensors = {}
    versions: dict[str, int] = {}
    for store, history in crossing.stores().items():
        for stream in history.streams():
            name = f"{store}/{write_stream(stream)}"
            tensors[name] = history.pull(stream)
            versions[name] = history.version(stream)
    decisions = crossing.decisions
    plain = {
        "versions": versions,
        "sent": {write_stream(stream): list(epochs) for stream, epochs in decisions.sent().items()},
        "sequence": crossing.sequence,
        "agreement": crossing.agreement.sequence,
        "drift": {write_stream(stream): drift for stream, drift in crossing.agreement.drift.items()},
        "measured": [
            [epoch, write_stream(stream), drift]
            for (epoch, stream), drift in crossing.agreement.measured.items()
        ],
    }
    return tensors, plain


def load(crossing: Crossing, tensors: Mapping[str, torch.Tensor], plain: Mapping[str, Any]) -> None:
    """Put it into a crossing that has sent nothing yet."""
    for name, tensor in tensors.items():
        store, _, stream = name.rpartition("/")
        crossing.store(store).push(read_stream(stream), tensor.to(crossing.device), plain["versions"][name])
    for stream, (first, version) in plain["sent"].items():
        crossing.decisions.restore_sent(read_stream(stream), first, version)
    crossing.sequence = plain["sequence"]
    crossing.agreement.sequence = plain["agreement"]
    crossing.agreement.drift = {read_stream(stream): drift for stream, drift in plain["drift"].items()}
    for epoch, stream, drift in plain["measured"]:
        crossing.agreement.measured[epoch, read_stream(stream)] = drift


def write_stream(stream: Stream) -> str:
    """`layer.direction.owner`."""
    return f"{stream.layer}.{stream.direction}.{stream.owner}"


def read_stream(text: str) -> Stream:
    """The stream that `write_stream` wrote."""
    layer, direction, owner = text.split(".")
    return Stream(int(layer), DIRECTIONS[DIRECTIONS.index(direction)], int(owner))
