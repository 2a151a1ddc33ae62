"""What a run will need: on the full graph, or in batches, and which of the two is the better choice."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch

from sancus.advise.estimate import (
    ENTRY_BYTES,
    OPTIMISER_COPIES,
    RUNTIME,
    Estimate,
    Machine,
    estimate,
)
from sancus.advise.expected_batches import (
    Expected,
    agreement_of_step,
    check,
    codec_of,
    expected_batches,
    parameter_shapes,
)
from sancus.advise.staged import predict
from sancus.comm.header import PLAIN_HEADER
from sancus.config.settings import Config
from sancus.errors import UserError
from sancus.graphs.graph import Graph
from sancus.partitioners import PARTITIONERS
from sancus.plugins import build
from sancus.sampling.settings import SamplingSettings
from sancus.shards.partition import assign_nodes
from sancus.training.consensus import STATEMENT
from sancus.training.parameter_sync import make_parameter_codec

DRAWN = 5e7  # edges a second of one thread: `python -m tests.bench.sampling`
SAMPLE_COPIES = 4  # of the rows that a step reads: in the store, on the wire, and of two batches ahead
NODE_BYTES, EDGE_BYTES = 100, 4  # of a mapped topology


def foresee(graph: Graph, config: Config, ranks: int, machine: Machine) -> Estimate:
    """What a run needs on so many ranks; for batches also, in `advice`, how an update compares."""
    if not config.sampling.batch_size:
        return predict(graph, config, ranks, machine)
    check(config)
    if not 1 <= ranks <= graph.nodes:
        raise UserError(f"--ranks {ranks}: must be from 1 to the {graph.nodes} nodes")
    partitioner = build("partitioner", PARTITIONERS, config.factors.partitioner)
    assignment = assign_nodes(partitioner, graph, ranks, config.factors.partitioner)
    expected = expected_batches(graph, config, ranks, assignment)
    whole = dataclasses.replace(config, model="gcn", sampling=SamplingSettings())
    full = estimate(graph, whole, ranks, machine, assignment)
    needed = _in_batches(graph, config, ranks, machine, expected)
    full = dataclasses.replace(full, parameter_bytes=needed.parameter_bytes / expected.steps)
    return dataclasses.replace(needed, advice=_advice(needed, full, expected, graph.nodes))


def _in_batches(graph: Graph, config: Config, ranks: int, machine: Machine, expected: Expected) -> Estimate:
    dtype, steps = getattr(torch, config.training.dtype), expected.steps
    widths = config.shape.widths(graph.feature_count, graph.classes)
    shapes = parameter_shapes(config, widths)
    coding = make_parameter_codec(config.training.parameter_codec)
    summed, sums = coding.wire_bytes(shapes, ranks, dtype.itemsize), coding.collectives(shapes)
    pulled = expected.wire_bytes(codec_of(config), graph.feature_count, dtype)
    agreed = agreement_of_step(ranks, expected.pulled, sums) if ranks > 1 else 0.0
    statements = ranks * (ranks - 1) * (8 * STATEMENT + PLAIN_HEADER)
    values = sum(math.prod(shape) for shape in shapes)
    width = graph.feature_count * dtype.itemsize
    edges = graph.adjacency.nnz * (1 if config.sampling.topology == "mapped" else 1 / ranks)
    memory = {
        "runtime": RUNTIME,
        "graph": float(ENTRY_BYTES * graph.adjacency.nnz / ranks),
        "topology": float(EDGE_BYTES * edges + NODE_BYTES * graph.nodes),
        "features": float(width * (graph.nodes + expected.kept) / ranks),
        "samples": float(SAMPLE_COPIES * expected.largest_rows * max(width, dtype.itemsize * max(widths))),
        "optimiser": float(OPTIMISER_COPIES * values * dtype.itemsize),
    }
    products = expected.sparse / machine.spmm + expected.dense / machine.gemm
    compute = products + expected.edges / ranks / DRAWN
    messages = (3 + sums) * (ranks - 1)
    received = expected.largest_pull * pulled / max(1.0, expected.pulled) + summed / ranks
    comm = messages * machine.latency + received / machine.link
    streams = {(0, "forward"): steps * pulled}
    seconds = steps * compute, steps * comm
    return Estimate(ranks, streams, memory, *seconds, steps * summed, steps * agreed + statements)


def _advice(batches: Estimate, full: Estimate, expected: Expected, nodes: int) -> str:
    """An update by a batch, beside one by the full graph, and what follows from it."""
    step = (batches.compute_seconds + batches.comm_seconds) / expected.steps
    epoch = full.compute_seconds + full.comm_seconds
    size = batches.all_bytes / expected.steps
    read = f"{expected.rows:,.0f} rows ({expected.pulled:,.0f} pulled) for {expected.edges:,.0f} edges"
    text = (
        f"{batches.ranks} ranks: a step reads {read}, moves {size:,.0f} bytes and takes {step:.3g} s; "
        f"one of the full graph ({nodes:,} nodes) moves {full.all_bytes:,.0f} bytes and takes {epoch:.3g} s: "
    )
    if step >= epoch:
        return text + "the full graph is the better choice, leave --batch-size out"
    times = np.floor(10 * epoch / step) / 10
    return text + f"batches make {times:,.1f} updates in its time"
