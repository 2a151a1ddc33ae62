"""What a run leaves at its end: gathered from all ranks, written by rank 0 before the last checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sancus.comm.records import gather_bytes, gather_json
from sancus.report.rank_logs import ROW, LogArrays, Rows, arrays_of
from sancus.runs import directory
from sancus.runs.account import Account
from sancus.runs.belongings import DECISIONS_FILE, PREDICTIONS_FILE, RUN_FILE
from sancus.runs.build import Job
from sancus.runs.directory import Publish
from sancus.runs.stream_log import StreamLog, rows_in_memory
from sancus.training.trainer import Trainer


@dataclass(frozen=True)
class Outcome:
    """The contents of the last files."""

    run: dict[str, Any]
    prediction: npt.NDArray[Any]  # [N] or [N, C]
    log: LogArrays

    def write(self, out: Path, publish: Publish) -> None:
        """Decisions, predictions, and at last `run.json`; `publish` gives each its name."""
        directory.write_arrays(out / DECISIONS_FILE, vars(self.log), publish)
        directory.write_arrays(out / PREDICTIONS_FILE, {"prediction": self.prediction}, publish)
        directory.write_json(out / RUN_FILE, self.run, publish)


def gather_outcome(job: Job, account: Account, log: StreamLog | None) -> Outcome | None:
    """The results of a run, on rank 0; None elsewhere. All ranks call it."""
    trainer = job.trainer
    logits = job.gather_rows(_logits_of_best(trainer))
    bill = account.bill()
    memory = gather_json(job.group, account.memory(), job.device)
    rows = _rows_of_all(job, log)
    schedule = trainer.schedule.describe()
    if logits is None:
        return None
    rows = rows[rows["epoch"] >= account.bill_from]
    arrays = arrays_of(rows, trainer.next_epoch, trainer.exchange.group.size)
    errors = {"codec_error": arrays.codec_error, "codec_noise": arrays.codec_noise}
    prediction = trainer.task.predictions(logits).cpu().numpy()
    return Outcome(account.describe(bill, memory, errors, schedule), prediction, arrays)


def _rows_of_all(job: Job, log: StreamLog | None) -> Rows:
    """Who sent when, from the log of every rank; from its memory where it could write none."""
    exchange = job.trainer.exchange
    own = rows_in_memory(exchange.crossing, exchange.group.rank) if log is None else log.rows()
    everyone = gather_bytes(job.group, own.tobytes(), job.device)
    return np.concatenate([np.frombuffer(rows, ROW) for rows in everyone])


def _logits_of_best(trainer: Trainer) -> torch.Tensor:
    """Logits of the own rows at the best epoch; the weights stay those of the last, for the checkpoint."""
    if not trainer.best.weights:
        return trainer.logits()
    last = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.model.load_state_dict(trainer.best.weights)
    logits = trainer.logits()
    trainer.model.load_state_dict(last)
    return logits
