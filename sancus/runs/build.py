"""One rank's job: shard → plan → exchange → model → trainer. The composition root.

The only module that knows all factors; each of them is built here from its spec and handed to the next, for
the command line, for Python and for predictions alike.
"""

from __future__ import annotations

import os
from functools import partial

import numpy as np
import torch
import xxhash

from sancus.codecs import CODECS
from sancus.comm import BACKENDS
from sancus.comm.alone import Alone
from sancus.comm.group import Group
from sancus.comm.hello import check_greetings, share_key
from sancus.comm.layout import AXES
from sancus.comm.ledger import DIRECTIONS
from sancus.comm.mesh import Mesh
from sancus.comm.probe import choose_broadcast
from sancus.comm.secret import read_secret
from sancus.comm.transport import Transport
from sancus.config.settings import Config
from sancus.errors import UserError
from sancus.exchange.codec_error import Reach
from sancus.exchange.constant_input import ConstantInput, ConstantRows
from sancus.exchange.crossing import Crossing, CrossingSettings
from sancus.exchange.full_graph import FullGraph
from sancus.exchange.health import Health
from sancus.exchange.labels import LabelInput
from sancus.exchange.legs import needed
from sancus.exchange.mover import Mover
from sancus.exchange.noise import Noise
from sancus.exchange.savings import Savings
from sancus.graphs.derive import training_shard, unweighted_shard
from sancus.graphs.normalise import Normalisation
from sancus.graphs.operator import Operator
from sancus.graphs.shards import Shard
from sancus.kernels import KERNELS
from sancus.kernels.matrix import SparseMatrix
from sancus.launch.world import World
from sancus.models.build import Model, find_model
from sancus.models.contract import normalisation_of, traits_of
from sancus.models.pyg_model import PyGModel
from sancus.plans import PLANS, plan_for
from sancus.plans.base import PARTS, Workbench
from sancus.plans.halo import Halo
from sancus.plugins import build
from sancus.runs.check import check_cuda, check_memory_of_draws
from sancus.runs.input_rows import own_features, shown_labels
from sancus.runs.layout import make_schedule
from sancus.runs.module import make_module
from sancus.runs.node_order import in_user_order
from sancus.runs.tasks import ask_of, hide_labels, make_task, total_over
from sancus.shards.cache import Shards
from sancus.staleness import POLICIES
from sancus.training.evaluation import Evaluation
from sancus.training.node_task import NodeTask
from sancus.training.schedule import Site
from sancus.training.task import Task
from sancus.training.trainer import Trainer
from sancus.watch.board import folder_of
from sancus.watch.leftovers import remove_leftovers
from sancus.watch.watch import Watch


class Job:
    """Everything that one rank trains or predicts with."""

    def __init__(
        self,
        config: Config,
        world: World,
        backend: str,
        shards: Shards,
        watch: Watch | None = None,
        model: Model | None = None,
    ) -> None:
        """Join the other ranks and check that all mean the same run; `watch` follows from then on.

        `model` stands in for the configuration's: a class, or a module that was made already.
        """
        self.config = config
        self.world = world
        self.given_model = model
        place = make_schedule(config).layout(world.size).place(world.rank)
        torch.set_num_threads(world.threads(config.launch.threads))
        self.device = device_of(config, world)
        self.shard = shards.open(place.part)
        self.group = connect(backend, world, config.launch.timeout)
        if watch is not None:
            watch.follow(self.group, folder_of(os.environ))
        check_agreement(self.group, config, self.shard, self.device)
        self.trainer = make_trainer(config, self.shard, self.group, self.device, model)
        torch.manual_seed(_seed_of(config.training.seed, world.rank))

    def gather_rows(self, rows: torch.Tensor) -> torch.Tensor | None:
        """Own rows `[n_i, …]` of all parts in the user's node order `[N, …]`, on rank 0."""
        return in_user_order(self.shard, self.trainer.exchange.group, rows)


def connect(backend: str, world: World, timeout: float) -> Group:
    """Meet the other processes over `backend`; the group of all. A single process needs no transport.

    Where the environment has a secret, every message has a tag from then on.
    """
    if world.size == 1:
        return Group(Alone())
    if backend == "mpi" and world.local_rank == 0:
        remove_leftovers()
    transport: Transport = build(
        "backend",
        BACKENDS,
        backend,
        rank=world.rank,
        size=world.size,
        timeout=timeout,
        rendezvous=world.rendezvous,
    )
    group, secret = Group(transport), read_secret(os.environ)
    if secret is not None:
        share_key(group, secret)
    return group


def make_trainer(
    config: Config, shard: Shard, world: Group, device: torch.device, model: Model | None = None
) -> Trainer:
    """Compose the factors, and a model whose weights are the same on all ranks.

    `world` is the group of all ranks, which the schedule lays out; `shard` is the part of this one. `model`
    stands in for the configuration's: a class, or a module that was made already.
    """
    schedule = make_schedule(config)
    mesh = Mesh(world, schedule.layout(world.size))
    group = mesh.group("parts")
    graph = shard.manifest["graph"]
    source = config.model if model is None else model
    if not config.shape.edge_weights:
        shard = unweighted_shard(shard, total_over(group))
    module = make_module(config, graph, source).to(device)
    asked = module if isinstance(module, PyGModel) else find_model(source)
    kind, linear = normalisation_of(asked), traits_of(asked).linear
    shard, scored = ask_of(config, shard, group, device)
    task = scored
    site = make_site(config, shard, device, kind, linear=linear)
    whole = trained = exchange_at(site, config, group, mesh)
    if config.training.inductive:
        subgraph = training_shard(shard, total_over(group))
        site = make_site(config, subgraph, device, kind, linear=linear)
        trained = exchange_at(site, config, group, mesh)
        task = make_task(config, subgraph, group, device)
    questions: tuple[Task, Task] = (task, scored)
    if isinstance(task, NodeTask) and isinstance(scored, NodeTask) and config.training.label_rate:
        questions = (hide_labels(config, trained.nodes, group, task, scored),) * 2
    evaluation = Evaluation(whole, questions[1])
    return Trainer(
        module,
        trained,
        questions[0],
        config.training,
        evaluation,
        schedule=schedule,
        mesh=mesh,
        site=site,
    )


def make_exchange(
    config: Config,
    shard: Shard,
    group: Group,
    device: torch.device,
    kind: Normalisation,
    *,
    linear: bool = False,
) -> FullGraph:
    """Plan, policies and codecs over one rank's rows of the normalised adjacency.

    `group` are the ranks among which the rows of the graph are spread. `linear` models only call `propagate`;
    `--plan auto` lets sums cross for them.
    """
    return exchange_at(make_site(config, shard, device, kind, linear=linear), config, group)


def make_site(
    config: Config, shard: Shard, device: torch.device, kind: Normalisation, *, linear: bool
) -> Site:
    """One rank's rows of the graph, and how rows of it are made to cross; see `make_exchange`."""
    factors = config.factors
    bench = Workbench(build("kernel", KERNELS, factors.kernel), getattr(torch, config.training.dtype), device)
    make_plan = partial(build, "plan", PLANS, plan_for(factors.plan, linear=linear), bench=bench)
    make_codec = partial(build, "codec", CODECS)
    return Site(shard, shard.operator(kind), bench, make_plan, make_codec, config.training.seed, kind)


def exchange_at(site: Site, config: Config, group: Group, mesh: Mesh | None = None) -> FullGraph:
    """The whole graph as a rank sees it; `mesh` has the groups beside `group`, where there are others."""
    groups: dict[str, Group] = {PARTS: group}
    if mesh is not None:
        groups |= {axis: mesh.group(axis) for axis in AXES}
    factors, shard, bench, device = config.factors, site.shard, site.bench, site.bench.device
    operator, plan = site.operator, site.make_plan(operator=site.operator)
    check_memory_of_draws(factors, plan)
    if plan.forward.broadcast:
        choose_broadcast(group, factors.broadcast, device)
    features = own_features(shard, bench, normalise=config.training.normalise_features)
    sparse_input = isinstance(features, SparseMatrix) or config.training.label_rate > 0
    picks = isinstance(plan, Halo) or not (sparse_input and factors.reuse_input)
    input_plan = plan if picks else Halo(operator, bench)
    policies = dict(zip(DIRECTIONS, (factors.staleness, factors.backward), strict=True))
    codecs = dict(zip(DIRECTIONS, (factors.codec, factors.backward_codec or factors.codec), strict=True))
    crossing = Crossing(
        group,
        {side: build("policy", POLICIES, spec) for side, spec in policies.items()},
        {side: build("codec", CODECS, spec) for side, spec in codecs.items()},
        needed(plan, group, device),
        CrossingSettings(
            factors.agree,
            factors.error_feedback,
            config.digest(),
            config.training.seed,
            config.training.epochs,
        ),
        device,
        Health(group if mesh is None else mesh.group("all")),
    )
    mover = Mover(plan, groups, crossing, factors.clip, config.training.seed, _reach(operator))
    noise = Noise(torch.from_numpy(np.array(shard.nodes)).to(device), mover, config.training.seed)
    labels = None
    if config.training.label_rate:
        rows = ConstantRows(shown_labels(shard, bench), noise.nodes, mover, input_plan)
        labels = LabelInput(rows, config.training.seed, once=config.training.label_draw == "once")
    savings = Savings(factors.reuse_input, factors.order, factors.skip_input_gradient)
    return FullGraph(mover, noise, ConstantInput(features, mover, noise, input_plan), labels, savings)


def _reach(operator: Operator) -> Reach:
    """How far errors of other owners' rows get into the own ones."""
    rows, own = operator.rows, operator.block(operator.rank)
    row_sum = float(rows.sum()) / max(1, operator.own)
    return Reach(row_sum or 1.0, 1 - own.nnz / max(1, rows.nnz))


def check_agreement(group: Group, config: Config, shard: Shard, device: torch.device) -> None:
    """All ranks compare a hash of configuration and data; a rank that differs is named on all."""
    for what, digest in (("settings", config.digest()), ("data", bytes.fromhex(shard.digest()))):
        mine = torch.frombuffer(bytearray(digest), dtype=torch.uint8).to(device)
        everyone = group.all_gather(mine)
        check_greetings(everyone.cpu().numpy().tobytes())
        differing = torch.nonzero((everyone != everyone[0]).any(dim=1)).flatten().tolist()
        if differing:
            raise UserError(
                f"rank {differing[0]} has other {what} than rank 0; "
                "start all ranks with the same command and files"
            )


def _seed_of(seed: int, rank: int) -> int:
    """The seed of torch on this rank: repeatable, and another one on every rank.

    Sancus draws its own numbers by hashing; this is for what a user's own model draws.
    """
    return xxhash.xxh3_64_intdigest(f"{seed} {rank}".encode())


def device_of(config: Config, world: World) -> torch.device:
    """The device of this rank's tensors: the CPU, or one GPU for each rank of a host."""
    if config.launch.device == "cpu":
        return torch.device("cpu")
    check_cuda(world.local_size)
    torch.cuda.set_device(world.local_rank)
    return torch.device("cuda", world.local_rank)
