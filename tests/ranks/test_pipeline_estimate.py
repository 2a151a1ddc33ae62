"""`sancus estimate` of pipelines: predicted bytes are those measured; `--stages auto` takes the quickest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sancus.advise.estimate import Machine, table
from sancus.advise.staged import choose_stages, predict
from sancus.comm.group import Group
from sancus.comm.ledger import Ledger
from sancus.config.resolve import make_config
from sancus.config.settings import Config
from sancus.errors import UserError
from sancus.graphs.shards import open_shard
from sancus.runs.build import make_trainer
from sancus.runs.layout import make_schedule
from tests.helpers.command import read_run, run
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.processes import TOP, run_ranks

MACHINE = Machine(link=1e9, latency=1e-5, spmm=1e9, gemm=1e10)
BYTES = ("wire_bytes", "boundary_bytes", "parameter_bytes", "agreement_bytes")
GRAPH = "synthetic:nodes=90,features=8,classes=3,degree=6,seed=2"


def config_of(preset: str, **flags: Any) -> Config:
    common: dict[str, Any] = {"partitioner": "random", "layers": 4, "hidden": 8, "epochs": 4, "eval_every": 9}
    return make_config(preset=preset, **common | {"chunks": 3} | flags)


CASES = {
    "gcnii": (config_of("gnnpipe", model="gcnii"), 3),
    "gcnii, first again": (config_of("gnnpipe:2", model="gcnii", recompute_first=True), 4),
    "int8 between": (config_of("gnnpipe", model="resgcn+", boundary_codec="int8"), 2),
    "hybrid": (config_of("gnnpipe:2", model="gcn"), 4),
    "hybrid of sums": (config_of("gnnpipe:2", model="gcn", dropout=0.0), 4),
    "hybrid, lean": (config_of("gnnpipe:2", model="sage", codec="int4:tail=short"), 4),
    "hybrid, stale": (config_of("gnnpipe:2", model="gin", staleness="epoch-fixed:bound=0"), 4),
    "as published": (config_of("gnnpipe:2:paper", model="gcn", plan="block"), 4),
    "attention, one chunk": (config_of("gnnpipe:2", model="gat", heads=2, chunks=1), 4),
    "own": (config_of("gnnpipe", model=f"{TOP}/examples/staged_model.py:Net"), 2),
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The third epoch of every case, on real ranks; as many as it needs are started once."""
    found: dict[str, dict[str, Any]] = {}
    for ranks in sorted({count for _, count in CASES.values()}):
        folders = {}
        for name, (config, count) in CASES.items():
            if count == ranks:
                place = tmp_path_factory.mktemp("shards")
                layout = make_schedule(config).layout(ranks)
                cut = (layout.parts, place, config.pipeline.chunks)
                folders[name] = str(shards_of(awkward_graph(), "random", *cut))
        notes = run_ranks("tests.ranks.test_pipeline_estimate:train", ranks, backend="gloo", folders=folders)
        found |= notes[0]
    return found


def train(group: Group, folders: dict[str, str]) -> dict[str, Any]:
    """What one rank measures in the third epoch, which is not evaluated."""
    found = {}
    for name, folder in folders.items():
        config, ranks = CASES[name]
        group.ledger = Ledger()
        shard = open_shard(Path(folder), make_schedule(config).layout(ranks).place(group.rank).part)
        found[name] = list(make_trainer(config, shard, group, torch.device("cpu")).epochs())[2]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_predicted_bytes_are_the_measured_ones(measured: dict[str, dict[str, Any]], name: str) -> None:
    config, ranks = CASES[name]
    predicted, found = predict(awkward_graph(), config, ranks, MACHINE), measured[name]
    assert {key: getattr(predicted, key) for key in BYTES} == {key: found[key] for key in BYTES}
    head, row = table([predicted])
    assert row[head.index("between stages")] == f"{found['boundary_bytes']:,.0f}"
    assert row[head.index("all bytes an epoch")] == f"{sum(found[key] for key in BYTES):,.0f}"


def test_slow_links_are_answered_by_stages_and_quick_ones_by_rows() -> None:
    config = config_of("gnnpipe", model="resgcn+", layers=16, hidden=64, stages="auto", chunks=0)
    graph = awkward_graph()
    slow = choose_stages(graph, config, 4, Machine(1e3, 0.0, 1e4, 1e10)).pipeline
    assert slow.stages == 4
    single = replace(config, pipeline=replace(config.pipeline, chunks=1))
    quick = choose_stages(graph, single, 4, Machine(1e15, 0.0, 1e2, 1e10)).pipeline
    assert quick.stages == 1, "one chunk leaves all stages but one waiting"
    kept = choose_stages(
        graph, replace(config, pipeline=replace(config.pipeline, chunks=5)), 4, MACHINE
    ).pipeline
    assert kept.chunks == 5, "what was named stays"
    with pytest.raises(UserError, match="norm batch"):
        choose_stages(graph, config_of("gnnpipe", stages="auto", jumping="cat", norm="batch"), 4, MACHINE)


def test_seconds_grow_with_the_bubble_and_with_the_link() -> None:
    graph = awkward_graph()
    config = config_of("gnnpipe", model="resgcn+", layers=8)

    def seconds(link: float, chunks: int) -> float:
        one = replace(config, pipeline=replace(config.pipeline, chunks=chunks))
        found = predict(graph, one, 4, Machine(link, 0.0, 1e3, 1e10))
        return found.compute_seconds + found.comm_seconds

    assert seconds(1e3, 4) > seconds(1e6, 4)
    assert seconds(1e18, 1) > 1.5 * seconds(1e18, 8)


def test_stages_auto_trains_with_what_it_chose(tmp_path: Path) -> None:
    flags = ("--preset", "gnnpipe", "--layers", "4", "--hidden", "4", "--stages", "auto", "--epochs", "2")
    done = run("train", GRAPH, *flags, "--quiet", "--out", tmp_path, launcher="local", ranks=2)
    assert done.code == 0, done
    record = read_run(tmp_path)
    chosen = record["config"]["pipeline"]
    assert all(chosen[name] == record["schedule"][name] for name in ("stages", "chunks"))
    told = run("estimate", GRAPH, "--ranks", "2", *flags[:-2])
    assert told.code == 0 and "between stages" in told.out, told
    wrong = run("train", GRAPH, *flags[:-3], "some", "--ranks", "2")
    assert wrong.code == 2 and wrong.err.count("\n") == 1, wrong
