"""What a run will need, before anything is trained: memory a rank, bytes an epoch, seconds an epoch.

Bytes are exact: the rows that the plan sends between every pair of parts, in the columns that each stream
has, as the codec writes them; where a plan draws its rows, the mean over draws. Memory is counted from the
same numbers with measured costs an entry and a value. Seconds are an α-β model: the busiest rank's operations
over the machine's speed, plus a latency a message and its bytes over the link: an order, without stragglers.

For models that aggregate once a layer (the widths `f_0 … f_L` are all that is known of them).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sancus.advise.links import LINKS
from sancus.advise.overhead import agreement_bytes, bitmap_bytes, picks_rows
from sancus.advise.sends import share_sent
from sancus.codecs import CODECS
from sancus.codecs.base import Codec
from sancus.comm.ledger import DIRECTIONS, Direction
from sancus.config.batches import FULL
from sancus.config.kinds import KINDS
from sancus.config.settings import Config
from sancus.errors import UserError
from sancus.exchange.savings import Savings
from sancus.exchange.volume import stream_columns
from sancus.graphs.graph import Graph
from sancus.parameters import EXACT
from sancus.partitioners import PARTITIONERS
from sancus.partitioners.base import Assignment
from sancus.partitioners.quality import payload_matrix
from sancus.plans import PLANS, changes, plan_for
from sancus.plugins import build, load, parse, settings_of
from sancus.shards.partition import assign_nodes
from sancus.staleness import POLICIES
from sancus.staleness.base import Policy
from sancus.training.parameter_sync import make_parameter_codec

Counts = npt.NDArray[np.int64]

MODELS = ("gcn",)  # whose layers are one product with one weight
# Resident bytes, measured with `halo` and fp32 (see docs/data.md).
RUNTIME = 350e6  # Python, torch and the rest, before any data: 320 MB of a forked rank, 390 MB of others
ENTRY_BYTES = 52  # an entry of the adjacency: mapped, normalised in float64, cut into blocks, transposed
FEATURE_COPIES = 2  # as a tensor, aggregated; the mapped file leaves once it is copied
ACTIVATION_COPIES = 4  # of every layer's output: product, activation, and their gradients
PAYLOAD_COPIES = 1  # of the widest transfer: received; what is decoded of it comes block after block
OPTIMISER_COPIES = 4  # weights, gradients, two moments
UNITS = {"bit": 1 / 8, "byte": 1.0, "b": 1 / 8, "B": 1.0}
SCALES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


@dataclass(frozen=True)
class Machine:
    """Speeds of one rank and of the link between ranks."""

    link: float  # bytes a second
    latency: float  # seconds a message
    spmm: float  # multiply-adds a second of a sparse product
    gemm: float  # multiply-adds a second of a dense product


@dataclass(frozen=True)
class Staged:
    """How a pipeline is laid out, and what crosses for it."""

    stages: int
    ranks: int  # in each of them
    chunks: int
    boundary_bytes: float  # an epoch, both ways


@dataclass(frozen=True)
class Estimate:
    """What a run with `ranks` ranks needs; of the rank that needs most where there are several."""

    ranks: int
    streams: dict[tuple[int, str], float]  # (layer, direction) -> wire bytes an epoch, of all owners
    memory: dict[str, float]  # part -> bytes
    compute_seconds: float
    comm_seconds: float
    parameter_bytes: float = 0.0  # an epoch, of all ranks
    agreement_bytes: float = 0.0
    staged: Staged | None = None  # of a pipeline alone
    advice: str = ""  # of a run in batches: how its updates compare with the full graph's

    @property
    def boundary_bytes(self) -> float:
        """What stages of a pipeline hand on in an epoch."""
        return self.staged.boundary_bytes if self.staged else 0.0

    @property
    def wire_bytes(self) -> float:
        """Payload bytes that all ranks together send in an epoch."""
        return sum(self.streams.values())

    @property
    def all_bytes(self) -> float:
        """Payloads, what stages hand on, parameters and agreement of an epoch, without evaluation."""
        return self.wire_bytes + self.boundary_bytes + self.parameter_bytes + self.agreement_bytes

    @property
    def memory_bytes(self) -> float:
        """Bytes that a rank holds at its peak."""
        return sum(self.memory.values())


def estimate(
    graph: Graph, config: Config, ranks: int, machine: Machine, assignment: Assignment | None = None
) -> Estimate:
    """What a run needs on so many ranks: the graph is partitioned, and rows, bytes and operations counted.

    Who has many estimates of one partition gives its `assignment`.
    """
    if config.model not in MODELS:
        raise UserError(
            f"--model {config.model}: only {', '.join(MODELS)} can be estimated; leave --model out"
        )
    if config.training.task != "nodes":
        raise UserError(f"--task {config.training.task}: only node classification is predicted; leave it out")
    if config.schedule != FULL:
        size = config.sampling.batch_size
        flag = f"batch-size {size}" if size else f"schedule {config.schedule}"
        raise UserError(
            f"--{flag}: only training on the full graph, with all layers on every rank, is predicted; "
            "leave it out, or the preset that sets it"
        )
    if not 1 <= ranks <= graph.nodes:
        raise UserError(f"--ranks {ranks}: must be from 1 to the {graph.nodes} nodes")
    factors = config.factors
    if assignment is None:
        partitioner = build("partitioner", PARTITIONERS, factors.partitioner)
        assignment = assign_nodes(partitioner, graph, ranks, factors.partitioner)
    plan, drawn = rows_of_plan(plan_for(factors.plan, linear=True))
    crossing = payload_matrix(graph.adjacency, assignment, ranks, plan)
    savings = Savings(factors.reuse_input, factors.order, factors.skip_input_gradient)
    widths = config.shape.widths(graph.feature_count, graph.classes)
    specs = dict(zip(DIRECTIONS, (factors.staleness, factors.backward), strict=True))
    policies: dict[Direction, Policy] = {
        side: build("policy", POLICIES, spec) for side, spec in specs.items()
    }
    labels = config.training.label_rate > 0
    columns = stream_columns(widths, savings, policies, labels=labels)
    codecs = dict(zip(DIRECTIONS, (factors.codec, factors.backward_codec or factors.codec), strict=True))
    dtype = getattr(torch, config.training.dtype)
    streams: dict[tuple[int, str], float] = {}
    received, payloads, bitmaps = np.zeros(ranks), 0.0, 0.0
    for (layer, direction), width in columns.items():
        codec: Codec = build("codec", CODECS, codecs[direction])
        rows = crossing if direction == "forward" else backward_rows(crossing, plan)
        share = [share_sent(specs[direction], ranks, owner, layer, direction) for owner in range(ranks)]
        sent = drawn * wire_bytes(codec, rows, width, dtype) * np.array(share)  # column j is owner j's
        streams[layer, direction] = float(sent.sum())
        received += sent.sum(axis=1)
        payloads += float(((rows > 0) * np.array(share)).sum())
        bitmaps += bitmap_bytes(rows) if picks_rows(policies[direction]) else 0.0
    history = sum(
        crossing.sum(axis=1).max() * width * dtype.itemsize
        for (_, direction), width in columns.items()
        if policies[direction].max_age
    )
    rows, entries = sizes_of(graph, assignment, ranks)
    shapes = [shape for a, b in pairwise(widths) for shape in ((a, b), (b,))]
    if labels:
        shapes.append((graph.classes, graph.feature_count))
    values = sum(math.prod(shape) for shape in shapes)
    feedback = config.training.parameter_codec != EXACT  # what a lossy codec left out is kept
    memory = {
        "runtime": RUNTIME,
        "graph": float(ENTRY_BYTES * entries.max()),
        "features": feature_bytes(graph, dtype.itemsize) * float(rows.max()) / graph.nodes,
        "activations": float(ACTIVATION_COPIES * rows.max() * sum(widths[1:]) * dtype.itemsize),
        "payloads": float(
            PAYLOAD_COPIES * crossing.sum(axis=1).max() * _widest(graph, columns) * dtype.itemsize
        ),
        "history": float(history),
        "optimiser": float((OPTIMISER_COPIES + feedback) * values * dtype.itemsize),
    }
    compute = _operations(rows, entries, widths, columns, machine)
    coding = make_parameter_codec(config.training.parameter_codec)
    summed = coding.wire_bytes(shapes, ranks, dtype.itemsize)
    sums = coding.collectives(shapes)
    messages = (len(columns) + sums) * (ranks - 1)
    comm = messages * machine.latency + (received.max() + summed / ranks) / machine.link
    used = Counter(direction for _, direction in columns)
    agreed = agreement_bytes(ranks, payloads, used, policies, factors.agree, sums, bitmaps)
    return Estimate(ranks, streams, memory, compute, float(comm), summed, agreed)


def rows_of_plan(spec: str) -> tuple[str, float]:
    """The plan whose rows cross under a plan of ours, and the share of them that does on average."""
    parsed = parse("plan", PLANS, spec)
    if parsed.name not in PLANS:
        raise UserError(f"--plan {spec}: only {', '.join(PLANS)} can be estimated")
    target = load("plan", parsed)
    if not changes(target):
        return parsed.name, 1.0
    settings = settings_of("plan", parsed, KINDS["plan"].fills(target))
    return target.subset_of, target.share(**settings)


def wire_bytes(codec: Codec, rows: Counts, columns: int, dtype: torch.dtype) -> npt.NDArray[np.float64]:
    """Bytes from every owner `j` to every receiver `i` `[p, p]` for payloads of `rows[i, j]` rows."""
    device = torch.device("cpu")
    sizes = {
        int(count): codec.wire(int(count), columns, dtype, device, 0.0).nbytes if count else 0
        for count in np.unique(rows)
    }
    return np.vectorize(lambda count: float(sizes[int(count)]))(rows)


def backward_rows(crossing: Counts, plan: str) -> Counts:
    """What travels back: the transpose; whole blocks are broadcast in either direction."""
    return crossing if plan.startswith("block") else crossing.T


def parse_rate(text: str) -> float:
    """`10Gbit`, `1.2GB` or `800Mbit`, or the name of a link, to bytes a second."""
    if text.strip() in LINKS:
        return LINKS[text.strip()]
    match = re.fullmatch(r"([0-9.]+)\s*([kKMGT]?)(bit|byte|b|B)(?:/s|ps)?", text.strip())
    try:
        rate = float(match[1]) * SCALES[match[2]] * UNITS[match[3]] if match else 0.0
    except ValueError:
        rate = 0.0
    if not rate > 0:
        raise UserError(
            f"--link {text!r}: write a number and a unit, e.g. 10Gbit or 1.2GB (a second), or "
            f"{', '.join(LINKS)}"
        )
    return rate


def table(estimates: Sequence[Estimate]) -> list[list[str]]:
    """Rows to print; the first is the head."""
    parts = list(estimates[0].memory)
    staged = any(row.staged for row in estimates)
    sizes = ("all bytes an epoch", "payload alone", "parameters", "agreement")
    beside = ["stages", "chunks", "between stages"] if staged else []
    head = ["ranks", "memory a rank", *parts, *sizes, "seconds", "compute", "communication", *beside]
    rows = [head]
    for row in estimates:
        seconds = (row.compute_seconds + row.comm_seconds, row.compute_seconds, row.comm_seconds)
        rows.append(
            [
                str(row.ranks),
                f"{row.memory_bytes / 1e6:,.0f} MB",
                *(f"{row.memory[part] / 1e6:,.0f}" for part in parts),
                *(f"{size:,.0f}" for size in (row.all_bytes, row.wire_bytes, row.parameter_bytes)),
                f"{row.agreement_bytes:,.0f}",
                *(f"{value:.3g}" for value in seconds),
                *(_stages_text(row) if staged else ()),
            ]
        )
    return rows


def _stages_text(row: Estimate) -> list[str]:
    """`2 of 4 ranks`, chunks, and bytes between stages."""
    if row.staged is None:
        return ["", "", ""]
    each = f"{row.staged.ranks} rank{'s' if row.staged.ranks > 1 else ''}"
    return [f"{row.staged.stages} of {each}", str(row.staged.chunks), f"{row.boundary_bytes:,.0f}"]


def stream_table(estimates: Sequence[Estimate]) -> list[list[str]]:
    """Payload bytes an epoch of every stream, a column for each number of ranks."""
    keys = sorted({key for row in estimates for key in row.streams})
    head = ["layer", "direction", *(f"{row.ranks} ranks" for row in estimates)]
    return [
        head,
        *(
            [str(layer), way, *(f"{row.streams.get((layer, way), 0):,.0f}" for row in estimates)]
            for layer, way in keys
        ),
    ]


def probe(link: str, latency: float, spmm: float | None, gemm: float | None) -> Machine:
    """The machine of the flags; speeds that are not given are measured here, in about a second."""
    if latency < 0 or min(spmm or 1, gemm or 1) <= 0:
        raise UserError("--latency must not be negative, --spmm and --gemm must be above 0")
    return Machine(parse_rate(link), latency, spmm or _measure_spmm(), gemm or _measure_gemm())


def sizes_of(graph: Graph, assignment: Assignment, ranks: int) -> tuple[Counts, Counts]:
    """Rows and entries of `Â` (a loop a row included) of every rank."""
    rows = np.bincount(assignment, minlength=ranks)
    degrees = np.diff(graph.adjacency.indptr)
    return rows, rows + np.bincount(assignment, weights=degrees, minlength=ranks).astype(np.int64)


def _widest(graph: Graph, columns: dict[Any, int]) -> int:
    """Columns of the widest payload; dense features cross once, or in every epoch."""
    dense = graph.feature_count if isinstance(graph.features, np.ndarray) else 0
    return max([dense, *columns.values()])


def feature_bytes(graph: Graph, itemsize: int) -> float:
    """Bytes of the features of the whole graph, with all copies that are held of them."""
    if isinstance(graph.features, np.ndarray):
        return float(graph.features.size * (4 + (FEATURE_COPIES - 1) * itemsize))
    return float(graph.features.nnz * (8 + 3 * (4 + itemsize)))


def _operations(
    rows: Counts, entries: Counts, widths: Sequence[int], columns: dict[Any, int], machine: Machine
) -> float:
    """Seconds of the busiest rank: an aggregation a stream, three dense products a layer."""
    sparse = float(entries.max()) * sum(columns.values())
    dense = 3 * float(rows.max()) * sum(a * b for a, b in pairwise(widths))
    return sparse / machine.spmm + dense / machine.gemm


def _measure_spmm(rows: int = 50_000, degree: int = 16, width: int = 64) -> float:
    import time

    import scipy.sparse as sp

    from sancus.kernels import KERNELS
    from sancus.kernels.matrix import SparseMatrix

    columns = np.random.default_rng(0).integers(0, rows, rows * degree)
    pattern = sp.csr_array((np.ones(rows * degree, np.float32), columns, np.arange(rows + 1) * degree))
    matrix = SparseMatrix.from_scipy(pattern, build("kernel", KERNELS, "auto"), torch.float32)
    h = torch.ones(pattern.shape[1], width)
    matrix.multiply(h)
    started = time.perf_counter()
    matrix.multiply(h)
    return rows * degree * width / (time.perf_counter() - started)


def _measure_gemm(size: int = 768) -> float:
    import time

    a = torch.ones(size, size)
    a @ a
    started = time.perf_counter()
    a @ a
    return size**3 / (time.perf_counter() - started)
