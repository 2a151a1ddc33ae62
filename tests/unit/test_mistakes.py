"""Mistakes of new users, on the command line and in Python: each is one line with value, cause and remedy.

A table of those that were once answered wrongly, and of their neighbours; `test_cli.py` has more of flags,
`test_node_tables.py` and `test_datasets_mistakes.py` of files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import nn

import sancus
from sancus.launch.exit_codes import EXIT_USER
from tests.helpers import command
from tests.helpers.graphs import awkward_graph

GRAPH = "synthetic:nodes=60,features=4,classes=3"
OWN = "tests.unit.test_mistakes"

COMMANDS: dict[str, tuple[str, str]] = {
    "ranks 2.5": (f"train {GRAPH} --ranks 2.5", "--ranks 2.5: must be a whole number"),
    "epochs 1e-1": (f"train {GRAPH} --epochs 1e-1", "--epochs 1e-1: must be a whole number"),
    "parts 2.5": (f"partition {GRAPH} --parts 2.5 --out x", "--parts 2.5: must be a whole number"),
    "ranks of an estimate": (f"estimate {GRAPH} --ranks 2 2.5", "--ranks 2.5: must be a whole number"),
    "seeds 1.5": (
        f"compare {GRAPH} --presets lean --seeds 1.5 --out x",
        "--seeds 1.5: must be a whole number",
    ),
    "quiet and verbose": (f"train {GRAPH} --quiet --verbose", "--quiet and --verbose contradict each other"),
    "out is empty": (
        f"train {GRAPH} --out ''",
        "--out '' names nothing; give a path, . for the current directory",
    ),
    "resume is empty": (f"train {GRAPH} --resume ''", "--resume '' names nothing"),
    "out of a partition": (f"partition {GRAPH} --parts 2 --out ''", "--out '' names nothing"),
    "no presets": (f"compare {GRAPH} --out x", "--presets: name at least one preset; sancus list shows them"),
    "presets without a name": (f"compare {GRAPH} --presets", "--out is missing: the directory for all runs"),
    "compare to nowhere": (
        f"compare {GRAPH} --presets cagnet nope",
        "--out is missing: the directory for all runs",
    ),
    "compare what": (
        f"compare {GRAPH} --presets cagnet nope --out x",
        "preset 'nope' does not exist; choose from",
    ),
    "compare twice": (
        f"compare {GRAPH} --presets lean cagnet lean --out x",
        "--presets names lean twice; name each once",
    ),
    "stages of a full graph": (
        f"train {GRAPH} --stages 2",
        "--stages 2: only --schedule pipeline has it; leave it out, or choose --preset gnnpipe",
    ),
    "fan-out of a full graph": (
        f"train {GRAPH} --fanout 5,5",
        "--fanout 5,5 is for mini-batches; add --batch-size",
    ),
    "sampler of a full graph": (f"train {GRAPH} --sampler labor", "--sampler labor is for mini-batches"),
    "predict text": ("predict nowhere --out a.txt", "predictions are written as .npz, .csv, .parquet"),
    "runs of nothing": ("runs nowhere", "nowhere is no directory; give one that holds runs"),
    "codec": (
        f"train {GRAPH} --codec {OWN}:NoLossless",
        "does not say lossless; set lossless = True or False",
    ),
    "codec's method": (
        f"train {GRAPH} --codec {OWN}:NoDecode",
        "has no method decode; a codec must have wire",
    ),
    "codec's call": (
        f"train {GRAPH} --codec {OWN}:WrongEncode",
        "encode(payload) must be encode(payload, moment",
    ),
    "kernel": (f"train {GRAPH} --kernel {OWN}:NoAccumulate", "has no method accumulate; a kernel must have"),
    "partitioner": (
        f"train {GRAPH} --partitioner {OWN}:NoAssign",
        "has no method assign; a partitioner must",
    ),
    "partitioner's call": (
        f"train {GRAPH} --partitioner {OWN}:WrongAssign",
        "assign(graph) must be assign(adjacency, parts)",
    ),
    "policy's call": (f"train {GRAPH} --staleness {OWN}:WrongDecide", "decide() must be decide(view)"),
    "model's call": (f"train {GRAPH} --model {OWN}:OneArgument", "forward(x) must be forward(x, exchange)"),
    "model of PyG": (f"train {GRAPH} --model {OWN}:OfPyG", "takes edge_index, but has no layer of PyG"),
}


class NoLossless:
    def wire(self, rows: Any, columns: Any, dtype: Any, device: Any, stage: Any) -> None: ...
    def encode(self, payload: Any, moment: Any, weight: Any) -> None: ...
    def decode(self, wire: Any, rows: Any, columns: Any, dtype: Any, stage: Any) -> None: ...


class NoDecode:
    lossless = True

    def wire(self, rows: Any, columns: Any, dtype: Any, device: Any, stage: Any) -> None: ...
    def encode(self, payload: Any, moment: Any, weight: Any) -> None: ...


class WrongEncode(NoLossless):
    lossless = True

    def encode(self, payload) -> None: ...  # type: ignore[override, no-untyped-def]


class NoAccumulate:
    def prepare(self, matrix: Any) -> None: ...
    def multiply(self, prepared: Any, dense: Any) -> None: ...


class NoAssign:
    """Parts nothing."""


class WrongAssign:
    def assign(self, graph) -> None: ...  # type: ignore[no-untyped-def]


class WrongDecide:
    max_age = 1

    def decide(self) -> None: ...


class OneArgument(nn.Module):
    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(features, classes)

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.layer(x)


class OfPyG(OneArgument):
    def forward(self, x, edge_index):  # type: ignore[no-untyped-def]
        return self.layer(x)


class OfPyGWithWeights(OneArgument):
    def forward(self, x, edge_index, edge_weight):  # type: ignore[no-untyped-def]
        return self.layer(x)


class Wide(OneArgument):
    """One class more than there are."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__(features, hidden, classes + 1)

    def forward(self, x: Any, exchange: Any) -> Any:  # type: ignore[override]
        return self.layer(exchange.propagate(x, 0))


class Data:
    """What a PyG `Data` has."""

    def __init__(self, **fields: Any) -> None:
        self.edge_index = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
        self.x, self.y = torch.ones(4, 2), torch.tensor([0, 1, 0, 1])
        for name, value in fields.items():
            setattr(self, name, value)


class Hetero:
    node_types, edge_types = ("paper", "author"), (("author", "writes", "paper"),)


class Temporal:
    src = dst = t = msg = torch.ones(3)


class Links(Data):
    def __init__(self) -> None:
        super().__init__(y=None, edge_label=torch.ones(4))


class Batch(Data):
    def __init__(self) -> None:
        super().__init__(
            y=torch.tensor([0, 1]), batch=torch.tensor([0, 0, 1, 1]), ptr=torch.tensor([0, 2, 4])
        )


def train(graph: Any = None, model: Any = None, config: Any = None, **flags: Any) -> Callable[[], Any]:
    def call() -> Any:
        data = awkward_graph() if graph is None else graph
        return sancus.train(data, model, config, **{"quiet": True, "epochs": 1, **flags})

    return call


MATRIX = sp.csr_array(np.eye(3, dtype=np.float32))
CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "epochs of text": (train(epochs="5"), "epochs='5' is a str; it must be a whole number"),
    "ranks 2.5": (train(ranks=2.5), "ranks=2.5 is a float; it must be a whole number"),
    "ranks 0": (train(ranks=0), "--ranks 0: must be at least 1"),
    "ranks of text": (train(ranks="4"), "ranks='4' is a str; it must be a whole number"),
    "lr of text": (train(lr="0.1"), "lr='0.1' is a str; it must be a number"),
    "a rate of none": (train(lr=None), "lr=None is a NoneType; it must be a number"),
    "a list of codecs": (train(codec=["int4"]), "codec=['int4'] is a list; it must be a text"),
    "a class as policy": (train(staleness=WrongDecide), "it must be a text"),
    "misspelt": (train(epoch=5), "setting 'epoch' does not exist; choose from"),
    "quiet and verbose": (train(verbose=True), "--quiet and --verbose contradict each other"),
    "out is empty": (train(out=""), "out='' names nothing; give a directory"),
    "config is a list": (train(config=[("epochs", 3)]), "config is a list; give a dictionary"),
    "settings in the model's place": (
        train(model={"hidden": 4}),
        "model is a dict; give a name, file.py:Net",
    ),
    "a number as model": (train(model=3), "model is a int; give a name, file.py:Net, a class, or a module"),
    "a layer as model": (
        train(model=nn.Linear(4, 3)),
        "forward(input: torch.Tensor) must be forward(x, exchange)",
    ),
    "a layer's class": (train(model=nn.Linear), "must be forward(x, exchange)"),
    "one argument": (train(model=OneArgument), "forward(x) must be forward(x, exchange)"),
    "a model of PyG": (train(model=OfPyG), "takes edge_index, but has no layer of PyG"),
    "a model of PyG with weights": (train(model=OfPyGWithWeights), "put each of PyG's layers in a PyGLayer"),
    "too wide": (
        train(model=Wide),
        "the model's output has 4 columns for 3 classes; make its last layer 3 wide",
    ),
    "no graph": (train(3), "a int is no graph; give a name, a path"),
    "numbers": (train([1, 2]), "a list is no graph; give a name, a path"),
    "an empty list": (train([]), "holds 0 graphs; give one of them"),
    "a dict": (train({"a": 1}), "a dict of a is no graph; give edge_index, x, y and masks"),
    "several kinds": (
        train(Hetero()),
        "a HeteroData has nodes of several kinds; Sancus classifies the nodes of one",
    ),
    "events": (train(Temporal()), "a TemporalData holds events in time"),
    "links": (train(Links()), "has labels of edges (edge_label) and none of nodes (y)"),
    "graphs with a label each": (train(Batch()), "has 2 graphs with a label each"),
    "a label of the graph": (
        train(Data(y=torch.tensor([1]))),
        "y is one label of the whole graph, for 4 nodes",
    ),
    "two graphs": (train([Data(), Data()]), "holds 2 graphs; give one of them, dataset[0]"),
    "no labels": (train(Data(y=None)), "y is missing"),
    "a graph that is not there": (train("synthetik"), "'synthetik' does not exist"),
    "a matrix alone": (lambda: sancus.load(MATRIX), "a scipy matrix holds edges alone; also give x=…, y=…"),
    "half of the tables": (lambda: sancus.load(edges={"u": [0]}), "a graph of tables needs both"),
    "a table of what": (lambda: sancus.load(edges=3, nodes=4), "edges is a int; give a frame of pandas"),
    "columns of two lengths": (
        lambda: sancus.load(edges={"u": [0, 1], "v": [1]}, nodes={"label": [0, 1]}),
        "edges has columns of 1 and 2 rows; make them equal",
    ),
    "a predicted run": (lambda: sancus.predict("nowhere"), "nowhere holds no finished run"),
    "a reported run": (
        lambda: sancus.write_report("nowhere"),
        "nowhere holds no run; give the --out directory",
    ),
    "runs of nothing": (lambda: sancus.list_runs("nowhere"), "nowhere is no directory"),
    "parts of text": (
        lambda: sancus.partition(GRAPH, "2", "x"),
        "parts='2' is a str; it must be a whole number",
    ),
    "presets as one text": (lambda: sancus.compare(GRAPH, "lean", out="x"), "presets='lean' is one text"),
    "no seed": (lambda: sancus.compare(GRAPH, ["lean"], seeds=0, out="x"), "seeds=0: must be at least 1"),
}


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, Any]]:
    cases = [
        {"args": ["" if word == "''" else word for word in line.split()], "env": {}, "missing": []}
        for line, _ in COMMANDS.values()
    ]
    return dict(zip(COMMANDS, command.endings_of(cases), strict=True))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_answered_in_one_line(name: str, answers: dict[str, dict[str, Any]]) -> None:
    answer = answers[name]
    assert answer["code"] == EXIT_USER, answer
    assert answer["err"].startswith("sancus: ") and answer["err"].count("\n") == 1, answer
    assert COMMANDS[name][1] in answer["err"]


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_answered_in_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANCUS_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    call, said = CALLS[name]
    with pytest.raises(sancus.UserError) as caught:
        call()
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_what_is_done_with_a_graph_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Random splits, repeated edges and features of edges are never dealt with in silence."""
    monkeypatch.setenv("SANCUS_HOME", str(tmp_path))
    edges = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 1]])
    data = Data(edge_index=edges, edge_attr=torch.ones(5, 1))
    for _ in range(2):  # also where the shards are there already
        train(data, quiet=False, hidden=2)()
        notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
        assert notes == [
            "note: edge_attr [5, 1] is not used: models see edges and their weights; "
            "as weights of edges they are data.edge_weight",
            "note: 1 of 5 edges repeat an earlier one: counted once",
            "note: the data has no split: it is random, 60 / 20 / 20 % for train, val, test, seed 0",
        ]


@pytest.mark.parametrize("kind", ["HeteroData", "TemporalData"])
def test_what_pyg_has_is_recognised(kind: str) -> None:
    data = pytest.importorskip("torch_geometric.data")
    made = getattr(data, kind)()
    if kind == "HeteroData":
        made["paper"].x = torch.ones(3, 2)
        made["paper", "cites", "paper"].edge_index = torch.tensor([[0, 1], [1, 2]])
    else:
        made.src = made.dst = made.t = torch.arange(3)
    with pytest.raises(sancus.UserError, match=f"a {kind} "):
        sancus.load(made)
