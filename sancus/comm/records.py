"""Records of all ranks, or of rank 0, on all ranks: bytes or JSON in fixed-shape gathers, no pickles."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from sancus.comm.group import Group
from sancus.comm.ledger import Entry
from sancus.errors import UserError

T = TypeVar("T")


def gather_json(group: Group, record: Any, device: torch.device) -> list[Any]:
    """Every rank's record `[p]`, on all ranks."""
    return [json.loads(text) for text in gather_bytes(group, json.dumps(record).encode(), device)]


def gather_bytes(group: Group, content: bytes, device: torch.device) -> list[bytes]:
    """Every rank's content `[p]`, on all ranks: a gather of lengths, then one of padded bytes."""
    lengths = group.all_gather(torch.tensor([len(content)], dtype=torch.int64, device=device)).flatten()
    padded = torch.zeros(int(lengths.max()), dtype=torch.uint8)
    if content:
        padded[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    everyone = group.all_gather(padded.to(device)).cpu()
    return [row[:length].numpy().tobytes() for row, length in zip(everyone, lengths.tolist(), strict=True)]


def broadcast_bytes(group: Group, content: bytes | None, device: torch.device) -> bytes:
    """The content that rank 0 passes, on all ranks; the others pass None."""
    size = len(content) if content is not None else 0
    lengths = group.all_gather(torch.tensor([size], dtype=torch.int64, device=device)).flatten()
    length = int(lengths[0])
    buffer = torch.zeros(length, dtype=torch.uint8)
    if group.rank == 0 and content:
        buffer = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    buffer = buffer.to(device)
    if length:
        group.broadcast(buffer, 0, Entry("agreement")).wait()
    return buffer.cpu().numpy().tobytes()


def on_rank_zero(group: Group, action: Callable[[], T], device: torch.device) -> T | None:
    """The result of `action` on rank 0, None elsewhere.

    A `UserError` of rank 0 is raised on all ranks, so that none of them waits for one that is gone.
    """
    result, message = None, ""
    if group.rank == 0:
        try:
            result = action()
        except UserError as error:
            message = str(error)
    message = broadcast_bytes(group, message.encode(), device).decode()
    if message:
        raise UserError(message)
    return result
