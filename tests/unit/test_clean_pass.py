"""The clean pass: with dropout, drift depends on training alone, and SANCUS Definition 3's bound holds."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from sancus.api import sum_gradients
from sancus.comm.group import Group
from sancus.comm.ledger import Stream
from sancus.config.resolve import make_config
from sancus.config.settings import Config
from sancus.errors import UserError
from sancus.exchange.clean_pass import make_clean_pass
from sancus.exchange.figures import run_log
from sancus.exchange.full_graph import FullGraph
from sancus.exchange.state import State
from sancus.models.build import Model
from sancus.runs.build import make_exchange
from sancus.runs.tasks import make_task
from sancus.staleness.base import Norm, View
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.reference import dense_adjacency, dense_features
from tests.helpers.threads import CPU, open_own, results, run_threads, thread_trainer

RANKS, EPOCHS, GAP = 3, 9, 0.03
GRAPH = awkward_graph(nodes=29, seed=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards_of(GRAPH, "random", RANKS, tmp_path_factory.mktemp("shards"))


def config_of(**flags: Any) -> Config:
    """A GCN that drops out, with owners that look at drift."""
    given: dict[str, Any] = {"staleness": f"variation-gap:gap={GAP}", "plan": "halo", "reuse_input": False}
    given |= {"layers": 3, "hidden": 6, "heads": 2, "dropout": 0.5, "epochs": EPOCHS, "lr": 0.02}
    given |= {"dtype": "float64", "kernel": "torch", "broadcast": "library"}
    return make_config(**(given | flags))


def log_of(exchange: FullGraph) -> tuple[list[Any], list[list[float]]]:
    """Decisions, and the drift that this rank measured."""
    log = run_log(exchange.crossing)
    return log.decisions.tolist(), log.measured


def train(group: Group, folder: Path, config: Config, model: Model | None = None) -> tuple[Any, list[float]]:
    trainer = thread_trainer(config, open_own(folder, group), group, model=model)
    records = list(trainer.epochs())
    return log_of(trainer.exchange), [float(record["loss"] or 0.0) for record in records]


def own_loop(
    group: Group, folder: Path, config: Config, looks: tuple[int, ...] = ()
) -> tuple[Any, list[float]]:
    """The loop of docs/models.md, with evaluations after the epochs of `looks`."""
    shard = open_own(folder, group)
    model = thread_trainer(config, shard, group).model  # for its weights
    exchange = make_exchange(config, shard, group, CPU, "symmetric", linear=True)
    task = make_task(config, shard, group, CPU)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.training.lr, weight_decay=5e-4)
    losses = []
    for epoch in range(EPOCHS):
        exchange.begin_epoch(epoch, model)
        model.train()
        optimizer.zero_grad()
        loss = task.loss(model(exchange.input, exchange))
        loss.backward()
        sum_gradients(model, exchange)
        optimizer.step()
        losses.append(loss.item())
        if epoch in looks:
            model.eval()
            with torch.no_grad(), exchange.exact():
                model(exchange.input, exchange)
    return log_of(exchange), losses


def skips(decisions: Any) -> int:
    """How often the rows of a hidden layer did not cross."""
    return int((np.array(decisions)[:, 1:, 0] == 0).sum())


@pytest.mark.parametrize(
    ("plan", "agree"), [("block", "layer"), ("halo", "layer"), ("prepost", "layer"), ("halo", "epoch")]
)
def test_decisions_depend_on_training_alone(folder: Path, plan: str, agree: str) -> None:
    """However often is evaluated, with patience or without, by the trainer or by a loop of one's own."""
    base = config_of(plan=plan, agree=agree)
    ways = [{"eval_every": 1}, {"eval_every": 4}, {"eval_every": 2, "patience": EPOCHS}]

    def run(group: Group) -> list[Any]:
        logs = [train(group, folder, make_config(base, **way))[0] for way in ways]
        return [*logs, *(own_loop(group, folder, base, looks)[0] for looks in ((), (0, 3, 4)))]

    for logs in results(run_threads(RANKS, run)):
        assert all(log == logs[0] for log in logs[1:])
        assert skips(logs[0][0]) > 0 and (np.array(logs[0][0])[1:, 1:, 0] == 1).any()


def test_decisions_of_inductive_training(folder: Path) -> None:
    """The training graph has no evaluations at all: owners still skip, the same at any rhythm."""
    base = config_of(inductive=True)

    def run(group: Group) -> list[Any]:
        return [train(group, folder, make_config(base, eval_every=every))[0] for every in (1, 4)]

    for logs in results(run_threads(RANKS, run)):
        assert logs[0] == logs[1]
        assert skips(logs[0][0]) > 0


MODELS = [
    {"model": "gcn", "norm": "batch"},
    {"model": "gcn", "reuse_input": True, "label_rate": 0.5},
    {
        "model": "gcn",
        "reuse_input": True,
        "plan": "prepost",
        "codec": "int4",
        "backward": "epoch-fixed:bound=1",
    },
    {"model": "sage", "plan": "prepost", "norm": "layer"},
    {"model": "gin", "plan": "block", "order": "aggregate-first", "skip_input_gradient": False},
    {"model": "gat", "attention_dropout": 0.5, "reuse_input": True},
    {"model": "gat", "plan": "block", "codec": "int8", "norm": "batch"},
    {"model": "gatv2", "dropout": 0.0, "attention_dropout": 0.5},
    {"model": "gat", "backward": "drop", "plan": "block"},
    {"model": "gcn", "order": "aggregate-kept", "skip_input_gradient": False},
    {"model": "gcnii", "reuse_input": True, "jumping": "cat"},
    {"model": "resgcn+", "plan": "prepost", "norm": "batch", "error_feedback": True, "codec": "int2"},
]


@dataclass(frozen=True)
class MeasuresAndSends:
    """A policy of a user's own that looks at drift, and then sends whatever it is."""

    max_age: ClassVar[int] = 5
    drift_norm: ClassVar[Norm] = "mean"
    absent: ClassVar[bool] = False

    def decide(self, view: View) -> bool:
        return True


@pytest.mark.parametrize("flags", MODELS, ids=lambda flags: "-".join(map(str, flags.values())))
def test_the_pass_moves_nothing(folder: Path, flags: dict[str, Any]) -> None:
    """No message leaves in it; weights, statistics, modes, random state and training stay as without it."""
    config = config_of(**flags, staleness="tests.unit.test_clean_pass:MeasuresAndSends")

    def run(group: Group) -> tuple[list[float], list[float]]:
        trainer = thread_trainer(config, open_own(folder, group), group)
        model, exchange, counts = trainer.model, trainer.exchange, []
        frozen = next(module for module in model.modules() if not list(module.children()))

        def before(module: nn.Module, arguments: Any) -> None:
            if group.clock.silent:
                assert not any(each.training for each in model.modules())
                counts.append(group.number)

        def after(module: nn.Module, arguments: Any, logits: torch.Tensor) -> None:
            if group.clock.silent:
                counts.append(group.number)

        model.register_forward_pre_hook(before)
        model.register_forward_hook(after)
        losses = [trainer.train_epoch(0)]
        for epoch in range(1, 5):
            model.train()
            frozen.training = False
            weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            exchange.begin_epoch(epoch, model)
            assert len(counts) == 2 * epoch and counts[-1] == counts[-2], (
                "a clean pass, and no collective in it"
            )
            assert not frozen.training and model.training
            assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
            losses.append(trainer._work.step.update(exchange, trainer.task))
        always = replace(config, factors=replace(config.factors, staleness="always"))
        fresh = thread_trainer(always, open_own(folder, group), group)
        return losses, [fresh.train_epoch(epoch) for epoch in range(5)]

    for with_pass, without in results(run_threads(RANKS, run)):
        assert with_pass == pytest.approx(without, rel=1e-12)


def test_the_pass_draws_no_random_number(tmp_path: Path) -> None:
    """One rank at a time, as ranks that are threads share torch's random numbers."""
    folder = shards_of(GRAPH, "random", 2, tmp_path)

    class Draws(Recorder):
        def forward(self, x: torch.Tensor, exchange: Any) -> torch.Tensor:
            torch.rand(3)
            return super().forward(x, exchange)

    def run(group: Group) -> None:
        trainer = thread_trainer(config_of(), open_own(folder, group), group, model=Draws)
        for epoch in range(3):
            trainer.train_epoch(epoch)
        states, exchange = [], trainer.exchange
        for rank in range(2):
            group.all_gather(torch.zeros(1))
            if rank == group.rank:
                states.append(torch.get_rng_state())
                make_clean_pass(exchange.crossing, trainer.model, exchange.input, exchange)
                assert torch.equal(states[0], torch.get_rng_state())

    results(run_threads(2, run))


class Recorder(nn.Module):
    """Three layers of `Â H W`, in CAGNET's order, that note what they send: the rows `H` themselves."""

    normalisation = "symmetric"
    linear = True

    def __init__(self, features: int, hidden: int, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        shapes = [(features, hidden), (hidden, hidden), (hidden, classes)]
        self.weights = nn.ParameterList(nn.Parameter(nn.init.xavier_uniform_(torch.empty(s))) for s in shapes)
        self.dropout = dropout
        self.rows: dict[tuple[str, int], torch.Tensor] = {}

    def forward(self, x: torch.Tensor, exchange: Any) -> torch.Tensor:
        h = x
        for layer, weight in enumerate(self.weights):
            self.rows[exchange.group.clock.current_pass, layer] = h.detach().clone()
            z = exchange.propagate(h, layer, weight, self.dropout if self.training else 0.0)
            h = torch.relu(z)
        return z


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_definition_3_holds_in_every_epoch(folder: Path, dropout: float) -> None:
    """What is clean now and what was clean when it was last sent differ by the gap at most: ‖H − H̃‖ ≤ ε_H.

    Without dropout the rows of training count; with it those that the weights, the own features and what was
    received by then give, computed here by dense matrices.
    """
    config = config_of(plan="block", order="aggregate-first", dropout=dropout, lr=0.05)
    a, x = dense_adjacency(GRAPH, "symmetric"), dense_features(GRAPH)

    def dense_pass(model: Recorder, exchange: FullGraph) -> list[torch.Tensor]:
        held, own, rows = exchange.crossing.memory.history, exchange.nodes, [x[exchange.nodes]]
        for layer, weight in enumerate(model.weights[:-1]):
            seen = torch.zeros(GRAPH.nodes, weight.shape[0]).double()
            for rank in range(RANKS):
                theirs = torch.from_numpy(open_own(folder, replaced(exchange.group, rank)).nodes.copy())
                seen[theirs] = (
                    rows[-1] if rank == exchange.group.rank else held.pull(Stream(layer, "forward", rank))
                )
            rows.append(torch.relu(a[own] @ seen @ weight.detach()))
        return rows

    def run(group: Group) -> tuple[Any, float]:
        trainer = thread_trainer(config, open_own(folder, group), group, model=Recorder)
        model, exchange, largest = trainer.model, trainer.exchange, 0.0
        assert isinstance(model, Recorder)
        sent: dict[int, torch.Tensor] = {}
        for epoch in range(EPOCHS):
            clean = dense_pass(model, exchange) if dropout and epoch else None
            trainer.train_epoch(epoch)
            answers = run_log(exchange.crossing).decisions[epoch, :, 0, group.rank]
            for layer, answer in enumerate(answers):
                now = model.rows["training", layer] if clean is None else clean[layer]
                if clean is not None:
                    torch.testing.assert_close(model.rows["measurement", layer], now)
                if answer:
                    sent[layer] = now
                largest = max(largest, (now - sent[layer]).abs().mean().item())
        return log_of(exchange)[0], largest

    outcomes = results(run_threads(RANKS, run))
    assert all(largest <= GAP for _, largest in outcomes) and max(outcomes)[1] > 0
    assert skips(outcomes[0][0]) > 0


def replaced(group: Group, rank: int) -> Any:
    """Whose shard to open."""
    return type("Place", (), {"rank": rank})()


@pytest.mark.parametrize("plan", ["halo", "prepost"])
def test_plans_make_the_same_clean_rows(folder: Path, plan: str) -> None:
    """Where everything that changed was received, what a plan does not send was not needed."""

    def run(group: Group) -> list[dict[Any, torch.Tensor]]:
        rows = []
        for each in ("block", plan):
            config = config_of(staleness="variation-gap:gap=0", plan=each, order="aggregate-first")
            trainer = thread_trainer(config, open_own(folder, group), group, model=Recorder)
            for epoch in range(4):
                trainer.train_epoch(epoch)
            assert isinstance(trainer.model, Recorder)
            rows.append({key: h for key, h in trainer.model.rows.items() if key[0] == "measurement"})
        return rows

    for whole, part in results(run_threads(RANKS, run)):
        assert len(whole) == 3
        torch.testing.assert_close(part, whole)


class TorchDropout(Recorder):
    """A model whose dropout is torch's own, of which no exchange is told."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__(features, hidden, classes)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor, exchange: Any) -> torch.Tensor:
        h = torch.relu(exchange.propagate(self.drop(x), 0, self.weights[0]))
        h = torch.relu(exchange.propagate(self.drop(h), 1, self.weights[1]))
        return exchange.propagate(h, 2, self.weights[2])


def test_dropout_of_torch_is_noise_too(folder: Path) -> None:
    config = config_of(lr=0.0, weight_decay=0.0, optimizer="sgd")
    for (decisions, _), _ in results(
        run_threads(RANKS, lambda group: train(group, folder, config, TorchDropout))
    ):
        assert not np.array(decisions)[4:, :, 0].any(), "nothing is learnt, nothing crosses again"


class FunctionalDropout(TorchDropout):
    """Dropout that is no module."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__(features, hidden, classes)
        del self.drop

    def drop(self, h: torch.Tensor) -> torch.Tensor:  # type: ignore[no-redef]
        return nn.functional.dropout(h, 0.5, self.training)


@pytest.mark.parametrize(
    "flags",
    [{"model": FunctionalDropout}, {"label_rate": 0.5, "label_draw": "epoch", "dropout": 0.0}],
    ids=["functional dropout", "labels drawn every epoch"],
)
def test_chance_is_not_drift(folder: Path, flags: dict[str, Any]) -> None:
    """Dropout that is no module, and labels that are drawn anew: nothing is learnt, nothing crosses."""
    model = flags.get("model")
    still = {"lr": 0.0, "weight_decay": 0.0, "optimizer": "sgd"}
    config = config_of(**still, **{name: value for name, value in flags.items() if name != "model"})
    for (decisions, _), _ in results(run_threads(RANKS, lambda group: train(group, folder, config, model))):
        assert not np.array(decisions)[5:, 1:, 0].any()


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("codec", ["fp32", "int2"])
def test_the_error_of_a_codec_is_drift(folder: Path, dropout: float, codec: str) -> None:
    """Rows of the input never change, so their drift is what receivers hold wrongly, dropout or not."""
    config = config_of(
        plan="block",
        order="aggregate-first",
        dropout=dropout,
        codec=codec,
        staleness=f"{__name__}:MeasuresAndSends",
    )

    def run(group: Group) -> list[float]:
        trainer = thread_trainer(config, open_own(folder, group), group, model=Recorder)
        list(trainer.epochs())
        measured = trainer.exchange.crossing.agreement.measured
        return [
            drift
            for (_, stream), drift in measured.items()
            if stream.layer == 0 and stream.direction == "forward"
        ]

    for drifts in results(run_threads(RANKS, run)):
        assert len(drifts) == EPOCHS - 1
        assert (
            all(drift == 0.0 for drift in drifts)
            if codec == "fp32"
            else all(drift > 0.01 for drift in drifts)
        )


def test_seconds_of_the_pass_are_dense(folder: Path) -> None:
    """What the model computes in it is the model's own work, as in training."""

    class Times(Recorder):
        def forward(self, x: torch.Tensor, exchange: Any) -> torch.Tensor:
            if exchange.group.clock.silent:
                self.parts.append(exchange.group.stopwatch.turn_to("dense"))
            return super().forward(x, exchange)

        parts: ClassVar[list[str]] = []

    results(run_threads(RANKS, lambda group: train(group, folder, config_of(), Times)))
    assert Times.parts and set(Times.parts) == {"dense"}


# A loop that does not say which model it trains


def dropping(group: Group, folder: Path, epochs: int, **flags: Any) -> list[int]:
    exchange = make_exchange(config_of(**flags), open_own(folder, group), group, CPU, "symmetric")
    rows, counts = torch.ones(len(exchange.nodes), 4).double(), []
    for epoch in range(epochs):
        exchange.begin_epoch(epoch)
        exchange.propagate(rows, 0, dropout=flags.get("dropout", 0.5))
        counts.append(exchange.crossing.figures().skips)
    return counts


def test_a_loop_without_a_model_is_told_which_call_to_make(folder: Path) -> None:
    for outcome in run_threads(RANKS, lambda group: dropping(group, folder, 1)):
        assert isinstance(outcome, UserError)
        assert "exchange.begin_epoch(epoch, model)" in str(outcome) and "\n" not in str(outcome)


@pytest.mark.parametrize(
    "flags",
    [
        {"dropout": 0.0},
        {"staleness": "epoch-fixed:bound=1"},
        {"staleness": "always", "backward": "variation-gap"},
    ],
    ids=["no-dropout", "no-drift", "drift-of-gradients"],
)
def test_other_loops_need_no_model(folder: Path, flags: dict[str, Any]) -> None:
    assert results(run_threads(RANKS, lambda group: dropping(group, folder, 3, **flags)))


# Models that cannot be measured


class SumsAlways(Recorder):
    def forward(self, x: torch.Tensor, exchange: Any) -> torch.Tensor:
        return super().forward(x, exchange) - exchange.sum(torch.ones(1).double())


class EvaluatesMore(Recorder):
    def forward(self, x: torch.Tensor, exchange: Any) -> torch.Tensor:
        z = super().forward(x, exchange)
        return z if self.training else exchange.propagate(z, 7)


@pytest.mark.parametrize(
    ("model", "words"),
    [(SumsAlways, "sums over ranks in eval mode"), (EvaluatesMore, "uses layer 7 in eval mode alone")],
)
def test_what_a_clean_pass_cannot_do_is_said(folder: Path, model: type[Recorder], words: str) -> None:
    for outcome in run_threads(RANKS, lambda group: train(group, folder, config_of(), model)):
        assert isinstance(outcome, UserError) and words in str(outcome) and "\n" not in str(outcome)
    without = config_of(dropout=0.0)
    results(run_threads(RANKS, lambda group: train(group, folder, without, model)))


# Checkpoints


def test_a_checkpoint_of_before_holds_what_evaluations_saw(folder: Path) -> None:
    """They are no longer measured by, but say that the model drops out: the next epoch has a clean pass."""

    def run(group: Group) -> tuple[int, bool]:
        trainer, resumed = (
            thread_trainer(config_of(), open_own(folder, group), group, model=Recorder) for _ in range(2)
        )
        for epoch in range(3):
            trainer.train_epoch(epoch)
        state = trainer.exchange.crossing.state()
        assert state.plain["noisy"] and not any("seen" in name for name in state.tensors)
        seen = {f"drift/seen/1.forward.{group.rank}": torch.ones(2, 2)}
        versions = state.plain["versions"] | dict.fromkeys(seen, 2)
        plain = {key: value for key, value in state.plain.items() if key != "noisy"} | {"versions": versions}
        resumed.model.load_state_dict(trainer.model.state_dict())
        resumed.exchange.crossing.restore(State({**state.tensors, **seen}, plain))
        trainer.exchange.crossing.forget()
        resumed.train_epoch(3)
        trainer.train_epoch(3)
        assert log_of(resumed.exchange) == log_of(trainer.exchange)
        model = resumed.model
        assert isinstance(model, Recorder)
        return len(model.rows), resumed.exchange.crossing.memory.drift.noisy

    assert results(run_threads(RANKS, run)) == [(6, True)] * RANKS


@pytest.mark.parametrize("how", ["random", "with-empty-block"])
@pytest.mark.parametrize("staleness", ["variation-gap:gap=0.03", "variation-gap:max_age=0"])
def test_a_resumed_process_fetches_the_input_where_it_needs_it_first(
    tmp_path: Path, how: str, staleness: str
) -> None:
    """All ranks make the pass or none: also one that receives nothing, and a policy that keeps no history."""
    shards = shards_of(GRAPH, how, RANKS, tmp_path)
    config = config_of(reuse_input=True, staleness=staleness, norm="batch")

    def run(group: Group) -> None:
        trainer, resumed = (thread_trainer(config, open_own(shards, group), group) for _ in range(2))
        for epoch in range(3):
            trainer.train_epoch(epoch)
        resumed.model.load_state_dict(trainer.model.state_dict())
        resumed.optimizer.load_state_dict(deepcopy(trainer.optimizer.state_dict()))
        resumed.exchange.crossing.restore(trainer.exchange.crossing.state())
        trainer.exchange.crossing.forget()
        for epoch in range(3, 6):
            assert resumed.train_epoch(epoch) == trainer.train_epoch(epoch)
        assert log_of(resumed.exchange) == log_of(trainer.exchange)

    results(run_threads(RANKS, run))
