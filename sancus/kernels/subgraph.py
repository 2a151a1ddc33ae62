"""Subgraphs of a topology, and random walks on it."""

from __future__ import annotations

import torch

from sancus.kernels.base import index_dtype
from sancus.kernels.sample import HopSampler
from sancus.kernels.topology import REPEATED, Draw, Topology


def induced(whole: Topology, members: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Row ends `[m + 1]`, columns and positions in the whole `[e]` of the entries among `members [m]`.

    Members ascend, and columns count them.
    """
    number = torch.full((whole.nodes,), -1, dtype=index_dtype(whole.nodes))
    number[members] = torch.arange(len(members), dtype=number.dtype)
    lengths = whole.degrees[members]
    ends = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    entry = torch.arange(int(ends[-1])) + (whole.crow[members] - ends[:-1]).repeat_interleave(lengths)
    column = number[whole.col[entry].to(torch.int64)]
    inside = column >= 0
    kept = torch.cat([lengths.new_zeros(1), inside.cumsum(0)])
    return kept[ends], column[inside], entry[inside]


def subgraph(whole: Topology, members: torch.Tensor, factor: torch.Tensor | None = None) -> Topology:
    """The rows and columns of `members [m]`, ascending; `factor [E]` multiplies entries of the whole."""
    crow, col, entry = induced(whole, members)
    weight = None if whole.weight is None else whole.weight[entry]
    if factor is not None:
        weight = factor[entry] if weight is None else weight * factor[entry]
    right = None if whole.right is None else whole.right[members]
    diagonal = None if whole.diagonal is None else whole.diagonal[members]
    return Topology(crow, col, weight, whole.left[members], right, diagonal)


def walks(hops: HopSampler, roots: torch.Tensor, keys: tuple[int, ...]) -> torch.Tensor:
    """The nodes `[n]`, ascending, of walks from distinct `roots [r]` that take a step a key.

    A step goes to any neighbour, all alike; at a node without one a walk stays. Where it goes from a node is
    of the step's key and of the node: walks that meet in the same step go on together.
    """
    sampled = hops.sample(roots, Draw(REPEATED, (1,) * len(keys), keys))
    at = torch.arange(len(roots))
    visited = [at]
    for crow, col, _ in sampled.entries:
        last = crow[at + 1] - 1  # behind the diagonal, where there is one
        moves = last >= crow[at]
        at = at.clone()
        at[moves] = col[last[moves]].to(torch.int64)
        visited.append(at)
    return sampled.nodes[torch.cat(visited)].unique()
