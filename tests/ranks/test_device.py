"""Ranks of a device that is not the host: what they compute there is what they compute here.

The device is `tests/helpers/device.py`, where host and device tensors cannot be mixed; messages are staged
through the host, by gloo and MPI.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sancus import api
from sancus.comm.group import Group
from sancus.comm.ledger import Ledger
from sancus.config.settings import Config, FactorSettings
from sancus.exchange.state import State
from sancus.graphs.shards import open_shard
from sancus.models.settings import ModelSettings
from sancus.runs import build
from sancus.runs.checkpoints import contents
from sancus.runs.module import make_module
from sancus.training.settings import TrainingSettings
from tests.helpers.device import DEVICE, WAITS, install, raw_of
from tests.helpers.device_transport import on_the_device
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.processes import run_ranks
from tests.helpers.threads import CPU
from tests.ranks.law import assert_law, cases, expected_of, train_case

EPOCHS, STOP = 6, 3
CASES = {case.name: case for case in cases()}
LAW = (
    "gcn-block-with-empty-block",
    "gcn-prepost-cagnet",
    "gat-noisy-block",
    "gatv2-halo",
    "gin-sparse",
    "gcnii-noisy-halo",
    "class-weights",
    "inductive-sparse",
)
FACTORS: dict[str, dict[str, Any]] = {
    "gap": {"plan": "halo", "staleness": "variation-gap:gap=0.02", "codec": "int2", "error_feedback": True},
    "adaptive": {"plan": "prepost", "staleness": "epoch-adaptive:bound=1", "backward": "epoch-fixed:bound=1"},
    "pipelined": {"plan": "block", "staleness": "pipelined", "backward": "pipelined", "codec": "int4"},
    "ring": {"plan": "block", "broadcast": "ring", "codec": "bf16", "clip": 0.01},
    "auto": {
        "plan": "halo",
        "codec": "auto:budget=3",
        "agree": "epoch",
        "staleness": "variation-gap:gap=0.1",
    },
    "drawn": {"plan": "drawn:rate=0.5", "codec": "int8", "backward": "drop"},
    "resumed": {"plan": "halo", "staleness": "epoch-fixed:bound=2", "codec": "int1", "reuse_input": False},
}
ALWAYS: dict[str, dict[str, Any]] = {
    "halo": {"plan": "halo", "reuse_input": False},
    "ring": {"plan": "block", "broadcast": "ring"},
    "few bits": {"plan": "prepost", "codec": "int4", "staleness": "epoch-adaptive:bound=1"},
}
LAYERS = (2, 4)
PARAMETERS = {"gap": "int4", "adaptive": "low-rank:rank=2"}


def law_on_device(group: Group, folders: dict[str, str]) -> dict[str, dict[str, Any]]:
    device = install()
    return {name: train_case(group, CASES[name], Path(folder), device) for name, folder in folders.items()}


def config_of(name: str) -> Config:
    training = TrainingSettings(epochs=EPOCHS, lr=0.05, parameter_codec=PARAMETERS.get(name, "fp32"))
    shape = ModelSettings(hidden=6, layers=3, dropout=0.0 if name == "resumed" else 0.4)
    return Config(factors=FactorSettings(kernel="torch", **FACTORS[name]), shape=shape, training=training)


def train_both(group: Group, folder: str) -> dict[str, tuple[list[Any], list[Any]]]:
    """The records of every composition, on the host and on the device; and the losses of a loop by hand."""
    device, shard = install(), open_shard(Path(folder), group.rank)
    found: dict[str, tuple[list[Any], list[Any]]] = {}
    for name in FACTORS:
        records = []
        for place in (CPU, device):
            group.ledger = Ledger()
            trainer = build.make_trainer(config_of(name), shard, group, place)
            records.append(list(trainer.epochs()))
            assert all(p.device == place for p in trainer.model.parameters())
        found[name] = records[0], records[1]
    found["resumed again"] = found["resumed"][0][STOP:], _resumed(group, folder, device)
    found["own loop"] = _own_loop(group, folder, CPU), _own_loop(group, folder, device)
    return found


def _resumed(group: Group, folder: str, device: torch.device) -> list[Any]:
    shard = open_shard(Path(folder), group.rank)
    first, second = (build.make_trainer(config_of("resumed"), shard, group, device) for _ in range(2))
    for record in first.epochs():
        if record["epoch"] == STOP - 1:
            break
    own = Path(folder) / f"own-{group.rank}"
    own.write_bytes(contents.pack_rank(first))
    contents.unpack(contents.pack(first, {}), second)
    contents.unpack_rank(own, second)
    log = first.exchange.crossing.decisions.as_array()
    second.exchange.crossing.restore(State(decisions=log))
    group.ledger = Ledger()
    return list(second.epochs())


def _own_loop(group: Group, folder: str, device: torch.device) -> list[Any]:
    """The loop of docs/models.md, by the calls of `sancus.api`."""
    shard = open_shard(Path(folder), group.rank)
    config = replace(config_of("resumed"), shape=ModelSettings(dropout=0.3))
    exchange = build.make_exchange(config, shard, group, device, "symmetric", linear=True)
    task = build.make_task(config, shard, group, device)
    model = make_module(config, shard.manifest["graph"], "gcn").to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses: list[Any] = []
    for epoch in range(EPOCHS):
        exchange.begin_epoch(epoch, model)
        model.train()
        optimizer.zero_grad()
        loss = task.loss(model(exchange.input, exchange))
        loss.backward()
        api.sum_gradients(model, exchange)
        optimizer.step()
        losses.append({"loss": loss.item()})
    model.eval()
    with torch.no_grad(), exchange.exact():
        losses.append(api.score(task, model(exchange.input, exchange), exchange))
    return losses


@pytest.fixture(scope="module")
def law(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folders = {}
    for name in LAW:
        case, folder = CASES[name], tmp_path_factory.mktemp("shards")
        folders[name] = str(shards_of(case.make_graph(), case.partitioner, 3, folder))
    return run_ranks("tests.ranks.test_device:law_on_device", 3, backend="mpi", folders=folders)


@pytest.mark.parametrize("name", LAW)
def test_ranks_of_a_device_equal_one_process(law: list[dict[str, Any]], name: str) -> None:
    case, notes = CASES[name], [result[name] for result in law]
    assert_law(case, notes, expected_of(case, notes[0]["weights"]))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, tuple[list[Any], list[Any]]]]:
    folder = shards_of(awkward_graph(nodes=29, seed=3), "random", 2, tmp_path_factory.mktemp("shards"))
    return run_ranks("tests.ranks.test_device:train_both", 2, folder=str(folder))


@pytest.mark.parametrize("name", [*FACTORS, "resumed again", "own loop"])
def test_a_device_trains_what_the_host_trains(both: Any, name: str) -> None:
    """Stale, in few bits, drawn, clipped, resumed: the same bits, bytes, sends and skips."""
    for found in both:
        here, there = found[name]
        assert len(here) == len(there) > 0
        for mine, theirs in zip(here, there, strict=True):
            for key in mine:
                later = (
                    key == "agreement_bytes" and name == "resumed again"
                )  # an epoch pays for the one before
                assert later or "seconds" in key or mine[key] == theirs[key], key


def wait_for_it(group: Group, folder: str) -> dict[tuple[str, int], dict[str, int]]:
    """What would make the host wait in one epoch, by setting; messages never leave the device."""
    group, found = on_the_device(group), {}
    for layers, (name, factors) in itertools.product(LAYERS, ALWAYS.items()):
        training = TrainingSettings(epochs=3, lr=0.05)
        shape = ModelSettings(hidden=6, layers=layers, dropout=0.4)
        config = Config(factors=FactorSettings(**factors), shape=shape, training=training)
        shard = open_shard(Path(folder), group.rank)
        trainer = build.make_trainer(config, shard, group, torch.device(DEVICE))
        losses, before = [], Counter(WAITS)
        for record in trainer.epochs():
            losses.append(record["loss"])
            found[name, layers] = dict(WAITS - before)
            before = Counter(WAITS)
        here = build.make_trainer(config, shard, group, CPU)
        assert losses == pytest.approx([record["loss"] for record in here.epochs()], rel=1e-5)
    return found


def test_a_host_waits_as_often_whatever_layers_and_ranks(tmp_path: Path) -> None:
    """Headers, checksums and finiteness are looked at where they are, and asked for once an update."""
    graph, found = awkward_graph(nodes=29, seed=3), []
    for p in (2, 3):
        (tmp_path / str(p)).mkdir()
        folder = shards_of(graph, "random", p, tmp_path / str(p))
        found += run_ranks("tests.ranks.test_device:wait_for_it", p, folder=str(folder))
    for name in ALWAYS:
        waits = [of_rank[name, layers] for of_rank in found for layers in LAYERS]
        assert all(each == waits[0] for each in waits), (name, waits)
        assert 0 < sum(waits[0].values()) < 10, (name, waits[0])


def meet_trouble(group: Group, folder: str) -> dict[str, str]:
    """What every rank hears of a damaged message, and of a number that is not finite, of rank 1's device."""
    device, heard = install(), {}
    shard = open_shard(Path(folder), group.rank)
    for what in ("a header", "a byte", "a number"):
        own = on_the_device(group)
        trainer = build.make_trainer(config_of("adaptive"), shard, own, device)
        if what == "a number" and group.rank == 1:
            trainer.exchange.input[0] = torch.nan
        elif group.rank == 1 and what != "a number":
            send = own.transport.all_to_all

            def damaged(message: torch.Tensor, *rest: Any, **how: Any) -> Any:
                raw_of(message)[8 if what == "a header" else -1] ^= 1  # noqa: B023 - used in this round
                return send(message, *rest, **how)  # noqa: B023

            own.transport.all_to_all = damaged  # type: ignore[method-assign]
        try:
            trainer.train_epoch(0)
        except Exception as error:
            heard[what] = f"{type(error).__name__}: {error}"
        group.all_gather(torch.zeros(1))  # all are done
    return heard


def test_trouble_on_a_device_is_heard_before_weights_move(tmp_path: Path) -> None:
    folder = shards_of(awkward_graph(nodes=29, seed=3), "random", 2, tmp_path)
    first, second = run_ranks("tests.ranks.test_device:meet_trouble", 2, folder=str(folder))
    assert re.search("DisagreementError: rank 0: .* from rank 1.*: the ranks disagree", first["a header"])
    assert re.search("DisagreementError: rank 0: .* from rank 1.* has checksum", first["a byte"])
    assert first["a number"] == second["a number"]
    assert re.search("UserError: rank 1, .*holds NaN or infinity", first["a number"])
