"""The parts that the full graph is made of, each by its own promise: order, noise, mover, constant input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from sancus.comm.group import Group
from sancus.comm.ledger import Stream
from sancus.config.settings import Config, FactorSettings
from sancus.exchange.dropout import DropoutKey, drop_dense, edge_mask
from sancus.exchange.full_graph import FullGraph
from sancus.exchange.product_order import OrderSetting, columns_that_cross, product_order
from sancus.exchange.volume import stream_columns
from sancus.kernels.base import Csr
from sancus.kernels.masks import EdgeMask
from sancus.kernels.matrix import SparseMatrix
from sancus.kernels.summed import Summed
from sancus.kernels.torch_csr import TorchKernel
from sancus.models.settings import ModelSettings
from sancus.runs.build import make_trainer
from sancus.training.settings import TrainingSettings
from sancus.training.trainer import Trainer
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.reference import dense_adjacency, dense_features
from tests.helpers.threads import open_own, results, run_threads

CPU = torch.device("cpu")
ORDERS: tuple[OrderSetting, ...] = ("auto", "aggregate-kept", "aggregate-first", "transform-first")
every_plan = pytest.mark.parametrize("plan", ["block", "halo", "prepost"])


def trainer_of(
    group: Group, folder: Path, hidden: int = 4, layers: int = 2, dropout: float = 0.0, **factors: Any
) -> Trainer:
    config = Config(
        factors=FactorSettings(kernel="torch", broadcast="library", **factors),
        shape=ModelSettings(hidden=hidden, layers=layers, dropout=dropout),
        training=TrainingSettings(dtype="float64", epochs=2),
    )
    return make_trainer(config, open_own(folder, group), group, CPU)


def exchange_of(group: Group, folder: Path, **factors: Any) -> FullGraph:
    exchange = trainer_of(group, folder, **factors).exchange
    exchange.begin_epoch(0)
    return exchange


# The order of products


@given(st.integers(1, 64), st.integers(1, 64), st.booleans())
def test_the_order_sends_the_fewest_columns(f_in: int, f_out: int, gradient: bool) -> None:
    cost = {
        setting: sum(columns_that_cross(setting, f_in, f_out, input_gradient=gradient)) for setting in ORDERS
    }
    assert cost["auto"] == min(2 * f_out, f_in * (2 if gradient else 1))
    assert cost["transform-first"] == 2 * f_out
    assert cost["aggregate-first"] == f_in + (f_out if gradient else 0)
    assert cost["aggregate-kept"] == f_in + (f_in if gradient else 0)
    kept = product_order("aggregate-kept", f_in, f_out, training=True, input_gradient=gradient)
    assert kept == "aggregate-first"
    for setting in ORDERS[2:]:
        assert product_order(setting, f_in, f_out, training=True, input_gradient=gradient) == setting
    without = product_order("auto", f_in, f_out, training=False, input_gradient=gradient)
    assert (without == "aggregate-first") == (f_in < f_out)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("reuse, skip", [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("hidden", [2, 12], ids=["narrow", "wide"])
def test_what_is_predicted_is_what_crosses(
    order: OrderSetting, reuse: bool, skip: bool, hidden: int, tmp_path: Path
) -> None:
    """Columns of every stream, from the bytes of a real epoch; hidden layers narrower and wider than ends."""
    folder = shards_of(awkward_graph(), "random", 2, tmp_path)
    factors = {"plan": "halo", "order": order, "reuse_input": reuse, "skip_input_gradient": skip}

    def run(group: Group) -> tuple[dict[Any, float], dict[Any, int]]:
        trainer = trainer_of(group, folder, hidden=hidden, layers=3, **factors)
        trainer.train_epoch(0)  # the input may cross here
        before = group.ledger.raw.copy()
        trainer.train_epoch(1)
        sent = group.ledger.raw - before
        legs = {"forward": trainer.exchange.plan.forward, "backward": trainer.exchange.plan.backward}
        rows = {side: leg.make[1 - group.rank].rows_out for side, leg in legs.items()}
        assert all(rows.values()), "the graph has an edge each way"
        columns = {(s.layer, s.direction): raw / 8 / rows[s.direction] for s, raw in sent.items()}
        exchange = trainer.exchange
        predicted = stream_columns(trainer.model.widths, exchange.savings, exchange.crossing.policies)  # type: ignore[arg-type]
        return columns, predicted

    for measured, predicted in results(run_threads(2, run)):
        assert measured == predicted


# Noise


def test_step_0_leaves_the_masks_of_a_full_batch_as_they_ever_were() -> None:
    assert [DropoutKey(*key).mixed() for key in ((7, 3, 2), (0, 0, 0), (1, -1, 5))] == [
        668567293345086073,
        2558736989570252433,
        -2468170371420869527,
    ]
    nodes, key = torch.tensor([0, 5, 11, 1000003]), DropoutKey(7, 3, 2)
    kept = drop_dense(torch.ones(4, 8), 0.5, nodes, key) / 2
    assert ["".join(str(int(value)) for value in row) for row in kept] == [
        "10100110",
        "11101001",
        "01001000",
        "00101110",
    ]
    edges = _factors(edge_mask(nodes, nodes.flip(0), 3, 0.5, key)) / 2
    assert edges.tolist() == [[1, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 1]]


def _factors(mask: EdgeMask) -> torch.Tensor:
    """Of the edges between target k and source k, `[n, heads]`."""
    size = len(mask.rows)
    diagonal = Csr(torch.arange(size + 1), torch.arange(size), torch.ones(size), (size, size))
    return mask.factors(SparseMatrix(diagonal, TorchKernel()))


def test_another_step_draws_another_mask() -> None:
    nodes, h = torch.arange(500), torch.ones(500, 20)
    masks = [drop_dense(h, 0.5, nodes, DropoutKey(1, 0, 0, step)) != 0 for step in range(3)]
    edges = [
        _factors(edge_mask(nodes, nodes.flip(0), 2, 0.5, DropoutKey(1, 0, 0, step))) for step in range(3)
    ]
    for first, second in ((0, 1), (1, 2), (0, 2)):
        assert (masks[first] == masks[second]).double().mean().item() == pytest.approx(0.5, abs=0.02)
        assert (edges[first] == edges[second]).double().mean().item() == pytest.approx(0.5, abs=0.06)


def test_noise_is_of_node_epoch_and_step_not_of_the_rank(tmp_path: Path) -> None:
    graph = awkward_graph()
    whole = torch.ones(graph.nodes, 6).double()

    def run(group: Group) -> tuple[torch.Tensor, list[torch.Tensor]]:
        exchange = exchange_of(group, folder, plan="halo")
        own = whole[exchange.nodes]
        found = []
        for epoch, step in ((0, 0), (0, 1), (1, 0)):
            exchange.begin_epoch(epoch)
            group.clock.begin_step(step)
            dropped = exchange.noise.drop(own, 2, 0.5)
            assert isinstance(dropped, torch.Tensor)
            torch.testing.assert_close(exchange.transform(own, 2, torch.eye(6).double(), 0.5), dropped)
            kernel = exchange.plan.forward.diagonal.matrix.kernel
            sparse = SparseMatrix.from_scipy(sp.csr_array(own.numpy()), kernel, own.dtype)
            both = exchange.noise.drop(Summed(sparse, sparse, torch.zeros(6, 6).double()), 2, 0.5)
            assert isinstance(both, Summed)
            torch.testing.assert_close(both.to_dense(), dropped)
            found.append(dropped)
        return exchange.nodes, found

    everyone = []
    for ranks in (1, 3):
        folder = shards_of(graph, "random", ranks, tmp_path / str(ranks))
        joined = [torch.zeros_like(whole) for _ in range(3)]
        for nodes, found in results(run_threads(ranks, run)):
            for total, rows in zip(joined, found, strict=True):
                total[nodes] = rows
        everyone.append(joined)
    for one, three in zip(*everyone, strict=True):
        assert torch.equal(one, three)
    assert len({tuple(mask.flatten().tolist()) for mask in everyone[0]}) == 3


def test_noise_tells_who_measures_drift(tmp_path: Path) -> None:
    folder = shards_of(awkward_graph(), "random", 1, tmp_path)

    def run(group: Group) -> list[bool]:
        exchange = exchange_of(group, folder, plan="halo")
        h = torch.ones(len(exchange.nodes), 2).double()
        quiet = exchange.noise.drop(h, 0, 0.0) is h and exchange.noise.edge_masks(0, 0.0, 2) is None
        noisy = [exchange.crossing.memory.drift.noisy]
        calls = [
            lambda: exchange.noise.drop(h, 0, 0.5),
            lambda: exchange.noise.drop_transform(h, 0, torch.ones(2, 2).double(), 0.5),
            lambda: exchange.noise.edge_masks(0, 0.5, 2),
        ]
        for call in calls:
            exchange.crossing.memory.drift.noisy = False
            call()
            noisy.append(exchange.crossing.memory.drift.noisy)
        return [quiet, *noisy]

    assert results(run_threads(1, run))[0] == [True, False, True, True, True]


# Mover


@every_plan
def test_the_mover_multiplies_by_the_matrix_and_its_transpose(plan: str, tmp_path: Path) -> None:
    graph = awkward_graph()
    folder = shards_of(graph, "random", 3, tmp_path)
    a = dense_adjacency(graph, "symmetric")
    whole = torch.sin(torch.arange(graph.nodes).double()[:, None] * torch.arange(1.0, 4.0))

    def run(group: Group) -> tuple[torch.Tensor, ...]:
        exchange = exchange_of(group, folder, plan=plan)
        mover, own = exchange.mover, whole[exchange.nodes]
        once = mover.aggregate_once(own, 0, absent=False)
        alone = mover.aggregate_once(own, 0, absent=True)
        forward, backward = (mover.aggregate(own, 1, side) for side in ("forward", "backward"))  # type: ignore[arg-type]
        return exchange.nodes, forward, backward, once, alone

    for nodes, forward, backward, once, alone in results(run_threads(3, run)):
        torch.testing.assert_close(forward, a[nodes] @ whole)
        torch.testing.assert_close(backward, a.T[nodes] @ whole)
        torch.testing.assert_close(once, forward)
        torch.testing.assert_close(alone, a[nodes][:, nodes] @ whole[nodes])


@pytest.mark.parametrize("plan", ["block", "halo"])
def test_returning_rows_is_the_transpose_of_gathering_them(plan: str, tmp_path: Path) -> None:
    """`Σ_i <gather(h)_i, g_i> = Σ_i <h_i, return(g)_i>`, and the mover's edges fit what it gathers."""
    graph = awkward_graph()
    folder = shards_of(graph, "random", 3, tmp_path)
    a = dense_adjacency(graph, "symmetric")
    whole = torch.sin(torch.arange(graph.nodes).double()[:, None] * torch.arange(1.0, 4.0))

    def run(group: Group) -> tuple[float, float]:
        exchange = exchange_of(group, folder, plan=plan)
        own, mover = whole[exchange.nodes], exchange.mover
        gathered = mover.gather_rows(own, 0, None)
        torch.testing.assert_close(mover.gather_once(own, 1, absent=False), gathered)
        torch.testing.assert_close(mover.local_rows @ gathered, a[exchange.nodes] @ whole)
        gradient = torch.cos(gathered * (group.rank + 2))
        returned = mover.return_rows(gradient, 0)
        return (gathered * gradient).sum().item(), (own * returned).sum().item()

    everyone = results(run_threads(3, run))
    assert sum(left for left, _ in everyone) == pytest.approx(sum(right for _, right in everyone))


# Constant input


@every_plan
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_a_constant_input_crosses_once(plan: str, sparse: bool, tmp_path: Path) -> None:
    graph = awkward_graph(sparse=sparse)
    folder = shards_of(graph, "random", 3, tmp_path)
    a, x = dense_adjacency(graph, "symmetric"), dense_features(graph)
    weight = torch.cos(torch.arange(7 * 3).double()).view(7, 3)

    def run(group: Group) -> tuple[torch.Tensor, ...]:
        exchange = exchange_of(group, folder, plan=plan)
        first = exchange.propagate(exchange.input, 0, weight)
        rows = exchange.rows(exchange.input, 0, weight=weight) if plan == "halo" else None
        sent = group.ledger.wire_of("payload")
        assert sent and Stream(0, "forward", group.rank) in group.ledger.raw
        again = exchange.propagate(exchange.input, 0, weight)
        assert torch.equal(first, again)
        if rows is not None:
            assert torch.equal(rows, exchange.rows(exchange.input, 0, weight=weight))
            torch.testing.assert_close(exchange.local_rows @ rows, first)
        torch.testing.assert_close(exchange.propagate(exchange.input, 0), a[exchange.nodes] @ x)
        assert group.ledger.wire_of("payload") == sent
        return exchange.nodes, first

    for nodes, first in results(run_threads(3, run)):
        torch.testing.assert_close(first, a[nodes] @ (x @ weight))


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("weighted", [False, True], ids=["bare", "weight"])
def test_dropout_of_a_constant_input_is_that_of_one_process(
    sparse: bool, weighted: bool, tmp_path: Path
) -> None:
    """Of a dense input it falls on `Â X`, of a sparse one on the entries of `X`; by node, in every call."""
    graph = awkward_graph(sparse=sparse)
    a, x = dense_adjacency(graph, "symmetric"), dense_features(graph)
    weight = torch.cos(torch.arange(7 * 3).double()).view(7, 3) if weighted else None

    def run(group: Group) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        exchange = exchange_of(group, folder, plan="halo")
        propagated = exchange.propagate(exchange.input, 0, weight, dropout=0.5)
        rows = exchange.rows(exchange.input, 1, dropout=0.5, weight=weight)
        return exchange.nodes, propagated, rows[: len(exchange.nodes)]

    ids = torch.arange(graph.nodes)

    def dropped(h: torch.Tensor, layer: int) -> torch.Tensor:
        return drop_dense(h, 0.5, ids, DropoutKey(0, 0, layer))

    factor = torch.eye(7).double() if weight is None else weight
    expected = (a @ dropped(x, 0) if sparse else dropped(a @ x, 0)) @ factor
    for ranks in (1, 3):
        folder = shards_of(graph, "random", ranks, tmp_path / str(ranks))
        for nodes, propagated, rows in results(run_threads(ranks, run)):
            torch.testing.assert_close(propagated, expected[nodes])
            torch.testing.assert_close(rows, (dropped(x, 1) @ factor)[nodes])
