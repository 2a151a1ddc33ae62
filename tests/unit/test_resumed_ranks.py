"""Ranks that go on from a checkpoint: losses, decisions, ages, bytes of ranks that never stopped."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sancus.comm.alone import Alone
from sancus.comm.group import Group
from sancus.config.settings import Config, FactorSettings
from sancus.console.speaker import SILENT
from sancus.exchange.state import State
from sancus.models.settings import ModelSettings
from sancus.runs.build import make_trainer
from sancus.runs.checkpoints import contents, names, reader
from sancus.runs.saved_work import SavedWork
from sancus.training.settings import TrainingSettings
from sancus.training.trainer import Trainer
from tests.helpers.checkpoints import write_checkpoint
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.threads import open_own, results, run_threads, thread_trainer

RANKS, EPOCHS, STOP = 2, 8, 4
FIGURES = (
    "loss",
    "val",
    "test",
    "wire_bytes",
    "saved_bytes",
    "max_age",
    "max_drift",
    "sends",
    "history_bytes",
)
CASES: dict[str, dict[str, Any]] = {
    "adaptive": {"staleness": "epoch-adaptive:bound=2", "backward": "epoch-fixed:bound=3"},
    "drift": {"staleness": "variation-gap:gap=0.02", "backward": "variation-gap:gap=0.001"},
    "rows": {"staleness": "row-gap:gap=0.1,max_age=2", "backward": "row-gap:gap=0.1", "codec": "int4"},
    "drift-epoch": {"staleness": "variation-gap:gap=0.02", "agree": "epoch"},
    "pipelined": {"staleness": "pipelined:sync_every=3", "backward": "pipelined"},
    "feedback": {"codec": "int2", "error_feedback": True, "staleness": "epoch-fixed:bound=1"},
    "never": {"staleness": "never", "plan": "block"},
    "digest": {"staleness": "periodic:period=3", "backward": "drop"},
}
PARAMETERS: dict[str, Any] = {"digest": "average", "feedback": "average"}  # the others: sum


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards_of(awkward_graph(), "random", RANKS, tmp_path_factory.mktemp("shards"))


def trainer_config(name: str, dropout: float) -> Config:
    factors = {"plan": "halo", "reuse_input": False} | CASES[name]  # a kept input crosses once a process
    return Config(
        factors=FactorSettings(kernel="torch", broadcast="library", **factors),
        shape=ModelSettings(hidden=4, layers=3, dropout=dropout),
        training=TrainingSettings(epochs=EPOCHS, lr=0.05, parameters=PARAMETERS.get(name, "sum")),
    )


def trainer_of(group: Group, folder: Path, name: str, dropout: float) -> Trainer:
    return thread_trainer(trainer_config(name, dropout), open_own(folder, group), group)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("name", CASES)
def test_nobody_notices_that_ranks_stopped(folder: Path, tmp_path: Path, name: str, dropout: float) -> None:
    def whole(group: Group) -> tuple[list[Any], Any, Any]:
        trainer = trainer_of(group, folder, name, dropout)
        records = list(trainer.epochs())
        return records, trainer.exchange.crossing.decisions.as_array().tolist(), trainer.best

    def first(group: Group) -> tuple[reader.Files, Path]:
        trainer = trainer_of(group, folder, name, dropout)
        for record in trainer.epochs():
            if record["epoch"] == STOP - 1:
                break
        own = tmp_path / names.rank_file(group.rank)
        own.write_bytes(contents.pack_rank(trainer))
        state = trainer.exchange.crossing.decisions.as_array().tolist()
        return contents.pack(trainer, {"decisions": state}), own

    everyone = results(run_threads(RANKS, first))

    def second(group: Group) -> tuple[list[Any], Any, Any]:
        trainer = trainer_of(group, folder, name, dropout)
        (files, _), (_, own) = everyone[0], everyone[group.rank]  # rank 0 writes what all have in common
        carried = contents.unpack(files, trainer)
        contents.unpack_rank(own, trainer)
        trainer.exchange.crossing.restore(State(decisions=np.array(carried["decisions"], np.int8)))
        records = list(trainer.epochs())
        return records, trainer.exchange.crossing.decisions.as_array().tolist(), trainer.best

    expected, resumed = results(run_threads(RANKS, whole)), results(run_threads(RANKS, second))
    for (records, log, best), (later, later_log, later_best) in zip(expected, resumed, strict=True):
        assert [record["epoch"] for record in later] == list(range(STOP, EPOCHS))
        for before, after in zip(records[STOP:], later, strict=True):
            assert {figure: after[figure] for figure in FIGURES} == {f: before[f] for f in FIGURES}
        assert later_log == log
        assert (later_best.epoch, later_best.val, later_best.test) == (best.epoch, best.val, best.test)
        for parameter, tensor in best.weights.items():
            assert tensor.equal(later_best.weights[parameter]), parameter


class Draws(nn.Module):
    """A model of a user's own that draws from torch in every training pass."""

    normalisation = "symmetric"

    def __init__(self, features: int, hidden: int, classes: int, **settings: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features, classes))

    def forward(self, x: torch.Tensor, exchange: Any) -> torch.Tensor:
        noise = torch.rand(self.weight.shape[1]) if self.training else 0.0
        logits: torch.Tensor = exchange.propagate(x, 0, self.weight) + noise
        return logits


def test_a_model_that_draws_from_torch_goes_on_with_its_numbers(tmp_path: Path) -> None:
    folder = shards_of(awkward_graph(), "contiguous", 1, tmp_path)
    config = Config(training=TrainingSettings(epochs=EPOCHS))

    def fresh() -> Trainer:
        group = Group(Alone())
        return make_trainer(config, open_own(folder, group), group, torch.device("cpu"), Draws)

    torch.manual_seed(5)
    expected = [record["loss"] for record in fresh().epochs()]
    torch.manual_seed(5)
    trainer = fresh()
    for record in trainer.epochs():
        if record["epoch"] == STOP - 1:
            break
    own = tmp_path / "own"
    own.write_bytes(contents.pack_rank(trainer))
    files = contents.pack(trainer, {})
    torch.manual_seed(99)
    resumed = fresh()
    contents.unpack(files, resumed)
    contents.unpack_rank(own, resumed)
    assert [record["loss"] for record in resumed.epochs()] == expected[STOP:]


@pytest.mark.parametrize("name", ["digest", "never"])
def test_histories_of_a_version_that_sent_other_rows_start_cold(folder: Path, name: str) -> None:
    """Before `--parameters`, rows without gradients crossed as `H W`; other histories go on."""

    def reasons(group: Group) -> list[str | None]:
        trainer = trainer_of(group, folder, name, 0.0)
        job: Any = SimpleNamespace(
            trainer=trainer, world=SimpleNamespace(size=group.size), shard=open_own(folder, group)
        )
        settings = trainer_config(name, 0.0).to_dict()
        output = SimpleNamespace(output=SimpleNamespace(keep=2))
        account: Any = SimpleNamespace(settings=lambda: settings, request=SimpleNamespace(config=output))
        work = SavedWork(job, account, SILENT, lambda line: None)
        checkpoint: Any = SimpleNamespace(own=Path())
        carried = {"ranks": group.size, "shards": job.shard.digest()}
        old = settings | {"training": {k: v for k, v in settings["training"].items() if k != "parameters"}}
        settings["training"]["parameters"] = "sum"
        return [work._why_cold(carried | {"config": one}, checkpoint) for one in (settings, old)]

    for now, before in results(run_threads(RANKS, reasons)):
        assert now is None
        assert (before == "a version before sent other rows where no gradient returns") == (name == "digest")


def test_the_newest_whole_checkpoint_is_read(tmp_path: Path) -> None:
    """What `sancus predict` takes; a damaged one is passed over."""
    for epoch in (3, 12, 7):
        held = {name: f"{name} of {epoch}".encode() for name in names.SHARED}
        write_checkpoint(tmp_path / f"epoch-{epoch:08d}", held)
    files = reader.read_newest(tmp_path) or {}
    assert files["state.json"] == b"state.json of 12"
    (tmp_path / "epoch-00000012" / "weights.safetensors").write_bytes(b"other")
    files = reader.read_newest(tmp_path) or {}
    assert files["state.json"] == b"state.json of 7"
