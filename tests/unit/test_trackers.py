"""MLflow and Weights & Biases get every epoch, in stores of this machine."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

import sancus

FLAGS = {"epochs": 3, "hidden": 8}
HEADER, BLOCK, FULL, LAST = 7, 32768, 1, 4
NAMES = {"loss", "score/val", "bytes/wire_bytes", "staleness/max_age"}


def train(tracker: str, folder: Path) -> sancus.Result:
    return sancus.train("synthetic:nodes=120", "gcn", track=tracker, out=folder / "first", **FLAGS)


def test_mlflow_gets_every_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    result = train("mlflow", tmp_path)
    assert "warning" not in "".join(capsys.readouterr())
    client = MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("sancus")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_name == "first"
    assert run.data.params["shape.hidden"] == "8" and run.data.metrics["result/test"] == result.test
    assert set(run.data.metrics) >= NAMES
    losses = [metric.value for metric in client.get_metric_history(run.info.run_id, "loss")]
    assert losses == [record["loss"] for record in result.epochs]


def test_weights_and_biases_gets_every_epoch_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.delenv("WANDB_MODE", raising=False)
    result = train("wandb", tmp_path)
    assert "warning" not in "".join(capsys.readouterr())
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    losses = []
    for data in log_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        items = {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
        if items:
            assert set(items) >= NAMES
            losses.append(float(items["loss"]))
    assert losses == pytest.approx([record["loss"] for record in result.epochs])


def log_records(content: bytes) -> Iterator[bytes]:
    """The records of a file of W&B: LevelDB's log format behind a header, in blocks of 32 KiB."""
    place, parts = HEADER, b""
    while place + HEADER <= len(content):
        left = BLOCK - place % BLOCK
        if left < HEADER:
            place += left
            continue
        _checksum, length, kind = struct.unpack_from("<IHB", content, place)
        parts += content[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (FULL, LAST):
            yield parts
            parts = b""
