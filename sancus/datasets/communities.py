"""Edges of generated graphs: a degree-corrected stochastic block model on a ring of communities.

Communities lie on a ring; community `k` has class `k mod C`, so that a class is many communities and
a neighbourhood of the ring holds all classes. Exactly a share `homophily` of the edges joins two nodes
of one class. Of these, a share `locality` stays within its community and the others go to any community
of the class. Edges between classes go to nearby communities, but for a share `(1 - locality)²` that goes
anywhere. So the graph has parts with a small cut at any homophily, and what is cut is the better part of
the signal: a training that ignores it loses accuracy.

Within its community a node is chosen in proportion to a power-law weight (exponent 2.5, as in many
real graphs). Weights are whole numbers and all choices use whole-number arithmetic, so that the same seed
gives the same graph on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

Ints = npt.NDArray[np.int64]

DRAWS = 1 << 20  # edges drawn at a time: bounds the temporary arrays
EXPONENT = 2.5  # of the power law of expected degrees
HUB = 300.0  # largest weight in units of the smallest: about 100 times the mean degree
UNIT = 256  # whole-number weight of the smallest node
HEAVY_ROUNDS = 4  # rounds with power-law weights; what is then still missing is spread evenly
ROUNDS = 200


@dataclass(frozen=True)
class Design:
    """What to draw; `edges` counts pairs where the graph is undirected."""

    nodes: int
    classes: int
    communities: int  # a multiple of classes
    edges: int
    homophily: float
    locality: float
    directed: bool


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the nodes are: positions `0 … N-1` are sorted by community, node numbers are shuffled."""

    node: Ints  # [N] node number of a position
    community: Ints  # [N] community of a node number
    start: Ints  # [K + 1] first position of a community
    weight: Ints  # [N + 1] cumulated weight before a position


def assign_communities(design: Design, rng: np.random.Generator) -> Layout:
    """Communities of sizes that differ up to threefold, of nodes in random order."""
    share = np.cumsum(rng.integers(512, 1537, design.communities))
    start = np.zeros(design.communities + 1, np.int64)
    start[1:] = (design.nodes - design.communities) * share // share[-1] + np.arange(
        1, design.communities + 1
    )
    node = rng.permutation(design.nodes)
    community = np.empty(design.nodes, np.int64)
    community[node] = np.repeat(np.arange(design.communities), np.diff(start))
    heavy = np.minimum((1 - rng.random(design.nodes)) ** (-1 / (EXPONENT - 1)), HUB)
    weight = np.concatenate([[0], np.cumsum((heavy * UNIT).astype(np.int64))])
    return Layout(node, community, start, weight)


def draw_adjacency(design: Design, layout: Layout, rng: np.random.Generator) -> sp.csr_array:
    """The `[N, N]` adjacency: no loops, no double edges, sorted; symmetric unless directed."""
    within = round(design.edges * design.homophily)
    flat = Layout(layout.node, layout.community, layout.start, np.arange(design.nodes + 1))

    def drawer(same_class: bool) -> Callable[[int, bool], Ints]:
        def draw(count: int, even: bool) -> Ints:
            base, locality = (flat, 0.0) if even else (layout, design.locality)
            sizes = [min(DRAWS, count - offset) for offset in range(0, count, DRAWS)]
            return np.concatenate([_draw(design, base, locality, size, same_class, rng) for size in sizes])

        return draw

    keys = np.concatenate(
        [_distinct(within, drawer(True), rng), _distinct(design.edges - within, drawer(False), rng)]
    )
    keys.sort()
    return _from_keys(keys, design)


def _draw(
    design: Design, layout: Layout, locality: float, count: int, same_class: bool, rng: np.random.Generator
) -> Ints:
    """Up to `count` edges as keys `row * N + column`; loops are left out, doubles are not."""
    sources = np.sort(rng.integers(0, layout.weight[-1], count))  # sorted: neighbours in memory
    source = np.searchsorted(layout.weight, sources, side="right") - 1
    ring = np.searchsorted(layout.start, source, side="right") - 1
    ring += _offsets(design, locality, count, same_class, rng)
    ring %= design.communities
    target = _pick(layout, layout.start[ring], layout.start[ring + 1], rng)
    row, column = layout.node[source], layout.node[target]
    if not design.directed:
        row, column = np.minimum(row, column), np.maximum(row, column)
    keys: Ints = (row * design.nodes + column)[row != column]
    return keys


def _offsets(design: Design, locality: float, count: int, same_class: bool, rng: np.random.Generator) -> Ints:
    """Steps along the ring: multiples of `C` keep the class, anything else changes it."""
    laps = design.communities // design.classes
    lap = rng.integers(0, laps, count)
    if same_class:
        lap[rng.random(count) < locality] = 0
        return lap * design.classes
    step = rng.geometric(0.5, count) - 1
    step[rng.random(count) < 0.5] *= -1
    near = rng.random(count) < 1 - (1 - locality) ** 2
    return np.where(near, step, lap) * design.classes + rng.integers(1, design.classes, count)


def _pick(layout: Layout, first: Ints, last: Ints, rng: np.random.Generator) -> Ints:
    """A position in each `[first, last)`, in proportion to its weight."""
    low, high = layout.weight[first], layout.weight[last]
    return np.searchsorted(layout.weight, rng.integers(low, high), side="right") - 1


def _distinct(count: int, draw: Callable[[int, bool], Ints], rng: np.random.Generator) -> Ints:
    """`count` different keys, sorted: draws, merges and tops up what doubles and loops have cost."""
    keys = np.zeros(0, np.int64)
    fresh_share = 0.95
    for attempt in range(ROUNDS):
        shortage = count - len(keys)
        if shortage <= 0:
            break
        draws = min(int(shortage / fresh_share), 2 * count) + 64
        before = len(keys)
        keys = np.concatenate([keys, draw(draws, attempt >= HEAVY_ROUNDS)])
        keys.sort()
        keys = keys[np.concatenate([[True], keys[1:] != keys[:-1]])]
        fresh_share = min(0.95, max(0.05, (len(keys) - before) / draws))
    if len(keys) > count:
        keys = np.delete(keys, rng.choice(len(keys), len(keys) - count, replace=False))
    return keys


def _from_keys(keys: Ints, design: Design) -> sp.csr_array:
    """Sorted keys to CSR; an undirected key is the upper triangle, mirrored here."""
    index = np.int32 if max(design.nodes, 2 * len(keys)) < 2**31 else np.int64
    indptr = np.searchsorted(keys, np.arange(design.nodes + 1) * design.nodes).astype(index)
    columns = (keys % design.nodes).astype(index)
    ones = np.ones(len(keys), np.float32)
    matrix = sp.csr_array((ones, columns, indptr), shape=(design.nodes, design.nodes))
    if not design.directed:
        matrix = sp.csr_array(matrix + matrix.T.tocsr())
    matrix.sort_indices()
    return matrix
