"""Training: objective, schedules, early stop, checkpoints, metrics, bills; settings, presets and plug-ins."""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from sancus import plugins
from sancus.api import settings
from sancus.comm.alone import Alone
from sancus.comm.group import Group
from sancus.comm.ledger import Entry, Ledger, Stream
from sancus.config.presets import PRESETS
from sancus.config.settings import Config, FactorSettings, LaunchSettings, OutputSettings
from sancus.errors import UserError
from sancus.graphs.shards import open_shard
from sancus.metrics.bill import Bill, join_ledgers
from sancus.metrics.declared import METRICS
from sancus.metrics.writer import MetricsWriter
from sancus.models import MODELS
from sancus.models.settings import ModelSettings
from sancus.runs.build import make_trainer
from sancus.runs.checkpoints import contents, durable, names, reader
from sancus.runs.checkpoints.store import Checkpoints, WholeCheckpoint
from sancus.training.node_task import NodeTask
from sancus.training.settings import TrainingSettings
from sancus.training.task import SPLITS
from sancus.training.trainer import Trainer
from tests.helpers.graphs import awkward_graph, shards_of

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards_of(awkward_graph(), "contiguous", 1, tmp_path_factory.mktemp("shards"))


def trainer_of(
    folder: Path, model: str = "gcn", shape: ModelSettings | None = None, **training: Any
) -> Trainer:
    chosen: dict[str, Any] = {"epochs": 4, "dtype": "float64"} | training
    config = Config(
        model=model,
        shape=shape or ModelSettings(hidden=4, dropout=0.5),
        training=TrainingSettings(**chosen),
    )
    return make_trainer(config, open_shard(folder, 0), Group(Alone()), CPU)


# Objective


def task_of(labels: torch.Tensor, split: np.ndarray[Any, Any], own: list[int]) -> NodeTask:
    """The task of a rank that owns some of the nodes; `split[v]` is 0, 1, 2 or 3 for none."""
    rows = {name: torch.from_numpy(np.flatnonzero(split[own] == place)) for place, name in enumerate(SPLITS)}
    return NodeTask(labels[own], rows, int((split == 0).sum()))


@pytest.mark.parametrize("several", [False, True], ids=["classes", "labels"])
@given(seed=st.integers(0, 999), parts=st.integers(1, 4))
def test_loss_and_score_do_not_depend_on_the_split(several: bool, seed: int, parts: int) -> None:
    draws = np.random.default_rng(seed)
    nodes, classes = 11, 3
    split = draws.integers(0, 4, nodes)
    split[:3] = [0, 1, 2]
    logits = torch.from_numpy(draws.standard_normal((nodes, classes)))
    if several:
        labels = torch.from_numpy((draws.random((nodes, classes)) < 0.4).astype(np.float64))
        expected = F.binary_cross_entropy_with_logits(logits[split == 0], labels[split == 0])
    else:
        labels = torch.from_numpy(draws.integers(0, classes, nodes))
        expected = F.cross_entropy(logits[split == 0], labels[split == 0])
    assignment = draws.integers(0, parts, nodes)
    blocks = [np.flatnonzero(assignment == part).tolist() for part in range(parts)]
    tasks = [task_of(labels, split, own) for own in blocks]
    losses = [task.loss(logits[own]) for task, own in zip(tasks, blocks, strict=True)]
    assert sum(loss.item() for loss in losses) == pytest.approx(expected.item())
    scores = [task.score(logits[own]) for task, own in zip(tasks, blocks, strict=True)]
    whole = task_of(labels, split, list(range(nodes))).score(logits)
    assert torch.equal(torch.stack(scores).sum(dim=0), whole)
    for place, (top, bottom) in enumerate(whole.tolist()):
        assert (top, bottom) == brute_force(logits[split == place], labels[split == place])
    assert tasks[0].metric == ("micro-F1" if several else "accuracy")


def brute_force(logits: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """Numerator and denominator of accuracy, or of micro-F1 = 2 TP / (2 TP + FP + FN)."""
    if labels.dim() == 1:
        hits = [row.argmax().item() == label.item() for row, label in zip(logits, labels, strict=True)]
        return float(sum(hits)), float(len(hits))
    seen: Counter[tuple[bool, bool]] = Counter()
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        seen.update((score > 0, actual > 0) for score, actual in zip(row, label, strict=True))
    twice = 2 * seen[True, True]
    return float(twice), float(twice + seen[True, False] + seen[False, True])


# Settings


def test_learning_rates() -> None:
    constant = TrainingSettings(lr=0.1, epochs=10)
    assert {constant.learning_rate(epoch) for epoch in range(10)} == {0.1}
    linear = TrainingSettings(lr=0.1, epochs=10, lr_schedule="linear")
    assert [linear.learning_rate(epoch) for epoch in (0, 5, 10)] == pytest.approx([0.1, 0.05, 0.0])
    cosine = TrainingSettings(lr=0.1, epochs=10, lr_schedule="cosine")
    assert [cosine.learning_rate(epoch) for epoch in (0, 5, 10)] == pytest.approx([0.1, 0.05, 0.0])
    assert cosine.learning_rate(2) > linear.learning_rate(2)
    warm = TrainingSettings(lr=0.1, epochs=12, lr_schedule="linear", warmup=2)
    rates = [warm.learning_rate(epoch) for epoch in (0, 1, 2, 7, 12)]
    assert rates == pytest.approx([0.05, 0.1, 0.1, 0.05, 0.0])
    only_warm = TrainingSettings(lr=0.1, epochs=3, warmup=3, lr_schedule="cosine")
    assert only_warm.learning_rate(2) == pytest.approx(0.1)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: TrainingSettings(epochs=0), "--epochs 0: must be at least 1"),
        (lambda: TrainingSettings(eval_every=0), "--eval-every 0: must be at least 1"),
        (lambda: TrainingSettings(warmup=-1), "--warmup -1: must not be negative"),
        (lambda: TrainingSettings(patience=-1), "--patience -1: must not be negative"),
        (lambda: TrainingSettings(seed=-1), "--seed -1: must not be negative"),
        (lambda: TrainingSettings(lr=math.nan), "--lr nan: must be a number"),
        (lambda: TrainingSettings(lr=-0.1), "--lr -0.1: must be a number"),
        (lambda: TrainingSettings(weight_decay=math.inf), "--weight-decay inf: must be a number"),
        (lambda: TrainingSettings(momentum=-1.0), "--momentum -1.0: must be a number"),
        (lambda: ModelSettings(layers=0), "--layers 0: a model needs at least 1 layer"),
        (lambda: ModelSettings(hidden=0), "--hidden 0: a layer needs at least 1 column"),
        (lambda: ModelSettings(dropout=1.0), "--dropout 1.0: must be at least 0 and below 1"),
        (lambda: FactorSettings(clip=0.0), "--clip 0.0: must be a positive number"),
        (lambda: FactorSettings(clip=math.nan), "--clip nan: must be a positive number"),
        (lambda: FactorSettings(plan="hallo"), "plan 'hallo' does not exist; choose from block, drawn, halo"),
        (lambda: FactorSettings(staleness="epoch-fixe"), "did you mean epoch-fixed"),
        (lambda: FactorSettings(backend="glo"), "backend 'glo' does not exist; choose from auto, gloo"),
        (lambda: LaunchSettings(ranks=0), "--ranks 0: must be at least 1"),
        (lambda: LaunchSettings(threads=-3), "--threads -3: must be at least 1"),
        (lambda: LaunchSettings(timeout=math.nan), "--timeout nan: must be above 0"),
        (lambda: OutputSettings(checkpoint_every=-1), "--checkpoint-every -1: must not be negative"),
        (lambda: OutputSettings(resume=Path("/nowhere")), "--resume /nowhere: no checkpoint there"),
        (lambda: Config(model="gnc"), "model 'gnc' does not exist; choose from gat"),
        (lambda: Config(preset="sancus"), "preset 'sancus' does not exist; choose from bns, cagnet"),
        (lambda: Config(preset="sancus-e:4"), "sancus-e has sancus-e:1 to sancus-e:3"),
        (lambda: Config(preset="exact:1"), "preset 'exact:1' does not exist; exact has exact alone"),
        (lambda: Config(factors=FactorSettings(backend="nccl")), "--backend nccl moves CUDA tensors"),
    ],
)
def test_a_wrong_setting_is_one_line(make: Any, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_settings_of_the_python_interface(preset: str) -> None:
    assert settings(preset=preset).preset == preset


def test_the_digest_follows_the_settings_that_must_agree() -> None:
    base = Config()
    assert base.digest() == Config().digest() and len(base.digest()) == 16
    others = [
        Config(model="sage"),
        Config(preset="cagnet"),
        Config(shape=ModelSettings(hidden=65)),
        Config(shape=ModelSettings(residual=True)),
        Config(factors=FactorSettings(staleness="epoch-fixed:bound=2")),
        Config(factors=FactorSettings(staleness="epoch-fixed:bound=3")),
        Config(factors=FactorSettings(agree="epoch")),
        Config(factors=FactorSettings(clip=1.0)),
        Config(training=TrainingSettings(seed=1)),
        Config(training=TrainingSettings(lr=0.02)),
    ]
    digests = [config.digest() for config in (base, *others)]
    assert len(set(digests)) == len(digests)
    own = Config(output=OutputSettings(out=Path("x")), launch=LaunchSettings(threads=3, timeout=9.0))
    assert own.digest() == base.digest()


# The loop


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_every_parameter_gets_a_gradient_and_moves(folder: Path, model: str, optimizer: str) -> None:
    shape = ModelSettings(layers=3, hidden=8, heads=2, norm="batch", residual=True, jumping="cat")
    trainer = trainer_of(folder, model, shape, optimizer=optimizer, lr=0.1, weight_decay=0.0)
    before = {name: tensor.clone() for name, tensor in trainer.model.named_parameters()}
    assert sum(p.numel() for g in trainer.optimizer.param_groups for p in g["params"]) == sum(
        p.numel() for p in before.values()
    )
    trainer.train_epoch(0)
    for name, parameter in trainer.model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
        assert not torch.equal(parameter, before[name]), name


def test_the_learning_rate_of_the_epoch_is_used(folder: Path) -> None:
    trainer = trainer_of(folder, optimizer="sgd", lr_schedule="linear", lr=0.4)
    for epoch in range(4):
        trainer.train_epoch(epoch)
        assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.4 * (1 - epoch / 4))


def scripted(trainer: Trainer, scores: list[float], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The epochs that a trainer runs when its evaluations find these validation scores."""
    found = iter(scores)

    def evaluate() -> torch.Tensor:
        val = next(found)
        return torch.tensor([[0.0, 1.0], [val, 1.0], [val / 2, 1.0]], dtype=torch.float64)

    monkeypatch.setattr(trainer, "evaluate", evaluate)
    return [int(record["epoch"] or 0) for record in trainer.epochs()]


@pytest.mark.parametrize(
    "settings, scores, ran, best",
    [
        ({"patience": 2}, [0.1, 0.5, 0.4, 0.5, 0.9], 4, 1),
        ({"patience": 0}, [0.5, 0.1, 0.1, 0.1, 0.1], 5, 0),
        ({"patience": 1}, [0.1, 0.2, 0.3, 0.4, 0.5], 5, 4),
        ({"patience": 1, "eval_every": 2}, [0.3, 0.2, 0.9], 4, 1),
        ({"patience": 2, "eval_every": 4}, [0.3, 0.4], 5, 4),  # not stopped before it was evaluated
    ],
)
def test_early_stop(
    folder: Path,
    settings: dict[str, Any],
    scores: list[float],
    ran: int,
    best: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = trainer_of(folder, epochs=5, **settings)
    assert scripted(trainer, scores, monkeypatch) == list(range(ran))
    evaluated = [e for e in range(5) if e == 4 or (e + 1) % settings.get("eval_every", 1) == 0]
    assert trainer.best.epoch == best
    assert trainer.best.test == scores[evaluated.index(best)] / 2


def test_evaluation_happens_every_so_many_epochs_and_at_the_end(folder: Path) -> None:
    records = list(trainer_of(folder, epochs=5, eval_every=2).epochs())
    assert [record["val"] is not None for record in records] == [False, True, False, True, True]
    assert all(set(record) == set(METRICS) for record in records)


def test_a_loss_that_is_not_finite_is_the_users_error(folder: Path) -> None:
    trainer = trainer_of(folder, optimizer="sgd", lr=1e30, epochs=40, eval_every=40)
    with pytest.raises(UserError, match=r"the loss of rank 0 is (nan|inf) in epoch .; lower --lr"):
        list(trainer.epochs())


# Checkpoints


def write(trainer: Trainer, folder: Path, keep: int = 2) -> str | None:
    checkpoints = Checkpoints(folder, Group(Alone()), torch.device("cpu"), keep)
    shared = contents.pack(trainer, {"carried": [1, 2]})
    return checkpoints.write(trainer.next_epoch, shared, contents.pack_rank(trainer))


def newest(folder: Path) -> WholeCheckpoint | None:
    return Checkpoints(folder, Group(Alone()), torch.device("cpu")).newest()


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_resumed_run_repeats_the_uninterrupted_one(folder: Path, optimizer: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"optimizer": optimizer, "momentum": 0.9, "lr_schedule": "cosine", "epochs": 6}
    whole = trainer_of(folder, **settings)
    losses = [record["loss"] for record in whole.epochs()]
    first = trainer_of(folder, **settings)
    for record in first.epochs():
        if record["epoch"] == 2:
            break
    assert write(first, tmp_path / "c") is None
    second = trainer_of(folder, seed=0, **settings)
    found = newest(tmp_path / "c")
    assert found is not None and found.own is not None
    assert contents.unpack(found.shared, second) == {"carried": [1, 2]}
    contents.unpack_rank(found.own, second)
    assert found.describe() == f"resumed from {tmp_path / 'c' / 'epoch-00000003'}"
    assert second.next_epoch == 3
    assert [record["loss"] for record in second.epochs()] == losses[3:]
    assert (second.best.epoch, second.best.val) == (whole.best.epoch, whole.best.val)
    for name, tensor in whole.best.weights.items():
        assert torch.equal(second.best.weights[name], tensor)


def test_a_checkpoint_of_another_model_is_refused(folder: Path) -> None:
    files = contents.pack(trainer_of(folder), {})
    other = trainer_of(folder, shape=ModelSettings(hidden=5))
    with pytest.raises(UserError, match="holds another model"):
        contents.unpack(files, other)


def test_the_newest_whole_checkpoint_is_read(folder: Path, tmp_path: Path) -> None:
    trainer = trainer_of(folder, epochs=3)
    for _ in trainer.epochs():
        assert write(trainer, tmp_path) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch-00000002", "epoch-00000003"]
    damaged = tmp_path / "epoch-00000003"
    for path in damaged.iterdir():
        content = path.read_bytes()
        for change in (content[:-1], bytes([content[0] ^ 1]) + content[1:], None):
            path.write_bytes(change) if change is not None else path.unlink()
            found = newest(tmp_path)
            assert found is not None
            assert found.describe().endswith(
                "epoch-00000002; epoch-00000003 is damaged and was passed over"
            ), (path.name, change)
            path.write_bytes(content)
    found = newest(tmp_path)
    assert found is not None and found.directory == damaged and not found.passed_over


def test_without_its_own_file_a_rank_starts_cold(folder: Path, tmp_path: Path) -> None:
    trainer = trainer_of(folder, epochs=1)
    list(trainer.epochs())
    write(trainer, tmp_path)
    (tmp_path / "epoch-00000001" / names.rank_file(0)).unlink()
    found = newest(tmp_path)
    assert found is not None and found.own is None
    assert json.loads(found.shared["state.json"])["next_epoch"] == 1


def test_a_checkpoint_that_is_there_is_not_written_again(folder: Path, tmp_path: Path) -> None:
    trainer = trainer_of(folder, epochs=1)
    list(trainer.epochs())
    write(trainer, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert write(trainer, tmp_path) is None
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    (tmp_path / "epoch-00000001" / "weights.safetensors").write_bytes(b"damaged")
    assert write(trainer, tmp_path) is None
    found = newest(tmp_path)
    assert found is not None and found.own is not None


def test_no_whole_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "epoch-00000001").mkdir()
    assert newest(tmp_path) is None
    assert reader.read_newest(tmp_path) is None


def test_a_failed_write_leaves_the_old_checkpoints(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(folder, epochs=2)
    epochs = trainer.epochs()
    next(epochs)
    write(trainer, tmp_path)
    next(epochs)
    monkeypatch.setattr(durable.os, "fsync", lambda file: (_ for _ in ()).throw(OSError(28, "full")))
    assert write(trainer, tmp_path) == "rank 0: full"
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-00000001"]
    found = newest(tmp_path)
    assert found is not None and found.own is not None and not found.passed_over


# Metrics and the bill


def record_of(epoch: int, **changes: Any) -> dict[str, Any]:
    return dict.fromkeys(METRICS, 0) | {"epoch": epoch} | changes


def epochs_in(path: Path) -> list[int]:
    return [json.loads(line)["epoch"] for line in path.read_text().splitlines()]


def write_epochs(path: Path, first: int, stop: int) -> None:
    writer = MetricsWriter(path, first)
    for epoch in range(first, stop):
        writer.write(record_of(epoch))
    writer.close()


def test_metrics_are_cut_where_a_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_epochs(path, 0, 5)
    with path.open("a") as file:
        file.write('{"epoch": 5, "lo')  # a process killed in the middle of a line
    write_epochs(path, 3, 4)
    assert epochs_in(path) == [0, 1, 2, 3]
    write_epochs(path, 0, 2)
    assert epochs_in(path) == [0, 1]


def test_metrics_are_flushed_and_strict_json(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    writer.write(record_of(0, max_drift=math.inf, val=None))
    (line,) = path.read_text().splitlines()
    assert json.loads(line, parse_constant=pytest.fail)["max_drift"] is None
    with pytest.raises(AssertionError):
        writer.write(record_of(1) | {"undeclared": 1})
    writer.close()


def some_bill() -> Bill:
    records = []
    for rank in range(2):
        ledger, stream = Ledger(), Stream(1, "forward", rank)
        ledger.count(Entry("payload", stream), 1 - rank, 100 + rank)
        ledger.count(Entry("evaluation", stream), 1 - rank, 7)
        ledger.count(Entry("agreement"), 1 - rank, 5)
        ledger.count(Entry("parameter"), 1 - rank, 11)
        ledger.count(Entry("probe"), 1 - rank, 0)
        ledger.count_raw(stream, 200)
        ledger.count_raw_parameters(44)
        ledger.count_saved(Stream(0, "backward", rank), 50)
        records.append(json.loads(json.dumps(ledger.record() | {"members": [0, 1]})))
    return join_ledgers(records, {(1, "forward", 0): (3, 1), (0, "backward", 1): (1, 3)})


def test_the_matrix_of_a_bill_names_processes() -> None:
    """Two copies of two parts: processes 2 and 3 hold the parts 0 and 1 of the second copy."""
    records = []
    for members in ([0, 1], [2, 3]):
        ledger = Ledger()
        ledger.count(Entry("payload", Stream(1, "forward", 0)), members[1], 100)
        records.append(ledger.record() | {"members": members})
    plain = join_ledgers(records, {}).to_dict(epochs=1, ranks=4)
    assert plain["payload_matrix"] == [[0, 100, 0, 0], [0] * 4, [0, 0, 0, 100], [0] * 4]


def test_a_bill_adds_up() -> None:
    plain = some_bill().to_dict(epochs=4, ranks=2)
    assert plain["total"] == {
        "wire_bytes": 201,
        "raw_bytes": 400,
        "saved_bytes": 100,
        "agreement_bytes": 10,
        "boundary_bytes": 0,
        "topology_bytes": 0,
        "parameter_bytes": 22,
        "raw_parameter_bytes": 88,
        "evaluation_bytes": 14,
        "probe_bytes": 0,
        "sends": 4,
        "skips": 4,
        "all_bytes": 201 + 10 + 22,
    }
    assert plain["per_epoch"]["wire_bytes"] == 201 / 4
    assert plain["per_epoch"]["all_bytes"] == 233 / 4
    assert plain["payload_matrix"] == [[0, 100], [101, 0]]
    assert [(s["layer"], s["direction"], s["owner"]) for s in plain["streams"]] == [
        (0, "backward", 0),
        (0, "backward", 1),
        (1, "forward", 0),
        (1, "forward", 1),
    ]


def test_a_bill_of_a_version_without_parameter_codecs_had_parameters_in_full() -> None:
    plain = some_bill().to_dict(4, 2)
    del plain["total"]["raw_parameter_bytes"]
    assert Bill.from_dict(plain).totals["raw_parameter_bytes"] == plain["total"]["parameter_bytes"]


def test_bills_merge_and_round_trip() -> None:
    bill = some_bill()
    plain = json.loads(json.dumps(bill.to_dict(4, 2)))
    assert Bill.from_dict(plain).to_dict(4, 2) == plain
    bill.merge(Bill.from_dict(plain))
    doubled = bill.to_dict(8, 2)
    assert doubled["total"] == {name: 2 * value for name, value in plain["total"].items()}
    assert doubled["per_epoch"] == plain["per_epoch"]
    assert doubled["payload_matrix"] == [[0, 200], [202, 0]]
    assert doubled["streams"][2]["wire_bytes"] == 2 * plain["streams"][2]["wire_bytes"]


# Plug-ins

MODULE = '''
from typing import Literal
from staleness.base import Policy, SKIP

class Plain:
    """A class without a constructor."""

class Typed:
    def __init__(self, count: int, share: float = 0.5, on: bool = False, word: str = "w",
                 kind: Literal["a", "b"] = "a", most: int | None = None):
        self.values = (count, share, on, word, kind, most)

class Strict:
    def __init__(self, size: int = 1):
        if size > 3:
            raise ValueError("size must be at most 3")

class Protocolled(Policy):
    """Inherits the protocol itself."""
    max_age, drift_norm, absent = 2, None, False

    def decide(self, view):
        return SKIP

NOT_A_CLASS = 3
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A user's module in the working directory."""
    (tmp_path / "users_pkg").mkdir()
    (tmp_path / "users_pkg" / "mod.py").write_text(MODULE)
    (tmp_path / "users_pkg" / "broken.py").write_text("import no_such_module_anywhere")
    (tmp_path / "users_pkg" / "wrong.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in sys.modules if name.startswith("users_pkg")]:
        monkeypatch.delitem(sys.modules, name)
    return "users_pkg.mod"


def test_specs_are_parsed() -> None:
    table = {"one": "a.b:One"}
    assert plugins.parse("thing", table, "one") == plugins.Spec("one", "a.b:One", {})
    assert plugins.parse("thing", table, "one:k=v, l = w") == plugins.Spec(
        "one", "a.b:One", {"k": "v", "l": "w"}
    )
    own = plugins.parse("thing", table, "my.mod:Mine:k=v")
    assert (own.target, own.settings) == ("my.mod:Mine", {"k": "v"})


@pytest.mark.parametrize(
    "text, words",
    [
        ("on", "thing 'on' does not exist; choose from one, two (did you mean one?), or give package"),
        ("xyz", "thing 'xyz' does not exist; choose from one, two, or give package.module:Class"),
        ("my.mod", "thing 'my.mod' does not exist"),
        ("one:k", "thing 'one:k': 'k' is not key=value"),
        ("one:=v", "'=v' is not key=value"),
        ("", "thing '' does not exist"),
    ],
)
def test_wrong_specs(text: str, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        plugins.parse("thing", {"one": "a:One", "two": "a:Two"}, text)


def test_a_users_class_is_built_from_the_working_directory(module: str) -> None:
    assert type(plugins.build("thing", {}, f"{module}:Plain")).__name__ == "Plain"
    typed = plugins.build("thing", {}, f"{module}:Typed:count=3,share=1e-2,on=True,word=x,kind=b,most=4")
    assert typed.values == (3, 0.01, True, "x", "b", 4)
    assert plugins.build("thing", {}, f"{module}:Typed", count=7).values[0] == 7
    assert plugins.build("policy", {}, f"{module}:Protocolled").max_age == 2


@pytest.mark.parametrize(
    "rest, words",
    [
        (":Typed", "needs count: users_pkg.mod:Typed:count=…"),
        (":Typed:count=x", "count='x' is not a whole number"),
        (":Typed:count=1,share=x", "share='x' is not a number"),
        (":Typed:count=1,on=yes", "on='yes' must be true or false"),
        (":Typed:count=1,kind=c", "kind='c' is not one of a, b"),
        (":Typed:count=1,most=x", "most='x' is not a whole number"),
        (":Typed:cuont=1", "has no setting 'cuont'; its settings: count"),
        (":Plain:a=1", "has no setting 'a'; its settings: none"),
        (":Strict:size=4", "size must be at most 3"),
        (":Missing", "'users_pkg.mod' has no class 'Missing'"),
        (":NOT_A_CLASS", "has no class 'NOT_A_CLASS'"),
    ],
)
def test_what_is_wrong_with_a_users_class(module: str, rest: str, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        plugins.build("thing", {}, module + rest)
    assert str(caught.value).startswith("thing 'users_pkg.mod:")


@pytest.mark.parametrize(
    "name, words",
    [
        ("nothing", "cannot import 'users_pkg.nothing': No module named 'users_pkg.nothing'"),
        ("broken", "cannot import 'users_pkg.broken': No module named 'no_such_module_anywhere'"),
        ("wrong", "cannot import 'users_pkg.wrong': ZeroDivisionError: division by zero"),
    ],
)
def test_a_users_module_that_cannot_be_imported(module: str, name: str, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        plugins.build("thing", {}, f"users_pkg.{name}:Mine")
