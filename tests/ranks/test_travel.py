"""Shards go from host to host: each rank's part, once, checked by checksums."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from sancus.comm.group import Group
from sancus.console.speaker import SILENT
from sancus.errors import UserError
from sancus.graphs.shards import open_shard
from sancus.shards.partition import partition
from sancus.shards.travel import pull_shards, push_shards
from tests.helpers.command import run
from tests.helpers.processes import run_ranks

GRAPH = "synthetic:nodes=301,features=12,classes=4,degree=6"
RANKS = 3
pytestmark = pytest.mark.slow


def refusal(group: Group, place: Path) -> str:
    try:
        push_shards(group, place)
    except UserError as error:
        return str(error)
    return "not refused"


def travels(group: Group, top: Path) -> dict[str, Any]:
    """All of it in one go: each rank has a folder of its own, as each host has."""
    place, found = top / f"host{group.rank}", dict[str, Any]()
    found["pushed"] = push_shards(group, place)
    found["nodes"] = open_shard(place, group.rank).nodes.tolist()
    found["parts"] = sorted(folder.name for folder in place.glob("rank-*"))
    found["again"] = push_shards(group, place)
    damaged = place / f"rank-{group.rank}" / "labels.npy"
    if group.rank == 1:
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    found["mended"] = push_shards(group, place)
    open_shard(place, group.rank)
    size = damaged.stat().st_size
    if group.rank == 0:
        shutil.rmtree(place / "rank-2")
    found["refused"] = refusal(group, place) if group.rank != 2 else refusal(group, top / "nowhere")
    found["pulled"] = pull_shards(group, place)
    if group.rank == 0:
        found["whole"] = [open_shard(place, part).rank for part in range(RANKS)]
    found["size"] = size
    return found


def test_every_rank_gets_its_part_once_and_rank_0_gets_them_back(tmp_path: Path) -> None:
    partition(GRAPH, "metis", RANKS, tmp_path / "host0", SILENT, overwrite=False)
    whole = [open_shard(tmp_path / "host0", part) for part in range(RANKS)]
    sizes = [
        sum(file.stat().st_size for file in (tmp_path / f"host0/rank-{part}").iterdir()) for part in (1, 2)
    ]
    found = run_ranks(f"{__name__}:travels", RANKS, top=tmp_path)
    for rank, mine in enumerate(found):
        assert mine["pushed"] == sum(sizes) and mine["again"] == 0
        assert mine["nodes"] == whole[rank].nodes.tolist()
        assert mine["mended"] == found[1]["size"]
        assert "is missing or damaged on rank 0" in mine["refused"]
        assert mine["pulled"] == sizes[1]
    assert [mine["parts"] for mine in found[1:]] == [["rank-1"], ["rank-2"]]
    assert found[0]["whole"] == [0, 1, 2]


def other_shards(group: Group, top: Path) -> str:
    return refusal(group, top / f"host{group.rank}")


def test_other_shards_and_other_numbers_of_ranks_are_refused_on_all(tmp_path: Path) -> None:
    partition(GRAPH, "metis", 2, tmp_path / "host0", SILENT, overwrite=False)
    partition(GRAPH, "random", 2, tmp_path / "host1", SILENT, overwrite=False)
    said = run_ranks(f"{__name__}:other_shards", 2, top=tmp_path)
    assert set(said) == {said[0]} or all("other shards on rank 1 than on rank 0" in line for line in said)
    shutil.rmtree(tmp_path / "host1")
    assert all(
        "holds 2 parts for 3 ranks" in line for line in run_ranks(f"{__name__}:other_shards", 3, top=tmp_path)
    )


def test_without_a_launcher_it_says_how_to_start_it(tmp_path: Path) -> None:
    result = run("shards", "push", tmp_path)
    assert result.code == 2 and "start it as the run is started" in result.err, result
