"""The law of the pipeline: S × W ranks compute what one process with the same chunk order computes.

Loss, logits, every gradient and weight, elementwise, in float64 with plain SGD. What one process computes is
compared with the paper in `tests/papers/test_gnnpipe.py`, and for one chunk with the full graph here.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from sancus.comm.alone import Alone
from sancus.comm.group import Group
from tests.helpers.graphs import shards_of
from tests.helpers.processes import run_ranks
from tests.ranks.pipeline_cases import EPOCHS, Case, cases, train_case

CASES = {case.name: case for case in cases()}
Notes = dict[str, dict[str, Any]]


def make_shards(parts: int, folder: Path) -> dict[str, str]:
    made: dict[str, str] = {}
    for case in CASES.values():
        place = folder / str(abs(hash(str(case.graph))))
        place.mkdir(exist_ok=True)
        key = f"{case.graph} {case.partitioner} {case.chunks}"
        if key not in made:
            made[key] = str(shards_of(case.make_graph(), case.partitioner, parts, place, case.chunks))
    return {name: made[f"{c.graph} {c.partitioner} {c.chunks}"] for name, c in CASES.items()}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Notes:
    folders = make_shards(1, tmp_path_factory.mktemp("alone"))
    return {name: train_case(Group(Alone()), case, folders[name], 1) for name, case in CASES.items()}


@pytest.fixture(
    scope="module",
    params=[(2, 2, "gloo"), (4, 1, "gloo"), pytest.param((2, 2, "mpi"), marks=pytest.mark.mpi)],
    ids=lambda layout: f"{layout[0]}x{layout[1]}-{layout[2]}",
)
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Notes]:
    stages, width, backend = request.param
    arguments = {"folders": make_shards(width, tmp_path_factory.mktemp("ranks")), "stages": stages}
    count = stages * width
    return run_ranks("tests.ranks.pipeline_cases:train_cases", count, backend=backend, **arguments)


@pytest.mark.parametrize("name", CASES)
def test_stages_equal_one_process(ranks: list[Notes], alone: Notes, name: str) -> None:
    assert_equal([rank[name] for rank in ranks], alone[name], CASES[name])


def assert_equal(found: list[dict[str, Any]], expected: dict[str, Any], case: Case) -> None:
    """All that ranks noted of a case is what one process noted."""
    for epoch in range(EPOCHS):
        for figure in ("loss", "train", "val", "test"):
            wanted = expected["records"][epoch][figure]
            for rank in found:
                assert rank["records"][epoch][figure] == pytest.approx(wanted, rel=1e-9), (figure, epoch)
        for stage, parts in by_stage(found).items():
            nodes = torch.cat([rank["nodes"] for rank in parts])
            logits = torch.cat([rank["logits"][epoch] for rank in parts])
            ordered = torch.empty_like(logits)
            ordered[nodes] = logits
            wanted = torch.empty_like(logits)
            wanted[expected["nodes"]] = expected["logits"][epoch]
            torch.testing.assert_close(ordered, wanted, rtol=1e-9, atol=1e-12, msg=f"stage {stage}")
        gradients = {name: g for rank in found for name, g in rank["gradients"][epoch].items()}
        compare(gradients, expected["gradients"][epoch])
    compare({name: value for rank in found for name, value in rank["weights"].items()}, expected["weights"])
    names = [set(parts[0]["weights"]) for parts in by_stage(found).values()]
    several = sum(map(len, names)) > len(expected["weights"])
    assert several == bool(case.flags.get("recompute_first")), "every weight is of one stage"


def compare(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-9, atol=1e-12, msg=name)


def by_stage(found: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    stages = defaultdict(list)
    for rank in found:
        stages[rank["place"].stage].append(rank)
    return stages


@pytest.mark.parametrize(
    "name", ["gat-noisy", "sage-noisy", "gcnii-noisy", "fixed", "stale-gradients", "one-chunk"]
)
def test_what_is_computed_again_is_the_same_bit_for_bit(alone: Notes, name: str, tmp_path: Path) -> None:
    case = CASES[name]
    folder = str(shards_of(case.make_graph(), case.partitioner, 1, tmp_path, case.chunks))
    again = train_case(Group(Alone()), case, folder, 1, recompute=True)
    for epoch in range(EPOCHS):
        assert again["records"][epoch]["loss"] == alone[name]["records"][epoch]["loss"]
        for weight, gradient in alone[name]["gradients"][epoch].items():
            assert torch.equal(again["gradients"][epoch][weight], gradient), weight
