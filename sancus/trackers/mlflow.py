"""Tracker `mlflow`: in the store of `MLFLOW_TRACKING_URI`, or in `mlruns` beside the run's directory.

All runs of a folder share one store, so that `mlflow ui --backend-store-uri runs/mlruns` shows them together.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sancus.trackers.base import Record
from sancus.trackers.scalars import FINAL, epoch_of, flat, scalars

EXPERIMENT = "sancus"
LONGEST = 500  # characters of a parameter that MLflow takes
ADDRESS = "MLFLOW_TRACKING_URI"
# Plain files for a machine without a server; newer versions of MLflow ask before they write them.
LOCAL = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}


class MLflow:
    """Every figure of an epoch as a metric, the settings as parameters (extra `mlflow`)."""

    def __init__(self, directory: Path, config: Mapping[str, Any]) -> None:
        for name, value in LOCAL.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient
        from mlflow.entities import Param

        store = os.environ.get(ADDRESS) or (directory.resolve().parent / "mlruns").as_uri()
        self._client = MlflowClient(tracking_uri=store)
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        number = experiment.experiment_id if experiment else self._client.create_experiment(EXPERIMENT)
        self._run = self._client.create_run(number, run_name=directory.name).info.run_id
        settings = [Param(name, str(value)[:LONGEST]) for name, value in flat(config).items()]
        self._client.log_batch(self._run, params=settings)

    def epoch(self, record: Record) -> None:
        for name, value in scalars(record).items():
            self._client.log_metric(self._run, name, value, step=epoch_of(record))

    def finish(self, run: Mapping[str, Any]) -> None:
        result = run["result"]
        for name in FINAL:
            if result[name] is not None:
                self._client.log_metric(self._run, f"result/{name}", result[name])
        self._client.set_terminated(self._run)
