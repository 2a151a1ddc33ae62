"""Savings add up: for every stream, what crossed and what was saved is what `always` would have sent."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sancus.comm.group import Group
from sancus.comm.ledger import Stream
from sancus.config.settings import Config, FactorSettings
from sancus.models.settings import ModelSettings
from sancus.training.settings import TrainingSettings
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.threads import open_own, results, run_threads, thread_trainer

pytestmark = pytest.mark.slow
RANKS, EPOCHS = 3, 5
CODECS = ("fp32", "bf16", "int4", "int2:tail=short", "auto:ramp=1.0")
POLICIES = (
    ("epoch-fixed:bound=1", "always"),
    ("epoch-adaptive:bound=2", "epoch-fixed:bound=3"),
    ("variation-gap:gap=0.1", "never"),
    ("pipelined:sync_every=3", "pipelined:sync_every=2"),
    ("periodic:period=2", "periodic:period=3"),
)
Bytes = dict[Stream, int]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards_of(awkward_graph(), "random", RANKS, tmp_path_factory.mktemp("shards"))


def bytes_of(folder: Path, model: str = "gcn", **factors: Any) -> tuple[Bytes, Bytes, list[dict[str, Any]]]:
    """Wire bytes and savings of every stream over all receivers, and the figures of every epoch."""
    config = Config(
        model=model,
        factors=FactorSettings(kernel="torch", broadcast="library", **factors),
        shape=ModelSettings(hidden=5, layers=3, heads=1, dropout=0.0),
        training=TrainingSettings(epochs=EPOCHS),
    )

    def run(group: Group) -> tuple[Counter[Stream], Counter[Stream], list[Any]]:
        records = list(thread_trainer(config, open_own(folder, group), group).epochs())
        wire: Counter[Stream] = Counter()
        for (entry, _), size in group.ledger.wire.items():
            if entry.purpose == "payload":
                assert entry.stream is not None and entry.stream.owner == group.rank
                wire[entry.stream] += size
        return wire, group.ledger.saved, records

    wire: Counter[Stream] = Counter()
    saved: Counter[Stream] = Counter()
    everyone = results(run_threads(RANKS, run))
    for mine, own_savings, _ in everyone:
        wire += mine
        saved += own_savings
    return dict(wire), dict(saved), everyone[0][2]


@pytest.fixture(scope="module")
def always(folder: Path) -> dict[tuple[str, str], Bytes]:
    """What `always` sends, by plan and codec."""
    return {}


def of_always(
    always: dict[tuple[str, str], Bytes], folder: Path, plan: str, codec: str, **factors: Any
) -> Bytes:
    key = (plan, f"{codec} {sorted(factors.items())}")
    if key not in always:
        wire, saved, records = bytes_of(folder, plan=plan, codec=codec, **factors)
        assert not saved and all(record["saved_bytes"] == 0 for record in records)
        always[key] = wire
    return always[key]


@pytest.mark.parametrize("policies", POLICIES, ids=lambda pair: pair[0].split(":")[0])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("plan", ["block", "halo", "prepost"])
def test_wire_and_saved_are_the_wire_of_always(
    folder: Path,
    always: dict[tuple[str, str], Bytes],
    plan: str,
    codec: str,
    policies: tuple[str, str],
) -> None:
    whole = of_always(always, folder, plan, codec)
    forward, backward = policies
    wire, saved, records = bytes_of(folder, plan=plan, codec=codec, staleness=forward, backward=backward)
    assert saved, "the policy skips"
    assert {stream: wire.get(stream, 0) + saved.get(stream, 0) for stream in whole} == whole
    assert sum(record["saved_bytes"] for record in records) == sum(saved.values())
    assert sum(record["wire_bytes"] + record["saved_bytes"] for record in records) == sum(whole.values())


@pytest.mark.parametrize("plan", ["block", "halo", "prepost"])
def test_all_that_drop_never_sends_is_saved(
    folder: Path, always: dict[tuple[str, str], Bytes], plan: str
) -> None:
    whole = of_always(always, folder, plan, "int8", reuse_input=False)
    wire, saved, _ = bytes_of(
        folder, plan=plan, codec="int8", reuse_input=False, staleness="drop", backward="drop"
    )
    assert not wire and saved == whole


def test_rows_of_attention_save_too(folder: Path) -> None:
    settings = {"plan": "halo", "codec": "int4"}
    whole, _, _ = bytes_of(folder, "gat", **settings)
    wire, saved, _ = bytes_of(folder, "gat", staleness="epoch-fixed", backward="never", **settings)
    assert {stream: wire.get(stream, 0) + saved.get(stream, 0) for stream in whole} == whole


def test_raw_is_what_full_precision_sends(folder: Path) -> None:
    """Raw bytes of a codec's run are the wire bytes of the same run in full precision."""
    for plan in ("block", "halo", "prepost"):
        full = bytes_of(folder, plan=plan)[2]
        few = bytes_of(folder, plan=plan, codec="int2")[2]
        assert [record["raw_bytes"] for record in few] == [record["wire_bytes"] for record in full]
        assert [record["raw_bytes"] for record in full] == [record["wire_bytes"] for record in full]
        assert all(few[epoch]["wire_bytes"] < full[epoch]["wire_bytes"] for epoch in range(1, EPOCHS))
