"""Parts of very different sizes: one rank with almost all rows, ranks with none; under every factor."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sancus.codecs import CODECS
from sancus.comm.alone import Alone
from sancus.comm.group import Group
from sancus.config.settings import Config, FactorSettings
from sancus.errors import UserError
from sancus.graphs.shard_writer import write_shards
from sancus.graphs.shards import open_shard
from sancus.models.settings import ModelSettings
from sancus.plans import PLANS
from sancus.plugins import build
from sancus.runs.build import make_trainer
from sancus.sampling.settings import SamplingSettings
from sancus.staleness import POLICIES
from sancus.training import SCHEDULES
from sancus.training.pipeline_settings import PipelineSettings
from sancus.training.settings import TrainingSettings
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.processes import run_ranks
from tests.helpers.threads import open_own, results, run_threads, thread_trainer

RANKS, STAGES, EPOCHS = 4, 2, 3
SKEWS = {"almost all on rank 1": {0: 0, 1: 2}, "ranks 0 and 3 have none": {}}  # node: rank; the others: 1
FIRST = next(iter(SKEWS))
PLAN = {"drawn": "drawn:rate=0.5"}
POLICY = {"epoch-fixed": "epoch-fixed:bound=1", "epoch-adaptive": "epoch-adaptive:bound=1"}
POLICY |= {"periodic": "periodic:period=2", "variation-gap": "variation-gap:gap=0.05"}
CODEC = {"auto": "auto:budget=3"}
GRAPH = awkward_graph()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Shards by the name of their skew; `whole` is one part."""
    place = tmp_path_factory.mktemp("skewed")
    made = {"whole": shards_of(GRAPH, "contiguous", 1, place)}
    for number, (skew, elsewhere) in enumerate(SKEWS.items()):
        assignment = np.ones(GRAPH.nodes, np.int64)
        for node, rank in elsewhere.items():
            assignment[node] = rank
        assignment[5:8] = 2
        made[skew] = place / str(number)
        write_shards(GRAPH, assignment, RANKS, skew, made[skew])
    return made


def config(**factors: Any) -> Config:
    return Config(
        factors=FactorSettings(kernel="torch", broadcast="library", **factors),
        shape=ModelSettings(hidden=4, dropout=0.3),
        training=TrainingSettings(epochs=EPOCHS, lr=0.05, optimizer="sgd", dtype="float64"),
    )


def losses_of(folder: Path, settings: Config) -> list[float]:
    """The losses of a run, equal on all ranks, and finite."""

    def train(group: Group) -> list[float]:
        trainer = thread_trainer(settings, open_own(folder, group), group)
        return [record["loss"] for record in trainer.epochs()]

    first, *others = results(run_threads(RANKS, train))
    assert others == [first] * (RANKS - 1) and all(map(math.isfinite, first)), (first, others)
    return list(first)


def alone(folder: Path, settings: Config) -> list[float]:
    group = Group(Alone())
    trainer = make_trainer(settings, open_own(folder, group), group, torch.device("cpu"))
    return [record["loss"] for record in trainer.epochs()]


@pytest.mark.parametrize("skew", SKEWS)
@pytest.mark.parametrize("plan", PLANS)
def test_every_plan_policy_and_codec_takes_skewed_parts(
    plan: str, skew: str, folders: dict[str, Path]
) -> None:
    spec, exact = PLAN.get(plan, plan), None
    for policy in POLICIES:
        rule = POLICY.get(policy, policy)
        if plan == "drawn" and build("policy", POLICIES, rule).max_age:
            continue  # refused: rows of an earlier draw cannot serve
        if policy != "always":
            losses_of(folders[skew], config(plan=spec, staleness=rule, backward=rule))
    for codec in CODECS if skew == FIRST else ["fp32"]:
        found = losses_of(folders[skew], config(plan=spec, codec=CODEC.get(codec, codec)))
        exact = found if codec == "fp32" else exact
    if plan != "drawn":
        assert exact == pytest.approx(alone(folders["whole"], config(plan=spec)), rel=1e-9)


def every_pipeline(group: Group, folders: list[Path], chunks: int) -> list[list[float]]:
    """Two stages over two parts each: the losses by folder."""
    plain = config(plan="halo")
    training, stages = replace(plain.training, schedule="pipeline"), PipelineSettings(STAGES, chunks)
    settings = replace(plain, training=training, pipeline=stages)
    found = []
    for folder in folders:
        shard = open_shard(folder, group.rank % (RANKS // STAGES))
        trainer = make_trainer(settings, shard, group, torch.device("cpu"))
        found.append([record["loss"] for record in trainer.epochs()])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [1, 3])
def test_a_pipeline_takes_skewed_parts(chunks: int, folders: dict[str, Path], tmp_path: Path) -> None:
    """One part with almost all rows; one with all, beside one with none. A single chunk is exact."""
    skewed = []
    for few in (2, 0):
        assignment = np.where(np.arange(GRAPH.nodes) < few, 0, 1).astype(np.int64)
        skewed.append(tmp_path / str(few))
        write_shards(GRAPH, assignment, RANKS // STAGES, "skewed", skewed[-1], chunks=chunks)
    first, *others = run_ranks(f"{__name__}:every_pipeline", RANKS, folders=skewed, chunks=chunks)
    assert others == [first] * (RANKS - 1)
    assert all(len(losses) == EPOCHS and all(map(math.isfinite, losses)) for losses in first)
    whole = alone(folders["whole"], config(plan="halo"))
    exact = [losses == pytest.approx(whole, rel=1e-9) for losses in first]
    assert exact == [chunks == 1] * len(skewed)


def every_schedule(group: Group, folders: list[Path]) -> dict[str, list[Any]]:
    """The losses of every schedule, by its name; why it refuses so many ranks, where it does."""
    found: dict[str, list[Any]] = {}
    batches = {"minibatch": SamplingSettings(batch_size=7, fanout="3")}
    for name in sorted(SCHEDULES.keys() - {"pipeline", "async"}):  # above, and tests/launch/test_async.py
        for folder in folders:
            plain = config(plan="halo")
            training = replace(plain.training, schedule=name)
            sampling = batches.get(name, plain.sampling)
            settings = replace(plain, training=training, sampling=sampling)
            try:
                trainer = make_trainer(settings, open_own(folder, group), group, torch.device("cpu"))
                found.setdefault(name, []).append([record["loss"] for record in trainer.epochs()])
            except UserError as error:
                found.setdefault(name, []).append(str(error))
    return found


@pytest.mark.slow
def test_every_schedule_takes_skewed_parts(folders: dict[str, Path]) -> None:
    skewed = [folders[skew] for skew in SKEWS]
    first, *others = run_ranks(f"{__name__}:every_schedule", RANKS, folders=skewed)
    assert others == [first] * (RANKS - 1)
    whole = alone(folders["whole"], config(plan="halo"))
    assert [losses == pytest.approx(whole, rel=1e-9) for losses in first["full"]] == [True, True]
    for name, outcomes in first.items():
        for outcome in outcomes:
            assert isinstance(outcome, str) or all(map(math.isfinite, outcome)), (name, outcome)
