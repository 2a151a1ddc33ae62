"""What a model may call (`Neighbourhood`), what it says of itself (`GraphModel`), and what both promise."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sancus
from sancus.comm.alone import Alone
from sancus.comm.group import Group
from sancus.config.settings import Config
from sancus.errors import UserError
from sancus.graphs.shards import open_shard
from sancus.kernels.matrix import SparseMatrix
from sancus.kernels.picked import first_rows
from sancus.models import MODELS
from sancus.models.contract import State, normalisation_of, traits_of
from sancus.models.neighbourhood import Neighbourhood
from sancus.models.settings import ModelSettings
from sancus.runs.build import make_trainer
from sancus.training.settings import TrainingSettings
from sancus.training.trainer import Trainer
from tests.helpers.graphs import awkward_graph, shards_of

CALLS = {name for name in vars(Neighbourhood) if not name.startswith("_")}
SHAPES = {
    "plain": {},
    "one layer": {"layers": 1},
    "cat": {"jumping": "cat", "norm": "batch"},
    "max": {"jumping": "max", "residual": True},
}
every_model = pytest.mark.parametrize("name", MODELS)
every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


@pytest.fixture(scope="module", params=[False, True], ids=["dense", "sparse"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = awkward_graph(sparse=request.param)
    return shards_of(graph, "contiguous", 1, tmp_path_factory.mktemp("shards"))


def trainer_of(folder: Path, name: str, shape: dict[str, Any], label_rate: float = 0.0) -> Trainer:
    settings = ModelSettings(**({"layers": 3, "hidden": 6, "heads": 2} | shape))
    training = TrainingSettings(epochs=2, dtype="float64", label_rate=label_rate)
    trainer = make_trainer(
        Config(model=name, shape=settings, training=training),
        open_shard(folder, 0),
        Group(Alone()),
        torch.device("cpu"),
    )
    trainer.exchange.begin_epoch(0)
    trainer.model.train()
    return trainer


class OnlyTheProtocol:
    """A neighbourhood with no other names than the protocol's; the last aggregation leaves the first rows."""

    def __init__(self, behind: Any, wanted: int, layers: int) -> None:
        self._behind, self._wanted, self._left = behind, wanted, layers

    def __getattr__(self, name: str) -> Any:
        if name not in CALLS:
            raise AssertionError(f"a model calls {name}, which is not in the protocol")
        call = getattr(self._behind, name)
        return self._counted(call) if name in ("propagate", "attend") else call

    def _counted(self, call: Any) -> Any:
        def aggregate(*arguments: Any, **settings: Any) -> torch.Tensor:
            result: torch.Tensor = call(*arguments, **settings)
            self._left -= 1
            return self.targets(result)

        return aggregate

    def targets(self, h: Any) -> Any:
        if self._left:
            return h
        return first_rows(h, self._wanted) if isinstance(h, SparseMatrix) else h[: self._wanted]


def test_the_exchange_is_a_neighbourhood(folder: Path) -> None:
    exchange = trainer_of(folder, "gat", {}).exchange
    neighbourhood: Neighbourhood = exchange  # mypy checks the signatures, this the names
    assert sancus.Exchange is type(neighbourhood)
    for name in CALLS:
        assert hasattr(exchange, name)
        ours = getattr(type(exchange), name, None)
        if inspect.isfunction(ours):
            assert list(inspect.signature(ours).parameters) == list(
                inspect.signature(getattr(Neighbourhood, name)).parameters
            )
    h = torch.ones(3, 2)
    assert exchange.targets(h) is h


@every_model
@every_shape
def test_models_call_only_the_protocol_and_answer_for_its_targets(
    folder: Path, name: str, shape: dict[str, Any]
) -> None:
    trainer, layers = trainer_of(folder, name, shape), shape.get("layers", 3)
    trainer.model.eval()  # masks and statistics are of all rows
    expected = trainer.model(trainer.exchange.input, trainer.exchange)
    around = OnlyTheProtocol(trainer.exchange, 5, layers)
    torch.testing.assert_close(trainer.model(trainer.exchange.input, around), expected[:5])
    around = OnlyTheProtocol(trainer.exchange, 5, layers)
    embed = traits_of(trainer.model).embed
    assert embed is not None
    embeddings, logits = embed(trainer.exchange.input, around)  # type: ignore[arg-type]
    assert len(embeddings) == len(logits) == 5


def test_the_wrapper_for_labels_calls_only_the_protocol(folder: Path) -> None:
    trainer = trainer_of(folder, "gcn", {}, label_rate=0.5)
    expected = trainer.model(trainer.exchange.input, trainer.exchange)
    found = trainer.model(trainer.exchange.input, OnlyTheProtocol(trainer.exchange, 5, layers=3))
    torch.testing.assert_close(found, expected[:5])


@every_model
@every_shape
def test_segments_in_order_are_the_model(folder: Path, name: str, shape: dict[str, Any]) -> None:
    trainer = trainer_of(folder, name, shape)
    segments = traits_of(trainer.model).segments
    assert segments is not None
    state: State = (trainer.exchange.input,)
    cut = 0
    for segment in segments():
        state = segment(state, trainer.exchange)
        cut += 1
        assert all(isinstance(rows, torch.Tensor) for rows in state), "what a pipeline can send"
    (logits,) = state
    assert isinstance(logits, torch.Tensor)
    assert cut >= shape.get("layers", 3)
    trainer.exchange.begin_epoch(0)
    expected = trainer.model(trainer.exchange.input, trainer.exchange)
    assert torch.equal(logits, expected)
    target = torch.randn_like(logits)
    parameters = list(trainer.model.parameters())
    for ours, theirs in zip(
        torch.autograd.grad(logits, parameters, target, allow_unused=True),
        torch.autograd.grad(expected, parameters, target, allow_unused=True),
        strict=True,
    ):
        assert (ours is None) == (theirs is None)
        assert ours is None or torch.equal(ours, theirs)


class Silent(nn.Module):
    """Says nothing of itself."""


class Wrong(nn.Module):
    normalisation = "none"


def test_what_a_model_leaves_out_has_a_default() -> None:
    traits = traits_of(Silent())
    assert (normalisation_of(Silent), traits.linear, traits.shrinks) == ("symmetric", False, False)
    assert traits.widths is traits.embed is traits.segments is None
    assert traits_of(Silent) == traits
    with pytest.raises(UserError, match="model Wrong: normalisation 'none' does not exist; choose from"):
        normalisation_of(Wrong)


class Normalises(nn.Module):
    """Has a layer of its own under a name that means something to us in a class."""

    def __init__(self) -> None:
        super().__init__()
        self.normalisation = nn.LayerNorm(3)


def test_a_layer_may_be_called_normalisation() -> None:
    assert normalisation_of(Normalises) == "symmetric"
    assert traits_of(Normalises()) == traits_of(Silent())


@every_model
def test_our_models_say_all_of_it(folder: Path, name: str) -> None:
    model = trainer_of(folder, name, {}).model
    traits = traits_of(model)
    assert traits == traits_of(model) and traits.shrinks and traits.linear == (not name.startswith("gat"))
    assert normalisation_of(model) == {"sage": "mean", "gin": "sum"}.get(name, "symmetric")
    assert (traits.widths is None) == (name not in ("gcn", "sage"))
    assert traits.segments is not None and traits.embed is not None
