"""PyG's layers and whole models on a partition: the same numbers as in PyG, or one line that says why not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sancus
from sancus.comm.group import Group
from sancus.config.resolve import make_config
from sancus.errors import UserError
from sancus.exchange.full_graph import FullGraph
from sancus.graphs.normalise import Normalisation
from sancus.models.contract import is_pyg_model
from sancus.models.pyg import PyGLayer
from sancus.models.pyg_model import PyGModel
from sancus.runs import build
from sancus.runs.node_order import everywhere
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.threads import open_own, results, run_threads

gnn = pytest.importorskip("torch_geometric.nn")
IN, OUT = 6, 4

# layer -> how it is made: those that run on a partition as they do in PyG (docs/models.md lists them)
WORK: dict[str, Callable[[], Any]] = {
    "SAGEConv": lambda: gnn.SAGEConv(IN, OUT),
    "GATConv": lambda: gnn.GATConv(IN, OUT, heads=2),
    "GATv2Conv": lambda: gnn.GATv2Conv(IN, OUT, heads=2),
    "GINConv": lambda: gnn.GINConv(nn.Linear(IN, OUT)),
    "GraphConv": lambda: gnn.GraphConv(IN, OUT),
    "TransformerConv": lambda: gnn.TransformerConv(IN, OUT, heads=2),
    "ResGatedGraphConv": lambda: gnn.ResGatedGraphConv(IN, OUT),
    "LEConv": lambda: gnn.LEConv(IN, OUT),
}
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "GCNConv": (lambda: gnn.GCNConv(IN, OUT), "normalises over its own edges; make it with normalize=False"),
    "ChebConv": (lambda: gnn.ChebConv(IN, OUT, K=2), "wants one set of rows"),
    "TAGConv": (lambda: gnn.TAGConv(IN, OUT), "wants one set of rows"),
    "APPNP": (lambda: gnn.APPNP(2, 0.1), "wants one set of rows"),
    "ClusterGCNConv": (lambda: gnn.ClusterGCNConv(IN, OUT), "wants one set of rows"),
    "GATConv of edges": (
        lambda: gnn.GATConv(IN, OUT, edge_dim=3),
        "was made for features of edges (edge_dim=3)",
    ),
    "GINEConv": (lambda: gnn.GINEConv(nn.Linear(IN, OUT)), "needs features of edges (edge_attr)"),
}


def on_ranks(
    folders: dict[int, Path], ranks: int, run: Callable[[FullGraph], torch.Tensor], kind: Normalisation
) -> torch.Tensor:
    """The rows of all ranks, which each computes with `run`, in the order of the graph."""
    config = make_config(preset="exact", plan="halo", dtype="float64", kernel="torch")

    def rank(group: Group) -> torch.Tensor:
        shard = open_own(folders[ranks], group)
        exchange = build.make_exchange(config, shard, group, torch.device("cpu"), kind)
        exchange.begin_epoch(0)
        with torch.no_grad():
            return everywhere(shard, group, run(exchange))

    return results(run_threads(ranks, rank))[0]


@pytest.fixture(scope="module")
def partition(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Any, dict[int, Path], torch.Tensor, torch.Tensor]:
    graph = awkward_graph(features=IN)
    edges = graph.adjacency.tocoo()
    index = torch.tensor(sorted(zip(edges.coords[1].tolist(), edges.coords[0].tolist(), strict=True))).T
    x = torch.from_numpy(graph.features).double()
    folders = {
        ranks: shards_of(graph, "random", ranks, tmp_path_factory.mktemp("shards")) for ranks in (1, 3)
    }
    return graph, folders, x, index


@pytest.mark.parametrize("name", WORK)
def test_a_layer_computes_what_it_computes_in_pyg(name: str, partition: Any) -> None:
    _, folders, x, index = partition
    torch.manual_seed(0)
    layer = WORK[name]().double()
    weights = (
        {"edge_weight": weights_of(partition)} if "edge_weight" in layer.forward.__code__.co_varnames else {}
    )
    with torch.no_grad():
        expected = layer(x, index, **weights)
    wrapped = PyGLayer(layer)
    found = on_ranks(folders, 3, lambda exchange: wrapped(exchange.input, exchange, 0), "sum")
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def weights_of(partition: Any) -> torch.Tensor:
    graph, _, _, index = partition
    dense = torch.from_numpy(graph.adjacency.toarray()).double()
    return dense[index[1], index[0]]


@pytest.mark.parametrize("name", REFUSED)
def test_a_layer_that_cannot_work_says_why(name: str) -> None:
    make, said = REFUSED[name]
    with pytest.raises(UserError) as caught:
        PyGLayer(make())
    assert said in str(caught.value) and "\n" not in str(caught.value)


class Net(nn.Module):
    """As PyG's own examples are written."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.conv1 = gnn.SAGEConv(features, hidden)
        self.conv2 = gnn.GATConv(hidden, classes)

    def forward(self, x, edge_index):  # type: ignore[no-untyped-def]
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "a class of one's own": lambda: Net(IN, 5, OUT),
    "GraphSAGE": lambda: gnn.GraphSAGE(IN, 5, 2, OUT),
    "GIN": lambda: gnn.GIN(IN, 5, 2, OUT, norm=None),
    "GAT": lambda: gnn.GAT(IN, 6, 2, OUT, heads=2),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_whole_model_runs_as_it_is(name: str, partition: Any) -> None:
    _, folders, x, index = partition
    torch.manual_seed(0)
    network = MODELS[name]().double().eval()
    with torch.no_grad():
        expected = network(x, index)
    model = PyGModel(network)
    found = on_ranks(folders, 1, lambda exchange: model(exchange.input, exchange), model.normalisation)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    with torch.no_grad():
        assert torch.equal(network(x, index), expected), "it is PyG's own again"


def test_a_whole_model_runs_on_several_ranks(partition: Any) -> None:
    _, folders, x, index = partition
    torch.manual_seed(0)
    network = Net(IN, 5, OUT).double()
    with torch.no_grad():
        expected = network(x, index)
    models = {}

    def run(exchange: FullGraph) -> torch.Tensor:
        own = Net(IN, 5, OUT).double()
        own.load_state_dict(network.state_dict())
        models[id(own)] = own
        logits: torch.Tensor = PyGModel(own)(exchange.input, exchange)
        return logits

    torch.testing.assert_close(on_ranks(folders, 3, run, "sum"), expected, rtol=1e-9, atol=1e-12)


class Mixed(Net):
    def __init__(self) -> None:
        super().__init__(IN, 5, OUT)
        self.conv1 = gnn.GCNConv(IN, 5)


class Normed(Net):
    def __init__(self) -> None:
        super().__init__(IN, 5, OUT)
        self.norm = nn.BatchNorm1d(5)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Mixed, "GCNConv beside other layers, or with settings of its own, needs forward(x, exchange)"),
        (Normed, "BatchNorm1d looks at all rows at once"),
        (lambda: nn.Linear(3, 3), "takes edge_index, but has no layer of PyG"),
    ],
)
def test_a_model_that_cannot_work_says_why(make: Callable[[], nn.Module], said: str) -> None:
    with pytest.raises(UserError) as caught:
        PyGModel(make())
    assert said in str(caught.value)


def test_which_models_are_pygs() -> None:
    assert is_pyg_model(Net) and is_pyg_model(Net(IN, 5, OUT)) and is_pyg_model(gnn.GCN(IN, 5, 2, OUT))
    assert not is_pyg_model(nn.Linear(3, 3)) and not is_pyg_model(PyGModel(Net(IN, 5, OUT)))


def test_a_model_of_pyg_trains_in_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANCUS_HOME", str(tmp_path))
    graph = awkward_graph(features=IN)
    torch.manual_seed(0)
    network = gnn.GCN(IN, 5, 2, graph.classes, dropout=0.0)
    how: dict[str, Any] = {"epochs": 3, "quiet": True, "dropout": 0.0}
    result = sancus.train(graph, network, out=tmp_path / "run", **how)
    assert result.model is network
    edges = graph.adjacency.tocoo()
    index = torch.tensor([edges.coords[1].tolist(), edges.coords[0].tolist()])
    with torch.no_grad():
        expected = network.eval()(torch.from_numpy(graph.features), index)
    torch.testing.assert_close(torch.from_numpy(result.logits), expected, rtol=1e-4, atol=1e-5)
    found = sancus.predict(tmp_path / "run", data=graph, model=gnn.GCN(IN, 5, 2, graph.classes))
    assert (found.arrays["logits"] == result.logits).all()
    assert sancus.train(graph, Net, hidden=5, **how).test >= 0
