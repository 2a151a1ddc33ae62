"""A store: rows that somebody computed or sent, kept with their version: the epoch in which they were made.

Two verbs, `push` and `pull`, and two ways to say what is meant. *By stream*: one owner's payload of a layer
and direction, whole, as full-graph training sends it. *By node*: single rows of a layer, each with a version
of its own, as samples and asynchronous ranks need them.

    store.push(Stream(1, "forward", owner=2), payload, version=7)    # [rows, f]
    store.pull(Stream(1, "forward", owner=2))                        # [rows, f], read only

    store.push_rows(1, ids, rows, version=7)                         # ids [k], rows [k, f]
    rows, versions = store.pull_rows(1, ids)                         # [k, f] and [k]

The store owns its memory: what is pushed is copied in, so a later receive into the same buffer cannot
overwrite it. `LocalStore` keeps everything in the memory of this process.
"""

from __future__ import annotations

from typing import Protocol

import torch

from sancus.comm.ledger import Stream


class Store(Protocol):
    """What every store can do; what was never pushed is a `KeyError` of `pull`, `version` and `pull_rows`."""

    def push(self, stream: Stream, payload: torch.Tensor, version: int) -> None:
        """Keep a copy of `payload [rows, f]` in place of the last one."""
        ...

    def pull(self, stream: Stream) -> torch.Tensor:
        """The last payload that was pushed `[rows, f]`; read only."""
        ...

    def holds(self, stream: Stream) -> bool:
        """Whether anything was pushed."""
        ...

    def version(self, stream: Stream) -> int:
        """The version of what `pull` gives."""
        ...

    def streams(self) -> list[Stream]:
        """Every stream that is held, the first pushed first."""
        ...

    def push_rows(self, layer: int, ids: torch.Tensor, rows: torch.Tensor, version: int) -> None:
        """Keep copies of `rows [k, f]` of the nodes `ids [k]`, which are distinct; other rows stay."""
        ...

    def pull_rows(self, layer: int, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows `[k, f]` of nodes `ids [k]`, in their order, and each row's version `[k]`."""
        ...

    def holds_rows(self, layer: int, ids: torch.Tensor) -> torch.Tensor:
        """`[k]` bool: whether a row of each node was pushed."""
        ...

    @property
    def nbytes(self) -> int:
        """Memory that the store holds."""
        ...


class LocalStore:
    """A store in the memory of this process."""

    def __init__(self) -> None:
        self._payloads: dict[Stream, torch.Tensor] = {}
        self._versions: dict[Stream, int] = {}
        self._tables: dict[int, _Table] = {}

    def push(self, stream: Stream, payload: torch.Tensor, version: int) -> None:
        """Keep a copy of `payload [rows, f]` in place of the last one."""
        self._versions[stream] = version
        held = self._payloads.get(stream)
        if held is None or held.shape != payload.shape:
            self._payloads[stream] = payload.detach().clone()
        else:
            held.copy_(payload)

    def pull(self, stream: Stream) -> torch.Tensor:
        """The last payload that was pushed `[rows, f]`; read only."""
        return self._payloads[stream]

    def holds(self, stream: Stream) -> bool:
        """Whether anything was pushed."""
        return stream in self._payloads

    def version(self, stream: Stream) -> int:
        """The version of what `pull` gives."""
        return self._versions[stream]

    def streams(self) -> list[Stream]:
        """Every stream that is held, the first pushed first."""
        return list(self._payloads)

    def push_rows(self, layer: int, ids: torch.Tensor, rows: torch.Tensor, version: int) -> None:
        """Keep copies of `rows [k, f]` of the nodes `ids [k]`, which are distinct; other rows stay."""
        if ids.unique().numel() != ids.numel():
            raise ValueError(f"layer {layer}: a node is pushed twice at once")
        if layer not in self._tables:
            self._tables[layer] = _Table(rows)
        self._tables[layer].push(ids, rows.detach(), version)

    def pull_rows(self, layer: int, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows `[k, f]` of nodes `ids [k]`, in their order, and each row's version `[k]`."""
        return self._tables[layer].pull(ids)

    def holds_rows(self, layer: int, ids: torch.Tensor) -> torch.Tensor:
        """`[k]` bool: whether a row of each node was pushed."""
        if layer not in self._tables:
            return torch.zeros_like(ids, dtype=torch.bool)
        return self._tables[layer].find(ids)[1]

    @property
    def nbytes(self) -> int:
        """Memory that the store holds."""
        payloads = sum(payload.nbytes for payload in self._payloads.values())
        return payloads + sum(table.nbytes for table in self._tables.values())


class _Table:
    """Rows of one layer, by ascending node id."""

    def __init__(self, like: torch.Tensor) -> None:
        self._ids = torch.empty(0, dtype=torch.int64, device=like.device)  # [n]
        self._rows = like.new_empty(0, *like.shape[1:])  # [n, f]
        self._versions = torch.empty_like(self._ids)  # [n]

    def find(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The place of each node `[k]`, and whether it is there `[k]`."""
        place = torch.searchsorted(self._ids, ids).clamp(max=max(0, len(self._ids) - 1))
        present = self._ids[place] == ids if len(self._ids) else torch.zeros_like(ids, dtype=torch.bool)
        return place, present

    def push(self, ids: torch.Tensor, rows: torch.Tensor, version: int) -> None:
        """Rows that are there are overwritten, others are put in their places."""
        place, present = self.find(ids)
        self._rows[place[present]] = rows[present]
        self._versions[place[present]] = version
        if bool(present.all()):
            return
        new = ~present
        all_ids = torch.cat([self._ids, ids[new]])
        order = all_ids.argsort()
        self._ids = all_ids[order]
        self._rows = torch.cat([self._rows, rows[new]])[order]
        self._versions = torch.cat([self._versions, torch.full_like(ids[new], version)])[order]

    def pull(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of rows and versions."""
        place, present = self.find(ids)
        if not bool(present.all()):
            raise KeyError(int(ids[~present][0]))
        return self._rows[place], self._versions[place]

    @property
    def nbytes(self) -> int:
        """Rows, ids and versions."""
        return self._rows.nbytes + self._ids.nbytes + self._versions.nbytes
