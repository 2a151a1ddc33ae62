"""The law: p ranks compute the loss, logits and every gradient of one process, elementwise.

It is stated in `docs/design.md`, "Mathematics".
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sancus.comm.alone import Alone
from sancus.comm.group import Group
from tests.helpers import reference
from tests.helpers.graphs import shards_of
from tests.helpers.processes import run_ranks
from tests.ranks.law import EPOCHS, assert_law, cases, expected_of, train_case

CASES = {case.name: case for case in cases()}
OWN = [name for name, case in CASES.items() if ":" in case.model]


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Every case, trained by p ranks in one group."""
    ranks: int = request.param
    made: dict[str, str] = {}
    folders = {}
    for case in CASES.values():
        key = f"{case.graph} {case.partitioner} {case.train_nodes}"
        if key not in made:
            folder = tmp_path_factory.mktemp("shards")
            made[key] = str(shards_of(case.make_graph(), case.partitioner, ranks, folder))
        folders[case.name] = made[key]
    return run_ranks("tests.ranks.law:train_cases", ranks, folders=folders)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, reference.History]:
    """The cases of a user's own model, which the reference does not know, by one process of ours."""
    found = {}
    for name in OWN:
        case, folder = CASES[name], tmp_path_factory.mktemp("alone")
        note = train_case(Group(Alone()), case, shards_of(case.make_graph(), "contiguous", 1, folder))
        found[name] = reference.History(note["losses"], note["logits"], note["gradients"])
    return found


@pytest.mark.parametrize("name", CASES)
def test_ranks_equal_one_process(
    results: list[dict[str, Any]], alone: dict[str, reference.History], name: str
) -> None:
    case, notes = CASES[name], [result[name] for result in results]
    assert_law(case, notes, alone[name] if name in OWN else expected_of(case, notes[0]["weights"]))


def test_losses_fall(results: list[dict[str, Any]]) -> None:
    losses = [sum(r["gcn-halo-metis"]["losses"][epoch] for r in results) for epoch in range(EPOCHS)]
    assert losses[-1] < losses[0]


def test_roc_auc_compares_every_pair(results: list[dict[str, Any]]) -> None:
    graph = CASES["multilabel-auc"].make_graph()
    notes = [result["multilabel-auc"] for result in results]
    nodes = torch.cat([note["nodes"] for note in notes])
    masks = (graph.train_mask, graph.val_mask, graph.test_mask)
    for epoch in range(EPOCHS):
        logits = torch.empty(graph.nodes, graph.classes, dtype=torch.float64)
        logits[nodes] = torch.cat([note["logits"][epoch] for note in notes])
        found = sum(note["scores"][epoch] for note in notes)
        for (top, bottom), mask in zip(found.tolist(), masks, strict=True):
            assert bottom == 1.0
            assert top == pytest.approx(_auc(logits.numpy()[mask], np.asarray(graph.labels)[mask]))


def _auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Pair by pair, label by label."""
    found = []
    for column in range(labels.shape[1]):
        good, bad = scores[labels[:, column], column], scores[~labels[:, column], column]
        if len(good) and len(bad):
            wins = (good[:, None] > bad).sum() + 0.5 * (good[:, None] == bad).sum()
            found.append(wins / (len(good) * len(bad)))
    return float(np.mean(found)) if found else 0.0
