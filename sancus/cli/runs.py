"""The verbs that use a finished run: `predict` and `evaluate`. Imports no torch until it is needed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sancus.errors import UserError
from sancus.launch import world as launch
from sancus.runs.directory import RUN_FILE

if TYPE_CHECKING:
    from sancus.runs.predict import Found


def predict(run_dir: Path, /, *, out: Path, data: str | None = None, ranks: int | None = None) -> None:
    """Write logits, predictions and last embeddings of every node, in your order, by a finished run.

    Parameters
    ----------
    run_dir
        The --out directory of a run.
    out
        The .npz to write: logits, predictions and, of our models, embeddings.
    data
        Another graph with the same features and classes; default: the run's own.
    ranks
        Number of ranks, 1 if not given; need not be that of the run.
    """
    if out.suffix != ".npz":
        raise UserError(f"--out {out}: predictions are written as .npz; choose a name that ends so")
    found = _found(run_dir, data, ranks)
    if found is not None and found.arrays:
        from sancus.runs.predict import write_predictions

        write_predictions(found, out)
        print(
            f"{len(found.arrays['logits']):,} nodes: {', '.join(sorted(found.arrays))} in {out}", flush=True
        )


def evaluate(run_dir: Path, /, *, data: str | None = None, ranks: int | None = None) -> None:
    """Score a finished run by its best weights, on its own graph or on another.

    Parameters
    ----------
    run_dir
        The --out directory of a run.
    data
        Another graph with the same features and classes; default: the run's own.
    ranks
        Number of ranks, 1 if not given; need not be that of the run.
    """
    found = _found(run_dir, data, ranks)
    if found is not None and found.arrays:
        scores = "  ".join(f"{split} {value:.4f}" for split, value in found.scores.items())
        print(f"{found.metric}  {scores}", flush=True)


def _found(run_dir: Path, data: str | None, ranks: int | None) -> Found | None:
    """One exact pass on all ranks; None in the process that only started them."""
    from sancus.cli.app import app
    from sancus.shards.cache import check, prepare

    if not (run_dir / RUN_FILE).is_file():
        raise UserError(f"{run_dir} holds no finished run; give the --out directory of one")
    world = launch.detect(os.environ)
    count = launch.check_ranks(ranks, world)
    arguments = [
        "train",
        *([data] if data else []),
        "--config",
        str(run_dir / RUN_FILE),
        "--ranks",
        str(count),
    ]
    _, bound, *_ = app.parse_args(arguments, exit_on_error=False, print_error=False)
    settings, source = bound.arguments["settings"], bound.arguments["data"]
    backend = launch.choose_backend(settings.factors.backend, world, settings.launch.device)
    check(source, settings, launched=True)
    shards = prepare(source, settings.factors.partitioner, count, row_order=settings.factors.row_order)
    if world is None and count > 1:
        launch.spawn(sys.argv[1:], count, backend)
    from sancus.runs.predict import predict_rank

    return predict_rank(settings, world or launch.ALONE, backend, shards, run_dir)
