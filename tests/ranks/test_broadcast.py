"""The ring broadcast moves the same bytes as the library's, round after overlapping round."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sancus.comm import ring as rings
from sancus.comm.group import Group
from sancus.comm.ledger import Entry
from sancus.comm.probe import choose_broadcast
from sancus.config.settings import Config, FactorSettings
from sancus.graphs.shards import open_shard
from sancus.runs.account import broadcast_of
from sancus.runs.build import make_exchange
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.processes import run_ranks

SIZES = (1, 100, rings.CHUNK, 3 * rings.CHUNK + 17)


def rounds(group: Group, ring: bool) -> dict[str, object]:
    """Owners send blocks of several sizes, the next started before the last is waited for."""
    group.ring = ring
    right = []
    for size in SIZES:
        for skipping in (None, 1):
            owners = [owner for owner in range(group.size) if owner != skipping]
            tensors = [
                torch.full((size,), owner + 1 if owner == group.rank else 0, dtype=torch.uint8)
                for owner in owners
            ]
            handles = []
            for owner, tensor in zip(owners, tensors, strict=True):
                handles.append(group.broadcast(tensor, owner, Entry("evaluation")))
                if len(handles) > 1:
                    handles[-2].wait()
            handles[-1].wait()
            right += [
                bool((tensor == owner + 1).all()) for owner, tensor in zip(owners, tensors, strict=True)
            ]
    return {"right": all(right), "wire": group.ledger.wire_of("evaluation")}


def probe(group: Group) -> list[bool]:
    """What `auto`, `ring` and `library` set."""
    found = []
    for asked in ("auto", "ring", "library"):
        choose_broadcast(group, asked, torch.device("cpu"))  # type: ignore[arg-type]
        found.append(group.ring)
    return found


def outcomes(group: Group, folder: str) -> list[str | None]:
    """What `run.json` says of `--broadcast` under two plans."""
    found = []
    for plan, asked in (("block", "auto"), ("block", "ring"), ("block", "library"), ("halo", "auto")):
        config = Config(factors=FactorSettings(plan=plan, broadcast=asked))  # type: ignore[arg-type]
        shard = open_shard(Path(folder), group.rank)
        found.append(broadcast_of(make_exchange(config, shard, group, torch.device("cpu"), "symmetric")))
    return found


@pytest.mark.parametrize(("backend", "ranks"), [("gloo", 2), ("gloo", 3), ("mpi", 3)])
def test_ring_equals_library(backend: str, ranks: int) -> None:
    by_ring = run_ranks("tests.ranks.test_broadcast:rounds", ranks, backend=backend, ring=True)
    by_library = run_ranks("tests.ranks.test_broadcast:rounds", ranks, backend=backend, ring=False)
    assert all(result["right"] for result in by_ring + by_library)
    assert [result["wire"] for result in by_ring] == [result["wire"] for result in by_library]


def test_all_ranks_choose_the_same_broadcast() -> None:
    results = run_ranks("tests.ranks.test_broadcast:probe", 3)
    assert all(result == results[0] for result in results)
    assert results[0][1:] == [True, False]


def test_what_was_chosen_is_recorded(tmp_path: Path) -> None:
    folder = shards_of(awkward_graph(), "random", 2, tmp_path)
    first, second = run_ranks("tests.ranks.test_broadcast:outcomes", 2, folder=str(folder))
    assert first == second and first[0] in ("ring", "library")
    assert first[1:] == ["ring", "library", None]
