"""Shards: whole for every partitioner, the same however streamed, in 32 or 64 bits; `sancus partition`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from sancus.comm.group import Group
from sancus.console.speaker import SILENT
from sancus.datasets.info import facts_of, info_rows, oddities
from sancus.datasets.npz import save_npz
from sancus.datasets.open import open_graph
from sancus.datasets.spool import spool
from sancus.errors import UserError
from sancus.graphs import bounded as pieces
from sancus.graphs import shards
from sancus.graphs.graph import Graph
from sancus.graphs.shard_writer import write_shards
from sancus.partitioners import PARTITIONERS
from sancus.partitioners.base import assign, splits_of
from sancus.partitioners.pieces import csr_pieces
from sancus.plugins import build
from sancus.runs.node_order import in_user_order
from sancus.shards.cache import parts_of, prepare
from sancus.shards.partition import compare, partition
from tests.helpers.command import read_run, run
from tests.helpers.graphs import awkward_graph
from tests.helpers.threads import open_own, results, run_threads
from tests.unit.test_datasets_formats import example

TOP = Path(__file__).parents[2]


def cut(graph: Graph, how: str, parts: int, folder: Path) -> Path:
    """Shards by a partitioner that is told the splits."""
    splits = splits_of(graph.train_mask, graph.val_mask, graph.test_mask)
    assignment = assign(build("partitioner", PARTITIONERS, how), graph.adjacency, parts, splits)
    write_shards(graph, assignment, parts, how, folder)
    return folder


def checksums(folder: Path) -> dict[str, str]:
    found: dict[str, str] = shards.read_manifest(folder)["checksums"]
    return found


@pytest.mark.parametrize("how", [*PARTITIONERS, "metis:balance=rows+nonzeros+train+val+test"])
def test_rows_return_in_the_users_order_for_every_partitioner(how: str, tmp_path: Path) -> None:
    graph = awkward_graph()
    folder = cut(graph, how, 3, tmp_path / "shards")

    def gather(group: Group) -> torch.Tensor | None:
        shard = open_own(folder, group)
        return in_user_order(shard, group, torch.from_numpy(np.array(shard.features)))

    everyone = results(run_threads(3, gather))
    np.testing.assert_array_equal(everyone[0].numpy(), graph.features)
    rows = np.concatenate(
        [shards.open_shard(folder, rank).operator("sum").rows.toarray() for rank in range(3)]
    )
    order = np.concatenate([shards.open_shard(folder, rank).nodes for rank in range(3)])
    back = np.zeros_like(rows)
    back[np.ix_(order, order)] = rows
    np.testing.assert_array_equal(back, graph.adjacency.toarray())


@pytest.mark.parametrize("variant", ["directed", "undirected", "sparse"])
def test_shards_are_the_same_however_they_are_streamed(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = awkward_graph(directed=variant == "directed", sparse=variant == "sparse")
    whole = cut(graph, "random", 3, tmp_path / "whole")
    monkeypatch.setattr(csr_pieces, "__defaults__", (5,))
    monkeypatch.setattr(pieces.row_pieces, "__defaults__", (20,))
    monkeypatch.setattr("sancus.graphs.shard_writer.TRANSPOSE_ENTRIES", 7)
    monkeypatch.setattr("sancus.graphs.shard_writer.OPEN_FILES", 2)
    if variant != "sparse":
        mapped = spool([graph.features[:9], graph.features[9:]], "features")
        assert isinstance(mapped, np.memmap)
        masks = (graph.train_mask, graph.val_mask, graph.test_mask)
        graph = Graph(graph.adjacency, mapped, graph.labels, *masks, classes=graph.classes, name=graph.name)
    streamed = cut(graph, "random", 3, tmp_path / "streamed")
    assert checksums(streamed) == checksums(whole)
    assert shards.read_manifest(streamed) == shards.read_manifest(whole)


@pytest.mark.parametrize("directed", [False, True])
def test_the_64_bit_path_gives_the_same_graph(
    directed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with more than 2³¹ entries: every pointer and column is 64 bits wide, nothing else changes."""
    graph = awkward_graph(directed=directed, weighted=True)
    save_npz(graph, tmp_path / "graph.npz")
    narrow = cut(graph, "metis", 3, tmp_path / "narrow")
    monkeypatch.setattr(pieces, "LARGEST_INT32", 3)
    read = open_graph(str(tmp_path / "graph.npz"))
    wide_adjacency = sp.csr_array(read.adjacency)
    wide_adjacency.indices, wide_adjacency.indptr = (
        array.astype(np.int64) for array in (wide_adjacency.indices, wide_adjacency.indptr)
    )
    masks = (read.train_mask, read.val_mask, read.test_mask)
    graph = Graph(wide_adjacency, read.features, read.labels, *masks, classes=read.classes, name=graph.name)
    wide = cut(graph, "metis", 3, tmp_path / "wide")
    for rank in range(3):
        ours, theirs = shards.open_shard(wide, rank), shards.open_shard(narrow, rank)
        assert ours.arrays["incoming_indices"].dtype == ours.arrays["incoming_indptr"].dtype == np.int64
        assert theirs.arrays["incoming_indices"].dtype == np.int32
        for kind in ("symmetric", "mean", "sum"):
            own, other = ours.operator(kind), theirs.operator(kind)  # type: ignore[arg-type]
            np.testing.assert_array_equal(own.rows.toarray(), other.rows.toarray())
            np.testing.assert_array_equal(own.transposed_rows.toarray(), other.transposed_rows.toarray())
    assert shards.read_manifest(wide)["partition"] == shards.read_manifest(narrow)["partition"]


def test_index_types_at_the_border() -> None:
    assert pieces.index_type(2**31 - 1) is np.int32
    assert pieces.index_type(2**31) is np.int64


def test_the_manifest_tells_what_every_plan_costs(tmp_path: Path) -> None:
    graph = awkward_graph()
    facts = shards.read_manifest(cut(graph, "random", 4, tmp_path / "shards"))["partition"]
    assert facts["payload_rows"]["block"] == 3 * graph.nodes
    assert facts["payload_rows"]["prepost"] <= facts["payload_rows"]["halo"]
    assert facts["bytes_per_column"]["halo"] == 8 * facts["payload_rows"]["halo"]
    assert sum(facts["train"]) == graph.train_mask.sum() and len(facts["test"]) == 4


STREAM = """
import resource, sys
import numpy as np, scipy.sparse as sp
from pathlib import Path
from sancus.datasets.open import open_graph
from sancus.graphs.graph import Graph
from sancus.graphs.shard_writer import write_shards

graph = open_graph(sys.argv[1])
write_shards(graph, np.arange(graph.nodes) % 2, 2, "odd", Path(sys.argv[2]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def test_features_are_never_in_memory_at_once(tmp_path: Path) -> None:
    """Peak memory of building shards does not grow with the features: 16 or 144 MB of them."""
    peaks = []
    for width in (16, 144):
        nodes = 250_000
        path = tmp_path / f"{width}.npz"
        masks = np.arange(nodes) % 3
        x = np.zeros((nodes, width), np.float32)
        np.savez(
            path,
            edge_index=np.stack([np.arange(nodes - 1), np.arange(1, nodes)]),
            x=x,
            y=masks,
            **{name: masks == n for n, name in enumerate(("train_mask", "val_mask", "test_mask"))},
        )
        done = subprocess.run(
            [sys.executable, "-c", STREAM, str(path), str(tmp_path / f"shards-{width}")],
            capture_output=True,
            text=True,
            cwd=TOP,
            check=True,
        )
        peaks.append(int(done.stdout))
    assert peaks[1] - peaks[0] < 60e6, peaks


def test_a_mapped_matrix_is_given_back_while_it_is_read() -> None:
    """64 MB on disk are read in pieces of 16 MB, of which one is resident at a time."""
    matrix = spool((np.ones((1 << 16, 64), np.float32) for _ in range(4)), "rows")
    resident = []
    before = mapped_bytes()
    for rows in pieces.row_pieces(matrix):
        assert matrix[rows].sum() > 0
        resident.append(mapped_bytes() - before)
    assert len(resident) == 4 and max(resident) < 24e6, resident


def mapped_bytes() -> int:
    """Resident bytes of mapped files of this process."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"RssFile:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


# `sancus partition`, `sancus train DIR`, `sancus data info`


@pytest.fixture
def graph_file(tmp_path: Path) -> Path:
    save_npz(awkward_graph(nodes=40), tmp_path / "graph.npz")
    return tmp_path / "graph.npz"


@pytest.mark.slow
def test_a_stranger_partitions_trains_and_gets_predictions(graph_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "shards"
    made = run("partition", graph_file, "--parts", "2", "--partitioner", "bytegnn", "--out", out)
    assert made.code == 0 and f"train with: sancus train {out}" in made.out, made
    flags = ("--epochs", "3", "--dropout", "0")
    from_shards = run("train", out, *flags, "--out", tmp_path / "a")
    assert from_shards.code == 0, from_shards
    from_graph = run(
        "train", graph_file, *flags, "--ranks", "2", "--partitioner", "bytegnn", "--out", tmp_path / "b"
    )
    assert from_graph.code == 0, from_graph
    first, second = (np.load(tmp_path / name / "predictions.npz")["prediction"] for name in "ab")
    assert len(first) == 40
    np.testing.assert_array_equal(first, second)
    assert read_run(tmp_path / "a")["hardware"]["ranks"] == 2
    assert read_run(tmp_path / "a")["partition"]["partitioner"] == "bytegnn"


def test_shards_are_replaced_only_when_asked(graph_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "shards"
    partition(str(graph_file), "random", 2, out, SILENT, overwrite=False)
    before = checksums(out)
    with pytest.raises(UserError, match="holds shards already; choose another directory, or add --overwrite"):
        partition(str(graph_file), "random", 3, out, SILENT, overwrite=False)
    assert checksums(out) == before and parts_of(str(out)) == 2
    partition(str(graph_file), "random", 3, out, SILENT, overwrite=True)
    assert parts_of(str(out)) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph.npz", "shards"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="exists and holds no shards"):
        partition(str(graph_file), "random", 2, tmp_path / "mine", SILENT, overwrite=True)
    with pytest.raises(UserError, match="41 ranks for 40 nodes"):
        partition(str(graph_file), "random", 41, out, SILENT, overwrite=True)
    assert parts_of(str(out)) == 3


def test_shards_of_another_version_or_damaged(graph_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "shards"
    partition(str(graph_file), "random", 2, out, SILENT, overwrite=False)
    assert prepare(str(out), "metis", 2).directory == out
    with pytest.raises(UserError, match="holds 2 parts for 3 ranks; use --ranks 2"):
        prepare(str(out), "metis", 3)
    manifest = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").write_text(json.dumps(manifest | {"format": 1}))
    with pytest.raises(UserError, match=f"has shard format 1, this version reads {shards.FORMAT}"):
        prepare(str(out), "metis", 2)
    (out / "manifest.json").write_text(json.dumps(manifest).replace("random", "radnom"))
    with pytest.raises(UserError, match="damaged or missing"):
        prepare(str(out), "metis", 2)


def test_partitioners_side_by_side(graph_file: Path) -> None:
    table = compare(str(graph_file), ["random", "metis:seed=1"], 3, SILENT)
    assert [row[0] for row in table] == ["partitioner", "random", "metis:seed=1"]
    assert all(len(row) == len(table[0]) for row in table)
    assert float(table[1][2]) > float(table[2][2])  # the cut


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--parts", "0", "--out", "x"], "--parts 0: must be at least 1"),
        (["--parts", "2"], "--out is missing: the directory for the shards"),
        (
            ["--parts", "2", "--out", "x", "--partitioner", "metsi"],
            "'metsi' does not exist.*did you mean metis",
        ),
        (["--parts", "2", "--out", "x", "--partitioner", "metis", "ldg"], "give one, or add --compare"),
        (["--parts", "2", "--out", "x", "--compare"], "--compare writes nothing"),
    ],
)
def test_mistakes_of_partition_are_one_line(
    flags: list[str], words: str, graph_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    from sancus.cli import app as cli

    monkeypatch.setattr(sys, "argv", ["sancus", "partition", str(graph_file), *flags])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    err = capsys.readouterr().err
    assert caught.value.code == 2 and re.search(words, err) and err.count("\n") == 1, err


def test_info_counts_by_hand() -> None:
    dense = np.zeros((6, 6), np.float32)
    for a, b in ((0, 1), (1, 2), (3, 4)):
        dense[a, b] = dense[b, a] = 1
    dense[0, 0] = 1
    labels = np.array([0, 0, 1, 1, 1, -1])
    masks = np.eye(6, dtype=bool)
    graph = Graph(sp.csr_array(dense), np.eye(6, dtype=np.float32), labels, *masks[:3], classes=3)
    facts = facts_of(graph)
    assert facts.homophily == pytest.approx(5 / 7)  # entries 00 01 10 34 43 of one class, 12 21 of two
    assert (facts.loops, facts.components, facts.largest, facts.zero_rows) == (1, 3, 3, 0)
    rows = dict(info_rows(graph, facts, "npz"))
    assert rows["degree"] == "mean 1.2, median 1, max 2" and rows["isolated nodes"] == "1"
    assert rows["in no split"] == "3" and rows["entries"] == "7 (undirected)"
    said = "\n".join(oddities(graph, facts))
    assert "16.7 % of the nodes have no neighbour" in said and "1 of 3 classes have no node" in said
    assert "1 self-loops" in said
    assert not oddities(example(), facts_of(example()))


def test_info_sees_what_is_odd() -> None:
    good = example()
    masks = (good.train_mask, good.val_mask, good.test_mask)

    def say(**changes: Any) -> str:
        fields = {"adjacency": good.adjacency, "features": good.features, "labels": good.labels} | changes
        graph = Graph(fields["adjacency"], fields["features"], fields["labels"], *masks, classes=3)
        return "\n".join(oddities(graph, facts_of(graph)))

    assert "features reach 5000" in say(features=good.features * 0 + 5000)
    assert "all nodes have the same features" in say(features=good.features * 0 + 5000)
    assert "only zero features" in say(features=sp.csr_array(good.features * 0))
    labels = np.where(good.labels == 0, 1, good.labels)
    labels[11] = 0
    assert "1 classes have no training node" in say(labels=labels)
    one_way = good.adjacency.toarray()
    first = np.argwhere(one_way)[0]
    one_way[tuple(first)] = 0
    assert "most edges have both directions" in say(adjacency=sp.csr_array(one_way))
