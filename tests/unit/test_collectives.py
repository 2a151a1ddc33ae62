"""How many collectives an epoch takes, preset by preset: over slow links few bytes are left, but each waits.

What an epoch needs at least: one for the payloads of a layer and direction, two for a sum of gradients
(slices, and their sums), and one for the figures by which ranks agree to go on.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from sancus.comm.group import Group
from sancus.comm.handle import Handle
from sancus.comm.ledger import Entry
from sancus.config.presets import PRESETS, preset_settings
from sancus.config.resolve import make_config
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.threads import Board, ThreadTransport, open_own, results, run_threads, thread_trainer

RANKS, EPOCH = 2, 2  # the epoch that is looked at: not the first, without evaluation
PARAMETERS = 2
# preset -> collectives of payloads, of parameters, and by which ranks agree; GCN of 2 layers on 2 ranks
COUNTS = {
    "exact": (2, PARAMETERS, 1),
    "cagnet": (8, PARAMETERS, 1),
    "sancus-e": (8, PARAMETERS, 2),
    "sancus-a": (6, PARAMETERS, 2),
    "sancus-h": (5, PARAMETERS, 4),
    "skipg": (8, PARAMETERS, 2),
    "pipegcn": (2, PARAMETERS, 2),
    "bns": (2, PARAMETERS, 1),
    "sylvie-s": (2, PARAMETERS, 1),
    "sylvie-a": (2, PARAMETERS, 2),
    "supergcn": (2, PARAMETERS, 1),
    "digest": (0, PARAMETERS, 2),
    "lean": (2, PARAMETERS, 1),
    "partition-only": (0, PARAMETERS, 1),
}


class CountingGroup(Group):
    """A group that counts what it starts, by epoch and purpose."""

    def __init__(self, rank: int, size: int, board: Board) -> None:
        super().__init__(ThreadTransport(rank, size, board))
        self.started: Counter[tuple[int, str]] = Counter()

    def _start(self, start: Any, entry: Entry, *args: Any, **how: Any) -> Handle:
        self.started[self.clock.epoch, entry.purpose] += 1
        return super()._start(start, entry, *args, **how)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards_of(awkward_graph(), "random", RANKS, tmp_path_factory.mktemp("shards"))


def counted(folder: Path, preset: str, **flags: Any) -> tuple[int, ...]:
    """Collectives of one epoch, the same on all ranks: payload, parameter, agreement."""
    around: dict[str, Any] = {
        "kernel": "torch",
        "broadcast": "library",
        "hidden": 5,
        "epochs": 4,
        "eval_every": 9,
    }
    config = make_config(preset=preset, **(around | flags))

    def on_rank(group: CountingGroup) -> Counter[tuple[int, str]]:
        trainer = thread_trainer(config, open_own(folder, group), group, torch.device("cpu"))
        for _ in trainer.epochs():
            pass
        return group.started

    first, second = results(run_threads(RANKS, on_rank, CountingGroup))  # type: ignore[arg-type]
    assert first == second
    return tuple(first[EPOCH, purpose] for purpose in ("payload", "parameter", "agreement"))


FULL_BATCH = [
    preset for preset in PRESETS if not {"schedule", "batch_size"} & preset_settings(preset).keys()
]  # stages send messages, and batches make many steps


@pytest.mark.parametrize("preset", FULL_BATCH)
def test_an_epoch_takes_no_more_collectives_than_these(folder: Path, preset: str) -> None:
    assert counted(folder, preset) == COUNTS.get(preset), (
        "fewer: lower the table; more: an epoch waits longer"
    )


@pytest.mark.parametrize("spec, parameters", [("int1", 2), ("low-rank:rank=1", 4)])
def test_a_sum_by_codes_takes_no_further_agreement(folder: Path, spec: str, parameters: int) -> None:
    payload, _, agreement = COUNTS["lean"]
    assert counted(folder, "lean", parameter_codec=spec) == (payload, parameters, agreement)
