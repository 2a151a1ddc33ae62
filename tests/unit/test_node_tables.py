"""Tables of nodes and edges: words as ids and classes, frames, Parquet, and what is said of odd columns."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sancus
from sancus.datasets.open import open_graph
from sancus.errors import UserError
from sancus.graphs.graph import Graph

NODES = """id,label,age,height,split
user_7,hen,3,1.5,train
user_3,cock,4,0.5,train
user_9,,5,2.5,
user_1,hen,6,3.5,val
user_5,cock,1,1.0,test
"""
EDGES = "source,target\nuser_7,user_3\nuser_3,user_9\nuser_7,user_3\nuser_5,user_1\n"


def folder(place: Path, nodes: str = NODES, edges: str = EDGES) -> Path:
    place.mkdir(exist_ok=True)
    (place / "nodes.csv").write_text(nodes)
    (place / "edges.csv").write_text(edges)
    return place


def test_words_are_ids_classes_and_splits(tmp_path: Path) -> None:
    graph = open_graph(str(folder(tmp_path / "hens")))
    assert graph.origin.ids is not None
    assert graph.origin.ids.tolist() == ["user_7", "user_3", "user_9", "user_1", "user_5"]
    assert graph.origin.classes == ("cock", "hen") and graph.labels.tolist() == [1, 0, -1, 1, 0]
    assert np.asarray(graph.features).tolist() == [[3, 1.5], [4, 0.5], [5, 2.5], [6, 3.5], [1, 1.0]]
    assert graph.adjacency.toarray().tolist()[1] == [1, 0, 0, 0, 0], "the target aggregates from the source"
    masks = (graph.train_mask, graph.val_mask, graph.test_mask)
    assert [np.flatnonzero(mask).tolist() for mask in masks] == [[0, 1], [3], [4]]
    assert graph.origin.notes == ("1 of 4 edges repeat an earlier one: counted once",)


def frames_of(kind: str) -> tuple[Any, Any]:
    rows = list(csv.DictReader(NODES.splitlines()))
    nodes: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in rows[0]}
    nodes |= {"age": [int(row["age"]) for row in rows], "height": [float(row["height"]) for row in rows]}
    nodes["label"] = [word or None for word in nodes["label"]]
    pairs = list(csv.DictReader(EDGES.splitlines()))
    edges = {name: [row[name] for row in pairs] for name in pairs[0]}
    if kind == "pandas":
        import pandas

        return pandas.DataFrame(edges), pandas.DataFrame(nodes)
    if kind == "polars":
        import polars

        return polars.DataFrame(edges), polars.DataFrame(nodes)
    import pyarrow

    return pyarrow.table(edges), pyarrow.table(nodes)


def same(graph: Graph, other: Graph) -> bool:
    assert graph.origin.key() == other.origin.key()
    arrays = ((one.adjacency.toarray(), one.features, one.labels, one.train_mask) for one in (graph, other))
    return all(np.array_equal(a, b) for a, b in zip(*arrays, strict=True))


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow"])
def test_frames_and_parquet_are_the_same_graph(kind: str, tmp_path: Path) -> None:
    pytest.importorskip(kind)
    graph = open_graph(str(folder(tmp_path / "tables")))
    edges, nodes = frames_of(kind)
    assert same(sancus.load(edges=edges, nodes=nodes), graph)
    if kind == "pyarrow":
        from pyarrow import parquet

        place = tmp_path / "parquet"
        place.mkdir()
        parquet.write_table(edges, place / "edges.parquet")
        parquet.write_table(nodes, place / "nodes.parquet")
        assert same(open_graph(str(place)), graph)


BIG = "id,label\n" + "".join(f"{n},{n % 2}\n" for n in range(10))
RING = "".join(f"{n},{(n + 1) % 10}\n" for n in range(10))


def load(place: Path, options: str = "", **tables: str) -> Graph:
    return open_graph(f"{folder(place, **tables)}{options}")


def test_a_random_split_is_said_to_be_one(tmp_path: Path) -> None:
    graph = load(tmp_path, ",features=degree,train=0.9", nodes=BIG, edges=RING)
    assert graph.origin.notes == (
        "the data has no split: it is random, 90 / 5 / 5 % for train, val, test, seed 0",
    )
    assert [int(mask.sum()) for mask in (graph.train_mask, graph.val_mask, graph.test_mask)] == [8, 1, 1]


def test_columns_that_look_like_something_else_are_pointed_out(tmp_path: Path) -> None:
    nodes = "id,label,row,seen,height\n" + "".join(
        f"{n + 5},{n % 2},{n},{1_700_000_000 + 7 * n},{n % 3}\n" for n in range(10)
    )
    edges = "source,target,timestamp\n" + "".join(f"{n + 5},{(n + 1) % 10 + 5},{n}\n" for n in range(10))
    said = load(tmp_path / "a", nodes=nodes, edges=edges).origin.notes
    assert (
        "column 'timestamp' of the edges is not used, it looks like a time; a weight is called weight" in said
    )
    assert "column 'row' looks like an id and is a feature; leave it out with drop=row" in said
    assert "column 'seen' looks like a time and is a feature; leave it out with drop=seen" in said
    graph = load(tmp_path / "b", ",drop=row+seen", nodes=nodes, edges=edges)
    assert graph.feature_count == 1 and not any(
        "looks like" in note and "row" in note for note in graph.origin.notes
    )


def test_weights_and_numbers_as_ids(tmp_path: Path) -> None:
    nodes = "id,label,x\n" + "".join(f"{100 - n},{n % 2},1\n" for n in range(10))
    edges = (
        "src,dst,weight\n"
        + "".join(f"{100 - n},{100 - (n + 1) % 10},0.5\n" for n in range(10))
        + "100,99,1\n"
    )
    graph = load(tmp_path, nodes=nodes, edges=edges)
    assert graph.adjacency[1, 0] == 1.5
    assert "1 of 11 edges repeat an earlier one: their weights are added up" in graph.origin.notes


def lines(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


MISTAKES: dict[str, tuple[str, dict[str, str], str]] = {
    "unknown node": (
        "",
        {"edges": "source,target\nuser_7,user_8\n"},
        "edge 1 names node 'user_8', which the nodes do",
    ),
    "from one": (
        "",
        {"nodes": "label,x\n" + "1,1\n0,1\n" * 5, "edges": "1,10\n"},
        "are nodes numbered from 1?",
    ),
    "two rows": ("", {"nodes": NODES + "user_7,hen,1,1,\n"}, "the nodes have two rows with id 'user_7'"),
    "blank id": ("", {"nodes": NODES + ",hen,1,1,\n"}, "the id of node row 6 is blank"),
    "blank feature": (
        "",
        {"nodes": lines(NODES, "4,0.5", ",0.5")},
        "column 'age' is blank in row 2; fill it",
    ),
    "words": ("", {"nodes": lines(NODES, "4,0.5", "x,0.5")}, "column 'age' holds words ('3')"),
    "split": ("", {"nodes": lines(NODES, "val", "vali")}, "column split holds 'vali'; give train, val, test"),
    "no label": (
        "",
        {"nodes": lines(NODES, "label", "kind")},
        "the nodes have no column label; they have id, kind",
    ),
    "no edge": ("", {"edges": "source,target\n"}, "there is no edge; is this the right file?"),
    "one column": ("", {"edges": "source\nuser_7\n"}, "edges need the columns source and target"),
    "drop": (",drop=agee", {}, "drop=agee: the nodes have no such column"),
    "ragged": ("", {"nodes": NODES + "a,b\n"}, "row 7 has 2 columns; the table has 5"),
    "features": (",features=x", {}, "features=x: only degree"),
    "no features": ("", {"nodes": BIG, "edges": RING}, "no features; add columns of numbers"),
    "no class": ("", {"nodes": NODES.replace("hen", "").replace("cock", "")}, "blank for every node"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_names_its_cause(name: str, tmp_path: Path) -> None:
    options, tables, said = MISTAKES[name]
    with pytest.raises(UserError) as caught:
        load(tmp_path / "graph", options, **tables)
    assert said in str(caught.value) and "\n" not in str(caught.value)


OLD: dict[str, tuple[dict[str, str], str]] = {
    "words": ({"edges.csv": "user_1,user_2\nuser_2,user_3\n", "labels.csv": "0\n1\n0\n"}, "go in nodes.csv"),
    "classes": ({"edges.csv": "0,1\n1,2\n", "labels.csv": "label\nhen\ncock\nhen\n"}, "go in nodes.csv"),
    "blank line": (
        {"edges.csv": "0,1\n1,3\n", "labels.csv": "0\n1\n\n0\n"},
        "3 labels for 4 nodes; a node without",
    ),
    "blank cell": (
        {"edges.csv": "0,1\n1,2\n", "labels.csv": "0,0\n1,\n2,1\n"},
        "a node without a label has -1",
    ),
    "from one": ({"edges.csv": "1,2\n2,3\n", "labels.csv": "0\n1\n0\n"}, "nodes are numbered from 1 to 3"),
    "no edge": ({"edges.csv": "source,target\n", "labels.csv": "0\n1\n0\n"}, "there is no edge"),
}


@pytest.mark.parametrize("name", OLD)
def test_a_mistake_in_an_edge_list_names_its_cause(name: str, tmp_path: Path) -> None:
    files, said = OLD[name]
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    with pytest.raises(UserError) as caught:
        open_graph(f"{tmp_path},features=degree")
    assert said in str(caught.value), caught.value


def test_what_an_edge_list_says(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("0,1,1700000000\n1,2,1700000001\n1,2,1700000002\n")
    (tmp_path / "labels.csv").write_text("0\n1\n0\n")
    notes = open_graph(f"{tmp_path},features=degree").origin.notes
    assert [note.split(":")[0] for note in notes] == [
        "the third column of the edges reaches 1.7e+09, as times do, and is taken as weights",
        "1 of 3 edges repeat an earlier one",
        "the data has no split",
    ]


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SANCUS_HOME", str(tmp_path / "home"))
    return tmp_path


def read_csv(path: Path) -> dict[str, list[str]]:
    rows = list(csv.reader(path.open()))
    return {name: [row[place] for row in rows[1:]] for place, name in enumerate(rows[0])}


def read_parquet(path: Path) -> dict[str, list[str]]:
    from pyarrow import parquet

    found: dict[str, list[str]] = parquet.read_table(path).to_pydict()
    return found


def test_predictions_come_back_with_ids(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = folder(own_home / "hens")
    result = sancus.train(str(data), epochs=2, hidden=4, partitioner="random", out=own_home / "run")
    assert "note: 1 of 4 edges repeat an earlier one: counted once" in capsys.readouterr().out
    readers: dict[str, Callable[[Path], dict[str, list[str]]]] = {"csv": read_csv, "parquet": read_parquet}
    for suffix, read in readers.items():
        sancus.predict(own_home / "run", out=own_home / f"p.{suffix}")
        table = read(own_home / f"p.{suffix}")
        assert list(table) == ["id", "prediction", "logit_cock", "logit_hen"]
        assert table["id"] == ["user_7", "user_3", "user_9", "user_1", "user_5"]
        assert table["prediction"] == [("cock", "hen")[one] for one in result.predictions.tolist()]
