"""Sampled neighbourhoods in torch: for machines without the native library, and the reference of its tests.

Pick for pick what `native/sample.c` draws; see there and in `sample` for the meaning.
"""

from __future__ import annotations

import numpy as np
import torch

from sancus.kernels.hashing import MASK64, signed, splitmix
from sancus.kernels.topology import LEAST_OF_SOURCE, REPEATED, UNIFORM, Draw, Sampled, Topology
from sancus.kernels.transpose import row_of_entries

GOLDEN = 0x9E3779B97F4A7C15


class TorchSampler:
    """Samples hops of one topology."""

    def __init__(self, topology: Topology, dtype: torch.dtype) -> None:
        self._topology = topology
        self._dtype = dtype
        self._number = torch.full((topology.nodes,), -1, dtype=torch.int64)  # of each node in this sample

    def sample(self, seeds: torch.Tensor, draw: Draw) -> Sampled:
        """Hops from `seeds [s]` outward, one a fan-out; see `sancus.kernels.sample.sample`."""
        nodes, counts, entries = seeds.to(torch.int64), [len(seeds)], []
        self._number[nodes] = torch.arange(len(nodes))
        for fanout, key in zip(draw.fanouts, draw.keys, strict=True):
            crow, position, factor = _draw_hop(self._topology, nodes, fanout, key, draw)
            sources = self._topology.col[position].to(torch.int64)
            new = first_seen(sources[self._number[sources] < 0])
            self._number[new] = torch.arange(len(nodes), len(nodes) + len(new))
            values = self._values(nodes, crow, position, sources, factor)
            hop = _with_diagonal(self._topology, nodes, crow, self._number[sources], values)
            entries.append((hop[0], hop[1].to(torch.int32), hop[2].to(self._dtype)))
            nodes = torch.cat([nodes, new])
            counts.append(len(nodes))
        self._number[nodes] = -1
        return Sampled(nodes, tuple(counts), tuple(entries))

    def _values(
        self,
        targets: torch.Tensor,
        crow: torch.Tensor,
        position: torch.Tensor,
        sources: torch.Tensor,
        factor: torch.Tensor,
    ) -> torch.Tensor:
        """`[e]` of `Â`, times the factor of each draw."""
        whole = self._topology
        values = factor * whole.left[targets][row_of_entries(crow)]
        values = values if whole.right is None else values * whole.right[sources]
        return values if whole.weight is None else values * whole.weight[position]


def _draw_hop(
    whole: Topology, targets: torch.Tensor, fanout: int, key: int, draw: Draw
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Row ends, positions in the whole topology and factors of what the targets draw."""
    degree = whole.degrees[targets]
    crowded = degree > fanout if draw.way != REPEATED else degree > 0
    crowded &= fanout >= 0
    picks, factors, drawn = _picks(whole, targets[crowded], fanout, key, draw)
    lengths = degree.clone()
    lengths[crowded] = drawn
    crow = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    row = row_of_entries(crow)
    position = torch.arange(int(crow[-1])) - crow[row]
    factor = torch.ones(len(position), dtype=torch.float64)
    chosen = crowded[row]
    position[chosen], factor[chosen] = picks, factors
    return crow, position + whole.crow[targets][row], factor


def _picks(
    whole: Topology, targets: torch.Tensor, k: int, key: int, draw: Draw
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of targets with too many entries: what they pick, row after row; its factors; how many each picks."""
    drawn = torch.full_like(targets, max(k, 0))
    if not len(targets) or k == 0:
        return targets.new_empty(0), torch.empty(0, dtype=torch.float64), drawn
    degree = whole.degrees[targets]
    state = splitmix(targets ^ signed(key & MASK64))
    even = (degree.double() / k).repeat_interleave(k)
    if draw.way == UNIFORM:
        return _distinct(state, degree, k).flatten(), even, drawn
    if draw.way == REPEATED and not draw.by_weight:
        return _below(_noise(state, k), degree[:, None]).flatten(), even, drawn
    if draw.way == REPEATED:
        return _by_share(whole, targets, state, k)
    picks, factors = _least(whole, targets, state, k, key, draw)
    return picks, even if factors is None else factors, drawn


def _noise(state: torch.Tensor, k: int) -> torch.Tensor:
    """`[n, k]`: 64 random bits for every draw of every state `[n]`."""
    steps = torch.tensor([signed(step * GOLDEN & MASK64) for step in range(k)], dtype=torch.int64)
    return splitmix(state[:, None] + steps)


def _below(bits: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    """Whole numbers below `bound`, of the upper halves of random bits: multiply and shift."""
    return ((bits >> 32) & 0xFFFFFFFF) * bound >> 32


def _fraction(bits: torch.Tensor) -> torch.Tensor:
    """Strictly between 0 and 1."""
    return (((bits >> 12) & ((1 << 52) - 1)).double() + 0.5) * 2.0**-52


def _distinct(state: torch.Tensor, degree: torch.Tensor, k: int) -> torch.Tensor:
    """`[n, k]` distinct positions, by R. Floyd's algorithm."""
    noise, picks = _noise(state, k), state.new_empty(len(state), k)
    for j in range(k):
        last = degree - k + j
        x = _below(noise[:, j], last + 1)
        hit = (picks[:, :j] == x[:, None]).any(dim=1)
        picks[:, j] = torch.where(hit, last, x)
    return picks


def _by_share(
    whole: Topology, targets: torch.Tensor, state: torch.Tensor, k: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draws with repetition, each entry as likely as its share of the row's weights."""
    picks, factors, drawn = [], [], []
    fractions = _fraction(_noise(state, k)).numpy()
    for row, first, last in _spans(whole, targets):
        weight = _weights(whole, slice(first, last)).numpy()
        sums = np.cumsum(weight)
        x = fractions[row] * sums[-1]
        chosen = np.minimum(np.searchsorted(sums, x, "right"), np.searchsorted(sums, sums[-1], "left"))
        chosen = chosen if sums[-1] > 0 else chosen[:0]
        picks.append(torch.from_numpy(chosen))
        factors.append(torch.from_numpy(sums[-1] / k / weight[chosen]))
        drawn.append(len(chosen))
    return torch.cat(picks), torch.cat(factors), torch.tensor(drawn)


def _least(
    whole: Topology, targets: torch.Tensor, state: torch.Tensor, k: int, key: int, draw: Draw
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The positions of the `k` least keys of every row, ascending; by weight, their factors."""
    picks, factors = [], []
    for row, first, last in _spans(whole, targets):
        base = signed(key & MASK64) if draw.way == LEAST_OF_SOURCE else int(state[row])
        rank = _fraction(splitmix(whole.col[first:last].to(torch.int64) ^ base))
        weight = _weights(whole, slice(first, last))
        rank = rank / weight if draw.by_weight else rank
        order = torch.sort(rank, stable=True).indices
        chosen = order[:k].sort().values
        picks.append(chosen)
        factors.append((1.0 / (rank[order[k]] * weight[chosen])).nan_to_num(1.0).clamp(min=1.0))
    return torch.cat(picks), torch.cat(factors) if draw.by_weight else None


def _spans(whole: Topology, targets: torch.Tensor) -> list[tuple[int, int, int]]:
    """Number, first entry and end of each target's row."""
    first, last = whole.crow[targets].tolist(), whole.crow[targets + 1].tolist()
    return [(row, *span) for row, span in enumerate(zip(first, last, strict=True))]


def _weights(whole: Topology, entries: slice) -> torch.Tensor:
    """Absolute entries of `A`."""
    if whole.weight is None:
        return torch.ones(entries.stop - entries.start, dtype=torch.float64)
    return whole.weight[entries].abs()


def first_seen(ids: torch.Tensor) -> torch.Tensor:
    """Distinct ids in the order in which they first stand in `ids [k]`."""
    _, first = np.unique(ids.numpy(), return_index=True)
    return ids[torch.from_numpy(np.sort(first))]


def _with_diagonal(
    whole: Topology, targets: torch.Tensor, crow: torch.Tensor, col: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The rows with the diagonal's entry before the others."""
    if whole.diagonal is None:
        return crow, col, value
    rows = torch.arange(len(targets))
    longer = crow + torch.arange(len(crow))
    place = torch.arange(len(col)) + row_of_entries(crow) + 1
    joined = col.new_empty(len(col) + len(rows)), value.new_empty(len(col) + len(rows))
    joined[0][longer[:-1]], joined[0][place] = rows, col
    joined[1][longer[:-1]], joined[1][place] = whole.diagonal[targets], value
    return longer, *joined
