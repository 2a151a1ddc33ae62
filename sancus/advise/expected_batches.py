"""What a run in batches is expected to read, move and take, from the probabilities of its draws.

A rank's batch has each of its training nodes with probability `B/T`; a target `v` draws a neighbour with
probability `min(1, k/d_v)`; all nodes found so far are targets of the next hop. So

    P(u in the sample of h hops) = 1 − (1 − P(u, h−1)) Π_{v: u ∈ N(v)} (1 − min(1, k_h/d_v) P(v, h−1))

as if draws were independent. Sums of these are expected rows and edges; those of rows that another rank owns
and that no cache keeps are what is pulled. Draws of a batch do meet in the same nodes more often than that:
where a batch reads a large share of a graph, it reads up to a fifth fewer rows than is expected here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from sancus.codecs import CODECS
from sancus.codecs.base import Codec
from sancus.comm.header import PLAIN_HEADER
from sancus.config.settings import Config
from sancus.errors import UserError
from sancus.graphs.graph import Graph
from sancus.kernels.base import index_dtype
from sancus.kernels.topology import Topology
from sancus.partitioners.base import Assignment
from sancus.plugins import build
from sancus.store import CACHES, NO_CACHE
from sancus.store.column_sums import Columns
from sancus.store.kept_rows import Reads, rows_to_keep

SAMPLERS = ("neighbour",)  # whose draws are as independent as the formula has them
MODELS = ("gcn", "sage")  # and how many weights a layer has


@dataclass(frozen=True)
class Expected:
    """Means of a step; of the rank with most where it says so."""

    steps: int  # of an epoch
    edges: float  # of all ranks
    rows: float  # features that are read, of all ranks
    pulled: float  # of these, from other ranks
    kept: float  # rows that the cache keeps, of all ranks
    largest_rows: float  # of the rank that reads most
    largest_pull: float
    sparse: float  # multiply-adds of sparse products, of the rank with most
    dense: float

    def wire_bytes(self, codec: Codec, columns: int, dtype: torch.dtype) -> float:
        """Feature bytes of a step."""
        return self.pulled * row_bytes(codec, columns, dtype)


def expected_batches(graph: Graph, config: Config, ranks: int, assignment: Assignment) -> Expected:
    """What a step of a run in batches reads and draws, on so many ranks."""
    sampling = config.sampling
    check(config)
    topology = _topology(graph)
    columns, fanouts = Columns(topology), sampling.fanouts(config.shape.layers)
    training = torch.from_numpy(np.flatnonzero(graph.train_mask))
    owner = torch.from_numpy(np.asarray(assignment, np.int64))
    rate = min(1.0, sampling.batch_size / max(1, len(training)))
    loops = int(config.model == "gcn")
    widths = config.shape.widths(graph.feature_count, graph.classes)
    totals = np.zeros(4)
    largest = np.zeros(4)
    for rank in range(ranks):
        mine = training[owner[training] == rank]
        reached, edges = reach(columns, mine, rate, fanouts)
        kept = torch.zeros(topology.nodes, dtype=torch.bool)
        if sampling.feature_cache != NO_CACHE and ranks > 1:
            cache = build("cache", CACHES, sampling.feature_cache)
            kept[rows_to_keep(cache, Reads(columns, mine, rate, fanouts), owner != rank)] = True
        rows = [float(each.sum()) for each in reached]
        pulled = float(reached[-1][(owner != rank) & ~kept].sum())
        drawn = [count + loops * targets for count, targets in zip(edges, rows[:-1], strict=True)]
        products = _multiply_adds(drawn, rows, widths, weights=1 if loops else 2)
        totals += (sum(drawn), rows[-1], pulled, float(kept.sum()))
        largest = np.maximum(largest, (rows[-1], pulled, *products))
    steps = max(1, -(-len(training) // sampling.batch_size))
    return Expected(steps, *totals.tolist(), *largest.tolist())


def check(config: Config) -> None:
    """Refuse what cannot be foreseen."""
    sampler = config.sampling.sampler.partition(":")[0]
    if sampler not in SAMPLERS:
        raise UserError(f"--sampler {sampler}: only {', '.join(SAMPLERS)} can be estimated; leave it out")
    if config.model not in MODELS:
        raise UserError(
            f"--model {config.model}: only {', '.join(MODELS)} can be estimated in batches; choose one"
        )


def reach(
    columns: Columns, seeds: torch.Tensor, rate: float, fanouts: tuple[int, ...]
) -> tuple[list[torch.Tensor], list[float]]:
    """Of seeds, then after each hop: the probability `[N]` to be in a sample; edges that each hop draws."""
    reached = torch.zeros(len(columns.degrees), dtype=torch.float64)
    reached[seeds] = rate
    stages, edges = [reached], []
    degrees = columns.degrees.to(torch.float64)
    for fanout in fanouts:
        taken = degrees if fanout < 0 else degrees.clamp(max=fanout)
        edges.append(float((reached * taken).sum()))
        missed = columns.sums(torch.log1p(-reached * taken / degrees.clamp(min=1.0)))
        reached = 1 - (1 - reached) * missed.exp()
        stages.append(reached)
    return stages, edges


def row_bytes(codec: Codec, columns: int, dtype: torch.dtype, rows: int = 1024) -> float:
    """Bytes of a row of features on the wire, in a message of many."""
    return codec.wire(rows, columns, dtype, torch.device("cpu"), 0.5).nbytes / rows


def agreement_of_step(ranks: int, pulled: float, gathers: int) -> float:
    """Counts, numbers of rows and headers of a step, in which gradients are summed by so many `gathers`."""
    pairs = ranks * (ranks - 1)
    messages = 3 + gathers  # counts, numbers, rows
    return pairs * (messages * PLAIN_HEADER + 8 * ranks) + 4 * pulled


def parameter_shapes(config: Config, widths: Sequence[int]) -> list[tuple[int, ...]]:
    """Of every parameter of the model."""
    weights = 1 if config.model == "gcn" else 2
    return [shape for a, b in pairwise(widths) for shape in (*[(a, b)] * weights, (b,))]


def codec_of(config: Config) -> Codec:
    """That of pulled features."""
    codec: Codec = build("codec", CODECS, config.sampling.feature_codec)
    return codec


def _multiply_adds(
    edges: list[float], rows: list[float], widths: Sequence[int], weights: int
) -> tuple[float, float]:
    """Of sparse and dense products, both ways: layer `l` sums over hop `L − l`, and multiplies its targets.

    The features are constants: nothing goes back through the first sum, nor to them.
    """
    layers, sparse, dense = len(widths) - 1, 0.0, 0.0
    for layer, (before, after) in enumerate(pairwise(widths)):
        hop, first = layers - 1 - layer, layer == 0
        sparse += edges[hop] * (before if first else 2 * min(before, after))
        dense += weights * rows[hop] * before * after * (2 if first else 3)
    return sparse, dense


def _topology(graph: Graph) -> Topology:
    """Who has whom as a neighbour, without loops."""
    matrix: Any = graph.adjacency
    crow = torch.from_numpy(np.asarray(matrix.indptr, np.int64))
    col = torch.from_numpy(np.asarray(matrix.indices)).to(index_dtype(graph.nodes))
    return Topology(crow, col.contiguous(), None, torch.ones(graph.nodes, dtype=torch.float64), None)
