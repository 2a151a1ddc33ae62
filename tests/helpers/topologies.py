"""Small awkward topologies for samplers, and what a sample says, densely."""

from __future__ import annotations

import numpy as np
import torch

from sancus.kernels.topology import Draw, Sampled, Topology

ALL = -1


def topology(
    nodes: int = 40,
    *,
    seed: int = 0,
    weighted: bool = False,
    diagonal: bool = False,
    wide: bool = False,
    mean: bool = False,
) -> Topology:
    """Directed, with hubs, isolated nodes and, if `weighted`, negative entries and zeros.

    A `mean` has no factors of columns.
    """
    random = np.random.default_rng(seed)
    likely = random.random((nodes, 1)) ** 3
    dense = random.random((nodes, nodes)) < likely
    dense[0, 1:] = True  # a hub
    dense[1] = False
    np.fill_diagonal(dense, not diagonal)
    dense[1, 1] = False
    rows, columns = np.nonzero(dense)
    weight = random.normal(size=len(rows)) * (random.random(len(rows)) < 0.9)
    scale = torch.from_numpy(random.random((3, nodes)) + 0.5)
    return Topology(
        torch.from_numpy(np.append(0, np.bincount(rows, minlength=nodes).cumsum())),
        torch.from_numpy(columns.astype(np.int64 if wide else np.int32)),
        torch.from_numpy(weight) if weighted else None,
        scale[0].contiguous(),
        None if mean else scale[1].contiguous(),
        scale[2].contiguous() if diagonal else None,
    )


def dense_of(whole: Topology) -> torch.Tensor:
    """`Â [N, N]`."""
    dense = torch.zeros(whole.nodes, whole.nodes, dtype=torch.float64)
    rows = torch.repeat_interleave(torch.arange(whole.nodes), whole.degrees)
    dense[rows, whole.col.long()] = torch.ones(1).double() if whole.weight is None else whole.weight
    dense = whole.left[:, None] * dense * (1.0 if whole.right is None else whole.right)
    return dense if whole.diagonal is None else dense + torch.diag(whole.diagonal)


def hop_of(sampled: Sampled, hop: int, nodes: int) -> torch.Tensor:
    """One hop as a matrix `[N, N]` over all nodes."""
    crow, col, value = sampled.entries[hop]
    rows = torch.repeat_interleave(torch.arange(len(crow) - 1), crow.diff())
    dense = torch.zeros(nodes, nodes, dtype=torch.float64)
    places = sampled.nodes[rows], sampled.nodes[col.long()]
    return dense.index_put_(places, value.double(), accumulate=True)


def draw(way: int, *fanouts: int, key: int = 1, by_weight: bool = False) -> Draw:
    """A draw whose hops have keys of their own."""
    keys = tuple((key * 0x9E3779B97F4A7C15 + hop * 77_777_777_777) % 2**64 for hop in range(len(fanouts)))
    return Draw(way, fanouts, keys, by_weight)
