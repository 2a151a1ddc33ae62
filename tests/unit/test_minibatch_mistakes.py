"""Settings of mini-batches that cannot be: one line that names the value, what is allowed, what to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sancus.comm.alone import Alone
from sancus.comm.group import Group
from sancus.config.resolve import make_config
from sancus.errors import UserError
from sancus.graphs.shards import open_shard
from sancus.models.neighbourhood import Neighbourhood
from sancus.models.norm import BatchNorm
from sancus.runs.build import make_trainer
from sancus.runs.layout import make_schedule
from tests.helpers.command import run
from tests.helpers.graphs import awkward_graph, shards_of

SMALL = {"batch_size": 4}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"batch_size": -1}, "--batch-size -1: must not be negative"),
        (SMALL | {"fanout": "5,-2"}, "--fanout 5,-2: '-2' is no number of neighbours; give whole numbers"),
        (SMALL | {"fanout": "5,0"}, "--fanout 5,0: '0' is no number"),
        (SMALL | {"fanout": "5,"}, "--fanout 5,: 'nothing' is no number"),
        (SMALL | {"fanout": "many"}, "--fanout many: 'many' is no number"),
        (SMALL | {"fanout": "9999999"}, "'9999999' is no number"),
        (
            SMALL | {"fanout": "15,10,5"},
            "--fanout 15,10,5 is for 3 layers, and --layers is 2; give one a layer",
        ),
        (SMALL | {"sampler": "labour"}, "sampler 'labour' does not exist; choose from"),
        (
            SMALL | {"sampler": "saint:length=3"},
            "--fanout 10: --sampler saint takes all neighbours inside a batch; add --fanout all",
        ),
        (SMALL | {"staleness": "never"}, "--staleness never is for training on the full graph"),
        (SMALL | {"backward": "drop"}, "--backward drop is for training on the full graph"),
        (
            SMALL | {"codec": "int8"},
            "--codec int8 is for training on the full graph; leave it out, or --batch-size",
        ),
        (SMALL | {"error_feedback": True}, "--error-feedback True is for training on the full graph"),
        (SMALL | {"clip": 1.0}, "--clip 1.0 is for"),
        (SMALL | {"label_rate": 0.5}, "--label-rate 0.5 is for"),
        (SMALL | {"preset": "lean"}, "--preset exact sets nothing of the kind"),
        (SMALL | {"schedule": "tests.helpers.toy_schedules:Thirds"}, "has no batches; leave it out"),
        (
            {"feature_cache": "vip"},
            "--feature-cache vip is for mini-batches; add --batch-size, or leave it out",
        ),
        (SMALL | {"feature_cache": "vips"}, "cache 'vips' does not exist; choose from degree, vip"),
        (SMALL | {"prefetch": -1}, "--prefetch -1: must not be negative; 0 makes no batch ahead"),
        ({"topology": "owner"}, "--topology owner is for mini-batches; add --batch-size"),
        ({"feature_codec": "int8"}, "--feature-codec int8 is for mini-batches; add --batch-size"),
        ({"schedule": "minibatch"}, "--schedule minibatch needs --batch-size"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        make_config(**settings)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_samples_of_ranks_share_rows_so_that_batch_norm_is_refused() -> None:
    schedule = make_schedule(make_config(norm="batch", **SMALL))
    assert schedule.layout(1).parts == 1
    with pytest.raises(UserError, match=r"--norm batch takes statistics of rows, .*choose --norm layer"):
        schedule.layout(2)


def test_the_command_line_says_so_in_one_line_before_ranks_start() -> None:
    for flags, said in (
        (("--batch-size", "64", "--fanout", "3,2,1"), "--fanout 3,2,1 is for 3 layers"),
        (("--batch-size", "-64"), "--batch-size -64: must not be negative"),
        (("--batch-size", "64", "--norm", "batch"), "--norm batch takes statistics"),
        (("--batch-size", "64", "--feature-cache", "vip:share=2"), "share=2 must be above 0 and at most 1"),
        (("--batch-size", "64", "--sampler", "labor:by=size"), "by='size' is not one of count, weight"),
    ):
        refused = run("train", "synthetic", "--ranks", "2", *flags)
        assert refused.code == 2 and said in refused.err, refused
        assert len(refused.err.strip().splitlines()) == 1, refused


class Hops(torch.nn.Module):
    """Aggregates so many times, whatever --layers says; with statistics of rows, if asked."""

    normalisation = "sum"
    times = 2
    statistics = False

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(features, classes))
        self.norm = BatchNorm(classes) if self.statistics else None

    def forward(self, x: Any, exchange: Neighbourhood) -> torch.Tensor:
        h = x @ self.weight
        for layer in range(self.times):
            h = exchange.propagate(h, layer) + h
        return h if self.norm is None else self.norm(h, exchange)


class Thrice(Hops):
    times = 3


class Once(Hops):
    times = 1


class Norming(Hops):
    statistics = True


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Thrice, "--fanout 3,2 draws 2 hops, and the model aggregates more often"),
        (Once, "--fanout 3,2 draws 2 hops, and the model aggregates 1 times; give one fan-out for each"),
        (Norming, r"model Norming takes statistics of rows, .*take exchange.targets"),
    ],
)
def test_a_model_that_does_not_fit_is_told_why(model: type[Hops], said: str, tmp_path: Any) -> None:
    shard = open_shard(shards_of(awkward_graph(), "contiguous", 1, tmp_path), 0)
    config = make_config(batch_size=4, fanout="3,2", epochs=1)
    with pytest.raises(UserError, match=said):
        list(make_trainer(config, shard, Group(Alone()), torch.device("cpu"), model).epochs())


def test_a_model_that_knows_nothing_of_samples_runs(tmp_path: Any) -> None:
    shard = open_shard(shards_of(awkward_graph(), "contiguous", 1, tmp_path), 0)
    config = make_config(batch_size=4, fanout="3,2", epochs=1)
    (record,) = make_trainer(config, shard, Group(Alone()), torch.device("cpu"), Hops).epochs()
    assert record["steps"] == 3
