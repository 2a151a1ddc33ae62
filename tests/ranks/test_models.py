"""Every model under every policy, codec and plan; attention that holds one block at a time; PyG's layers."""

from __future__ import annotations

import gc
import math
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from sancus.codecs import CODECS
from sancus.comm.group import Group
from sancus.config.settings import Config, FactorSettings
from sancus.errors import UserError
from sancus.exchange.delivery import Delivery
from sancus.graphs.shards import open_shard
from sancus.models import MODELS
from sancus.models.settings import ModelSettings
from sancus.runs.build import make_trainer
from sancus.staleness import POLICIES
from sancus.training.settings import TrainingSettings
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.processes import run_ranks
from tests.ranks.law import STEADY_PLANS, WEIGHS_EDGES

SHAPE = ModelSettings(layers=3, hidden=4, heads=2, dropout=0.3, attention_dropout=0.3)
SETTINGS = {
    "epoch-fixed": "bound=1",
    "epoch-adaptive": "bound=1",
    "variation-gap": "gap=0.05",
    "auto": "budget=2.5",
}
TRAINING = TrainingSettings(epochs=3, eval_every=3)


def walk() -> list[tuple[str, FactorSettings]]:
    """Every model × every policy and codec in turn, the other factors changing along."""
    plans, policies, codecs = STEADY_PLANS, list(POLICIES), list(CODECS)
    found = []
    for place, model in enumerate(MODELS):
        for turn in range(max(len(policies), len(codecs))):
            factors = FactorSettings(
                plan=plans[(turn + place) % len(plans)],
                staleness=_spec(policies[turn % len(policies)]),
                backward=_spec(policies[(turn + place + 1) % len(policies)]),
                codec=_spec(codecs[(turn + place) % len(codecs)]),
                clip=1.0 if turn % 3 == 0 else None,
            )
            found.append((model, factors))
        for codec in codecs[place::2]:  # a plan that draws rows has no history
            found.append((model, FactorSettings(plan="drawn:rate=0.5", codec=_spec(codec), clip=1.0)))
    return found


def _spec(name: str) -> str:
    return f"{name}:{SETTINGS[name]}" if name in SETTINGS else name


def train_all(group: Group, folder: str) -> list[Any]:
    """What three epochs of every setting give: the last loss, or why it was refused."""
    shard = open_shard(Path(folder), group.rank)
    found: list[Any] = []
    for model, factors in walk():
        config = Config(model=model, factors=factors, shape=SHAPE, training=TRAINING)
        trainer = make_trainer(config, shard, group, torch.device("cpu"))
        try:
            found.append([record["loss"] for record in trainer.epochs()][-1])
        except UserError as error:
            found.append(str(error))
    return found


def test_models_work_with_every_policy_codec_and_plan(tmp_path: Path) -> None:
    folder = str(shards_of(awkward_graph(), "random", 2, tmp_path))
    first, second = run_ranks("tests.ranks.test_models:train_all", 2, folder=folder)
    assert first == second
    for (model, factors), outcome in zip(walk(), first, strict=True):
        if model in WEIGHS_EDGES and factors.plan == "prepost":
            assert "the plan sends sums; choose --plan halo" in outcome
        else:
            assert isinstance(outcome, float) and math.isfinite(outcome), (model, factors, outcome)


def most_alive(group: Group, folder: str) -> dict[str, int]:
    """The largest number of received blocks that are in memory at once, in an epoch of GAT."""
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0
    opened = Delivery._open

    def watch(self: Delivery, *arguments: Any) -> torch.Tensor:
        nonlocal most
        payload = opened(self, *arguments)
        gc.collect()
        alive.append(weakref.ref(payload))
        most = max(most, sum(ref() is not None for ref in alive))
        return payload

    Delivery._open = watch  # type: ignore[method-assign]
    shard = open_shard(Path(folder), group.rank)
    found = {}
    for staleness in ("always", "epoch-fixed:bound=1"):
        factors = FactorSettings(plan="block", staleness=staleness)
        config = Config(model="gat", factors=factors, shape=SHAPE)
        trainer = make_trainer(config, shard, group, torch.device("cpu"))
        alive, most = [], 0
        trainer.train_epoch(0)
        found[staleness] = most
    return found


def test_block_attention_never_holds_all_rows(tmp_path: Path) -> None:
    folder = str(shards_of(awkward_graph(), "contiguous", 4, tmp_path))
    for found in run_ranks("tests.ranks.test_models:most_alive", 4, folder=folder):
        assert found["always"] <= 2, "one in use, and one that just arrived"
        assert found["epoch-fixed:bound=1"] > 2, "the watch sees blocks that are kept"


def pyg_case(group: Group, folder: str) -> dict[str, torch.Tensor]:
    """Loss and gradients of the example that uses PyG's layers, on rows of this rank."""
    shard = open_shard(Path(folder), group.rank)
    config = Config(
        model="examples/pyg_model.py:Net",
        shape=ModelSettings(hidden=5, dropout=0.4),
        training=TrainingSettings(dtype="float64", optimizer="sgd"),
    )
    trainer = make_trainer(config, shard, group, torch.device("cpu"))
    loss = torch.tensor([trainer.train_epoch(0)], dtype=torch.float64)
    group.all_reduce(loss)
    return {"loss": loss} | {
        name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None
    }


def test_pyg_layers_equal_one_process(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    found = []
    for ranks in (1, 3):
        folder = str(shards_of(awkward_graph(), "random", ranks, tmp_path / str(ranks)))
        found.append(run_ranks("tests.ranks.test_models:pyg_case", ranks, folder=folder))
    (alone,), together = found
    for note in together:
        assert note.keys() == alone.keys()
        for name, expected in alone.items():
            torch.testing.assert_close(note[name], expected, rtol=1e-10, atol=1e-12, msg=name)
