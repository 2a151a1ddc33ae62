"""Models: equal to PyG's layers, the user's own, settings, attention block by block, the API."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import nn

from sancus import api
from sancus.comm.alone import Alone
from sancus.comm.group import Group
from sancus.config.settings import Config, FactorSettings
from sancus.errors import UserError
from sancus.exchange.attention import attend_blocks, attend_rows
from sancus.exchange.fused_attention import ALL
from sancus.graphs.shards import open_shard
from sancus.kernels.base import Kernel
from sancus.kernels.masks import EdgeMask
from sancus.kernels.matrix import SparseMatrix
from sancus.kernels.torch_csr import TorchKernel
from sancus.models import MODELS
from sancus.models.build import make_model
from sancus.models.gat import AdditiveScore, DynamicScore
from sancus.models.pyg import PyGLayer
from sancus.models.settings import ModelSettings
from sancus.runs.build import make_trainer
from sancus.training.auc import mean_roc_auc
from sancus.training.node_task import check_metric
from sancus.training.settings import TrainingSettings
from sancus.training.trainer import Trainer
from tests.helpers.graphs import awkward_graph, shards_of
from tests.unit.test_kernels import kernel_or_skip

CPU = torch.device("cpu")
SHAPE = ModelSettings(layers=1, hidden=6, heads=2, output_heads=2, dropout=0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards_of(awkward_graph(), "contiguous", 1, tmp_path_factory.mktemp("shards"))


def trainer_of(folder: Path, model: Any = None, *, name: str = "gcn", **settings: Any) -> Trainer:
    training = TrainingSettings(epochs=2, dtype="float64", **settings)
    config = Config(model=name, shape=SHAPE, training=training)
    return make_trainer(config, open_shard(folder, 0), Group(Alone()), CPU, model)


# Equal to PyG's layers, with the same weights


def pyg_twin(gnn: Any, name: str, layer: Any) -> Any:
    """PyG's layer with the weights of one of ours."""
    f_in, f_out = 7, 3
    pairs: list[tuple[torch.Tensor, torch.Tensor]]
    if name == "gcn":
        conv = gnn.GCNConv(f_in, f_out)
        pairs = [(conv.lin.weight, layer.weight.T), (conv.bias, layer.bias)]
    elif name == "sage":
        conv = gnn.SAGEConv(f_in, f_out)
        pairs = [(conv.lin_l.weight, layer.neighbours.T), (conv.lin_r.weight, layer.own.T)]
        pairs += [(conv.lin_l.bias, layer.bias)]
    elif name == "gin":
        mlp = nn.Sequential(nn.Linear(f_in, 6), nn.ReLU(), nn.Linear(6, f_out))
        conv = gnn.GINConv(mlp, train_eps=True)
        pairs = [(mlp[0].weight, layer.weight.T), (mlp[0].bias, layer.bias), (conv.eps, layer.eps)]
        pairs += [(mlp[2].weight, layer.second.weight.T), (mlp[2].bias, layer.second.bias)]
    elif name == "gat":
        conv = gnn.GATConv(f_in, f_out, heads=2, concat=False)
        pairs = [(conv.lin.weight, layer.weight.T), (conv.bias, layer.bias)]
        pairs += [(conv.att_src, layer.score.source[None]), (conv.att_dst, layer.score.target[None])]
    else:
        conv = gnn.GATv2Conv(f_in, f_out, heads=2, concat=False)
        pairs = [(conv.lin_l.weight, layer.weight.T), (conv.lin_r.weight, layer.score.target.T)]
        pairs += [(conv.att, layer.score.attention[None]), (conv.bias, layer.bias)]
        pairs += [(lin.bias, torch.zeros_like(lin.bias)) for lin in (conv.lin_l, conv.lin_r)]
    conv = conv.double()
    for theirs, ours in pairs:
        theirs.data = ours.detach().double().clone()
    return conv


@pytest.mark.parametrize("plan", ["halo", "block"])
@pytest.mark.parametrize("name", ["gcn", "sage", "gin", "gat", "gatv2"])
def test_equal_to_pyg(folder: Path, name: str, plan: str) -> None:
    gnn = pytest.importorskip("torch_geometric.nn")
    config = Config(
        model=name, factors=FactorSettings(plan=plan), shape=SHAPE, training=TrainingSettings(dtype="float64")
    )
    trainer = make_trainer(config, open_shard(folder, 0), Group(Alone()), CPU)
    for parameter in trainer.model.parameters():
        nn.init.normal_(parameter, std=0.5)
    graph = awkward_graph()
    found = graph.adjacency.tocoo()
    edges = torch.from_numpy(np.stack([found.coords[1], found.coords[0]]).astype(np.int64))
    with torch.no_grad():
        twin = pyg_twin(gnn, name, trainer.model.layers[0])  # type: ignore[index, union-attr]
        expected = twin(torch.from_numpy(np.asarray(graph.features, np.float64)), edges)
    torch.testing.assert_close(trainer.logits(), expected, rtol=1e-10, atol=1e-12)


# Attention: block by block equals all at once


class TwoBlocks:
    """Own rows and one more owner's, as the stream of a rank has them."""

    def __init__(self, dense: np.ndarray, rows: torch.Tensor, cut: int, kernel: Kernel) -> None:
        self.matrices = [_sparse(dense[:, :cut], kernel), _sparse(dense[:, cut:], kernel)]
        self.rows, self.returned = rows, torch.empty(0)

    def first(self, values: torch.Tensor) -> Any:
        yield 0, self.matrices[0], values
        yield 1, self.matrices[1], self.rows

    def again(self, values: torch.Tensor, work: Any) -> torch.Tensor:
        self.returned = work(1, self.matrices[1], self.rows)
        return work(0, self.matrices[0], values)


def _sparse(dense: np.ndarray, kernel: Kernel) -> SparseMatrix:
    return SparseMatrix.from_scipy(sp.csr_array(dense), kernel, torch.float64)


class EdgeByEdge:
    """A scorer of which nothing is known: its scores are tensors over the edges."""

    def __init__(self, scorer: Any) -> None:
        self.heads, self.key, self.score = scorer.heads, scorer.key, scorer.score
        self.parameters = scorer.parameters


@pytest.mark.parametrize("kernel", ["torch", "native"])
@pytest.mark.parametrize("score", [AdditiveScore, DynamicScore])
@pytest.mark.parametrize("size", [1.0, 500.0], ids=["mild", "would overflow"])
def test_block_by_block_equals_all_at_once(score: Any, size: float, kernel: str) -> None:
    torch.manual_seed(0)
    dense = (np.random.default_rng(0).random((5, 9)) < 0.5) * 1.0
    dense[1] = 0.0  # a row without an entry
    dense[2, :5], dense[2, 5] = 0.0, 1.0  # one that has none in its own block
    scorer = score(4, 2, 3).double()
    values = (size * torch.randn(9, 6, dtype=torch.float64)).requires_grad_()
    query = (size * torch.randn(5, 2 if score is AdditiveScore else 6, dtype=torch.float64)).requires_grad_()
    used = list(scorer.parameters()) if score is AdditiveScore else [scorer.attention]
    scorer.parameters = lambda: used  # type: ignore[method-assign]
    keys = torch.randint(-(2**31), 2**31, (9, 2)).int()

    def mask(owner: int) -> EdgeMask:
        """The same of an edge, whichever block it is seen in."""
        mine = {ALL: keys, 0: keys[:5], 1: keys[5:]}[owner]
        return EdgeMask(torch.arange(5, dtype=torch.int32), mine, 0.3)

    at_once = attend_rows(_sparse(dense, TorchKernel()), query, values, EdgeByEdge(scorer), mask)
    at_once = torch.where(torch.from_numpy(dense.any(axis=1))[:, None], at_once, 0.0)
    blocks = TwoBlocks(dense, values[5:].detach(), 5, kernel_or_skip(kernel))
    stepwise = attend_blocks(blocks, blocks.matrices[0], query, values[:5], scorer, mask)
    torch.testing.assert_close(stepwise, at_once, rtol=1e-10, atol=1e-10 * size)
    target = torch.randn_like(at_once)
    wanted = [values, query, used[0]]
    expected = torch.autograd.grad(at_once, wanted, target, allow_unused=True)
    own, d_query, d_first = torch.autograd.grad(stepwise, wanted, target, allow_unused=True)
    found = torch.cat([own[:5], blocks.returned])
    for ours, theirs in zip((found, d_query, d_first), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


# The contract of a model


class ByPosition(nn.Module):
    def __init__(self, f_in: int, width: int, f_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(f_in, f_out))
        self.given: dict[str, Any] = {"width": width}

    def forward(self, x: torch.Tensor, exchange: Any) -> torch.Tensor:
        result: torch.Tensor = exchange.propagate(x, 0, self.weight)
        return result


class WithSome(ByPosition):
    def __init__(self, a: int, b: int, c: int, *, dropout: float, rate: float = 0.5) -> None:
        super().__init__(a, b, c)
        self.given = {"dropout": dropout, "rate": rate}


class WithAll(ByPosition):
    def __init__(self, a: int, hidden: int, c: int, **settings: Any) -> None:
        super().__init__(a, hidden, c)
        self.given = settings


class NoParameters(nn.Module):
    def __init__(self, a: int, b: int, c: int) -> None:
        super().__init__()
        self.layers = [nn.Linear(a, c)]


class TooFew(nn.Module):
    def __init__(self, a: int, b: int) -> None:
        super().__init__()


class Failing(nn.Module):
    def __init__(self, a: int, b: int, c: int) -> None:
        super().__init__()
        raise ZeroDivisionError("no")


class NotAModule:
    def __init__(self, a: int, b: int, c: int) -> None:
        pass


class WrongShape(ByPosition):
    def forward(self, x: torch.Tensor, exchange: Any) -> torch.Tensor:
        return super().forward(x, exchange)[:3]


class WrongKind(ByPosition):
    normalisation = "symetric"


def test_a_constructor_gets_what_it_asks_for() -> None:
    settings = ModelSettings(hidden=5, dropout=0.3, layers=4)
    assert make_model(ByPosition, 7, 3, settings).given == {"width": 5}
    assert make_model(WithSome, 7, 3, settings).given == {"dropout": 0.3, "rate": 0.5}
    everything = make_model(WithAll, 7, 3, settings).given
    assert everything["layers"] == 4 and everything["gcnii_alpha"] == 0.1 and "hidden" not in everything
    spec = "tests.unit.test_models:WithSome:rate=0.1"
    assert make_model(spec, 7, 3, settings).given == {"dropout": 0.3, "rate": 0.1}
    assert make_model(ready := ByPosition(7, 5, 3), 7, 3, settings) is ready


@pytest.mark.parametrize(
    "model, words",
    [
        (NoParameters, "has no parameters; assign layers to attributes, not to plain lists"),
        (TooFew, "the constructor takes 2 positional arguments; it must take 3"),
        (Failing, "model 'Failing': ZeroDivisionError: no"),
        (NotAModule, "is a NotAModule; it must be a torch.nn.Module"),
        ("tests.unit.test_models:WithSome:dropout=0.1", "has no setting 'dropout'; its settings: rate"),
        ("nowhere/net.py:Net", "cannot import 'nowhere/net.py': there is no file nowhere/net.py"),
    ],
)
def test_a_wrong_model_is_one_line(model: Any, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        make_model(model, 7, 3, ModelSettings())
    assert "\n" not in str(caught.value)


def test_a_model_that_returns_other_rows_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match=r"the model returned \[3, 3\] for 23 rows; forward must return"):
        trainer_of(folder, WrongShape).train_epoch(0)


def test_an_unknown_normalisation_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match=r"normalisation 'symetric' does not exist; .*did you mean symmetric"):
        trainer_of(folder, WrongKind)


def test_a_file_is_imported_once(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text("from tests.unit.test_models import ByPosition\nclass Net(ByPosition):\n    pass\n")
    first, second = (make_model(f"{file}:Net", 7, 3, ModelSettings()) for _ in range(2))
    assert type(first) is type(second) and isinstance(first, ByPosition)
    file.with_name("broken.py").write_text("1 / 0")
    with pytest.raises(UserError, match=r"cannot import .*broken.py'?: ZeroDivisionError"):
        make_model(f"{tmp_path / 'broken.py'}:Net", 7, 3, ModelSettings())


def test_pyg_layers_that_normalise_over_own_edges_are_refused() -> None:
    gnn = pytest.importorskip("torch_geometric.nn")
    with pytest.raises(UserError, match="make it with normalize=False"):
        PyGLayer(gnn.GCNConv(3, 2))


# Settings and tasks


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: ModelSettings(heads=0), "--heads 0: must be at least 1"),
        (
            lambda: ModelSettings(attention_dropout=1.0),
            "--attention-dropout 1.0: must be at least 0 and below 1",
        ),
        (lambda: ModelSettings(gcnii_alpha=1.5), "--gcnii-alpha 1.5: must be between 0 and 1"),
        (lambda: ModelSettings(gcnii_lambda=-1.0), "--gcnii-lambda -1.0: must be a number"),
        (
            lambda: make_model("gat", 7, 3, ModelSettings(hidden=9)),
            "--hidden 9 is not a multiple of --heads 8",
        ),
        (lambda: TrainingSettings(label_smoothing=1.0), "--label-smoothing 1.0: must be at least 0"),
        (lambda: TrainingSettings(class_weights="1,x"), "--class-weights 1,x: give none, balanced"),
        (lambda: TrainingSettings(class_weights="1,-2"), "--class-weights 1,-2: give none, balanced"),
        (
            lambda: check_metric("roc-auc", multilabel=False),
            "--metric roc-auc: the graph has one label a node",
        ),
        (lambda: check_metric("accuracy", multilabel=True), "choose from auto, micro-f1, roc-auc"),
        (lambda: api.settings(hiden=3), "setting 'hiden' does not exist; choose from"),
    ],
)
def test_a_wrong_setting_is_one_line(make: Any, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_class_weights_must_fit_the_classes(folder: Path) -> None:
    with pytest.raises(UserError, match="2 numbers for 3 classes"):
        trainer_of(folder, class_weights="1,2")


def test_graph_layers_have_their_own_weight_decay(folder: Path) -> None:
    trainer = trainer_of(folder, name="gcnii", weight_decay=0.1, layer_weight_decay=0.3)
    inner = {id(p) for p in trainer.model.layers.parameters()}  # type: ignore[union-attr]
    for group in trainer.optimizer.param_groups:
        assert all((id(p) in inner) == (group["weight_decay"] == 0.3) for p in group["params"])
    assert {group["weight_decay"] for group in trainer.optimizer.param_groups} == {0.1, 0.3}


def test_features_are_scaled_to_a_sum_of_1(tmp_path: Path) -> None:
    for sparse in (False, True):
        graph = awkward_graph(sparse=sparse)
        where = shards_of(graph, "contiguous", 1, tmp_path / str(sparse))
        x = trainer_of(where, normalise_features=True).exchange.input
        raw = np.asarray(graph.features.todense() if sparse else graph.features, np.float64)
        total = raw.sum(axis=1, keepdims=True)
        found = x.to_dense() if isinstance(x, SparseMatrix) else x
        np.testing.assert_allclose(found.numpy(), raw / np.where(total > 0, total, 1), rtol=1e-6)


def test_roc_auc_counts_ties_half_and_leaves_out_labels_without_both() -> None:
    scores = torch.tensor([[1.0, 5.0], [1.0, 4.0], [0.0, 3.0]])
    assert mean_roc_auc(scores, torch.tensor([[True, True], [False, True], [False, True]])) == 0.75
    assert mean_roc_auc(scores[:0], torch.zeros(0, 2, dtype=torch.bool)) is None
    assert mean_roc_auc(scores, torch.zeros(3, 2, dtype=torch.bool)) is None, "no positive node"


@pytest.mark.parametrize("model", ["gat", "gatv2"])
def test_attention_needs_rows(folder: Path, model: str) -> None:
    factors = FactorSettings(plan="prepost")
    config = Config(model=model, factors=factors, shape=ModelSettings(dropout=0.0))
    trainer = make_trainer(config, open_shard(folder, 0), Group(Alone()), CPU)
    with pytest.raises(
        UserError, match="weighs edges by content, but the plan sends sums; choose --plan halo"
    ):
        trainer.train_epoch(0)


# The API


def test_train_in_one_call() -> None:
    seen = []
    graph = awkward_graph()
    found = api.train(graph, "gcn", hidden=8, epochs=3, preset="cagnet", after_epoch=seen.append)
    assert found.epochs == seen and len(seen) == 3
    assert found.logits is not None and found.logits.shape == (23, 3)
    hits = found.logits.argmax(axis=1)[graph.test_mask] == graph.labels[graph.test_mask]
    assert found.metric == "accuracy" and found.test == pytest.approx(hits.mean())
    again = api.train(graph, WithAll, {"hidden": 8}, epochs=2)
    assert isinstance(again.model, WithAll)


@pytest.mark.parametrize("model", MODELS)
def test_every_model_learns(model: str) -> None:
    graph = api.load("synthetic:nodes=300,classes=4")
    found = api.train(graph, model, hidden=16, heads=2, epochs=30, dropout=0.1, lr=0.02)
    assert found.test > 0.4, found.test


class FakeData:
    """As PyG's `Data`."""

    def __init__(self) -> None:
        graph = awkward_graph()
        found = graph.adjacency.tocoo()
        self.edge_index = torch.from_numpy(np.stack([found.coords[1], found.coords[0]]).astype(np.int64))
        self.x, self.y = torch.from_numpy(np.array(graph.features)), torch.from_numpy(np.array(graph.labels))
        for name in ("train_mask", "val_mask", "test_mask"):
            setattr(self, name, torch.from_numpy(np.array(getattr(graph, name))))


class FakeOgb:
    """As OGB's own `NodePropPredDataset`."""

    name = "ogbn-fake"

    def __getitem__(self, place: int) -> Any:
        data = FakeData()
        graph = {"edge_index": data.edge_index.numpy(), "node_feat": data.x.numpy(), "num_nodes": 23}
        return graph, data.y.numpy()[:, None]

    def get_idx_split(self) -> dict[str, Any]:
        graph = awkward_graph()
        masks = {"train": graph.train_mask, "valid": graph.val_mask, "test": graph.test_mask}
        return {name: np.flatnonzero(mask) for name, mask in masks.items()}


def test_graphs_in_memory_are_taken_as_they_are() -> None:
    graph = awkward_graph()
    masks = {name: getattr(graph, name) for name in ("train_mask", "val_mask", "test_mask")}
    from_scipy = api.load(
        graph.adjacency,
        x=sp.csr_array(graph.features),
        y=graph.labels,
        **masks | {"test_mask": np.flatnonzero(graph.test_mask)},
    )
    for found in (api.load(FakeData()), api.load([FakeData()]), api.load(FakeOgb()), from_scipy):
        assert (found.adjacency != graph.adjacency).nnz == 0
        x = found.features.todense() if sp.issparse(found.features) else found.features
        np.testing.assert_array_equal(x, graph.features)
        np.testing.assert_array_equal(found.labels, graph.labels)
        for name, mask in masks.items():
            np.testing.assert_array_equal(getattr(found, name), mask)
    assert api.load(graph) is graph
    assert api.load(FakeOgb()).name == "ogbn-fake"


@pytest.mark.parametrize(
    "source, fields, words",
    [
        (3, {}, "a int is no graph; give a name, a path"),
        ([FakeData(), FakeData()], {}, "holds 2 graphs; give one of them"),
        (
            sp.csr_array((3, 3)),
            {"x": np.ones((3, 2))},
            "also give y=…, train_mask=…, val_mask=…, test_mask=…",
        ),
    ],
)
def test_what_is_no_graph_is_refused(source: Any, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        api.load(source, **fields)


def test_graphs_that_differ_have_other_shards() -> None:
    graph = awkward_graph()
    assert api.fingerprint(graph) == api.fingerprint(awkward_graph())
    for other in ({"seed": 1}, {"sparse": True}, {"weighted": True}, {"directed": False}):
        assert api.fingerprint(awkward_graph(**other)) != api.fingerprint(graph)
