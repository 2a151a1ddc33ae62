"""Sancus from Python: train in one call, or take the pieces and write the loop yourself.

    import sancus

    result = sancus.train("cora", model="gat", heads=8)      # one process, or all ranks of torchrun
    print(result.test)

The pieces are `load`, `join`, `partition`, `make_exchange`, `make_task`, `sum_gradients`, `score`, `leave`
and `Trainer`; `docs/models.md` has a training loop of 30 lines that is made of them. Started by torchrun,
mpiexec or srun, a program is one rank; started by hand it is the only one.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
import xxhash
from torch import nn

from sancus.comm.group import Group
from sancus.config.presets import preset_settings
from sancus.config.settings import Config, FactorSettings, LaunchSettings
from sancus.console.speaker import SILENT
from sancus.datasets.accept import accept
from sancus.datasets.home import home
from sancus.errors import UserError
from sancus.exchange.full_graph import FullGraph as Exchange
from sancus.exchange.gather import RankZero
from sancus.graphs import shards
from sancus.graphs.graph import Graph
from sancus.graphs.normalise import Normalisation
from sancus.graphs.shards import Shard
from sancus.launch import world as launch
from sancus.models.build import Model
from sancus.models.settings import ModelSettings
from sancus.partitioners import PARTITIONERS
from sancus.plugins import build, choices
from sancus.runs import build as run
from sancus.shards.cache import locked
from sancus.shards.partition import build_shards
from sancus.training.consensus import Record
from sancus.training.node_task import NodeTask
from sancus.training.parameter_sync import sum_gradients
from sancus.training.settings import TrainingSettings
from sancus.training.task import Task
from sancus.training.trainer import Trainer
from sancus.training.weights import checksum
from sancus.watch.board import folder_of
from sancus.watch.watch import Watch, patience_of

__all__ = [
    "Exchange",
    "Result",
    "Trainer",
    "join",
    "leave",
    "load",
    "make_exchange",
    "make_task",
    "partition",
    "score",
    "settings",
    "sum_gradients",
    "train",
]
SECTIONS = {"factors": FactorSettings, "shape": ModelSettings, "training": TrainingSettings}


@dataclass(frozen=True)
class Result:
    """What a training run found; the same on all ranks, but for `logits`."""

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


def settings(config: Config | Mapping[str, Any] | None = None, **flags: Any) -> Config:
    """A configuration from flag names (`hidden=16`, `plan="block"`, `preset="sancus-e:1"`).

    `flags` override `config`; a preset fills in what neither names.
    """
    base = config if isinstance(config, Config) else None
    given = (dict(config) if isinstance(config, Mapping) else {}) | flags
    given = dict(preset_settings(given["preset"])) | given if "preset" in given else given
    parts: dict[str, Any] = {name: given.pop(name) for name in ("preset", "model") if name in given}
    sections = SECTIONS | {"launch": LaunchSettings}
    for section, kind in sections.items():
        names = [item.name for item in dataclasses.fields(kind)]
        mine = {name: given.pop(name) for name in names if name in given}
        parts[section] = dataclasses.replace(getattr(base, section), **mine) if base else kind(**mine)
    if given:
        known = [item.name for kind in sections.values() for item in dataclasses.fields(kind)]
        name = next(iter(given))
        raise UserError(f"setting {name!r} does not exist; choose from {choices(known, name)}")
    return dataclasses.replace(base, **parts) if base else Config(**parts)


def join(backend: str = "auto", timeout: float = 120.0, device: str = "cpu") -> Group:
    """Join the ranks that a launcher started; alone where there is no launcher."""
    world = launch.detect(os.environ)
    transport = run.connect(launch.choose_backend(backend, world, device), world or launch.ALONE, timeout)
    watch = Watch(transport.rank, transport.size, patience_of(timeout), lambda line: print(f"sancus: {line}"))
    watch.follow(transport, folder_of(os.environ))
    return transport


def partition(graph: Graph, transport: Group, partitioner: str = "metis") -> Shard:
    """This rank's part of a graph. The shards of all ranks are written to the cache once a host."""
    chosen = build("partitioner", PARTITIONERS, partitioner)
    identity = json.dumps([shards.FORMAT, fingerprint(graph), partitioner, transport.size])
    target = home() / "shards" / xxhash.xxh3_128_hexdigest(identity.encode())
    with locked(target):
        if not (target / shards.MANIFEST).exists():
            build_shards(graph, chosen, partitioner, transport.size, target, SILENT)
    return shards.open_shard(target, transport.rank)


def leave(transport: Group) -> NoReturn:
    """The end of a rank's program: all ranks leave together, at once.

    The process ends here, since gloo's threads can abort it while Python takes it apart.
    """
    transport.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def fingerprint(graph: Graph) -> str:
    """A hash of everything that a graph holds."""
    digest = xxhash.xxh3_128(f"{graph.name} {graph.classes}".encode())
    masks = (graph.train_mask, graph.val_mask, graph.test_mask)
    for item in (graph.adjacency, graph.features, graph.labels, *masks):
        for part in _arrays(item):
            digest.update(str((part.dtype, part.shape)).encode())
            digest.update(np.ascontiguousarray(part).view(np.uint8).data)
    return digest.hexdigest()


def _arrays(item: Any) -> list[npt.NDArray[Any]]:
    return [item.indptr, item.indices, item.data] if sp.issparse(item) else [item]


def make_exchange(
    shard: Shard,
    transport: Group,
    config: Config | None = None,
    normalisation: Normalisation = "symmetric",
) -> Exchange:
    """What a model's `forward(x, exchange)` is called with; `exchange.input` are the features of own rows."""
    return run.make_exchange(config or Config(), shard, transport, torch.device("cpu"), normalisation)


def make_task(shard: Shard, transport: Group, config: Config | None = None) -> NodeTask:
    """Loss and score of own rows, as shares of those of the whole graph."""
    return run.make_task(config or Config(), shard, transport, torch.device("cpu"))


def score(task: Task, logits: torch.Tensor, exchange: Exchange) -> dict[str, float]:
    """Scores of train, val and test over all ranks, from the logits `[n_i, C]` of own rows."""
    fractions = task.score(logits, RankZero(exchange.group)).flatten()
    exchange.group.all_reduce(fractions)
    pairs = zip(("train", "val", "test"), fractions.view(-1, 2).tolist(), strict=True)
    return {split: top / bottom if bottom else 0.0 for split, (top, bottom) in pairs}


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
    chosen = settings(config, **flags)
    transport = join(chosen.factors.backend, chosen.launch.timeout)
    if chosen.launch.ranks not in (None, transport.size):
        raise UserError(
            f"ranks={chosen.launch.ranks}, but this program runs as {transport.size}; "
            f"start it with torchrun --nproc-per-node {chosen.launch.ranks}"
        )
    shard = partition(load(graph), transport, chosen.factors.partitioner)
    trainer = run.make_trainer(chosen, shard, transport, torch.device("cpu"), model)
    _check_weights(trainer.model, transport)
    records: list[Record] = []
    for record in trainer.epochs():
        records.append(record)
        after_epoch(record)
    if trainer.best.weights:
        trainer.model.load_state_dict(trainer.best.weights)
    logits = run.in_user_order(shard, transport, trainer.logits())
    best = trainer.best
    found = None if logits is None else logits.cpu().numpy()
    return Result(best.val, best.test, best.epoch, trainer.task.metric, records, trainer.model, found)


def _check_weights(model: nn.Module, transport: Group) -> None:
    """All ranks must begin with the same weights; a rank that does not is named on all."""
    everyone = transport.all_gather(torch.tensor([checksum(model) >> 1]))
    differing = torch.nonzero(everyone.flatten() != everyone[0]).flatten().tolist()
    if differing:
        raise UserError(
            f"rank {differing[0]} has other weights than rank 0; seed torch before the model is made, "
            "or give its class instead"
        )
