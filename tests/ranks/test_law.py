"""The law (design §2): p ranks compute the loss, logits and every gradient of one process, elementwise."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests import reference
from tests.graphs import shards_of
from tests.processes import run_ranks
from tests.ranks.law import EPOCHS, TRAINING, Case, cases

CASES = {case.name: case for case in cases()}


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


@pytest.mark.parametrize("name", CASES)
def test_ranks_equal_one_process(results: list[dict[str, Any]], name: str) -> None:
    notes = [result[name] for result in results]
    expected = _reference(CASES[name], notes[0]["weights"])
    nodes = torch.cat([note["nodes"] for note in notes])
    for epoch in range(EPOCHS):
        loss = sum(note["losses"][epoch] for note in notes)
        assert loss == pytest.approx(expected.losses[epoch], rel=1e-12)
        logits = torch.cat([note["logits"][epoch] for note in notes])
        torch.testing.assert_close(logits, expected.logits[epoch][nodes], rtol=1e-9, atol=1e-12)
        for note in notes:
            assert note["gradients"][epoch].keys() == expected.gradients[epoch].keys()
            for parameter, gradient in expected.gradients[epoch].items():
                torch.testing.assert_close(
                    note["gradients"][epoch][parameter], gradient, rtol=1e-9, atol=1e-12, msg=parameter
                )


def test_losses_fall(results: list[dict[str, Any]]) -> None:
    losses = [sum(r["gcn-halo-metis"]["losses"][epoch] for r in results) for epoch in range(EPOCHS)]
    assert losses[-1] < losses[0]


def _reference(case: Case, weights: dict[str, torch.Tensor]) -> reference.History:
    return reference.train(
        case.make_graph(),
        case.model,
        weights,
        epochs=EPOCHS,
        lr=TRAINING.lr,
        weight_decay=TRAINING.weight_decay,
        residual=case.shape.residual,
    )
