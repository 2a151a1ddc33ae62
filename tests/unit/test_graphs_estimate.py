"""`sancus estimate`: predicted bytes are the measured ones, memory is near, and every mistake is one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sancus.advise.estimate import Machine, estimate, parse_rate, stream_table, table
from sancus.advise.sends import share_sent
from sancus.comm.group import Group
from sancus.config.resolve import make_config
from sancus.config.settings import Config
from sancus.errors import UserError
from sancus.runs.build import make_trainer
from sancus.staleness.base import Replicated, View
from tests.helpers.command import read_run, run
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.threads import open_own, results, run_threads

MACHINE = Machine(link=1e9, latency=1e-5, spmm=1e9, gemm=1e10)
EPOCHS = 3


def config_of(preset: str, **factors: Any) -> Config:
    return make_config(
        preset=preset, **factors, partitioner="random", layers=3, hidden=5, epochs=EPOCHS, kernel="auto"
    )


@pytest.mark.parametrize(
    "config",
    [
        config_of("exact"),
        config_of("cagnet", broadcast="library"),
        config_of("exact", plan="prepost"),
        config_of("exact", codec="int8"),
        config_of("exact", codec="int2", plan="prepost", backward_codec="fp32"),
        config_of("exact", backward="drop"),
        config_of("exact", backward="drop", order="transform-first", reuse_input=False),
        config_of("cagnet", backward="drop", broadcast="library"),
        config_of("partition-only", order="transform-first"),
    ],
    ids=["exact", "cagnet", "prepost", "int8", "mixed", "one way", "one way HW", "one way blocks", "alone"],
)
@pytest.mark.parametrize("ranks", [1, 3])
def test_predicted_bytes_are_the_measured_ones(config: Config, ranks: int, tmp_path: Path) -> None:
    graph = awkward_graph()
    folder = shards_of(graph, "random", ranks, tmp_path)

    def train(group: Group) -> list[float]:
        shard = open_own(folder, group)
        trainer = make_trainer(config, shard, group, torch.device("cpu"))
        return [record["wire_bytes"] or 0 for record in trainer.epochs()]

    measured = results(run_threads(ranks, train))[0]
    predicted = estimate(graph, config, ranks, MACHINE)
    assert measured[1:] == [predicted.wire_bytes] * (EPOCHS - 1)  # the first also moves the constant input


@pytest.mark.parametrize(
    "config",
    [
        config_of("exact"),
        config_of("cagnet", broadcast="library"),
        config_of("exact", plan="prepost", codec="int4:tail=short"),
        config_of("exact", staleness="epoch-fixed:bound=0", backward="drop"),
        config_of("exact", staleness="variation-gap:gap=0,max_age=3"),
        config_of("exact", staleness="variation-gap:gap=0,max_age=3", agree="epoch", backward="always"),
        config_of("cagnet", staleness="row-gap:gap=1e9,max_age=1", broadcast="library"),
        config_of("supergcn"),
        config_of("supergcn:paper"),
        config_of("supergcn", parameter_codec="int2"),
        config_of("exact", parameter_codec="low-rank:rank=1,bits=8"),
    ],
    ids=[
        "exact",
        "cagnet",
        "prepost",
        "bounded",
        "drift",
        "drift, once an epoch",
        "drift, row by row",
        "labels",
        "labels, paper",
        "parameters in two bits",
        "parameters in low rank",
    ],
)
@pytest.mark.parametrize("ranks", [2, 3])
def test_predicted_bytes_in_all_are_the_measured_ones(config: Config, ranks: int, tmp_path: Path) -> None:
    """Parameters and agreement too, in an epoch that is not evaluated.

    With no gap, drift sends always; with a large one all rows cross when they are too old, as in epoch 2.
    """
    graph = awkward_graph()
    folder = shards_of(graph, "random", ranks, tmp_path)
    config = replace(config, training=replace(config.training, epochs=4, eval_every=9))

    def train(group: Group) -> dict[str, Any]:
        shard = open_own(folder, group)
        return list(make_trainer(config, shard, group, torch.device("cpu")).epochs())[2]

    measured = results(run_threads(ranks, train))[0]
    predicted = estimate(graph, config, ranks, MACHINE)
    names = ("wire_bytes", "parameter_bytes", "agreement_bytes")
    assert {name: getattr(predicted, name) for name in names} == {name: measured[name] for name in names}
    assert predicted.all_bytes == sum(measured[name] for name in names)
    head, row = table([predicted])
    assert row[head.index("all bytes an epoch")] == f"{predicted.all_bytes:,.0f}"
    assert row[head.index("payload alone")] == f"{predicted.wire_bytes:,.0f}"


@pytest.mark.parametrize(
    "spec, share",
    [
        ("always", 1.0),
        ("variation-gap:gap=0.1", 1.0),  # drift depends on the data: the most
        ("epoch-fixed", 1 / 2),  # its default bound
        ("epoch-fixed:bound=0", 1.0),
        ("epoch-fixed:bound=3", 1 / 4),
        ("epoch-fixed:bound=299", 1 / 300),
        ("epoch-adaptive", 1 / 2),
        ("epoch-adaptive:bound=3", 1 / 4),
        ("pipelined", 1.0),
        ("pipelined:sync_every=5", 4 / 5),  # the epoch before a synchronous one sends nothing
        ("periodic", 1 / 10),
        ("periodic:period=3", 1 / 3),
        ("never", 0.0),
        ("never:max_age=4", 1 / 5),  # the cap makes it send
        ("drop", 0.0),
        (f"{__name__}:Odd", 1 / 3),
    ],
)
def test_shares_of_policies(spec: str, share: float) -> None:
    assert [share_sent(spec, 3, owner) for owner in range(3)] == [share] * 3


class Odd(Replicated):
    """A policy of a user's own: every third epoch, whatever happened before."""

    max_age = 9

    def decide(self, view: View) -> bool:
        return view.epoch % 3 == 0


class ByOwner(Replicated):
    """Owner 0 sends in every epoch, the others in every second."""

    max_age = 9

    def decide(self, view: View) -> bool:
        return view.owner == 0 or view.epoch % 2 == 0


def test_owners_that_send_unequally() -> None:
    assert [share_sent(f"{__name__}:ByOwner", 2, owner) for owner in range(2)] == [1.0, 0.5]
    graph, spec = awkward_graph(), f"{__name__}:ByOwner"
    always = estimate(graph, config_of("exact"), 3, MACHINE)
    some = estimate(graph, config_of("exact", staleness=spec, backward=spec), 3, MACHINE)
    assert 0.5 * always.wire_bytes < some.wire_bytes < always.wire_bytes


def test_the_default_bound_halves_the_bytes() -> None:
    graph = awkward_graph()
    always, half = (
        estimate(graph, config_of("exact", staleness=spec, backward=spec), 3, MACHINE)
        for spec in ("always", "epoch-fixed")
    )
    assert half.wire_bytes == always.wire_bytes / 2


def test_memory_and_time_fall_with_ranks() -> None:
    graph = awkward_graph(nodes=400, features=50)
    found = [estimate(graph, config_of("sancus-e:1"), ranks, MACHINE) for ranks in (1, 2, 8)]
    for part in ("graph", "features", "activations"):
        values = [one.memory[part] for one in found]
        assert values[0] > 1.7 * values[1] > 1.7 * values[2]
    assert found[0].compute_seconds > found[1].compute_seconds > found[2].compute_seconds
    assert found[0].comm_seconds == 0 < found[1].comm_seconds
    assert found[0].memory["history"] == 0 < found[1].memory["history"]
    slow = estimate(graph, config_of("sancus-e:1"), 8, replace(MACHINE, link=1e6))
    assert slow.comm_seconds > 10 * found[2].comm_seconds
    assert [row[0] for row in table(found)] == ["ranks", "1", "2", "8"]
    assert len(stream_table(found)) == 1 + len(found[0].streams)


@pytest.mark.parametrize("rate", [0.1, 0.5, 1.0])
def test_rows_that_are_drawn_count_by_their_mean(rate: float) -> None:
    graph = awkward_graph()
    halo, drawn = (
        estimate(graph, config_of("exact", plan=plan, codec="int8"), 3, MACHINE)
        for plan in ("halo", f"drawn:rate={rate}")
    )
    assert drawn.wire_bytes == pytest.approx(rate * halo.wire_bytes)
    assert drawn.memory == halo.memory, "evaluation takes all rows"
    default = estimate(graph, config_of("exact", plan="drawn", codec="int8"), 3, MACHINE)
    assert default.wire_bytes == pytest.approx(0.1 * halo.wire_bytes)


@pytest.mark.parametrize(
    "text, rate", [("10Gbit", 1.25e9), ("1.2GB", 1.2e9), ("800Mbit/s", 1e8), ("5 kB", 5e3)]
)
def test_rates(text: str, rate: float) -> None:
    assert parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["", "10", "fast", "-1Gbit", "1.2.3GB", "0Gbit"])
def test_a_rate_that_is_none(text: str) -> None:
    with pytest.raises(UserError, match="write a number and a unit"):
        parse_rate(text)


def test_what_cannot_be_estimated() -> None:
    graph = awkward_graph()
    with pytest.raises(UserError, match="--model sage: only gcn can be estimated"):
        estimate(graph, Config(model="sage"), 2, MACHINE)
    with pytest.raises(UserError, match="--ranks 99: must be from 1 to the 23 nodes"):
        estimate(graph, Config(), 99, MACHINE)


@pytest.mark.slow
def test_predicted_memory_is_near_the_measured_one(tmp_path: Path) -> None:
    """A graph whose data weigh as much as the runtime: the measured peak within 15 %."""
    graph, flags = "synthetic:nodes=60000,degree=50,features=300", ("--ranks", "2", "--plan", "halo")
    done = run("train", graph, *flags, "--epochs", "2", "--out", tmp_path / "run")
    assert done.code == 0, done
    peak = max(read_run(tmp_path / "run")["memory"]["peak_bytes"])
    told = run("estimate", graph, *flags, "--spmm", "1e9", "--gemm", "1e10")
    assert told.code == 0, told
    predicted = float(told.out.splitlines()[1].split()[1].replace(",", "")) * 1e6
    assert np.isclose(predicted, peak, rtol=0.15), (predicted, peak)


@pytest.mark.parametrize(
    "flags, named",
    [({"preset": "gnnpipe:2"}, "--schedule pipeline: only"), ({"batch_size": 9}, "--batch-size 9: only")],
)
def test_what_is_not_predicted_is_refused(flags: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        estimate(awkward_graph(), make_config(**flags), 2, MACHINE)
