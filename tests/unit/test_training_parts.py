"""The small parts of training, each by its own contract: clock, task, parameter sync, step, best epoch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sancus.comm.clock import Clock
from sancus.comm.group import Group
from sancus.errors import UserError
from sancus.exchange.health import Health
from sancus.training.evaluation import Best
from sancus.training.hidden_labels import HiddenLabels
from sancus.training.node_task import NodeTask
from sancus.training.parameter_sync import SumOfGradients
from sancus.training.task import SPLITS, Task
from tests.helpers.threads import results, run_threads

LABELS = torch.tensor([0, 1, 1, 0, 2, 2])
ROWS = {"train": torch.tensor([0, 2, 4]), "val": torch.tensor([1]), "test": torch.tensor([3, 5])}


def node_task() -> NodeTask:
    return NodeTask(LABELS, {split: ROWS[split] for split in SPLITS}, train_count=3.0)


def test_a_clock_counts_epochs_and_steps() -> None:
    clock = Clock()
    assert (clock.epoch, clock.step, clock.exact) == (-1, 0, False)
    clock.begin_epoch(3)
    clock.begin_step(2)
    assert (clock.epoch, clock.step) == (3, 2)
    clock.begin_epoch(4)
    assert (clock.epoch, clock.step) == (4, 0)


def test_an_evaluation_ends_also_when_it_fails_and_may_be_nested() -> None:
    clock = Clock()
    with clock.during("evaluation"):
        with clock.during("evaluation"):
            assert clock.exact
        assert clock.exact
    assert not clock.exact
    with pytest.raises(RuntimeError), clock.during("evaluation"):
        raise RuntimeError
    assert not clock.exact


@pytest.mark.parametrize("kind", ["plain", "hidden"])
def test_a_task_keeps_its_contract(kind: str) -> None:
    """Loss and score are shares that add up over ranks, whoever owns which rows."""
    logits = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    plain = node_task()
    hides_none = HiddenLabels(plain, 0.0, lambda rows: torch.zeros(len(rows), dtype=torch.bool))
    task: Task = plain if kind == "plain" else hides_none
    halves = [torch.tensor([0, 1, 2]), torch.tensor([3, 4, 5])]
    losses, scores = [], []
    for half in halves:
        rows = {split: torch.nonzero(torch.isin(half, ROWS[split])).flatten() for split in SPLITS}
        part: Any = NodeTask(LABELS[half], rows, train_count=3.0)
        if kind == "hidden":
            part = HiddenLabels(part, 0.0, lambda rows: torch.zeros(len(rows), dtype=torch.bool))
        losses.append(part.loss(logits[half]))
        scores.append(part.score(logits[half]))
    torch.testing.assert_close(losses[0] + losses[1], task.loss(logits), rtol=1e-12, atol=0)
    torch.testing.assert_close(scores[0] + scores[1], task.score(logits), rtol=0, atol=0)
    assert task.metric == "accuracy"
    assert task.predictions(logits).tolist() == logits.argmax(dim=1).tolist()
    for split in SPLITS:
        assert task.rows_needed(split).tolist() == ROWS[split].tolist()


def test_nodes_that_show_their_label_neither_train_nor_score() -> None:
    logits = torch.zeros(6, 3, dtype=torch.float64)
    logits[0, 0] = logits[2, 1] = 5.0  # right
    logits[4, 0] = 5.0  # wrong
    shown = torch.tensor([True, False, False])  # node 0 of the training nodes 0, 2 and 4
    task = HiddenLabels(node_task(), 1 / 3, lambda rows: shown)
    others = NodeTask(LABELS, {**ROWS, "train": torch.tensor([2, 4])}, train_count=2.0)
    torch.testing.assert_close(task.loss(logits), others.loss(logits))
    copied = logits.clone()
    copied[4] = torch.tensor([0.0, 0.0, 9.0])  # an evaluation in which every training node shows its label
    assert task.score(copied)[0].tolist() == [1.0, 2.0]
    assert task.score(copied)[1:].tolist() == node_task().score(copied)[1:].tolist()


def test_logits_of_a_wrong_shape_are_the_users_mistake_with_hidden_labels_too() -> None:
    task = HiddenLabels(node_task(), 0.5, lambda rows: torch.zeros(len(rows), dtype=torch.bool))
    with pytest.raises(UserError, match="the model returned"):
        task.loss(torch.zeros(6))


def test_gradients_are_summed_over_replicas_and_absent_ones_count_as_zero() -> None:
    def on_rank(group: Group) -> list[Any]:
        model = nn.ParameterDict({"a": nn.Parameter(torch.zeros(2)), "b": nn.Parameter(torch.zeros(3))})
        model["a"].grad = torch.tensor([1.0, 2.0]) * (group.rank + 1)
        if group.rank == 1:
            model["b"].grad = torch.ones(3)
        SumOfGradients(group, Health(group)).before_update(model)
        return [parameter.grad.tolist() for parameter in model.parameters() if parameter.grad is not None]

    for gradients in results(run_threads(3, on_rank)):
        assert gradients == [[6.0, 12.0], [1.0, 1.0, 1.0]]


def test_the_best_epoch_keeps_a_copy_of_its_weights() -> None:
    model = nn.Linear(2, 1, bias=False)
    best = Best().better(0, 0.5, 0.4, model)
    weight = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.add_(1.0)
    assert best.better(1, 0.5, 0.9, model) is best, "no better than before"
    assert best.better(1, None, None, model) is best, "not scored"
    torch.testing.assert_close(best.weights["weight"], weight)
    assert best.better(2, 0.6, 0.3, model).epoch == 2
