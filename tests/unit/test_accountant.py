"""Every byte is counted: the ledger has what really left, by purpose and receiver; so are seconds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from sancus.comm.group import Group
from sancus.comm.ledger import AGREEMENT, PARAMETER, Entry, Stream
from sancus.config.settings import Config, FactorSettings
from sancus.models.settings import ModelSettings
from sancus.training.settings import TrainingSettings
from tests.helpers.accountant import assert_books_agree, audited_group
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.threads import open_own, results, run_threads, thread_trainer

RANKS, EPOCHS = 3, 3
EXACT = {"staleness": "always", "backward": "always", "codec": "fp32"}
CASES: dict[str, dict[str, Any]] = {
    "always": {},
    "half": {"codec": "fp16"},
    "few-bits": {"codec": "int4:tail=short", "backward_codec": "int1", "error_feedback": True},
    "budget": {"codec": "auto"},
    "skips": {"staleness": "epoch-adaptive:bound=1", "backward": "epoch-fixed:bound=1", "codec": "int8"},
    "drift": {"staleness": "variation-gap:gap=0.05", "agree": "epoch"},
    "rows": {"staleness": "row-gap:gap=0.1", "backward": "row-gap:gap=0.1", "codec": "int4"},
    "background": {"staleness": "pipelined:sync_every=2", "backward": "pipelined"},
    "alone": {"staleness": "drop", "backward": "drop"},
    "cagnet": {"reuse_input": False, "order": "aggregate-first", "skip_input_gradient": False},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards_of(awkward_graph(), "random", RANKS, tmp_path_factory.mktemp("shards"))


def config_of(plan: str, model: str, **factors: Any) -> Config:
    return Config(
        model=model,
        factors=FactorSettings(plan=plan, kernel="torch", broadcast="library", **factors),
        shape=ModelSettings(hidden=4, layers=3, heads=2, dropout=0.0, norm="batch"),
        training=TrainingSettings(epochs=EPOCHS, eval_every=2),
    )


def audit(folder: Path, config: Config) -> None:
    """Train; the ledger agrees with what left, and the figures of the epochs with the ledger."""

    def run(group: Any) -> tuple[list[Any], Counter[str], Counter[str]]:
        trainer = thread_trainer(config, open_own(folder, group), group)
        before = of_purpose(group)
        records = list(trainer.epochs())
        assert_books_agree(group)
        return records, before, of_purpose(group)

    everyone = results(run_threads(RANKS, run, audited_group))
    records = everyone[0][0]
    for purpose, metric in (("payload", "wire_bytes"), ("evaluation", "evaluation_bytes")):
        left = sum(after[purpose] for _, _, after in everyone)
        assert sum(record[metric] for record in records) == left, metric
        assert sum(before[purpose] for _, before, _ in everyone) == 0, "nothing crosses before an epoch"
    parameter = sum(after["parameter"] - before["parameter"] for _, before, after in everyone)
    assert sum(record["parameter_bytes"] for record in records) == parameter > 0


def of_purpose(group: Any) -> Counter[str]:
    """What left so far, over all receivers."""
    found: Counter[str] = Counter()
    for (purpose, _), size in group.transport.books.items():
        found[purpose] += size
    return found


@pytest.mark.parametrize("plan", ["block", "halo", "prepost"])
@pytest.mark.parametrize("name", CASES)
def test_the_ledger_has_every_byte_that_leaves(folder: Path, plan: str, name: str) -> None:
    audit(folder, config_of(plan, "gcn", **CASES[name]))


@pytest.mark.parametrize("plan", ["block", "halo"])
@pytest.mark.parametrize("name", ["always", "few-bits", "skips", "background"])
def test_the_ledger_has_every_byte_of_attention(folder: Path, plan: str, name: str) -> None:
    audit(folder, config_of(plan, "gat", **CASES[name]))


def test_the_ledger_has_every_byte_of_plain_collectives() -> None:
    """Also messages between two ranks, probes without a header, and messages of no rows, which are none."""

    def run(group: Any) -> None:
        own, stream = group.rank, Stream(0, "forward", group.rank)
        group.all_gather(torch.arange(5))
        group.all_reduce(torch.ones(7), PARAMETER)
        group.broadcast(torch.zeros(3, 2), 1, Entry("evaluation", stream)).wait()
        group.broadcast(torch.zeros(9), 2, Entry("probe")).wait()
        counts = [0 if rank == own else 2 * rank for rank in range(RANKS)]
        coming = [0 if rank == own else 2 * own for rank in range(RANKS)]
        send, receive = torch.zeros(sum(counts), 4), torch.zeros(sum(coming), 4)
        group.all_to_all(send, counts, receive, coming, Entry("payload", stream)).wait()
        after, before = (own + 1) % RANKS, (own - 1) % RANKS
        out = group.send(torch.full((3,), float(own)), after, AGREEMENT)
        into = torch.zeros(3)
        group.receive(into, before, AGREEMENT).wait()
        out.wait()
        assert into.tolist() == [before] * 3
        assert_books_agree(group)
        assert group.ledger.wire_of("probe") == (2 * 36 if own == 2 else 0)
        assert group.ledger.wire_of("evaluation") == (2 * 24 if own == 1 else 0)
        assert group.ledger.wire_of("payload") == sum(counts) * 16

    results(run_threads(RANKS, run, audited_group))


def test_nothing_is_counted_for_oneself() -> None:
    def run(group: Group) -> None:
        group.all_gather(torch.zeros(1))
        assert {receiver for _, receiver in group.ledger.wire} == {0, 1, 2} - {group.rank}

    results(run_threads(RANKS, run))
