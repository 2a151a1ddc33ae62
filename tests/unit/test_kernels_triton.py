"""The Triton kernels: interpreted, they are the C library's; compiled, they are machine code of every GPU."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.triton_cases import TARGETS, run, specialisations

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
]


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    graph = awkward_graph(nodes=14, sparse=True)
    outcomes: dict[str, Any] = run(
        "interpret", shards_of(graph, "random", 2, tmp_path_factory.mktemp("shards"))
    )
    return outcomes


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    outcomes: dict[str, dict[str, Any]] = run("compile_ahead", tmp_path_factory.mktemp("cache"))
    return outcomes


def test_interpreted_kernels_give_what_the_c_library_gives(interpreted: dict[str, Any]) -> None:
    """Bits, masks and picks exactly; sums but for rounding."""
    assert len(interpreted["wrong"]) == 24
    assert not {name: wrong for name, wrong in interpreted["wrong"].items() if wrong}


def test_training_on_triton_is_training_in_c(interpreted: dict[str, Any]) -> None:
    """All that a GPU would do by Triton finds its kernel: sparse features, masks, attention, codes."""
    for native, there in interpreted["trained"]:
        for key in ("loss", "val", "test", "wire_bytes"):
            found = [record[key] for record in there]
            assert found == pytest.approx([record[key] for record in native], rel=1e-12), key


@pytest.mark.parametrize("target", TARGETS)
def test_every_specialisation_compiles(compiled: dict[str, dict[str, Any]], target: str) -> None:
    for one in specialisations():
        made = compiled[f"{one.name}-{target}"]
        assert made.get("bytes", 0) > 1000, f"{one.name}: {made}"


def test_bits_are_rounded_after_every_operation(compiled: dict[str, dict[str, Any]]) -> None:
    """A product and a sum in one, or an approximate quotient, would give other bits than C."""
    loose = {name: made["loose"] for name, made in compiled.items() if "gfx" not in name}
    assert not any(count for name, count in loose.items() if name.startswith("triton_bits."))
    assert any(count for name, count in loose.items() if name.startswith("spmm.")), "nothing is seen"
