"""One rank's job: shard → plan → exchange → model → trainer → run files. The composition root.

The only module that knows all factors; each of them is built here from its spec and handed to the next.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch

from sancus.codecs import CODECS
from sancus.comm import BACKENDS
from sancus.comm.alone import Alone
from sancus.comm.base import Transport
from sancus.comm.ledger import DIRECTIONS
from sancus.comm.probe import choose_broadcast
from sancus.config import Config
from sancus.errors import UserError
from sancus.exchange.exchange import Exchange, Savings
from sancus.graphs.shards import Shard, open_shard
from sancus.kernels import KERNELS
from sancus.kernels.matrix import SparseMatrix
from sancus.launch import World
from sancus.models import MODELS
from sancus.plans import PLANS
from sancus.plans.base import Workbench
from sancus.plans.halo import Halo
from sancus.plugins import build, load, parse
from sancus.training.objective import SPLITS, Task
from sancus.training.trainer import Trainer
from staleness import POLICIES


class Job:
    """Everything that one rank trains with."""

    def __init__(self, config: Config, world: World, backend: str, shard_directory: Path) -> None:
        """Join the other ranks and check that all mean the same run."""
        self.config = config
        self.world = world
        torch.set_num_threads(world.threads(config.launch.threads))
        self.device = _device(config, world)
        self.shard = open_shard(shard_directory, world.rank)
        self.transport = connect(backend, world, config.launch.timeout)
        check_agreement(self.transport, config, self.shard, self.device)
        self.trainer = make_trainer(config, self.shard, self.transport, self.device)

    def gather_rows(self, rows: torch.Tensor) -> torch.Tensor | None:
        """Own rows `[n_i, …]` of all ranks in the user's node order `[N, …]`, on rank 0."""
        transport, sizes = self.transport, np.diff(self.shard.offsets).tolist()
        ids = torch.from_numpy(np.array(self.shard.nodes)).to(self.device)
        gathered_ids = _to_rank_zero(transport, ids, sizes)
        gathered = _to_rank_zero(transport, rows, sizes)
        if gathered is None or gathered_ids is None:
            return None
        ordered = torch.empty_like(gathered)
        ordered[gathered_ids] = gathered
        return ordered


def connect(backend: str, world: World, timeout: float) -> Transport:
    """The transport of a world; a single rank needs none."""
    if world.size == 1:
        return Alone()
    transport: Transport = build(
        "backend",
        BACKENDS,
        backend,
        rank=world.rank,
        size=world.size,
        timeout=timeout,
        rendezvous=world.rendezvous,
    )
    return transport


def make_trainer(config: Config, shard: Shard, transport: Transport, device: torch.device) -> Trainer:
    """Compose the factors, and a model whose weights are the same on all ranks."""
    factors, dtype = config.factors, getattr(torch, config.training.dtype)
    model_class = load("model", parse("model", MODELS, config.model))
    bench = Workbench(build("kernel", KERNELS, factors.kernel), dtype, device)
    operator = shard.operator(model_class.normalisation)
    plan = build("plan", PLANS, factors.plan, operator=operator, bench=bench)
    if plan.forward.broadcast:
        choose_broadcast(transport, factors.broadcast, device)
    features = _features(shard, bench)
    sparse_input = isinstance(features, SparseMatrix) and factors.reuse_input
    input_plan = plan if isinstance(plan, Halo) or not sparse_input else Halo(operator, bench)
    policies = dict(zip(DIRECTIONS, (factors.staleness, factors.backward), strict=True))
    exchange = Exchange(
        plan,
        transport,
        {side: build("policy", POLICIES, spec) for side, spec in policies.items()},
        {side: build("codec", CODECS, factors.codec) for side in DIRECTIONS},
        input=features,
        nodes=torch.from_numpy(np.array(shard.nodes)).to(device),
        input_plan=input_plan,
        savings=Savings(factors.reuse_input, factors.order, factors.skip_input_gradient),
        agree=factors.agree,
        clip=factors.clip,
        configuration=config.digest(),
        seed=config.training.seed,
    )
    graph = shard.manifest["graph"]
    with torch.random.fork_rng():
        torch.manual_seed(config.training.seed)
        spec = parse("model", MODELS, config.model)
        model = build(
            "model",
            MODELS,
            spec.name,
            features=graph["features"],
            classes=graph["classes"],
            settings=config.shape,
        )
    return Trainer(model.to(device, dtype), exchange, _task(shard, dtype, device), config.training)


def check_agreement(transport: Transport, config: Config, shard: Shard, device: torch.device) -> None:
    """All ranks compare a hash of configuration and data; a rank that differs is named on all."""
    data = hashlib.blake2b(
        repr(sorted(shard.manifest["checksums"].items())).encode(), digest_size=16
    ).digest()
    for what, digest in (("settings", config.digest()), ("data", data)):
        mine = torch.frombuffer(bytearray(digest), dtype=torch.uint8).to(device)
        everyone = transport.all_gather(mine)
        differing = torch.nonzero((everyone != everyone[0]).any(dim=1)).flatten().tolist()
        if differing:
            raise UserError(
                f"rank {differing[0]} has other {what} than rank 0; "
                "start all ranks with the same command and files"
            )


def _device(config: Config, world: World) -> torch.device:
    if config.launch.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError("--device cuda, but torch finds no GPU here; use --device cpu")
    torch.cuda.set_device(world.local_rank)
    return torch.device("cuda", world.local_rank)


def _features(shard: Shard, bench: Workbench) -> torch.Tensor | SparseMatrix:
    if sp.issparse(shard.features):
        return bench.matrix(shard.features)
    return torch.from_numpy(np.array(shard.features)).to(bench.device, bench.dtype)


def _task(shard: Shard, dtype: torch.dtype, device: torch.device) -> Task:
    labels = torch.from_numpy(np.array(shard.labels))
    labels = labels.to(device, dtype if labels.dim() == 2 else torch.int64)
    rows = {split: torch.from_numpy(np.flatnonzero(shard.mask(split))).to(device) for split in SPLITS}
    return Task(labels, rows, shard.manifest["graph"]["train"])


def _to_rank_zero(transport: Transport, rows: torch.Tensor, sizes: list[int]) -> torch.Tensor | None:
    """Blocks of rows `[n_i, …]` joined on rank 0, in the order of ranks; counted as evaluation."""
    from sancus.comm.ledger import Entry

    if transport.size == 1:
        return rows
    send = rows.contiguous() if transport.rank else rows[:0].contiguous()
    out = [len(send), *[0] * (transport.size - 1)]
    coming = [0, *sizes[1:]] if transport.rank == 0 else [0] * transport.size
    received = rows.new_empty(sum(coming), *rows.shape[1:])
    transport.all_to_all(send, out, received, coming, Entry("evaluation")).wait()
    return torch.cat([rows, received]) if transport.rank == 0 else None
