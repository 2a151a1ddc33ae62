"""Letters: what a rank says to the rank that holds the weights, and its answers.

A letter is a few facts, as JSON, and numbers: weights, or what a rank wants to change of them. It travels as
bytes behind the header of a payload, whose *version* is the number of the letter between the two, so that
none is taken twice or for another; the stamp says that nobody has changed it (`sancus.comm.header`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from sancus.comm.errors import DisagreementError
from sancus.comm.header import PAYLOAD_WORDS, Header, Payload, overhead, seal
from sancus.comm.ledger import Stream
from sancus.comm.stamp import Stamp

LENGTH = struct.Struct("<q")
WORD = 8  # bytes; numbers begin at a multiple


@dataclass(frozen=True)
class Route:
    """From whom to whom, and how letters between them are stamped."""

    sender: int
    receiver: int
    stamp: Stamp


def write_letter(
    route: Route, number: int, facts: Mapping[str, Any], numbers: torch.Tensor | None = None
) -> torch.Tensor:
    """A letter with `numbers [k]`, as bytes."""
    text = json.dumps(facts).encode()
    text += b" " * (-len(text) % WORD)
    parts = [torch.frombuffer(bytearray(LENGTH.pack(len(text)) + text), dtype=torch.uint8)]
    if numbers is not None:
        parts.append(numbers.detach().contiguous().view(torch.uint8))
    content = torch.cat(parts)
    return seal([content[None]], [_header(route, number, len(content))], content.device)


def read_letter(
    route: Route, number: int, letter: torch.Tensor, dtype: torch.dtype
) -> tuple[dict[str, Any], torch.Tensor]:
    """Facts and numbers `[k]` of a letter, if it is the one that is expected."""
    size = letter.numel() - overhead(PAYLOAD_WORDS, route.stamp)
    if size < LENGTH.size:
        raise DisagreementError(f"rank {route.receiver}: what came from rank {route.sender} is no letter")
    content = _header(route, number, size).check(letter, route.receiver)
    (length,) = LENGTH.unpack(content[: LENGTH.size].numpy().tobytes())
    text, rest = content[LENGTH.size : LENGTH.size + length], content[LENGTH.size + length :]
    facts: dict[str, Any] = json.loads(text.numpy().tobytes())
    return facts, rest.clone().view(dtype)


def _header(route: Route, number: int, size: int) -> Header:
    like = torch.empty((1, size), dtype=torch.uint8, device="meta")
    letter = Payload(number + 1, Stream(0, "forward", route.sender), number, "letter", route.stamp)
    header = letter.header(like, route.sender, route.receiver)
    assert header is not None, "a letter has content"
    return header
