"""What `sancus.train` returns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import nn

from sancus.console.speaker import Record
from sancus.models.pyg_model import unwrapped
from sancus.programs.errand import Arrays, Findings
from sancus.runs.build import Job
from sancus.runs.node_order import everywhere

WEIGHT = "weight:"  # before the name of a parameter, among the arrays


@dataclass(frozen=True, repr=False)
class Result:
    """What a training run found; the same on all ranks, and in the program that started them.

    A score that is undefined, such as ROC-AUC without a positive label, is NaN.
    """

    val: float  # score at the best validation epoch
    test: float  # test score at that epoch
    best_epoch: int
    metric: str
    epochs: Sequence[Record]  # the figures of every epoch, as in metrics.jsonl
    model: nn.Module  # with the weights of the best validation epoch
    logits: npt.NDArray[Any]  # [N, C] in the user's node order
    predictions: npt.NDArray[Any]  # [N] classes, or [N, C] of which labels hold
    directory: Path | None = None  # of the files of the run, where `out` asked for them

    def __repr__(self) -> str:
        """One line: a notebook shows it below the cell."""
        files = "" if self.directory is None else f"; files in {self.directory}"
        return (
            f"Result({self.metric} {self.test:.4f} on test, {self.val:.4f} on val, at the best of "
            f"{len(self.epochs)} epochs, {self.best_epoch + 1}; {len(self.logits):,} nodes{files})"
        )

    @classmethod
    def of(cls, job: Job, records: Sequence[Record], directory: Path | None) -> Result:
        """The result of a rank that has trained; all ranks call it."""
        trainer, best = job.trainer, job.trainer.best
        if best.weights:
            trainer.model.load_state_dict(best.weights)
        logits = everywhere(job.shard, trainer.exchange.group, trainer.logits())
        val, test = (math.nan if value is None else value for value in (best.val, best.test))
        predictions = trainer.task.predictions(logits).cpu().numpy()
        facts = (val, test, best.epoch, trainer.task.metric)
        return cls(*facts, records, unwrapped(trainer.model), logits.cpu().numpy(), predictions, directory)

    def findings(self) -> Findings:
        """Everything but the epochs, which were told before, as files can hold it."""
        facts = {name: getattr(self, name) for name in ("val", "test", "best_epoch", "metric")}
        facts["directory"] = None if self.directory is None else str(self.directory)
        arrays: Arrays = {"logits": self.logits, "predictions": self.predictions}
        for name, tensor in self.model.state_dict().items():
            arrays[f"{WEIGHT}{name}"] = tensor.detach().cpu().numpy()
        return Findings(facts, arrays)

    @classmethod
    def read(cls, found: Findings, records: Sequence[Record], model: nn.Module) -> Result:
        """The result that rank 0 has found; `model` gets its weights."""
        weights = {
            name.removeprefix(WEIGHT): torch.from_numpy(array)
            for name, array in found.arrays.items()
            if name.startswith(WEIGHT)
        }
        model.load_state_dict(weights)
        facts = dict(found.facts)
        directory = facts.pop("directory")
        return cls(
            **facts,
            epochs=records,
            model=model,
            logits=found.arrays["logits"],
            predictions=found.arrays["predictions"],
            directory=None if directory is None else Path(directory),
        )
