"""The live gauge of codec errors: true errors, what they do to rows, when it looks, and its one warning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sancus.codecs import CODECS
from sancus.comm.group import Group
from sancus.comm.ledger import Stream
from sancus.config.settings import Config, FactorSettings
from sancus.exchange.codec_error import (
    EVERY,
    ROWS,
    SUMS_STAND,
    ErrorGauge,
    Measurement,
    Origin,
    Reach,
    Sent,
    look,
    receiver_to_look_at,
)
from sancus.exchange.encoding import Encoder
from sancus.exchange.state import State, write_stream
from sancus.models.settings import ModelSettings
from sancus.plugins import build
from sancus.runs.codec_warning import CodecWarning
from sancus.training.settings import TrainingSettings
from sancus.training.trainer import Trainer
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.threads import open_own, results, run_threads, thread_trainer

RANKS, EPOCHS = 3, 9
STREAM = Stream(1, "forward", 0)


def sent_by(encoder: Encoder, payload: torch.Tensor, epoch: int, origin: Origin | None = None) -> Sent:
    weight = torch.ones(len(payload))
    wire = encoder.encode(payload, weight, STREAM, 1, epoch)
    return Sent(payload, wire, weight, len(payload), origin)


@pytest.mark.parametrize("codec", ["fp16", "bf16", "int8", "int4:tail=short", "int2", "int1", "auto"])
@pytest.mark.parametrize("rows", [1, ROWS, 5 * ROWS + 3])
def test_a_look_finds_the_true_error_of_some_rows(codec: str, rows: int) -> None:
    """Of all rows where there are few; else of every sixth: all of them have their turn."""
    encoder = Encoder(build("codec", CODECS, codec))
    payload = torch.randn(rows, 9, generator=torch.Generator().manual_seed(1))
    seen = []
    step = -(-rows // ROWS)
    for epoch in range(0, 40 * EVERY, EVERY):
        sent = sent_by(encoder, payload, epoch)
        decoded = encoder.decode(sent.wire, rows, payload, epoch)
        parts = [slice(first, None, step) for first in range(step)]
        true = [((decoded - payload)[part].norm() / payload[part].norm()).item() for part in parts]
        measurement = look(sent, encoder, epoch)
        assert measurement.noise is None
        seen.append(int(np.argmin(np.abs(np.array(true) - measurement.error))))
        assert measurement.error == pytest.approx(true[seen[-1]], rel=1e-5)
        assert all(len(payload[part]) <= ROWS for part in parts)
    assert set(seen) == set(range(step))


def test_fewer_bits_mean_a_larger_error() -> None:
    payload = torch.randn(ROWS, 40, generator=torch.Generator().manual_seed(2))
    errors = []
    for codec in ("fp32", "bf16", "int8", "int4", "int2", "int1"):
        encoder = Encoder(build("codec", CODECS, codec))
        errors.append(look(sent_by(encoder, payload, 0), encoder, 0).error)
    assert errors[0] == 0 and errors == sorted(errors) and errors[-1] > 1


def test_zeros_that_arrive_as_zeros_have_no_error() -> None:
    encoder = Encoder(build("codec", CODECS, "int1"))
    assert look(sent_by(encoder, torch.zeros(4, 3), 0), encoder, 0).error == 0.0


def test_the_noise_of_sums_is_what_errors_add_to_them() -> None:
    """Errors of different rows in different columns, so that their squares add up exactly in `R e`."""
    generator = torch.Generator().manual_seed(3)
    rows, receivers, own = 7, 11, 20
    r = torch.rand(receivers, rows, generator=generator, dtype=torch.float64)
    errors = torch.diag(torch.rand(rows, generator=generator, dtype=torch.float64) + 0.1)  # [k, f]
    h = torch.randn(own, rows, generator=generator, dtype=torch.float64)
    row_sum = 1.7
    noise = Origin(h, Reach(row_sum, 0.4), summed=True).noise(
        errors.square().sum(dim=1), r.square().sum(dim=0), rows
    )
    added = (r @ errors).square().sum() / own / row_sum**2  # to each of as many rows as this rank has
    differ = (h - h.mean(dim=0)).square().sum() / own
    assert noise == pytest.approx((added / differ).sqrt().item() / SUMS_STAND, rel=1e-12)


def test_the_noise_of_attention_is_that_of_one_neighbour() -> None:
    h = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    origin = Origin(h, Reach(1.0, foreign=0.25), summed=False)
    assert origin.noise(torch.tensor([4.0, 4.0]), torch.tensor([9.0, 9.0]), 2) == pytest.approx(1.0)
    alike = Origin(torch.ones(3, 2), Reach(1.0, 0.5), summed=False)
    assert alike.noise(torch.ones(2), torch.ones(2), 2) is None, "nothing to compare with"


def test_all_receivers_and_rows_have_their_turn() -> None:
    payloads = [torch.zeros(rows, 2) for rows in (0, 3, 0, 5)]
    for rhythm in (EVERY, 10, 16):  # epochs between looks
        assert {receiver_to_look_at(payloads, rhythm * look) for look in range(20)} == {1, 3}
    assert receiver_to_look_at(payloads[:1], 0) is None


def test_a_stream_is_looked_at_in_every_eighth_epoch_in_which_it_is_sent() -> None:
    gauge = ErrorGauge()
    looks = []
    for epoch in (0, 1, 5, 8, 9, 15, 19, 20, 27):
        if gauge.due(STREAM, epoch):
            gauge.note(STREAM, epoch, Measurement(0.5, None))
            looks.append(epoch)
    assert looks == [0, 8, 19, 27] and EVERY == 8
    assert gauge.record()[1] == [8, 1, 0, 0, 0.5, None]
    gauge.begin_epoch()
    assert not gauge.current


# In training


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards_of(awkward_graph(nodes=80), "random", RANKS, tmp_path_factory.mktemp("shards"))


def trainer_of(group: Group, folder: Path, model: str, **factors: Any) -> Trainer:
    config = Config(
        model=model,
        factors=FactorSettings(kernel="torch", reuse_input=False, broadcast="library", **factors),
        shape=ModelSettings(hidden=16, layers=2, dropout=0.0),
        training=TrainingSettings(epochs=EPOCHS),
    )
    return thread_trainer(config, open_own(folder, group), group)


def records_of(folder: Path, model: str, **factors: Any) -> list[dict[str, Any]]:
    def run(group: Group) -> Any:
        return list(trainer_of(group, folder, model, **factors).epochs())

    everyone = results(run_threads(RANKS, run))
    keys = ("codec_error", "codec_noise")
    assert all(
        [[one[key] for key in keys] for one in records] == [[one[key] for key in keys] for one in everyone[0]]
        for records in everyone
    ), "all ranks hear of the worst"
    return everyone[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("plan", ["block", "halo", "prepost"])
def test_errors_are_measured_in_training(folder: Path, plan: str) -> None:
    errors = {}
    for codec in ("int1", "int4"):
        records = records_of(folder, "gcn", plan=plan, codec=codec)
        for name in ("codec_error", "codec_noise"):
            measured = [record["epoch"] for record in records if record[name] is not None]
            assert measured == [0, EVERY]
        errors[codec] = records[0]["codec_error"], records[0]["codec_noise"]
    assert errors["int1"][0] > 3 * errors["int4"][0] and errors["int1"][1] > 3 * errors["int4"][1]


def test_nothing_is_measured_where_nothing_is_lost(folder: Path) -> None:
    records = records_of(folder, "gcn", plan="halo", codec="fp32")
    assert {record["codec_error"] for record in records} == {record["codec_noise"] for record in records}
    assert {record["codec_error"] for record in records} == {None}


def test_gradients_have_errors_but_no_noise(folder: Path) -> None:
    records = records_of(folder, "gcn", plan="halo", codec="fp32", backward_codec="int1")
    assert records[0]["codec_error"] > 0 and records[0]["codec_noise"] is None


@pytest.mark.parametrize("plan", ["block", "halo"])
def test_attention_bears_less_than_sums(folder: Path, plan: str) -> None:
    """The same codec and plan: more noise for a model that weighs edges by content."""
    gat, gcn = (records_of(folder, model, plan=plan, codec="int1")[0] for model in ("gat", "gcn"))
    assert gat["codec_noise"] > 1.5 * gcn["codec_noise"]


def test_the_next_look_after_a_checkpoint_is_when_it_would_have_been(folder: Path) -> None:
    """Also after one of before, which held every look."""

    def run(group: Group) -> Any:
        first, second, third = (trainer_of(group, folder, "gcn", plan="halo", codec="int2") for _ in range(3))
        list(first.epochs())
        crossing, own = first.exchange.crossing, Stream(1, "forward", group.rank)
        state = crossing.state()
        looks = [
            [epoch, write_stream(stream), one.error, one.noise]
            for (epoch, stream), one in crossing.gauge.measured.items()
        ]
        older = {name: value for name, value in state.plain.items() if name != "looks"}
        second.exchange.crossing.restore(state)
        third.exchange.crossing.restore(State(state.tensors, older | {"codec_errors": looks}))
        gauges = [one.exchange.crossing.gauge for one in (first, second, third)]
        assert [gauge.due(own, epoch) for gauge in gauges for epoch in (15, 16)] == [False, True] * 3
        return gauges[0].record(), gauges[2].record()

    for before, after in results(run_threads(RANKS, run)):
        assert before == after != []


def test_a_warning_comes_once() -> None:
    said: list[str] = []
    warning = CodecWarning("int1", said.append)
    for epoch, noise in enumerate((None, 0.9, 1.0, 1.3, None, 2.0)):
        warning.epoch({"epoch": epoch, "codec_noise": noise})
    assert len(said) == 1 and "\n" not in said[0]
    assert said[0].startswith("--codec int1: in epoch 3 its rounding errors are 1.30 times what")
    assert "take more bits" in said[0]
