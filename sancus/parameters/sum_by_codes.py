"""A sum over ranks by codes: all decode the same bytes, so all hold the same sums, bit for bit.

Every rank owns a slice of the values. It gets the codes of that slice from all others, decodes them, adds
them up in the order of ranks with its own, and sends the code of the sum to all. What every rank then
decodes, the owner too, is the sum. Several vectors, each in a code of its own, travel in the same messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import xxhash

from sancus.comm.group import Group
from sancus.comm.ledger import PARAMETER
from sancus.parameters.codes import Code

COLLECTIVES = 2  # the slices, and their sums


@dataclass(frozen=True)
class Part:
    """A vector `[k]` to be added up, and how it crosses."""

    values: torch.Tensor
    code: Code


@dataclass(frozen=True)
class Total:
    """What came of a part."""

    sum: torch.Tensor  # [k], the same on all ranks
    left_out: torch.Tensor  # [k] of this rank: over all ranks it adds up to what the sum lacks


def sum_by_codes(parts: Sequence[Part], group: Group, seed: int) -> list[Total]:
    """The sums of all parts, in two collectives; `seed` is the same on all ranks."""
    rank, others = group.rank, [other for other in range(group.size) if other != group.rank]
    slices = [_slices(part, group.size) for part in parts]
    with group.stopwatch.at("codec"):
        codes = _encode(parts, slices, _seed(seed, rank))
    counts = [int(other != rank) for other in range(group.size)]
    received = codes.new_empty(len(others), codes.shape[1])
    group.all_to_all(codes[others].contiguous(), counts, received, counts, PARAMETER).wait()
    with group.stopwatch.at("codec"):
        arrived = codes.clone()
        arrived[others] = received
        sums = [
            _add_up(given, decoded, rank)
            for given, decoded in zip(slices, _decode(parts, slices, arrived), strict=True)
        ]
        mine = _encode(parts, sums, _seed(seed, group.size + rank))
    gathered = group.all_gather(mine[0], PARAMETER)
    with group.stopwatch.at("codec"):
        totals = _decode(parts, slices, gathered)
        understood = _decode(parts, slices, codes)
        return [
            _total(part, given, sent, own, total, rank)
            for part, given, sent, own, total in zip(parts, slices, understood, sums, totals, strict=True)
        ]


def sum_bytes(sizes: Sequence[tuple[int, Code]], ranks: int, itemsize: int) -> int:
    """What all ranks together send for vectors of so many values in such codes, without headers."""
    slices = sum(code.nbytes(code.size(values, ranks), itemsize) for values, code in sizes)
    return COLLECTIVES * ranks * (ranks - 1) * slices


def _slices(part: Part, ranks: int) -> torch.Tensor:
    """`[p, size]`, padded with zeros."""
    slices = part.values.new_zeros(ranks, part.code.size(part.values.numel(), ranks))
    slices.view(-1)[: part.values.numel()] = part.values
    return slices


def _encode(parts: Sequence[Part], slices: Sequence[torch.Tensor], seed: int) -> torch.Tensor:
    """All parts of every slice as one row of bytes."""
    codes = [
        part.code.encode(given, _seed(seed, place))
        for place, (part, given) in enumerate(zip(parts, slices, strict=True))
    ]
    return torch.cat(codes, dim=1)


def _decode(parts: Sequence[Part], like: Sequence[torch.Tensor], wire: torch.Tensor) -> list[torch.Tensor]:
    """Every part `[n, size]` of rows of bytes `[n, …]`."""
    ends = [0]
    for part, given in zip(parts, like, strict=True):
        ends.append(ends[-1] + part.code.nbytes(given.shape[1], given.element_size()))
    return [
        part.code.decode(wire[:, start:end], given.shape[1], given.dtype)
        for part, given, (start, end) in zip(parts, like, pairwise(ends), strict=True)
    ]


def _add_up(given: torch.Tensor, decoded: torch.Tensor, rank: int) -> torch.Tensor:
    """The sum `[1, size]` of this rank's slice, in the order of ranks; its own share needs no code."""
    decoded[rank] = given[rank]
    total = decoded[0].clone()
    for share in decoded[1:]:
        total += share
    return total[None]


def _total(
    part: Part, given: torch.Tensor, sent: torch.Tensor, own: torch.Tensor, total: torch.Tensor, rank: int
) -> Total:
    """What the code of a slice left out is missed by its sender, what that of a sum left out by its owner."""
    left_out = given - sent
    left_out[rank] = own[0] - total[rank]
    count = part.values.numel()
    return Total(total.reshape(-1)[:count], left_out.view(-1)[:count])


def _seed(seed: int, place: int) -> int:
    """Another seed for every place where numbers are drawn; 63 bits."""
    return xxhash.xxh3_64_intdigest(f"{seed} {place}".encode()) >> 1
