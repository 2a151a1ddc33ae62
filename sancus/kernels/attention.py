"""Attention over the entries of a matrix in one pass a direction: no value an entry and head is ever stored.

Entry (i, j) of a head has the score

    e_ij = Σ_c a_c LeakyReLU(q_ic + k_jc)

With one column a head and `a = 1` this is GAT's; with `a` of its own and `k_j = V_j`, GATv2's. Shares are the
softmax over a row, `out_i = Σ_j share_ij V_j`. The matrix may come in blocks of columns, one after another.

Backward needs the logarithm of each row's sum of exponentials. With `D_i = <dout_i, out_i>`

    de_ij = share_ij (<dout_i, V_j> − D_i)        dV_j += share_ij dout_i

are added up by column. The gradient of `q` would need another pass by row. GAT has a shortcut: LeakyReLU'
takes two values, so with `out⁺`, `s⁺` the sums over the entries of a positive score alone, and slope `m`,

    dq_i = <dout_i, m out_i + (1 − m) out_i⁺> − D_i (m + (1 − m) s_i⁺)

GATv2 makes that pass, and from it takes the gradient of `a`: since `LeakyReLU(z) = LeakyReLU'(z) z`, it is
`Σ_i q_i U_i + Σ_j k_j W_j`, where `U_i` and `W_j` are the sums of `de_ij LeakyReLU'(q_i + k_j)` by row and by
column.

It runs in C on the CPU; `sancus.kernels.edges` states the same, operator by operator.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sancus.kernels import gpu
from sancus.kernels.masks import EdgeMask, bucket
from sancus.kernels.matrix import SparseMatrix, checked_pattern
from sancus.kernels.native.attend import (
    ADDITIVE,
    BACK_ADDITIVE,
    BACK_DYNAMIC,
    BACK_DYNAMIC_ROWS,
    DYNAMIC,
    TILTED,
    EdgeKeys,
    HeadGroup,
    attend,
    head_groups,
)
from sancus.kernels.native.library import Library, library


@dataclass(frozen=True)
class Weighing:
    """How an entry is weighed: `Σ_c mix_c LeakyReLU(q_ic + k_jc)`."""

    heads: int
    slope: float
    mix: torch.Tensor | None  # [heads, width]: then keys are values; None: one column a head


@dataclass(frozen=True)
class Attended:
    """Rows, and what their gradient needs."""

    out: torch.Tensor  # [m, heads·width]
    log_total: torch.Tensor  # [m, heads]: of the sums of exponentials
    tilted: torch.Tensor | None  # [m, heads·width]: m out + (1 - m) out⁺
    tilt: torch.Tensor | None  # [m, heads]: m + (1 - m) s⁺


def fuses(matrix: SparseMatrix) -> bool:
    """Whether the library computes attention over this matrix: what its kernel says."""
    native = getattr(matrix.kernel, "edges", "torch") == "native"
    col = matrix.csr.col
    return native and col.device.type == "cpu" and col.dtype == torch.int32 and not gpu.compiles(col)


class RunningAttention:
    """The attention of some rows, block after block."""

    def __init__(
        self,
        query: torch.Tensor,
        width: int,
        weighing: Weighing,
        *,
        differentiable: bool = True,
        native: Library | None = None,
    ) -> None:
        """`query [m, heads]`, or `[m, heads·width]` with a `mix`; `width` columns a head of the values."""
        self._weighing, self._width, self._query = weighing, width, query
        self._groups = head_groups(weighing.heads, width, query.dtype, native or library())
        self._form = DYNAMIC if weighing.mix is not None else TILTED if differentiable else ADDITIVE
        kinds = 2 if self._form == TILTED else 1
        self._states = [
            group.rows(len(query), kinds * group.columns + (kinds + 1) * group.lanes, query.dtype)
            for group in self._groups
        ]
        self._own = [_query_table(group, query, weighing) for group in self._groups]
        self._mix = [_mix_row(group, weighing) for group in self._groups]
        self._fresh = True

    def add(
        self, matrix: SparseMatrix, values: torch.Tensor, key: torch.Tensor, mask: EdgeMask | None = None
    ) -> None:
        """A block `[m, n]` over `values [n, heads·width]` and `key [n, heads]`, or values as keys."""
        for group, state, own, mix in zip(self._groups, self._states, self._own, self._mix, strict=True):
            narrow = [] if mix is not None else [group.part(key, 1)]
            attend(
                self._form,
                group,
                checked_pattern(matrix),
                group.table([group.part(values, self._width)], narrow),
                own,
                state,
                slope=self._weighing.slope,
                mix=mix,
                keys=_keys(group, mask, by_row=True),
                fresh=self._fresh,
            )
        self._fresh = False

    def finish(self) -> Attended:
        """What was added up; rows without an entry are 0."""
        heads, slope = self._weighing.heads, self._weighing.slope
        out = self._query.new_empty(len(self._query), heads * self._width)
        log_total = out.new_empty(len(out), heads)
        tilted = torch.empty_like(out) if self._form == TILTED else None
        tilt = torch.empty_like(log_total) if self._form == TILTED else None
        for group, state in zip(self._groups, self._states, strict=True):
            kinds = 1 if tilted is None else 2
            numbers = state[:, kinds * group.columns :]
            most, *totals = (
                numbers[:, kind * group.lanes : kind * group.lanes + group.heads] for kind in range(kinds + 1)
            )
            total = torch.where(totals[0] == 0, 1.0, totals[0])
            factor = total.reciprocal()
            group.part(log_total, 1).copy_(most + total.log())
            group.take_back(state, self._width, group.part(out, self._width), factor)
            if tilted is not None and tilt is not None:
                sums = group.part(tilted, self._width)
                group.take_back(state[:, group.columns :], self._width, sums, factor)
                group.part(tilt, 1).copy_(totals[1] * factor)
        if tilted is not None and tilt is not None:
            tilted.mul_(1.0 - slope).add_(out, alpha=slope)
            tilt.mul_(1.0 - slope).add_(slope)
        return Attended(out, log_total, tilted, tilt)


class AttentionGradients:
    """The gradients of `RunningAttention`, block after block, in any order."""

    def __init__(
        self,
        query: torch.Tensor,
        weighing: Weighing,
        attended: Attended,
        gradient: torch.Tensor,
        *,
        native: Library | None = None,
    ) -> None:
        """`gradient [m, heads·width]` is that of `attended.out`."""
        heads = weighing.heads
        self._weighing, self._query, self._attended = weighing, query, attended
        self._width = gradient.shape[1] // heads
        self._gradient = gradient
        self._inner = _by_head(gradient, attended.out, heads)
        self._groups = head_groups(heads, self._width, query.dtype, native or library())
        self._tables = [self._table(group) for group in self._groups]
        self._mix = [_mix_row(group, weighing) for group in self._groups]
        self._by_row = None if weighing.mix is None else torch.zeros_like(query)
        self._d_mix = None if weighing.mix is None else torch.zeros_like(weighing.mix)

    def of_block(
        self, matrix: SparseMatrix, values: torch.Tensor, key: torch.Tensor, mask: EdgeMask | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of a block's values `[n, heads·width]` and keys; as in `RunningAttention.add`."""
        d_values, d_key = torch.empty_like(values), torch.empty_like(key)
        for group, table, mix in zip(self._groups, self._tables, self._mix, strict=True):
            narrow = [] if mix is not None else [group.part(key, 1)]
            own = group.table([group.part(values, self._width)], narrow)
            beside = group.columns if mix is not None else group.lanes
            out = group.rows(len(values), group.columns + beside, values.dtype)
            attend(
                BACK_ADDITIVE if mix is None else BACK_DYNAMIC,
                group,
                checked_pattern(matrix.transposed),
                table,
                own,
                out,
                slope=self._weighing.slope,
                mix=mix,
                keys=_keys(group, mask, by_row=False),
            )
            width = 1 if mix is None else self._width
            group.take_back(out, self._width, group.part(d_values, self._width))
            group.take_back(out[:, group.columns :], width, group.part(d_key, width))
            if mix is not None:
                self._add_by_row(group, matrix, own, table, mix, mask)
        if self._weighing.mix is not None and self._d_mix is not None:
            self._d_mix += (d_key * values).sum(0).view_as(self._d_mix)
            d_key *= self._weighing.mix.reshape(1, -1)
        return d_values, d_key

    def finish(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Gradients of the query, and of `mix`."""
        mix, attended = self._weighing.mix, self._attended
        if mix is None:
            assert attended.tilted is not None and attended.tilt is not None, "made for a gradient"
            towards = _by_head(self._gradient, attended.tilted, self._weighing.heads)
            return towards - self._inner * attended.tilt, None
        assert self._by_row is not None and self._d_mix is not None
        d_mix = self._d_mix + (self._by_row * self._query).sum(0).view_as(mix)
        return self._by_row * mix.reshape(1, -1), d_mix

    def _table(self, group: HeadGroup) -> torch.Tensor:
        numbers = [group.part(self._attended.log_total, 1), group.part(self._inner, 1)]
        gradient = group.part(self._gradient, self._width)
        if self._weighing.mix is None:
            return group.table([gradient], [group.part(self._query, 1), *numbers])
        return group.table([gradient, group.part(self._query, self._width)], numbers)

    def _add_by_row(
        self,
        group: HeadGroup,
        matrix: SparseMatrix,
        values: torch.Tensor,
        own: torch.Tensor,
        mix: torch.Tensor,
        mask: EdgeMask | None,
    ) -> None:
        """`U_i`, the gradient of the query before `mix`."""
        assert self._by_row is not None
        out = group.rows(len(own), group.columns, own.dtype)
        keys = _keys(group, mask, by_row=True)
        slope = self._weighing.slope
        attend(
            BACK_DYNAMIC_ROWS,
            group,
            checked_pattern(matrix),
            values,
            own,
            out,
            slope=slope,
            mix=mix,
            keys=keys,
        )
        part = out.new_empty(len(out), group.heads * self._width)
        group.take_back(out, self._width, part)
        group.part(self._by_row, self._width).add_(part)


def _query_table(group: HeadGroup, query: torch.Tensor, weighing: Weighing) -> torch.Tensor:
    if weighing.mix is None:
        return group.table([], [group.part(query, 1)])
    return group.table([group.part(query, group.width)])


def _mix_row(group: HeadGroup, weighing: Weighing) -> torch.Tensor | None:
    if weighing.mix is None:
        return None
    assert weighing.mix.shape == (weighing.heads, group.width)
    return group.table([group.part(weighing.mix.reshape(1, -1), group.width)])


def _keys(group: HeadGroup, mask: EdgeMask | None, *, by_row: bool) -> EdgeKeys | None:
    if mask is None:
        return None
    rows, columns = mask.rows.contiguous(), group.keys_of_columns(mask.columns)
    own, other = (rows, columns) if by_row else (columns, rows)
    return EdgeKeys(own, other, bucket(mask.share), 1.0 / (1.0 - mask.share))


def _by_head(left: torch.Tensor, right: torch.Tensor, heads: int) -> torch.Tensor:
    """`<left, right>` of each row and head, `[m, heads]`."""
    return (left * right).unflatten(1, (heads, -1)).sum(2)
