"""Sancus from Python: train in one call, or take the pieces and write the loop yourself.

    import sancus

    result = sancus.train("cora", model="gat", heads=8)      # one process, or all ranks of torchrun
    print(result.test)

The pieces are `load`, `join`, `partition`, `make_exchange`, `make_task`, `make_sync`, `sum_gradients`,
`score`, `gather_rows`, `leave` and `Trainer`; `docs/models.md` has a training loop of 30 lines that
is made of them. Started by torchrun, mpiexec or srun, a program is one rank; started by hand the only one.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

import numpy as np
import torch

from sancus.comm.group import Group
from sancus.config.settings import Config
from sancus.datasets.accept import accept
from sancus.exchange.full_graph import FullGraph as Exchange
from sancus.graphs.graph import Graph
from sancus.graphs.normalise import Normalisation
from sancus.graphs.row_order import RowOrder
from sancus.graphs.shards import Shard
from sancus.launch.backend import choose_backend
from sancus.launch.world import ALONE, detect
from sancus.programs.ranks_here import follow, watch_here
from sancus.programs.result import Result
from sancus.programs.settings import settings
from sancus.programs.train import train
from sancus.runs import build
from sancus.runs.node_order import everywhere
from sancus.runs.predict import score
from sancus.runs.tasks import hide_labels
from sancus.runs.tasks import make_task as make_task_of_nodes
from sancus.shards.cache import prepare_graph
from sancus.shards.identity import fingerprint_of as fingerprint
from sancus.shards.travel import pull_shards, push_shards
from sancus.training.parameter_sync import make_sync, sum_gradients
from sancus.training.task import Task
from sancus.training.trainer import Trainer
from sancus.watch.board import folder_of

__all__ = [
    "Exchange",
    "Result",
    "Trainer",
    "fingerprint",
    "gather_rows",
    "join",
    "leave",
    "load",
    "make_exchange",
    "make_sync",
    "make_task",
    "partition",
    "pull_shards",
    "push_shards",
    "score",
    "settings",
    "sum_gradients",
    "train",
]


def load(source: Any = None, **fields: Any) -> Graph:
    """A graph by name or path, or from memory: PyG `Data`, OGB node dataset, frames `edges=` and `nodes=`.

    A scipy matrix needs its `fields`: `x`, `y` and masks.
    """
    return accept(source, **fields)


def join(backend: str = "auto", timeout: float = 120.0, device: str = "cpu") -> Group:
    """Join the ranks that a launcher started; alone where there is no launcher."""
    launched = detect(os.environ)
    world = launched or ALONE
    follow(launched)
    build.device_of(settings(device=device), world)  # NCCL takes the GPU that is chosen by now
    transport = build.connect(choose_backend(backend, launched, device), world, timeout)
    watch_here(world, timeout).follow(transport, folder_of(os.environ))
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
    config = config or settings()
    return build.make_exchange(config, shard, transport, _device(config), normalisation)


def gather_rows(rows: torch.Tensor, shard: Shard, transport: Group) -> torch.Tensor:
    """Own rows `[n_i, …]` of all ranks, logits for instance, in the order of your nodes: `[N, …]`.

    Every rank must call it, and every rank gets all rows.
    """
    return everywhere(shard, transport, rows)


def make_task(shard: Shard, transport: Group, config: Config | None = None) -> Task:
    """Loss and score of own rows, as shares of those of the whole graph.

    Where labels are input (`label_rate`), nodes that show theirs in an epoch have no part in its loss.
    """
    config = config or settings()
    device = _device(config)
    task = make_task_of_nodes(config, shard, transport, device)
    if not config.training.label_rate:
        return task
    return hide_labels(config, torch.from_numpy(np.array(shard.nodes)).to(device), transport, task)


def _device(config: Config) -> torch.device:
    return build.device_of(config, detect(os.environ) or ALONE)
