"""Which segments each stage of a pipeline has, by number and by cost; and what it makes itself."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from sancus.errors import UserError
from sancus.models.build import make_model
from sancus.models.settings import ModelSettings
from sancus.models.trace import Piece, trace
from sancus.training.stages import split_by_cost, split_evenly, with_first


def pieces(layers: str) -> list[Piece]:
    """A segment a letter: `L` has a graph layer, `-` has none."""
    return [
        Piece(frozenset({place} if kind == "L" else ()), (4,), frozenset({f"w{place}"}), frozenset(), {})
        for place, kind in enumerate(layers)
    ]


@pytest.mark.parametrize("layers", ["-LLLLL-", "LLL", "--L-LL--L-", "LLLLLLL"])
def test_no_cut_is_cheaper_than_the_one_by_cost(layers: str) -> None:
    found = pieces(layers)
    random = np.random.default_rng(len(layers))
    for stages in range(1, layers.count("L") + 1):
        costs = random.integers(1, 9, len(found)).astype(float).tolist()
        split = split_by_cost(found, stages, costs)
        assert split.segments[0].start == 0 and split.segments[-1].stop == len(found)
        assert all(any(piece.layers for piece in found[part]) for part in split.segments)
        dearest = max(sum(costs[part]) for part in split.segments)
        starts = [place for place, kind in enumerate(layers) if kind == "L"][1:]
        others = [
            max(sum(costs[a:b]) for a, b in itertools.pairwise([0, *chosen, len(found)]))
            for chosen in itertools.combinations(starts, stages - 1)
        ]
        assert dearest == min(others), (stages, costs)
        even = split_evenly(found, stages)
        held = [sum(bool(piece.layers) for piece in found[part]) for part in even.segments]
        assert max(held) - min(held) <= 1, "equally many layers"


def test_a_dear_first_segment_gets_fewer_layers() -> None:
    split = split_by_cost(pieces("-LLLL-"), 2, [3.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    assert split.segments == [slice(0, 2), slice(2, 6)]


def test_what_all_stages_make_themselves_is_not_handed_on() -> None:
    shape = ModelSettings(layers=4, hidden=6)
    found = trace(make_model("gcnii", 5, 3, shape), 5)
    split = split_evenly(found, 2)
    assert split.columns[0] == (6, 6)
    own = with_first(split, found)
    assert own.columns[0] == (6,) and own.carried == {1}
    assert own.shared == {"input.weight", "input.bias"} and own.owns(1, "input.weight")
    assert not split.owns(1, "input.weight")
    for model in ("gcn", "resgcn+"):
        found = trace(make_model(model, 5, 3, shape), 5)
        with pytest.raises(UserError, match="--recompute-first: no tensor"):
            with_first(split_evenly(found, 2), found)


def test_the_trace_says_what_each_layer_reads() -> None:
    torch.manual_seed(0)
    found = trace(make_model("gcn", 5, 3, ModelSettings(layers=2, hidden=6)), 5)
    assert [piece.reads for piece in found if piece.layers] == [{0: (5, True)}, {1: (6, False)}]
