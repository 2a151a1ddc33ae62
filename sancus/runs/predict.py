"""What a finished run says of a graph: logits, predictions, last embeddings, scores; on any ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as load_tensors

from sancus.comm.records import broadcast_bytes
from sancus.config.settings import Config
from sancus.errors import UserError
from sancus.exchange.full_graph import FullGraph
from sancus.exchange.gather import RankZero
from sancus.launch.world import World
from sancus.models.build import Model
from sancus.models.contract import traits_of
from sancus.runs.belongings import CHECKPOINTS
from sancus.runs.build import Job
from sancus.runs.checkpoints import reader
from sancus.shards.cache import Shards
from sancus.training.task import Task


@dataclass(frozen=True)
class Prediction:
    """What the best weights of a run say of a graph; arrays in the user's node order, on rank 0 alone."""

    scores: dict[str, float]  # of train, val and test
    metric: str
    arrays: dict[str, np.ndarray[Any, Any]]  # logits [N, C], predictions, embeddings [N, f]


def predict_rank(
    config: Config, world: World, backend: str, shards: Shards, run_dir: Path, model: Model | None = None
) -> Prediction:
    """Join the other ranks, load the weights of the best validation epoch, and run one exact pass.

    `model` stands in for the configuration's: a class, or a module.
    """
    job = Job(config, world, backend, shards, model=model)
    _load_weights(job, run_dir / CHECKPOINTS)
    trainer, exchange = job.trainer, job.trainer.evaluation.exchange
    embed = traits_of(trainer.model).embed
    rows = {"logits": trainer.logits()}
    if embed is not None:
        with torch.no_grad(), exchange.exact():
            rows["embeddings"], _ = embed(exchange.input, exchange)
    scores = score(trainer.evaluation.task, rows["logits"], exchange)
    ordered = {name: job.gather_rows(part) for name, part in rows.items()}
    job.group.close()
    arrays = {name: part.cpu().numpy() for name, part in ordered.items() if part is not None}
    if "logits" in arrays:
        logits = torch.from_numpy(arrays["logits"])
        arrays["predictions"] = trainer.task.predictions(logits).numpy()
        arrays |= names_of(job, arrays["predictions"])
    return Prediction(scores, trainer.task.metric, arrays)


def score(task: Task, logits: torch.Tensor, exchange: FullGraph) -> dict[str, float]:
    """Scores of train, val and test over all ranks, from the logits `[n_i, C]` of own rows.

    One that is undefined, such as ROC-AUC without a positive label, is NaN.
    """
    fractions = task.score(logits, RankZero(exchange.group)).flatten()
    exchange.group.all_reduce(fractions)
    pairs = zip(("train", "val", "test"), fractions.view(-1, 2).tolist(), strict=True)
    return {split: top / bottom if bottom else math.nan for split, (top, bottom) in pairs}


def names_of(job: Job, predictions: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """The user's `ids [N]` of all nodes, and the words of the predicted classes `[N]`, if there are any."""
    named = {}
    if "ids" in job.shard.arrays:
        named["ids"] = np.array(job.shard.arrays["ids"])
    words = job.shard.manifest["graph"].get("class_names")
    if words and predictions.ndim == 1:
        named["classes"] = np.array(words)
        named["names"] = named["classes"][predictions]
    return named


def _load_weights(job: Job, folder: Path) -> None:
    """Load the best weights of the newest checkpoint into the model of every rank.

    Rank 0 reads them, and all ranks get the same bytes or raise the same error: none waits for the others.
    """
    content, mistake = b"", ""
    if job.world.rank == 0:
        try:
            content = _best_of(folder)
        except UserError as error:
            mistake = str(error)
    mistake_anywhere = broadcast_bytes(job.group, mistake.encode(), job.device).decode()
    if mistake_anywhere:
        raise UserError(mistake_anywhere)
    weights = load_tensors(broadcast_bytes(job.group, content, job.device))
    own = job.trainer.model.state_dict()
    for name in sorted(own.keys() | weights.keys()):
        if name not in weights or name not in own or own[name].shape != weights[name].shape:
            shapes = [list(side[name].shape) if name in side else "absent" for side in (weights, own)]
            raise UserError(
                f"the weights of the run do not fit this graph: {name} is {shapes[0]} in the run, "
                f"{shapes[1]} here; features and classes must be those that it was trained on"
            )
    job.trainer.model.load_state_dict(weights)


def _best_of(folder: Path) -> bytes:
    """The best weights in the newest whole checkpoint; the last ones where no epoch was evaluated."""
    files = reader.read_newest(folder)
    if files is None:
        raise UserError(f"no whole checkpoint in {folder}; give the --out directory of a run")
    best = files["best.safetensors"]
    return best if load_tensors(best) else files["weights.safetensors"]
