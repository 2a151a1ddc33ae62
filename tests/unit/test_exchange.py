"""The parts of the exchange alone: dropout, history, decisions, drift; then p ranks as threads."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sancus.comm.alone import Alone
from sancus.comm.clock import Clock
from sancus.comm.errors import DisagreementError
from sancus.comm.group import Group
from sancus.comm.ledger import DIRECTIONS, Direction, Stream
from sancus.comm.records import broadcast_bytes, gather_json
from sancus.config.settings import Config, FactorSettings
from sancus.exchange.agreement import Agreement
from sancus.exchange.crossing import CrossingSettings, exact_use
from sancus.exchange.decisions import UNUSED, Decisions
from sancus.exchange.drift import DriftMeter
from sancus.exchange.dropout import DropoutKey, drop_dense, drop_sparse
from sancus.exchange.figures import run_log
from sancus.exchange.full_graph import FullGraph
from sancus.exchange.history import History
from sancus.exchange.state import State
from sancus.kernels import KERNELS
from sancus.kernels.matrix import SparseMatrix
from sancus.models.settings import ModelSettings
from sancus.plugins import build
from sancus.runs.build import make_trainer
from sancus.staleness import POLICIES
from sancus.staleness.base import SEND, SKIP
from sancus.training.settings import TrainingSettings
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.reference import dense_adjacency
from tests.helpers.threads import open_own, results, run_threads

CPU = torch.device("cpu")
KEY = DropoutKey(seed=3, epoch=5, layer=1)
HERE = Stream(2, "forward", 1)


# Dropout


def kept(share: float, nodes: torch.Tensor, columns: int, key: DropoutKey = KEY) -> torch.Tensor:
    return drop_dense(torch.ones(len(nodes), columns, dtype=torch.float64), share, nodes, key) != 0


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_right_share_and_is_unbiased(share: float) -> None:
    dropped = drop_dense(torch.ones(2000, 50, dtype=torch.float64), share, torch.arange(2000), KEY)
    mask = dropped != 0
    deviation = math.sqrt(share * (1 - share) / mask.numel())
    assert abs(mask.double().mean().item() - (1 - share)) < 5 * deviation
    torch.testing.assert_close(dropped[mask], torch.full((int(mask.sum()),), 1 / (1 - share)).double())
    assert dropped.mean().item() == pytest.approx(1.0, abs=5 * deviation / (1 - share))


def test_dropout_is_even_over_rows_columns_and_neighbours() -> None:
    mask = kept(0.5, torch.arange(2000), 50).double()
    assert (mask.mean(dim=0) - 0.5).abs().max() < 5 * math.sqrt(0.25 / 2000)
    assert (mask.mean(dim=1) - 0.5).abs().max() < 6 * math.sqrt(0.25 / 50)
    centred = mask - 0.5
    for other in (centred.roll(1, dims=0), centred.roll(1, dims=1), centred.roll((1, 1), dims=(0, 1))):
        assert abs((centred * other).mean().item()) < 5 * 0.25 / math.sqrt(mask.numel())


def test_dropout_differs_by_everything_it_depends_on() -> None:
    nodes = torch.arange(64)
    masks = [
        kept(0.5, nodes, 16),
        kept(0.5, nodes, 16, DropoutKey(4, 5, 1)),
        kept(0.5, nodes, 16, DropoutKey(3, 6, 1)),
        kept(0.5, nodes, 16, DropoutKey(3, 5, 2)),
        kept(0.5, nodes + 64, 16),
        kept(0.5, nodes, 32)[:, 16:],
        kept(0.5, nodes, 16, DropoutKey(5, 3, 1)),
    ]
    for place, mask in enumerate(masks):
        for other in masks[:place]:
            assert 0.35 < (mask == other).double().mean().item() < 0.65


@given(st.permutations(range(12)), st.integers(0, 12), st.sampled_from([torch.float32, torch.float64]))
def test_dropout_does_not_depend_on_the_split(order: list[int], cut: int, dtype: torch.dtype) -> None:
    nodes, h = torch.tensor(order), torch.randn(12, 5, dtype=dtype)
    whole = drop_dense(h, 0.4, nodes, KEY)
    parts = [drop_dense(h[part], 0.4, nodes[part], KEY) for part in (slice(cut), slice(cut, None))]
    assert torch.equal(torch.cat(parts), whole)
    by_node = drop_dense(h[torch.argsort(nodes)], 0.4, torch.arange(12), KEY)
    assert torch.equal(by_node[nodes], whole)


@given(seed=st.integers(0, 99), share=st.sampled_from([0.2, 0.5, 0.8]))
def test_sparse_dropout_equals_dense(seed: int, share: float) -> None:
    dense = np.random.default_rng(seed).standard_normal((9, 14))
    dense[np.abs(dense) < 0.8] = 0.0
    matrix = SparseMatrix.from_scipy(sp.csr_array(dense), build("kernel", KERNELS, "torch"), torch.float64)
    nodes = torch.arange(9) * 7 + seed
    expected = drop_dense(torch.from_numpy(dense), share, nodes, KEY)
    assert torch.equal(drop_sparse(matrix, share, nodes, KEY).to_dense(), expected)


def test_dropout_gradient_is_the_mask() -> None:
    h = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    dropped = drop_dense(h, 0.5, torch.arange(6), KEY)
    dropped.sum().backward()
    assert h.grad is not None
    assert torch.equal(h.grad, kept(0.5, torch.arange(6), 4).double() * 2)


# History and drift


def test_history_owns_its_memory() -> None:
    history, payload = History(), torch.ones(3, 2)
    history.push(HERE, payload, 0)
    payload.fill_(7.0)
    assert torch.equal(history.pull(HERE), torch.ones(3, 2))
    history.push(HERE, payload, 0)
    payload.zero_()
    assert torch.equal(history.pull(HERE), torch.full((3, 2), 7.0))


def test_history_of_a_slice_does_not_hold_the_whole_buffer() -> None:
    history, buffer = History(), torch.ones(1000, 2)
    history.push(HERE, buffer[:3], 0)
    assert history.nbytes == 3 * 2 * 4 == history.pull(HERE).untyped_storage().nbytes()


def test_history_keeps_streams_apart_and_counts_bytes() -> None:
    history = History()
    streams = [Stream(layer, side, owner) for layer in (0, 1) for side in DIRECTIONS for owner in (0, 1)]
    for number, stream in enumerate(streams):
        history.push(stream, torch.full((number + 1, 3), float(number), dtype=torch.float64), 0)
    for number, stream in enumerate(streams):
        assert torch.equal(history.pull(stream), torch.full((number + 1, 3), float(number)).double())
    assert history.nbytes == sum(range(1, 9)) * 3 * 8
    history.push(streams[0], torch.zeros(1, 3, dtype=torch.float64), 0)
    assert history.nbytes == sum(range(1, 9)) * 3 * 8


hundredths = st.integers(-1000, 1000).map(lambda number: number / 100)


@given(st.lists(st.tuples(hundredths, hundredths), min_size=1, max_size=12))
def test_drift_is_the_mean_absolute_difference(pairs: list[tuple[float, float]]) -> None:
    before, now = (torch.tensor([pair], dtype=torch.float64) for pair in zip(*pairs, strict=True))
    meter = DriftMeter()
    meter.keep(HERE, before, 0)
    expected = sum(abs(a - b) for a, b in pairs) / len(pairs)
    assert meter.measure(HERE, now, "mean") == pytest.approx(expected)
    size = sum(abs(b) for _, b in pairs) / len(pairs)
    relative = 0.0 if expected == 0 else sys.float_info.max if size == 0 else expected / size
    assert meter.measure(HERE, now, "relative") == pytest.approx(relative)


def test_drift_is_measured_from_what_was_sent_not_from_a_later_write() -> None:
    meter, payload = DriftMeter(), torch.ones(2, 2)
    meter.keep(HERE, payload, 0)
    payload += 1.0
    assert meter.measure(HERE, payload, "mean") == 1.0
    assert meter.measure(HERE, payload, "relative") == 0.5
    assert meter.measure(HERE, torch.zeros(2, 2), "relative") == sys.float_info.max
    assert meter.nbytes == 16


def test_drift_of_nothing_is_nothing() -> None:
    meter = DriftMeter()
    meter.keep(HERE, torch.zeros(2, 2), 0)
    assert meter.measure(HERE, torch.zeros(2, 2), "relative") == 0.0
    assert meter.measure(HERE, torch.zeros(0, 2), "mean") == 0.0


# Decisions


def test_decisions_as_array_and_back() -> None:
    clock = Clock()
    decisions = Decisions(3, clock)
    for epoch, sends in enumerate([(1, 1, 1), (0, 1, 0)]):
        clock.begin_epoch(epoch)
        decisions.begin_epoch()
        for owner, send in enumerate(sends):
            decisions.note(Stream(1, "backward", owner), bool(send))
    array = decisions.as_array()
    assert array.shape == (2, 2, 2, 3) and array.dtype == np.int8
    assert (array[:, 0] == UNUSED).all() and (array[:, :, 0] == UNUSED).all()
    assert array[:, 1, 1].tolist() == [[SEND] * 3, [SKIP, SEND, SKIP]]
    assert decisions.counts() == (1, 2) and decisions.max_age == 1
    assert decisions.counts_of(Stream(1, "backward", 0)) == (1, 1)

    other = Decisions(3, clock)
    other.restore(array)
    np.testing.assert_array_equal(other.as_array(), array)
    clock.begin_epoch(2)
    other.begin_epoch()
    assert all(other.age(stream) is None for stream in other.streams())  # the histories are gone
    assert other.counts_of(Stream(1, "backward", 1)) == (2, 0)


def test_ages_count_from_the_last_send() -> None:
    clock = Clock()
    decisions = Decisions(1, clock)
    ages: list[tuple[int | None, int]] = []
    for epoch, send in enumerate([True, False, False, True, False]):
        clock.begin_epoch(epoch)
        decisions.begin_epoch()
        before = decisions.age(HERE)
        decisions.note(HERE, send)
        ages.append((before, decisions.max_age))
    assert ages == [(None, 0), (1, 1), (2, 2), (3, 0), (1, 1)]
    assert decisions.since_first(HERE) == 4
    assert Decisions(2, Clock()).as_array().shape == (0, 0, 2, 2)


# Agreement: how many messages


@pytest.mark.parametrize(
    "forward, agree, gathers",
    [
        ("always", "layer", 0),
        ("drop", "layer", 0),
        ("epoch-fixed:bound=2", "layer", 4),  # one comparison an epoch
        ("variation-gap:gap=0.5", "layer", 4 + 3 * 2),  # and one a layer, but not at the first use
        ("variation-gap:gap=0.5", "epoch", 4),
    ],
)
def test_agreements_cost_what_they_say(forward: str, agree: Any, gathers: int) -> None:
    def run(group: Group) -> tuple[int, int]:
        made = 0
        original = group.all_gather

        def counting(*given: Any) -> torch.Tensor:
            nonlocal made
            made += 1
            return original(*given)

        group.all_gather = counting  # type: ignore[method-assign, assignment]
        decisions = Decisions(group.size, group.clock)
        specs = dict(zip(DIRECTIONS, (forward, "always"), strict=True))
        policies = {side: build("policy", POLICIES, spec) for side, spec in specs.items()}
        needed: dict[Direction, list[bool]] = {side: [True] * group.size for side in DIRECTIONS}
        agreement = Agreement(policies, group, decisions, needed, agree=agree)
        for epoch in range(4):
            group.clock.begin_epoch(epoch)
            decisions.begin_epoch()
            agreement.begin_epoch()
            for layer in range(2):
                agreement.decide(layer, "forward", 0.3)
        return made, group.ledger.wire_of("agreement")

    for made, size in results(run_threads(3, run)):
        assert made == gathers
        assert size >= 2 * 8 * 5 * gathers
        assert bool(size) == bool(gathers)


@pytest.mark.parametrize("what", ["configuration", "stream"])
def test_a_rank_at_another_place_is_named(what: str) -> None:
    def run(group: Group) -> None:
        odd = group.rank == 1
        policies = dict.fromkeys(DIRECTIONS, build("policy", POLICIES, "variation-gap"))
        needed: dict[Direction, list[bool]] = {side: [True] * 2 for side in DIRECTIONS}
        decisions = Decisions(2, group.clock)
        configuration = b"other" if odd and what == "configuration" else b"mine"
        agreement = Agreement(policies, group, decisions, needed, configuration=configuration)
        for epoch in (0, 1):
            group.clock.begin_epoch(epoch)
            decisions.begin_epoch()
            agreement.begin_epoch()
            agreement.decide(0, "forward", 0.3)
            agreement.decide(1, "forward", 0.3)
            agreement.decide(1 if odd and what == "stream" else 0, "forward", 0.3)

    for outcome in run_threads(2, run):
        assert isinstance(outcome, DisagreementError)
        assert re.match(rf"rank 1 disagrees with rank 0 in epoch \d: its {what} is", str(outcome))


def test_a_rank_in_another_epoch_is_named() -> None:
    def run(group: Group) -> None:
        group.clock.begin_epoch(4 + group.rank)
        group.all_gather(torch.zeros(1))

    for rank, outcome in enumerate(run_threads(2, run)):
        assert isinstance(outcome, DisagreementError)
        named = f"rank {rank}: all-gather 1: what came from rank {1 - rank} has label "
        assert str(outcome).startswith(named)


# The whole exchange, on threads


def exchange_of(group: Group, folder: Path, **factors: Any) -> FullGraph:
    config = Config(
        factors=FactorSettings(kernel="torch", broadcast="library", **factors),
        shape=ModelSettings(hidden=4),
        training=TrainingSettings(dtype="float64"),
    )
    return make_trainer(config, open_own(folder, group), group, CPU).exchange


@pytest.mark.parametrize("plan", ["block", "halo"])
def test_aggregate_uses_history_on_skip_and_own_rows_fresh(plan: str, tmp_path: Path) -> None:
    graph = awkward_graph()
    folder = shards_of(graph, "random", 3, tmp_path)
    a = dense_adjacency(graph, "symmetric")

    def run(group: Group) -> tuple[torch.Tensor, list[torch.Tensor]]:
        exchange = exchange_of(group, folder, plan=plan, staleness="epoch-fixed:bound=1")
        outputs = []
        for epoch in range(3):
            exchange.begin_epoch(epoch)
            rows = exchange.nodes.double()[:, None] + 100.0 * epoch
            outputs.append(exchange.mover.aggregate(rows, 1, "forward"))
            rows.fill_(math.nan)  # whoever still looks at this buffer would show it
        with exchange.exact():
            outputs.append(exchange.mover.aggregate(exchange.nodes.double()[:, None] + 7.0, 1, "forward"))
        return exchange.nodes, outputs

    everyone = results(run_threads(3, run))
    order = torch.cat([nodes for nodes, _ in everyone])
    ids = torch.arange(graph.nodes).double()[:, None]
    for nodes, (first, stale, fresh, exact) in everyone:
        torch.testing.assert_close(first, a[nodes] @ ids)
        mixed = ids.clone()
        mixed[nodes] += 100.0  # own rows are of this epoch, all others of the one before
        torch.testing.assert_close(stale, a[nodes] @ mixed)
        torch.testing.assert_close(fresh, a[nodes] @ (ids + 200.0))
        torch.testing.assert_close(exact, a[nodes] @ (ids + 7.0))
    assert sorted(order.tolist()) == list(range(graph.nodes))


@pytest.mark.parametrize("plan", ["block", "halo"])
def test_drift_ignores_dropout(plan: str, tmp_path: Path) -> None:
    """With rows that do not change, a gap skips whatever the masks do (docs/design.md, "Mathematics")."""
    folder = shards_of(awkward_graph(), "random", 2, tmp_path)

    class Constant(nn.Module):
        def forward(self, x: torch.Tensor, exchange: FullGraph) -> None:
            rows = exchange.nodes.double()[:, None] + torch.ones(1, 4).double()
            for layer, weight in ((1, None), (2, torch.ones(4, 2).double())):
                exchange.propagate(rows, layer, weight, dropout=0.5)
            exchange.rows(rows, 3, dropout=0.5)

    def run(group: Group) -> tuple[list[int], float | None]:
        policy = "variation-gap:gap=0.001"
        exchange = exchange_of(group, folder, plan=plan, staleness=policy, reuse_input=False)
        skips, model = [], Constant()
        for epoch in range(3):
            exchange.begin_epoch(epoch, model)
            model(exchange.input, exchange)
            skips.append(exchange.crossing.figures().skips)
        return skips, exchange.crossing.figures().max_drift

    for skips, drift in results(run_threads(2, run)):
        assert skips == [0, 6, 6] and drift == 0.0


def test_clip_holds_the_own_rows_to_root_p_times_the_threshold(tmp_path: Path) -> None:
    graph = awkward_graph()
    folder = shards_of(graph, "random", 2, tmp_path)
    a = dense_adjacency(graph, "symmetric")

    def run(group: Group) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        exchange = exchange_of(group, folder, clip=0.5)
        exchange.begin_epoch(0)
        rows = torch.ones(len(exchange.nodes), 2).double() * (5.0 if group.rank else 0.01)
        return exchange.nodes, rows, exchange.mover.aggregate(rows, 1, "backward")

    everyone = results(run_threads(2, run))
    whole = torch.zeros(graph.nodes, 2).double()
    for nodes, rows, _ in everyone:
        whole[nodes] = rows * min(1.0, 0.5 * math.sqrt(2) / rows.norm().item())
    for nodes, _, result in everyone:
        torch.testing.assert_close(result, (a.T @ whole)[nodes])


def test_records_cross_as_json_and_bytes() -> None:
    def run(group: Group) -> tuple[list[Any], bytes, bytes]:
        records = gather_json(group, {"rank": group.rank, "text": "é" * group.rank}, CPU)
        content = bytes(range(256)) if group.rank == 0 else None
        nothing = broadcast_bytes(group, b"" if group.rank == 0 else None, CPU)
        return records, broadcast_bytes(group, content, CPU), nothing

    for records, content, nothing in results(run_threads(3, run)):
        assert records == [{"rank": rank, "text": "é" * rank} for rank in range(3)]
        assert content == bytes(range(256)) and nothing == b""
    assert gather_json(Group(Alone()), [1], CPU) == [[1]]


@given(st.lists(st.integers(-100, 100), min_size=1, max_size=9), st.integers(1, 4))
def test_all_reduce_sums_and_counts(values: list[int], ranks: int) -> None:
    def run(group: Group) -> tuple[list[float], int]:
        flat = torch.tensor(values, dtype=torch.float64) * (group.rank + 1)
        group.all_reduce(flat)
        return flat.tolist(), group.ledger.wire_of("parameter")

    slice_size = -(-len(values) // ranks)
    for summed, size in results(run_threads(ranks, run)):
        assert summed == [value * ranks * (ranks + 1) / 2 for value in values]
        assert size == 2 * (ranks - 1) * slice_size * 8


@pytest.mark.parametrize("plan", ["block", "halo", "prepost"])
def test_drift_is_measured_from_what_receivers_decoded(plan: str, tmp_path: Path) -> None:
    """Under a codec that rounds, the owner keeps what the others hold, not what it meant."""
    folder = shards_of(awkward_graph(), "random", 2, tmp_path)

    def run(group: Group) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        settings = {"plan": plan, "staleness": "variation-gap:gap=0.001", "codec": "int2"}
        exchange = exchange_of(group, folder, reuse_input=False, **settings)
        rows = torch.sin(exchange.nodes.double()[:, None] * torch.arange(1.0, 7.0))
        exchange.begin_epoch(0)
        exchange.mover.aggregate(rows, 1, "forward")
        own, other = (Stream(1, "forward", rank) for rank in (group.rank, 1 - group.rank))
        leg = exchange.plan.forward
        meant = leg.make[1 - group.rank].apply(rows)
        memory = exchange.crossing.memory
        return memory.drift.sent.pull(own), memory.history.pull(other), meant

    (kept, _, meant), (_, held, _) = results(run_threads(2, run))
    torch.testing.assert_close(kept, held, rtol=0, atol=0)
    assert not torch.allclose(kept, meant)


# What is remembered


@pytest.fixture(scope="module")
def two_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards_of(awkward_graph(), "random", 2, tmp_path_factory.mktemp("two"))


def test_an_older_checkpoint_with_counters_of_its_own_is_still_read(two_shards: Path) -> None:
    def run(group: Group) -> None:
        flags = {
            "plan": "halo",
            "staleness": "variation-gap:gap=0.5",
            "codec": "int8",
            "error_feedback": True,
        }
        exchange, resumed = (exchange_of(group, two_shards, **flags) for _ in range(2))
        rows = torch.ones(len(exchange.nodes), 3, dtype=torch.float64)
        for epoch in range(3):
            exchange.begin_epoch(epoch)
            exchange.mover.aggregate(rows * (1 + epoch), 0, "forward")
        state = exchange.crossing.state()
        assert {name.split("/")[0] for name in state.tensors} == {"history", "drift", "residual"}
        assert "sequence" not in state.plain and "agreement" not in state.plain
        older = State(state.tensors, {**state.plain, "sequence": 7, "agreement": 2})
        resumed.crossing.restore(older)
        decisions = exchange.crossing.decisions.as_array()
        resumed.crossing.restore(State(decisions=decisions))
        after = resumed.crossing.state()
        assert after.plain == state.plain
        assert np.array_equal(resumed.crossing.decisions.as_array(), decisions)
        assert all(torch.equal(after.tensors[name], tensor) for name, tensor in state.tensors.items())
        outcomes = []
        for each in (exchange, resumed):
            each.begin_epoch(3)
            outcomes.append(each.mover.aggregate(rows * 9, 0, "forward"))
        assert torch.equal(*outcomes)
        assert exchange.crossing.figures().streams == resumed.crossing.figures().streams

    results(run_threads(2, run))


def test_figures_of_an_epoch(two_shards: Path) -> None:
    def run(group: Group) -> None:
        exchange = exchange_of(group, two_shards, plan="halo", staleness="epoch-fixed:bound=1")
        rows = torch.ones(len(exchange.nodes), 3, dtype=torch.float64)
        answers = []
        for epoch in range(3):
            exchange.begin_epoch(epoch)
            exchange.mover.aggregate(rows, 0, "forward")
            figures = exchange.crossing.figures()
            answers.append((figures.sends, figures.skips, figures.max_age))
            (own,) = figures.streams
            assert own.stream == Stream(0, "forward", group.rank)
            assert figures.place[:2] == (group.number, epoch)
            assert figures.history_bytes > 0 and figures.max_drift is None
        assert answers == [(2, 0, 0), (0, 2, 1), (2, 0, 0)]
        log = run_log(exchange.crossing)
        assert log.counts[Stream(0, "forward", 0)] == (2, 1)
        assert log.decisions[:, 0, 0, :].tolist() == [[1, 1], [0, 0], [1, 1]]

    results(run_threads(2, run))


def test_every_use_has_the_number_of_the_next_collective(two_shards: Path) -> None:
    def run(group: Group) -> None:
        crossing = exchange_of(group, two_shards, plan="halo").crossing
        group.begin_epoch(0)
        crossing.begin_epoch()
        for uses in (
            lambda: exact_use(group, 1, "forward", "payload"),
            lambda: crossing.once_use(1),
            lambda: crossing.stepwise_use(1),
        ):
            use = uses()
            assert use is not None and use.sequence == group.number + 1
            group.all_gather(torch.zeros(1))

    results(run_threads(2, run))


def test_settings_of_a_crossing_are_checked() -> None:
    with pytest.raises(ValueError, match="agree must be one of layer, epoch, not 'never'"):
        CrossingSettings(agree="never")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="epochs must be at least 0, not -1"):
        CrossingSettings(epochs=-1)
