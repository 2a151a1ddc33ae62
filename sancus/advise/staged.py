"""What a pipeline of layers will need, before anything is trained; and which stages should be quickest.

What layers of a model read, hand on and hold is found by running its segments once (`sancus.models.trace`).
Bytes are exact as those of `sancus.advise.estimate` are: the rows of every chunk between stages, and within a
stage those that the plan sends of each chunk. Seconds are of a pipeline whose chunks all take equally long:
the first goes through all stages, the others follow at the pace of the slowest.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from sancus.advise.estimate import (
    ACTIVATION_COPIES,
    ENTRY_BYTES,
    OPTIMISER_COPIES,
    RUNTIME,
    Counts,
    Estimate,
    Machine,
    Staged,
    backward_rows,
    estimate,
    feature_bytes,
    rows_of_plan,
    sizes_of,
    wire_bytes,
)
from sancus.advise.overhead import pipeline_agreement
from sancus.advise.sends import share_sent
from sancus.codecs import CODECS
from sancus.codecs.base import Codec
from sancus.comm.header import PLAIN_HEADER
from sancus.comm.ledger import DIRECTIONS, Direction
from sancus.config.settings import Config
from sancus.errors import UserError
from sancus.exchange.chunk_tables import stream_of
from sancus.graphs.graph import Graph
from sancus.graphs.row_order import chunks_of
from sancus.models.build import find_model
from sancus.models.contract import traits_of
from sancus.models.trace import Piece, trace
from sancus.parameters import EXACT
from sancus.partitioners import PARTITIONERS
from sancus.partitioners.quality import payload_matrix
from sancus.plans import AUTO, plan_for
from sancus.plugins import build
from sancus.runs.layout import make_schedule
from sancus.runs.module import make_module
from sancus.shards.partition import assign_nodes
from sancus.staleness import POLICIES
from sancus.staleness.base import Policy
from sancus.training.parameter_sync import make_parameter_codec
from sancus.training.stages import Stages, split_evenly, with_first

CHUNK_SECONDS = 1e-4  # a chunk in a layer, one way, beside its products: calls of Python and torch
MOST_CHUNKS = 8  # a rank, of those that are tried


@dataclass(frozen=True)
class Stage:
    """What one stage holds and does in an epoch."""

    columns: int  # of all rows that its layers read
    passes: int  # of them, and of their gradients, in sparse products
    weights: int  # values in matrices that rows are multiplied by
    values: int  # of all parameters
    layers: int


@dataclass(frozen=True)
class Cut:
    """A graph in parts and chunks, and the model in stages."""

    rows: Counts  # [W, K] of every part in each chunk
    entries: Counts  # [W] of `Â`
    crossing: Sequence[Counts]  # [K] rows between the parts, `[W, W]`, of every chunk
    share: float  # of them, where a plan draws
    plan: str


def predict(graph: Graph, config: Config, ranks: int, machine: Machine) -> Estimate:
    """What a run needs on so many ranks, with whatever schedule."""
    if config.schedule == "pipeline" and not config.sampling.batch_size:
        return estimate_pipeline(graph, config, ranks, machine)
    return estimate(graph, config, ranks, machine)


def estimate_pipeline(graph: Graph, config: Config, ranks: int, machine: Machine) -> Estimate:
    """What a run with `--schedule pipeline` needs on so many ranks; `--stages auto` takes the quickest."""
    if not 1 <= ranks <= graph.nodes:
        raise UserError(f"--ranks {ranks}: must be from 1 to the {graph.nodes} nodes")
    if config.pipeline.stages == AUTO:
        config = choose_stages(graph, config, ranks, machine)
    schedule = make_schedule(config)
    layout, chunks = schedule.layout(ranks), schedule.chunks(ranks)
    cut = cut_graph(graph, config, layout.parts, chunks)
    pieces, split = cut_model(graph, config, layout.stages)
    dtype = getattr(torch, config.training.dtype)
    factors = config.factors
    between = _boundary_bytes(cut.rows, split, build("codec", CODECS, config.pipeline.boundary_codec), dtype)
    streams, messages, used = _streams(cut, pieces, config, dtype)
    stages = [_stage(pieces[part], graph, config, machine) for part in split.segments]
    shapes = [_shapes(pieces[part], graph, config, split.shared) for part in split.segments]
    everywhere = make_parameter_codec(EXACT)  # what all stages have is summed over them, in full
    shared = _shapes((), graph, config, split.shared) if layout.stages > 1 else []
    coding = make_parameter_codec(config.training.parameter_codec)
    over_stages = everywhere.collectives(shared) if shared else 0
    parts = layout.parts
    summed = [coding.wire_bytes(some, parts, dtype.itemsize) if parts > 1 else 0 for some in shapes]
    policies: dict[Direction, Policy] = {
        side: build("policy", POLICIES, spec)
        for side, spec in zip(DIRECTIONS, (factors.staleness, factors.backward), strict=True)
    }
    received = sum(streams.values()) / layout.size if parts > 1 else 0.0
    seconds = _seconds(stages, cut, (between / max(1, 2 * (layout.stages - 1) * parts)), received, machine)
    agreed = pipeline_agreement(
        layout,
        boundaries=2 * (layout.stages - 1) * int((cut.rows > 0).sum()),
        messages=messages,
        streams=used,
        policies=policies,
        agree=factors.agree,
        sums=[coding.collectives(some) if some else 0 for some in shapes],
        measures=len(schedule.measures),
    )
    return Estimate(
        ranks,
        streams,
        _memory(graph, config, cut, stages, split, dtype),
        seconds[0],
        seconds[1],
        float(sum(summed) + parts * everywhere.wire_bytes(shared, layout.stages, dtype.itemsize)),
        agreed + parts * layout.stages * (layout.stages - 1) * over_stages * PLAIN_HEADER,
        Staged(layout.stages, layout.parts, chunks, between),
    )


def choose_stages(graph: Graph, config: Config, ranks: int, machine: Machine) -> Config:
    """The settings with the stages and chunks that are predicted quickest; of equals, the most stages."""
    tried = list(_candidates(config, ranks))
    if not tried:
        raise UserError(f"--stages auto: no number of stages that divides {ranks} ranks fits the model")
    parts = {make_schedule(one).layout(ranks).parts: one for one in tried}
    cuts = {count: cut_graph(graph, one, count, 1) for count, one in parts.items()}

    def seconds(one: Config) -> float:
        layout = make_schedule(one).layout(ranks)
        stages, cut = layout.stages, cuts[layout.parts]
        pieces, split = cut_model(graph, one, stages)
        held = [_stage(pieces[part], graph, one, machine) for part in split.segments]
        dtype = getattr(torch, one.training.dtype)
        between = _boundary_bytes(
            cut.rows, split, build("codec", CODECS, one.pipeline.boundary_codec), dtype
        ) / max(1, 2 * (stages - 1) * (ranks // stages))
        received = sum(_streams(cut, pieces, one, dtype)[0].values()) / ranks
        return sum(_seconds(held, cut, between, received, machine, one.pipeline.chunks))

    return min(tried, key=seconds)


def cut_graph(graph: Graph, config: Config, parts: int, chunks: int) -> Cut:
    """The rows of every part and chunk, and what crosses between parts of one stage."""
    spec = config.factors.partitioner
    assignment = assign_nodes(build("partitioner", PARTITIONERS, spec), graph, parts, spec)
    chunk = chunks_of(graph.adjacency, chunks)
    rows = np.bincount(assignment * chunks + chunk, minlength=parts * chunks).reshape(parts, chunks)
    linear = traits_of(find_model(config.model)).linear and not config.shape.dropout
    plan, share = rows_of_plan(plan_for(config.factors.plan, linear=linear))
    crossing = [
        payload_matrix(_columns_of(graph.adjacency, chunk == one), assignment, parts, plan)
        if plan != "block"
        else np.where(np.eye(parts, dtype=bool), 0, rows[:, one][None, :])
        for one in (range(chunks) if parts > 1 else ())
    ]
    return Cut(rows, sizes_of(graph, assignment, parts)[1], crossing, share, plan)


def cut_model(graph: Graph, config: Config, stages: int) -> tuple[list[Piece], Stages]:
    """The segments of the model, and which of them each stage has."""
    facts = {"features": graph.feature_count, "classes": graph.classes}
    pieces = trace(make_module(config, facts, config.model), graph.feature_count)
    split = split_evenly(pieces, stages)
    return pieces, with_first(split, pieces) if config.pipeline.recompute_first else split


def _candidates(config: Config, ranks: int) -> Iterator[Config]:
    """Every number of stages that divides the ranks and fits the model, most first, with chunks to try."""
    for stages in (count for count in range(ranks, 0, -1) if ranks % count == 0):
        counts = [2**power * ranks for power in range(MOST_CHUNKS.bit_length())]
        for chunks in [config.pipeline.chunks] if config.pipeline.chunks else counts:
            pipeline = dataclasses.replace(config.pipeline, stages=stages, chunks=chunks)
            one = dataclasses.replace(config, pipeline=pipeline)
            try:
                make_schedule(one).layout(ranks)
            except UserError:
                if stages == 1:
                    raise
                continue
            yield one


def _columns_of(adjacency: sp.csr_array, chosen: Any) -> sp.csr_array:
    """The entries whose column is chosen (`chosen [N]`)."""
    kept = chosen[adjacency.indices]
    pointer = np.concatenate([[0], np.cumsum(kept)])[adjacency.indptr]
    return sp.csr_array(
        (np.ones(int(kept.sum()), np.int8), adjacency.indices[kept], pointer), adjacency.shape
    )


def _boundary_bytes(rows: Counts, split: Stages, codec: Codec, dtype: torch.dtype) -> float:
    """What stages hand on, both ways: rows of every chunk and part, as the codec writes them."""
    widths = [sum(columns) for columns in split.columns[:-1]]
    return float(sum(2 * wire_bytes(codec, rows, width, dtype).sum() for width in widths))


def _streams(
    cut: Cut, pieces: Sequence[Piece], config: Config, dtype: torch.dtype
) -> tuple[dict[tuple[int, str], float], float, Counter[Direction]]:
    """Wire bytes of every layer within the stages, how many payloads that is, and streams by direction."""
    factors, parts = config.factors, len(cut.rows)
    codecs = dict(zip(DIRECTIONS, (factors.codec, factors.backward_codec or factors.codec), strict=True))
    specs = dict(zip(DIRECTIONS, (factors.staleness, factors.backward), strict=True))
    streams: dict[tuple[int, str], float] = {}
    messages, used = 0.0, Counter[Direction]()
    for layer, width, constant in _reads(pieces):
        if constant and factors.reuse_input:
            continue
        for side in DIRECTIONS if not (constant and factors.skip_input_gradient) else DIRECTIONS[:1]:
            codec: Codec = build("codec", CODECS, codecs[side])
            for chunk, crossing in enumerate(cut.crossing):
                rows = crossing if side == "forward" else backward_rows(crossing, cut.plan)
                stream = stream_of(layer, chunk, len(cut.crossing))
                share = np.array([share_sent(specs[side], parts, j, stream, side) for j in range(parts)])
                sent = cut.share * wire_bytes(codec, rows, width, dtype) * share
                streams[layer, side] = streams.get((layer, side), 0.0) + float(sent.sum())
                messages += float(((rows > 0) * share).sum())
                used[side] += 1
    return streams, messages, used


def _reads(pieces: Sequence[Piece]) -> Iterator[tuple[int, int, bool]]:
    """Number of every graph layer, columns of what it reads, and whether that is the input."""
    for piece in pieces:
        for layer in sorted(piece.layers):
            width, constant = piece.reads[layer]
            yield layer, width, constant


def _shapes(
    pieces: Sequence[Piece], graph: Graph, config: Config, shared: frozenset[str] = frozenset()
) -> list[tuple[int, ...]]:
    """The shapes of the parameters that some segments use, and of those that all stages have."""
    facts = {"features": graph.feature_count, "classes": graph.classes}
    named = dict(make_module(config, facts, config.model).named_parameters())
    used = shared.union(*(piece.parameters for piece in pieces))
    return [tuple(parameter.shape) for name, parameter in named.items() if name in used]


def _stage(pieces: Sequence[Piece], graph: Graph, config: Config, machine: Machine) -> Stage:
    """What a stage of these segments holds and does."""
    factors, shapes = config.factors, _shapes(pieces, graph, config)
    columns = passes = 0
    for _, width, constant in _reads(pieces):
        columns += 0 if constant else width
        passes += 0 if constant and factors.reuse_input else width * (1 if constant else 2)
    matrices = sum(math.prod(shape) for shape in shapes if len(shape) == 2)
    values = sum(math.prod(shape) for shape in shapes)
    return Stage(columns, passes, matrices, values, sum(len(piece.layers) for piece in pieces))


def _seconds(
    stages: Sequence[Stage], cut: Cut, handed: float, received: float, machine: Machine, chunks: int = 0
) -> tuple[float, float]:
    """Seconds of an epoch: of the busiest stage's work, and all that an epoch takes beside it.

    `handed` are bytes that a rank hands on one way, `received` those that it gets within its stage.
    """
    count = chunks or cut.rows.shape[1]
    work, whole = [], []
    for stage in stages:
        sparse = float(cut.entries.max()) * stage.passes / machine.spmm
        dense = 3 * float(cut.rows.sum(axis=1).max()) * stage.weights / machine.gemm
        work.append(sparse + dense + 2 * count * stage.layers * CHUNK_SECONDS)
        inside = (len(cut.rows) - 1) * 2 * count * stage.layers * machine.latency + received / machine.link
        whole.append(work[-1] + inside)
    hop = handed / machine.link / count + machine.latency if len(stages) > 1 else 0.0
    steps = [seconds / count for seconds in whole]
    through = sum(steps) + 2 * (len(stages) - 1) * hop
    makespan = through + (count - 1) * max(*steps, 2 * hop)
    return max(work), makespan - max(work)


def _memory(
    graph: Graph, config: Config, cut: Cut, stages: Sequence[Stage], split: Stages, dtype: torch.dtype
) -> dict[str, float]:
    """Bytes of the rank that needs most, by what they are for."""
    rows, chunks = float(cut.rows.sum(axis=1).max()), cut.rows.shape[1]
    arriving = max((float(sum(cut.crossing).sum(axis=1).max()) if cut.crossing else 0.0), 0.0)  # type: ignore[union-attr]
    most = max(stages, key=lambda stage: stage.columns + stage.values)
    widest = max((sum(columns) for columns in split.columns[:-1]), default=0)
    feedback = config.training.parameter_codec != EXACT
    inside = 1 + ACTIVATION_COPIES / chunks if config.pipeline.recompute else ACTIVATION_COPIES
    return {
        "runtime": RUNTIME,
        "graph": float(ENTRY_BYTES * cut.entries.max()),
        "features": feature_bytes(graph, dtype.itemsize) * rows / graph.nodes,
        "activations": inside * rows * most.columns * dtype.itemsize,
        "payloads": 2.0 * rows * widest * dtype.itemsize,
        "history": (rows + arriving) * most.columns * dtype.itemsize if chunks > 1 else 0.0,
        "optimiser": float((OPTIMISER_COPIES + feedback) * most.values * dtype.itemsize),
    }
