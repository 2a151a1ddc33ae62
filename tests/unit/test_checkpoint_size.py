"""A checkpoint of a long run: what grows with its epochs is packed, and comes back as it was."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sancus.comm.alone import Alone
from sancus.comm.group import Group
from sancus.comm.ledger import Stream
from sancus.config.settings import Config, FactorSettings
from sancus.exchange.codec_error import Measurement
from sancus.exchange.decisions import pack_log, unpack_log
from sancus.models.settings import ModelSettings
from sancus.runs.checkpoints import contents
from sancus.training.trainer import Trainer
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.threads import open_own, thread_trainer

EPOCHS = 2000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards_of(awkward_graph(), "random", 1, tmp_path_factory.mktemp("shards"))


def trainer_of(folder: Path) -> Trainer:
    group = Group(Alone())
    config = Config(factors=FactorSettings(kernel="torch"), shape=ModelSettings(hidden=4, dropout=0.0))
    return thread_trainer(config, open_own(folder, group), group)


def header_bytes(content: bytes) -> int:
    """Safetensors: eight bytes that say how long the header is, then the header."""
    return int.from_bytes(content[:8], "little")


def test_the_header_of_a_ranks_file_does_not_grow_with_epochs(folder: Path, tmp_path: Path) -> None:
    trainer, fresh = trainer_of(folder), trainer_of(folder)
    short = header_bytes(contents.pack_rank(trainer))
    crossing, stream = trainer.exchange.crossing, Stream(1, "backward", 0)
    for epoch in range(EPOCHS):
        crossing.agreement.measured[epoch, stream] = 0.1 * epoch
        crossing.gauge.note(stream, epoch, Measurement(0.3 * epoch, None if epoch % 2 else 0.7))
    content = contents.pack_rank(trainer)
    assert header_bytes(content) < short + 100  # longer numbers of rows and bytes
    path = tmp_path / "rank"
    path.write_bytes(content)
    contents.unpack_rank(path, fresh)
    assert fresh.exchange.crossing.agreement.measured == crossing.agreement.measured
    assert fresh.exchange.crossing.gauge.measured == crossing.gauge.measured


def test_decisions_of_50000_epochs_are_a_short_text() -> None:
    log = np.tile(np.array([1, 0, 0, -1, 2], np.int8), (50_000, 2, 2, 1))
    packed = json.dumps(pack_log(log))
    assert len(packed) < log.size // 20
    np.testing.assert_array_equal(unpack_log(json.loads(packed)), log)


def test_decisions_of_an_older_checkpoint_are_lists() -> None:
    log = np.array([[[[1, 0], [-1, 2]]]], np.int8)
    np.testing.assert_array_equal(unpack_log(log.tolist()), log)
