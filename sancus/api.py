"""Sancus from Python: train in one call, or take the pieces and write the loop yourself.

    import sancus

    result = sancus.train("cora", model="gat", heads=8)      # one process, or all ranks of torchrun
    print(result.test)

The pieces are `load`, `join`, `partition`, `make_exchange`, `make_task`, `make_sync`, `sum_gradients`,
`score`, `leave` and `Trainer`; `docs/models.md` has a training loop of 30 lines that is made of them. Started
by torchrun, mpiexec or srun, a program is one rank; started by hand it is the only one.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sancus.comm.group import Group
from sancus.config.resolve import make_config as settings
from sancus.config.settings import Config
from sancus.datasets.accept import accept
from sancus.errors import UserError
from sancus.exchange.full_graph import FullGraph as Exchange
from sancus.graphs.graph import Graph
from sancus.graphs.normalise import Normalisation
from sancus.graphs.order import RowOrder
from sancus.graphs.shards import Shard
from sancus.launch.backend import choose_backend
from sancus.launch.proxy import follow_proxy
from sancus.launch.world import ALONE, World, detect
from sancus.models.build import Model
from sancus.runs import build
from sancus.runs.check import check_cuda, check_model, check_plugins
from sancus.runs.layout import parts_needed
from sancus.runs.predict import score
from sancus.shards.cache import Telling, prepare_graph
from sancus.shards.identity import fingerprint_of as fingerprint
from sancus.training.consensus import Record
from sancus.training.parameter_sync import make_sync, sum_gradients
from sancus.training.task import Task
from sancus.training.trainer import Trainer
from sancus.training.weights import checksum
from sancus.watch.board import folder_of
from sancus.watch.watch import Watch, patience_of

__all__ = [
    "Exchange",
    "Result",
    "Trainer",
    "fingerprint",
    "join",
    "leave",
    "load",
    "make_exchange",
    "make_sync",
    "make_task",
    "partition",
    "score",
    "settings",
    "sum_gradients",
    "train",
]


@dataclass(frozen=True)
class Result:
    """What a training run found; the same on all ranks, but for `logits`.

    A score that is undefined, such as ROC-AUC without a positive label, is NaN.
    """

    val: float  # score at the best validation epoch
    test: float  # test score at that epoch
    best_epoch: int
    metric: str
    epochs: list[Record]  # the figures of every epoch, as in metrics.jsonl
    model: nn.Module = field(repr=False)  # with the weights of the best validation epoch
    logits: npt.NDArray[Any] | None = field(repr=False)  # [N, C] in the user's node order, on rank 0


def load(source: Any, **fields: Any) -> Graph:
    """A graph by name or path, or from memory: PyG `Data`, OGB node dataset, scipy matrix with `fields`."""
    return accept(source, **fields)


def join(backend: str = "auto", timeout: float = 120.0, device: str = "cpu") -> Group:
    """Join the ranks that a launcher started; alone where there is no launcher."""
    launched = detect(os.environ)
    world = launched or ALONE
    _follow(world)
    transport = build.connect(choose_backend(backend, launched, device), world, timeout)
    _watch(world, timeout).follow(transport, folder_of(os.environ))
    return transport


def partition(
    graph: Graph, transport: Group, partitioner: str = "metis", row_order: RowOrder = "auto"
) -> Shard:
    """This rank's part of a graph. The shards of all ranks are written to the cache once a host."""
    return prepare_graph(graph, partitioner, transport.size, row_order).open(transport.rank)


def leave(transport: Group) -> NoReturn:
    """The end of a rank's program: all ranks leave together, at once.

    The process ends here, since gloo's threads can abort it while Python takes it apart. MPI must be
    finalised, which mpi4py and MPICH do at a process's ordinary end: mpiexec kills all ranks otherwise.
    """
    transport.close()
    if transport.transport.leaves_together:
        sys.exit(0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def make_exchange(
    shard: Shard,
    transport: Group,
    config: Config | None = None,
    normalisation: Normalisation = "symmetric",
) -> Exchange:
    """What a model's `forward(x, exchange)` is called with; `exchange.input` are the features of own rows."""
    config = config or Config()
    return build.make_exchange(config, shard, transport, _device(config), normalisation)


def make_task(shard: Shard, transport: Group, config: Config | None = None) -> Task:
    """Loss and score of own rows, as shares of those of the whole graph.

    Where labels are input (`label_rate`), nodes that show theirs in an epoch have no part in its loss.
    """
    config = config or Config()
    device = _device(config)
    task = build.make_task(config, shard, transport, device)
    if not config.training.label_rate:
        return task
    return build.hide_labels(config, torch.from_numpy(np.array(shard.nodes)).to(device), transport, task)


def train(
    graph: Any,
    model: Model | None = None,
    config: Config | Mapping[str, Any] | None = None,
    *,
    after_epoch: Callable[[Record], None] = lambda record: None,
    **flags: Any,
) -> Result:
    """Train a model on a whole graph, on all ranks of the launcher that started this program.

    `graph` is whatever `load` takes; `model` a name, `file.py:Net`, a class, or a module with the same
    weights on all ranks; `flags` are those of `sancus train`: `train("cora", "gat", heads=8, epochs=100)`.
    """
    run_config, world = settings(config, **flags), detect(os.environ) or ALONE
    _follow(world)
    if run_config.launch.ranks not in (None, world.size):
        raise UserError(
            f"ranks={run_config.launch.ranks}, but this program runs as {world.size}; "
            f"start it with torchrun --nproc-per-node {run_config.launch.ranks}"
        )
    check_plugins(run_config)
    check_model(model)
    if run_config.launch.device == "cuda":
        check_cuda()
    backend = choose_backend(run_config.factors.backend, detect(os.environ), run_config.launch.device)
    factors = run_config.factors
    parts, telling = parts_needed(run_config, world.size), Telling(timeout=run_config.launch.timeout)
    shards = prepare_graph(load(graph), factors.partitioner, parts, factors.row_order, telling)
    threads = torch.get_num_threads()
    job = build.Job(run_config, world, backend, shards, _watch(world, run_config.launch.timeout), model)
    if run_config.launch.threads is None:  # what the program chose for itself stays
        torch.set_num_threads(threads)
    trainer = job.trainer
    _check_weights(trainer.model, job.group)
    records: list[Record] = []
    for record in trainer.epochs():
        records.append(record)
        after_epoch(record)
        trainer.exchange.crossing.forget()
    if trainer.best.weights:
        trainer.model.load_state_dict(trainer.best.weights)
    logits = job.gather_rows(trainer.logits())
    best = trainer.best
    scores = None if logits is None else logits.cpu().numpy()
    val, test = (math.nan if value is None else value for value in (best.val, best.test))
    return Result(val, test, best.epoch, trainer.task.metric, records, trainer.model, scores)


def _follow(world: World) -> None:
    """A rank of mpiexec does not outlive the process that started it."""
    if world.launcher == "mpiexec":
        follow_proxy(world.local_rank, os.environ)


def _watch(world: World, timeout: float) -> Watch:
    """The watch of this rank, whose lines are printed."""
    return Watch(world.rank, world.size, patience_of(timeout), lambda line: print(f"sancus: {line}"))


def _device(config: Config) -> torch.device:
    return build.device_of(config, detect(os.environ) or ALONE)


def _check_weights(model: nn.Module, transport: Group) -> None:
    """All ranks must begin with the same weights; a rank that does not is named on all."""
    everyone = transport.all_gather(torch.tensor([checksum(model) >> 1]))
    differing = torch.nonzero(everyone.flatten() != everyone[0]).flatten().tolist()
    if differing:
        raise UserError(
            f"rank {differing[0]} has other weights than rank 0; seed torch before the model is made, "
            "or give its class instead"
        )
