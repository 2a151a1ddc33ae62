"""The attention functions of the C library, called on tensors: heads in groups, each in a layout of its own.

A group is at most one vector of heads. In its layout the heads of one column stand side by side, padded to
`lanes` of them, a power of two; rows are padded to whole vectors (`attend.c`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sancus.kernels.native.library import Library, threads
from sancus.kernels.native.operands import are_real, as_rows, has_rows, is_pattern

ADDITIVE, TILTED, DYNAMIC, BACK_ADDITIVE, BACK_DYNAMIC, BACK_DYNAMIC_ROWS = range(6)  # forms of sancus_attend
LINE = 64  # bytes of a cache line, at which rows start

Pattern = tuple[torch.Tensor, torch.Tensor]  # crow [m + 1] int64, col [nnz] int32


@dataclass(frozen=True)
class EdgeKeys:
    """What the mask of dropped entries is hashed from: `[m]` of targets, `[n, lanes]` of sources."""

    own: torch.Tensor
    other: torch.Tensor
    bucket: int
    scale: float


@dataclass(frozen=True)
class HeadGroup:
    """Heads `first` to `first + heads` of `width` columns each, and their layout."""

    native: Library
    first: int
    heads: int
    width: int
    lanes: int
    columns: int  # of a row in the layout

    def part(self, rows: torch.Tensor, width: int) -> torch.Tensor:
        """The columns of these heads `[n, heads·width]`, of rows that have `width` columns a head."""
        return rows[:, self.first * width : (self.first + self.heads) * width]

    def table(self, wide: Sequence[torch.Tensor], narrow: Sequence[torch.Tensor] = ()) -> torch.Tensor:
        """Parts `[n, heads·width]`, then parts `[n, heads]`, side by side in the layout, `[n, stride]`."""
        parts = [(part, self.columns) for part in wide] + [(part, self.lanes) for part in narrow]
        table = self.rows(len(parts[0][0]), sum(size for _, size in parts), parts[0][0].dtype)
        start = 0
        for part, size in parts:
            self._lay_out(part, size, table[:, start:])
            start += size
        return table

    def rows(self, count: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        """Room for rows of at least `columns` values, each of which starts at a cache line."""
        line = LINE // dtype.itemsize
        return torch.empty(count, -(-columns // line) * line, dtype=dtype)

    def take_back(
        self, rows: torch.Tensor, width: int, to: torch.Tensor, factor: torch.Tensor | None = None
    ) -> None:
        """The way back: `to [n, heads·width] = rows`, times a `factor [n, heads]` where there is one."""
        assert are_real(rows, to) and has_rows(to) and len(rows) == len(to)
        assert to.shape[1] == self.heads * width and rows.stride(1) == 1
        self.native.functions.sancus_take_back_heads(
            threads(),
            rows.dtype == torch.float64,
            len(rows),
            self.heads,
            width,
            self.lanes,
            rows.data_ptr(),
            rows.stride(0),
            None if factor is None else factor.data_ptr(),
            0 if factor is None else factor.stride(0),
            to.data_ptr(),
            to.stride(0),
        )

    def keys_of_columns(self, keys: torch.Tensor) -> torch.Tensor:
        """`keys [n, heads]` of all heads, those of these heads in the layout: `[n, lanes]`."""
        mine = keys[:, self.first : self.first + self.heads]
        return torch.nn.functional.pad(mine, (0, self.lanes - self.heads)).contiguous()

    def _lay_out(self, rows: torch.Tensor, padded: int, to: torch.Tensor) -> None:
        rows = as_rows(rows)
        width = rows.shape[1] // self.heads
        assert are_real(rows, to) and width * self.lanes <= padded <= to.shape[1]
        self.native.functions.sancus_lay_out_heads(
            threads(),
            rows.dtype == torch.float64,
            len(rows),
            self.heads,
            width,
            self.lanes,
            padded,
            rows.data_ptr(),
            rows.stride(0),
            to.data_ptr(),
            to.stride(0),
        )


def head_groups(heads: int, width: int, dtype: torch.dtype, native: Library) -> list[HeadGroup]:
    """The heads in groups of at most one vector."""
    vector = (16 << native.isa) // dtype.itemsize
    groups = []
    for first in range(0, heads, vector):
        count = min(vector, heads - first)
        lanes = 1 << (count - 1).bit_length()
        groups.append(HeadGroup(native, first, count, width, lanes, -(-width * lanes // vector) * vector))
    return groups


def attend(
    form: int,
    group: HeadGroup,
    pattern: Pattern,
    other: torch.Tensor,
    own: torch.Tensor,
    out: torch.Tensor,
    *,
    slope: float,
    mix: torch.Tensor | None = None,
    keys: EdgeKeys | None = None,
    fresh: bool = False,
) -> None:
    """One pass over the entries; what `other`, `own` and `out` hold by `form` says `attend.c`.

    `keys` are those of own and of gathered rows.
    """
    crow, col = pattern
    assert is_pattern(crow, col, len(own)) and col.dtype == torch.int32 and len(out) == len(own)
    assert are_real(other, own, out) and (mix is None or mix.is_contiguous())
    group.native.functions.sancus_attend(
        group.native.isa,
        threads(),
        out.dtype == torch.float64,
        form,
        len(own),
        crow.data_ptr(),
        col.data_ptr(),
        len(other),
        other.data_ptr(),
        other.stride(0),
        own.data_ptr(),
        own.stride(0),
        None if mix is None else mix.data_ptr(),
        out.data_ptr(),
        out.stride(0),
        group.columns,
        group.lanes,
        slope,
        fresh,
        None if keys is None else keys.own.data_ptr(),
        None if keys is None else keys.other.data_ptr(),
        0 if keys is None else keys.bucket,
        1.0 if keys is None else keys.scale,
    )
