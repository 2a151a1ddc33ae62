"""The C sampler, called on tensors: scratch is kept from call to call, and room grows when it must.

A `NativeSampler` belongs to one thread: it has a table of nodes, which a call fills and the next one forgets
by counting a stamp. The C code takes no lock and starts no thread, and Python's lock is free while it runs.
"""

from __future__ import annotations

from ctypes import addressof, c_int64, c_uint64, c_void_p

import torch

from sancus.kernels.native.library import library
from sancus.kernels.topology import Draw, Sampled, Topology

TILE = 32  # as in sample.c
_LAST_STAMP = (1 << 31) - 1


class NativeSampler:
    """Samples hops of one topology."""

    def __init__(self, topology: Topology, dtype: torch.dtype) -> None:
        self._topology = topology
        self._dtype = dtype
        nodes = topology.nodes
        self._table = torch.zeros(nodes, dtype=torch.int64)
        self._stamp = 0
        self._nodes = torch.empty(nodes, dtype=torch.int64)
        self._right_of = torch.empty(nodes, dtype=torch.float64)
        self._rank = torch.empty(topology.largest_degree, dtype=torch.float64)
        self._rows: list[torch.Tensor] = []  # of every hop: crow, then col and value with their room
        self._entries: list[tuple[torch.Tensor, torch.Tensor]] = []

    def sample(self, seeds: torch.Tensor, draw: Draw) -> Sampled:
        """Hops from `seeds [s]` outward, one a fan-out; see `sancus.kernels.sample.sample`."""
        hops = len(draw.fanouts)
        self._make_room(hops)
        self._stamp += 1
        if self._stamp > _LAST_STAMP:
            self._table.zero_()
            self._stamp = 1
        self._nodes[: len(seeds)] = seeds
        count = (c_int64 * (hops + 1))(len(seeds))
        progress = (c_int64 * 2)(0, 0)
        while True:
            self._call(draw, count, progress)
            if progress[0] == hops:
                return self._result(list(count))
            self._entries[progress[0]] = self._room(progress[1])

    def _call(self, draw: Draw, count: object, progress: object) -> None:
        """One call of the C function: all hops, or as many as there is room for."""
        whole, hops = self._topology, len(draw.fanouts)
        most = max([*draw.fanouts, 0])
        pick = torch.empty(TILE * (most + 1), dtype=torch.int64)
        slots = torch.empty(1 << (2 * most + 1).bit_length(), dtype=torch.int32)
        entries = self._entries[:hops]
        library().functions.sancus_sample(
            whole.col.dtype == torch.int64,
            self._dtype == torch.float64,
            whole.crow.data_ptr(),
            whole.col.data_ptr(),
            _pointer(whole.weight),
            whole.left.data_ptr(),
            _pointer(whole.right),
            _pointer(whole.diagonal),
            draw.way,
            draw.by_weight,
            hops,
            (c_int64 * hops)(*draw.fanouts),
            (c_uint64 * hops)(*draw.keys),
            self._table.data_ptr(),
            self._stamp,
            pick.data_ptr(),
            slots.data_ptr(),
            self._rank.data_ptr(),
            self._nodes.data_ptr(),
            self._right_of.data_ptr(),
            addressof(count),  # type: ignore[arg-type]
            (c_void_p * hops)(*[rows.data_ptr() for rows in self._rows[:hops]]),
            (c_void_p * hops)(*[col.data_ptr() for col, _ in entries]),
            (c_void_p * hops)(*[value.data_ptr() for _, value in entries]),
            (c_int64 * hops)(*[len(col) for col, _ in entries]),
            addressof(progress),  # type: ignore[arg-type]
        )

    def _make_room(self, hops: int) -> None:
        while len(self._rows) < hops:
            self._rows.append(torch.empty(self._topology.nodes + 1, dtype=torch.int64))
            self._entries.append(self._room(0))

    def _room(self, entries: int) -> tuple[torch.Tensor, torch.Tensor]:
        room = entries + entries // 8  # the next batch is of about the same size
        return torch.empty(room, dtype=torch.int32), torch.empty(room, dtype=self._dtype)

    def _result(self, count: list[int]) -> Sampled:
        """Copies, so that the next call may use the room again."""
        parts = []
        for targets, rows, (col, value) in zip(count[:-1], self._rows, self._entries, strict=False):
            crow = rows[: targets + 1].clone()
            end = int(crow[-1])
            parts.append((crow, col[:end].clone(), value[:end].clone()))
        return Sampled(self._nodes[: count[-1]].clone(), tuple(count), tuple(parts))


def _pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
