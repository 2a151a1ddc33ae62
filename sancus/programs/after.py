"""`sancus.predict`, `sancus.write_report` and `sancus.compare`: calls that use the files of runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sancus.config.types import check_number
from sancus.console.speaker import SILENT, Speaker
from sancus.errors import UserError
from sancus.launch.backend import choose_backend
from sancus.launch.world import ALONE, World, detect
from sancus.models.build import Model
from sancus.programs.errand import Findings
from sancus.programs.own_ranks import run_ranks
from sancus.programs.ranks_here import follow
from sancus.programs.source import shards_of
from sancus.programs.train import train
from sancus.runs import listing
from sancus.runs.check import check_model, check_settings
from sancus.runs.compare import Comparison, run_all
from sancus.runs.layout import parts_needed
from sancus.runs.pages import make_report
from sancus.runs.predict import Prediction, predict_rank
from sancus.runs.prediction_files import check_target, write_predictions
from sancus.runs.question import Question, question_of
from sancus.runs.replay import Replay
from sancus.runs.replay_question import replayed
from sancus.shards.cache import Shards, Telling


def predict(
    run_dir: str | Path,
    *,
    out: str | Path | None = None,
    data: Any = None,
    ranks: int | None = None,
    model: Model | None = None,
    trust: bool = False,
) -> Prediction:
    """Logits, predictions, embeddings and scores of every node, in your order, by a finished run.

    As `sancus predict`, with as many ranks as the run had where none is given. `data` is another graph with
    the same features and classes. A run whose model was a class of a program needs that class as `model`.
    `trust` runs code that is no part of Sancus where the run names it.
    """
    launched = detect(os.environ)
    follow(launched)
    target = None if out is None else Path(out)
    if target is not None:
        check_target(target)
    if ranks is not None:
        check_number("ranks", ranks)
    named = data if isinstance(data, str) else None
    question = question_of(Path(run_dir), named, ranks, launched, trust=trust)
    if model is None:
        question.check_model()
    check_model(model if model is not None else question.config.model)
    check_settings(question.config, launched=True)
    config = question.config
    telling = Telling(SILENT, timeout=config.launch.timeout)
    source = question.data if data is None else data
    _, shards = shards_of(source, config, parts_needed(config, question.ranks), telling)
    backend = choose_backend(config.factors.backend, launched, config.launch.device)
    asking = Asking(question, backend, shards.directory, shards.manifest, model)
    if launched is None and question.ranks > 1:
        found = run_ranks(asking, model, question.ranks, backend, SILENT)
        prediction = Prediction(found.facts["scores"], found.facts["metric"], found.arrays)
    else:
        prediction = asking.here(launched or ALONE, shards)
    if target is not None and prediction.arrays:
        write_predictions(prediction.arrays, target)
    return prediction


@dataclass(frozen=True)
class Asking:
    """One exact pass, wherever it takes place: the errand of local ranks too."""

    question: Question
    backend: str
    directory: Path  # of the shards
    manifest: dict[str, Any]
    model: Model | None

    def here(self, world: World, shards: Shards) -> Prediction:
        """As one rank in this process."""
        question = self.question
        return predict_rank(question.config, world, self.backend, shards, question.run_dir, self.model)

    def run(self, world: World, say: Speaker) -> Findings | None:
        """As one local rank; on rank 0 the arrays of all nodes."""
        found = self.here(world, Shards(self.directory, self.manifest))
        if world.rank:
            return None
        return Findings({"scores": found.scores, "metric": found.metric}, found.arrays)


def replay(run_dir: str | Path, *, data: str | None = None, trust: bool = False) -> Replay:
    """Compute a finished run of `schedule="async"` again, in this process, as `sancus replay`.

    What comes back says whether it was the `same`, bit for bit, which merge is the first that differs, and
    the `weights`. `data` is where the graph of the run is now.
    """
    threads = torch.get_num_threads()
    try:
        return replayed(Path(run_dir), data, trust=trust)
    finally:
        torch.set_num_threads(threads)


def write_report(*run_dirs: str | Path, out: str | Path | None = None) -> Path:
    """Write one page on a run, on several, or on what `compare` left; its path. As `sancus report`."""
    return make_report([Path(run_dir) for run_dir in run_dirs], None if out is None else Path(out))


def list_runs(folder: str | Path = "runs") -> list[dict[str, Any]]:
    """What every run below a folder says of itself: score, bytes, time. As `sancus runs`."""
    return listing.list_runs(Path(folder))


def compare(
    graph: Any,
    presets: Sequence[str],
    *,
    out: str | Path,
    model: Model | None = None,
    seeds: int = 1,
    target: float | None = None,
    **flags: Any,
) -> list[dict[str, Any]]:
    """Train under several presets, interleaved; one row a preset, and the files of `sancus compare` in `out`.

    `flags` are those of `train`, for every run: `compare(data, ["exact", "lean"], ranks=4, out="cmp")`.
    """
    if isinstance(presets, str):
        raise UserError(f"presets={presets!r} is one text; give a list: presets=[{presets!r}, …]")
    if detect(os.environ) is not None:
        raise UserError("compare starts its own ranks; call it without torchrun or mpiexec, with ranks=")
    check_number("seeds", seeds)
    words = [f"{name}={value}" for name, value in flags.items()]
    name = str(graph) if isinstance(graph, str | Path) else type(graph).__name__
    comparison = Comparison(name, list(presets), seeds, Path(out), words, target)

    def run(preset: str, seed: int) -> int:
        place = comparison.directory(preset, seed)
        train(graph, model, **{"quiet": True, **flags, "preset": preset, "seed": seed, "out": place})
        return 0

    rows = run_all(comparison, run, SILENT if flags.get("quiet") else print)
    make_report([comparison.out])
    return rows
