"""A pipeline through which all rows go as one chunk computes what the full batch computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sancus.comm.alone import Alone
from sancus.comm.group import Group
from sancus.config.resolve import make_config
from sancus.graphs.shards import open_shard
from sancus.runs.build import make_trainer
from tests.helpers.graphs import awkward_graph, shards_of

MODELS = ("gcn", "sage", "gin", "gat", "gatv2", "gcnii", "resgcn+")
NOISY = {"dropout": 0.4, "attention_dropout": 0.4, "reuse_input": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards_of(awkward_graph(), "random", 1, tmp_path_factory.mktemp("one"))


def trained(folder: Path, **flags: Any) -> tuple[list[float], list[torch.Tensor]]:
    """The losses of some epochs, then the logits and all weights."""
    common = {"layers": 3, "hidden": 6, "heads": 2, "dropout": 0.0, "dtype": "float64", "lr": 0.3}
    config = make_config(**common | {"optimizer": "sgd", "epochs": 3} | flags)
    trainer = make_trainer(config, open_shard(folder, 0), Group(Alone()), torch.device("cpu"))
    losses = [float(record["loss"] or 0.0) for record in trainer.epochs()]
    return losses, [trainer.logits(), *trainer.model.state_dict().values()]


@pytest.mark.parametrize("noise", [{}, NOISY], ids=["plain", "dropout"])
@pytest.mark.parametrize("model", MODELS)
def test_one_chunk_is_the_full_batch(model: str, noise: dict[str, Any], folder: Path) -> None:
    ours = trained(folder, model=model, schedule="pipeline", stages=1, chunks=1, **noise)
    theirs = trained(folder, model=model, **noise)
    assert ours[0] == pytest.approx(theirs[0], rel=1e-12)
    for one, other in zip(ours[1], theirs[1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
