"""`--parameters average`: a step of each rank's own, then the mean of the weights; and bad numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sancus.comm.group import Group
from sancus.config.settings import Config, FactorSettings
from sancus.errors import UserError
from sancus.exchange.health import Health
from sancus.models.settings import ModelSettings
from sancus.runs.checkpoints import contents
from sancus.training.parameter_sync import AverageOfWeights, make_sync
from sancus.training.settings import Parameters, TrainingSettings
from tests.helpers.graphs import awkward_graph, shards_of, with_train_nodes
from tests.helpers.threads import open_own, results, run_threads, thread_trainer

EPOCHS = 4
SGD = TrainingSettings(epochs=EPOCHS, optimizer="sgd", lr=0.3, weight_decay=0.05, dtype="float64", check=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parts for 1, 2 and 3 ranks, of which one has no training node."""
    place = tmp_path_factory.mktemp("shards")
    for ranks in (1, 2, 3):
        shards_of(with_train_nodes(awkward_graph(), [0, 1, 3, 8]), "contiguous", ranks, place)
    return place


def run(
    folder: Path, ranks: int, training: TrainingSettings, parameters: Parameters, **factors: Any
) -> list[Any]:
    """On every rank: losses, parameter bytes and weights after every epoch."""
    config = Config(
        factors=FactorSettings(plan="halo", kernel="torch", **factors),
        shape=ModelSettings(hidden=4, layers=3, dropout=0.3, norm="batch"),
        training=replace(training, parameters=parameters),
    )

    def on_rank(group: Group) -> list[tuple[float, int, list[torch.Tensor]]]:
        trainer = thread_trainer(config, open_own(folder / f"contiguous-{ranks}", group), group)
        return [
            (
                record["loss"],
                record["parameter_bytes"],
                [p.clone() for p in trainer.model.state_dict().values()],
            )
            for record in trainer.epochs()
        ]

    return results(run_threads(ranks, on_rank))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("backward", ["always", "drop"])
def test_sgd_averages_to_the_step_of_the_sum(
    folder: Path, ranks: int, momentum: float, backward: str
) -> None:
    """Elementwise, whatever the sizes of the parts: steps are linear in the gradient."""
    training = replace(SGD, momentum=momentum)
    summed, averaged = (
        run(folder, ranks, training, parameters, backward=backward) for parameters in ("sum", "average")
    )
    for epoch in range(EPOCHS):
        (loss, size, weights), (other, other_size, other_weights) = summed[0][epoch], averaged[0][epoch]
        assert other == pytest.approx(loss, rel=1e-11) and other_size == size > 0
        for ours, theirs in zip(other_weights, weights, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_one_rank_has_the_same_bits_either_way(folder: Path, optimizer: Any) -> None:
    training = replace(SGD, optimizer=optimizer, dtype="float32")
    (summed,), (averaged,) = (run(folder, 1, training, parameters) for parameters in ("sum", "average"))
    for (loss, _, weights), (other, _, other_weights) in zip(summed, averaged, strict=True):
        assert other == loss
        assert all(ours.equal(theirs) for ours, theirs in zip(other_weights, weights, strict=True))


def test_adam_takes_steps_of_its_own_and_ranks_stay_equal(folder: Path) -> None:
    training = replace(SGD, optimizer="adam", dtype="float32", lr=0.05)
    summed, averaged = (run(folder, 3, training, parameters) for parameters in ("sum", "average"))
    for epoch in range(EPOCHS):
        for rank in range(1, 3):  # `check=1` has also compared checksums
            equal = zip(averaged[0][epoch][2], averaged[rank][epoch][2], strict=True)
            assert all(ours.equal(theirs) for ours, theirs in equal)
    assert averaged[0][-1][0] != summed[0][-1][0]


def test_the_mean_of_weights_and_p_times_the_own_gradient() -> None:
    def on_rank(group: Group) -> tuple[list[float], list[float], list[float]]:
        model = nn.ParameterDict({"a": nn.Parameter(torch.zeros(2)), "b": nn.Parameter(torch.ones(1))})
        model["a"].grad = torch.tensor([1.0, 2.0])
        sync = AverageOfWeights(group, Health(group))
        sync.before_update(model)
        gradients = [parameter.grad for parameter in model.values()]
        with torch.no_grad():
            model["a"].add_(group.rank)
        sync.after_update(model)
        return [g.tolist() for g in gradients if g is not None], model["a"].tolist(), model["b"].tolist()

    for gradients, a, b in results(run_threads(3, on_rank)):
        assert gradients == [[3.0, 6.0], [0.0]], "what has no gradient counts as zero"
        assert a == [1.0, 1.0] and b == [1.0]


@pytest.mark.parametrize("bad", ["gradient", "weight", "note"])
def test_a_bad_number_stops_all_ranks_in_the_same_epoch(bad: str) -> None:
    def on_rank(group: Group) -> None:
        model, health = nn.Linear(2, 1), Health(group)
        sync, spoiled = AverageOfWeights(group, health), group.rank == 1
        model.weight.grad = torch.ones(1, 2)
        if spoiled and bad == "gradient":
            model.weight.grad = torch.tensor([[0.0, float("nan")]])
        if spoiled and bad == "note":
            health.note("row 7 is strange")
        sync.before_update(model)
        if spoiled and bad == "weight":
            model.weight.data.fill_(float("inf"))
        words = {"gradient": "the gradient of weight holds NaN", "weight": "a sum of weights is infinite"}
        with pytest.raises(UserError, match=words.get(bad, "row 7 is strange")):
            sync.after_update(model)

    results(run_threads(3, on_rank))


def test_each_rank_keeps_an_optimiser_of_its_own(folder: Path, tmp_path: Path) -> None:
    """In its own file, where ranks average; the shared one serves all where gradients are summed."""

    def on_rank(group: Group) -> None:
        for parameters in ("sum", "average"):
            training = TrainingSettings(epochs=2, parameters=parameters)  # type: ignore[arg-type]
            shard = open_own(folder / "contiguous-2", group)
            trainer = thread_trainer(Config(training=training), shard, group)
            trainer.run()
            own = tmp_path / f"{parameters}-{group.rank}"
            own.write_bytes(contents.pack_rank(trainer))
            again = thread_trainer(Config(training=training), shard, group)
            if trainer.sync.replicated:
                contents.unpack(contents.pack(trainer, {}), again)
            contents.unpack_rank(own, again)
            state, before = (one.optimizer.state_dict()["state"] for one in (again, trainer))
            assert state.keys() == before.keys()
            for index, slots in before.items():
                assert all(torch.equal(state[index][name], value) for name, value in slots.items())
            moments = torch.cat([before[index]["exp_avg"].flatten() for index in sorted(before)])
            everyone = group.all_gather(moments)
            assert torch.equal(everyone[0], everyone[1]) == (parameters == "sum")

    results(run_threads(2, on_rank))


class HalfFrozen(nn.Module):
    """Two layers of `Â H W`, the first of which does not learn."""

    normalisation = "symmetric"
    linear = True

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.linspace(-1, 1, features * hidden).view(features, hidden))
        self.frozen.requires_grad_(False)
        self.weight = nn.Parameter(torch.linspace(1, -1, hidden * classes).view(hidden, classes))

    def forward(self, x: torch.Tensor, exchange: Any) -> torch.Tensor:
        h = torch.relu(exchange.propagate(x, 0, self.frozen))
        result: torch.Tensor = exchange.propagate(h, 1, self.weight)
        return result


@pytest.mark.parametrize("parameters", ["sum", "average"])
def test_what_is_frozen_neither_moves_nor_crosses(folder: Path, parameters: Parameters) -> None:
    """Not by weight decay either."""
    config = Config(
        factors=FactorSettings(plan="halo", kernel="torch"),
        shape=ModelSettings(hidden=4),
        training=replace(SGD, parameters=parameters),
    )

    def on_rank(group: Group) -> None:
        trainer = thread_trainer(config, open_own(folder / "contiguous-2", group), group, model=HalfFrozen)
        assert isinstance(trainer.model, HalfFrozen)
        before = {name: weight.clone() for name, weight in trainer.model.state_dict().items()}
        records = list(trainer.epochs())
        assert torch.equal(trainer.model.frozen, before["frozen"])
        assert not torch.equal(trainer.model.weight, before["weight"])
        assert records[-1]["parameter_bytes"] == 2 * trainer.model.weight.numel() * 8

    results(run_threads(2, on_rank))


@pytest.mark.parametrize("parameters", ["sum", "average"])
def test_a_loop_of_ones_own_takes_either_way(folder: Path, parameters: Parameters) -> None:
    """Adam, whose steps are not those of the sum: the weights are the trainer's own."""
    training = TrainingSettings(epochs=EPOCHS, lr=0.05, dtype="float64", parameters=parameters)
    config = Config(
        factors=FactorSettings(plan="halo", kernel="torch"), shape=ModelSettings(hidden=4), training=training
    )

    def on_rank(group: Group) -> None:
        shard = open_own(folder / "contiguous-2", group)
        trainer, other = (thread_trainer(config, shard, group) for _ in range(2))
        list(trainer.epochs())
        sync = make_sync(other.exchange, parameters)
        for epoch in range(EPOCHS):
            other.exchange.begin_epoch(epoch, other.model)
            other.model.train()
            other.optimizer.zero_grad()
            other.task.loss(other.model(other.exchange.input, other.exchange)).backward()
            sync.before_update(other.model)
            other.optimizer.step()
            sync.after_update(other.model)
        torch.testing.assert_close(other.model.state_dict(), trainer.model.state_dict())

    results(run_threads(2, on_rank))
