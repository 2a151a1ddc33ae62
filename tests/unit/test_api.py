"""Sancus from Python: every flag that is taken has its effect, and shards come from the one cache."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from sancus import api
from sancus.comm.alone import Alone
from sancus.comm.group import Group
from sancus.errors import UserError
from sancus.launch.world import World
from sancus.runs import build
from sancus.shards.cache import prepare, prepare_graph
from tests.helpers.graphs import awkward_graph
from tests.helpers.processes import run_ranks

SMALL: dict[str, Any] = {"epochs": 1, "hidden": 4}


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SANCUS_HOME", str(tmp_path / "home"))
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def manifests(home: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(home.glob("home/shards/*/manifest.json"))]


# The shard cache


def partitioner_file(folder: Path, part: int) -> str:
    file = folder / "mine.py"
    file.write_text(
        "import numpy as np\n\n\nclass Mine:\n"
        '    """All rows but one to one part."""\n\n'
        "    def assign(self, adjacency, parts):\n"
        f"        assignment = np.full(adjacency.shape[0], {part})\n"
        f"        assignment[0] = {1 - part}\n"
        "        return assignment\n"
    )
    return f"{file}:Mine"


def two() -> Group:
    """A group that says it has two ranks, for shards of two parts."""
    group = Group(Alone())
    group.size = 2
    return group


def test_an_edited_partitioner_is_noticed_from_python(tmp_path: Path) -> None:
    graph = awkward_graph()
    sizes = []
    for part in (0, 1, 0):
        shard = api.partition(graph, two(), partitioner_file(tmp_path, part))
        sizes.append(np.diff(shard.offsets).tolist())
    assert sizes == [[22, 1], [1, 22], [22, 1]]
    assert len(manifests(tmp_path)) == 2, "the first is found again"


def test_an_edit_that_python_has_not_loaded_names_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the old text does is not kept under the new text's name, where a new process would find it."""
    package = tmp_path / "package_of_a_user"
    package.mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    spec = "package_of_a_user.mine:Mine"
    partitioner_file(package, 0)
    first = prepare_graph(awkward_graph(), spec, 2).directory
    partitioner_file(package, 1)
    assert prepare_graph(awkward_graph(), spec, 2).directory == first
    monkeypatch.delitem(sys.modules, "package_of_a_user.mine")  # as in a new process
    assert prepare_graph(awkward_graph(), spec, 2).directory != first


def test_the_order_of_rows_counts_from_python(tmp_path: Path) -> None:
    graph = awkward_graph()
    api.partition(graph, two())
    api.partition(graph, two(), row_order="given")
    api.partition(graph, two(), row_order="given")
    assert sorted(one["row_order"] for one in manifests(tmp_path)) == ["auto", "given"]


def test_every_part_of_the_key_counts(tmp_path: Path) -> None:
    graph = awkward_graph()
    found = [
        prepare_graph(graph, "random", 2),
        prepare_graph(graph, "random:seed=1", 2),
        prepare_graph(graph, "random", 3),
        prepare_graph(graph, "random", 2, "given"),
        prepare_graph(awkward_graph(nodes=24), "random", 2),
    ]
    places = [shards.directory for shards in found]
    assert len(set(places)) == len(places)
    assert prepare_graph(awkward_graph(), "random", 2).directory == places[0]
    other = prepare("synthetic:nodes=60,classes=3", "random", 2).directory
    assert other.parent == places[0].parent, "one cache"


# Flags of `sancus.train`


def test_threads() -> None:
    asked = torch.get_num_threads() + 1
    api.train(awkward_graph(), threads=asked, **SMALL)
    assert torch.get_num_threads() == asked


def test_threads_that_the_program_chose_stay() -> None:
    torch.set_num_threads(3)
    api.train(awkward_graph(), **SMALL)
    assert torch.get_num_threads() == 3


def test_labels_as_input_train_alike_in_one_call_and_from_the_pieces() -> None:
    flags = {"label_rate": 0.5, "model": "gcn", **SMALL}
    epochs = api.train(awkward_graph(), **flags).epochs
    config, group = api.settings(**flags), Group(Alone())
    shard = api.partition(awkward_graph(), group)
    task = api.make_task(shard, group, config)
    whole = build.make_trainer(config, shard, group, torch.device("cpu"))
    trainer = api.Trainer(whole.model, api.make_exchange(shard, group, config), task, config.training)
    assert [record["loss"] for record in trainer.epochs()] == [record["loss"] for record in epochs]


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    sentence = "^--device cuda, but torch finds no GPU here; use --device cpu$"
    with pytest.raises(UserError, match=sentence):
        api.train(awkward_graph(), device="cuda", **SMALL)
    config = api.settings(device="cuda")
    shard = api.partition(awkward_graph(), Group(Alone()))
    with pytest.raises(UserError, match=sentence):
        api.make_task(shard, Group(Alone()), config)
    with pytest.raises(UserError, match=sentence):
        api.make_exchange(shard, Group(Alone()), config)


@pytest.mark.parametrize("order", ["given", "rcm"])
def test_the_order_of_rows(order: str, tmp_path: Path) -> None:
    api.train(awkward_graph(), row_order=order, partitioner="random", **SMALL)
    (manifest,) = manifests(tmp_path)
    assert manifest["row_order"] == order
    assert manifest["partition"]["partitioner"] == "random"


def test_the_seed_of_what_a_model_draws_itself() -> None:
    seeds = []
    for seed in (0, 0, 1):
        torch.manual_seed(99)
        api.train(awkward_graph(), seed=seed, **SMALL)
        seeds.append(torch.initial_seed())
    assert seeds[0] == seeds[1] != seeds[2]
    assert 99 not in seeds


def on_a_rank(group: Group, home: str, **flags: Any) -> tuple[str, int]:
    """What `train` says on one of several ranks, and the seed that it leaves."""
    world = World(group.rank, group.size, group.rank, group.size, "local", "store")
    mine = {name: value[group.rank] if isinstance(value, list) else value for name, value in flags.items()}
    with (
        mock.patch.dict("os.environ", {"SANCUS_HOME": home}),
        mock.patch("sancus.programs.train.detect", return_value=world),
        mock.patch("sancus.runs.build.connect", return_value=group),
    ):
        try:
            api.train(awkward_graph(), **SMALL, **mine)
        except UserError as error:
            return str(error), 0
    return "", torch.initial_seed()


def test_ranks_draw_other_numbers(tmp_path: Path) -> None:
    results = run_ranks(f"{__name__}:on_a_rank", 2, home=str(tmp_path))
    assert [said for said, _ in results] == ["", ""]
    assert len({seed for _, seed in results}) == 2


@pytest.mark.parametrize(("setting", "values"), [("lr", [0.1, 0.2]), ("dropout", [0.0, 0.5])])
def test_ranks_that_disagree_are_named(setting: str, values: list[Any], tmp_path: Path) -> None:
    results = run_ranks(f"{__name__}:on_a_rank", 2, home=str(tmp_path), **{setting: values})
    sentence = "rank 1 has other settings than rank 0; start all ranks with the same command and files"
    assert results == [(sentence, 0), (sentence, 0)]
