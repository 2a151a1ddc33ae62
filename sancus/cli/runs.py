"""The verbs that use the files of a run: `predict`, `evaluate` and `report`. Torch is imported late."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sancus.cli.printing import print_line, print_table, score_text
from sancus.errors import UserError
from sancus.launch.backend import choose_backend
from sancus.launch.spawn import RanksNeeded
from sancus.launch.world import ALONE, detect
from sancus.runs.question import question_of

if TYPE_CHECKING:
    from sancus.runs.predict import Prediction


def predict(
    run_dir: Path, /, *, out: Path, data: str | None = None, ranks: int | None = None, trust: bool = False
) -> None:
    """Write logits, predictions and last embeddings of every node, in your order, by a finished run.

    Parameters
    ----------
    run_dir
        The --out directory of a run.
    out
        The .npz to write: logits, predictions and, of our models, embeddings; or a table: .csv, .parquet.
    data
        Another graph with the same features and classes; default: the run's own.
    ranks
        Number of ranks; default: those of the run.
    trust
        Run code that is no part of Sancus where the run names it.
    """
    from sancus.runs.prediction_files import check_target, write_predictions

    check_target(out)
    prediction = _prediction(run_dir, data, ranks, trust=trust)
    if prediction is not None and prediction.arrays:
        write_predictions(prediction.arrays, out)
        print_line(
            f"{len(prediction.arrays['logits']):,} nodes: {', '.join(sorted(prediction.arrays))} in {out}"
        )


def evaluate(
    run_dir: Path, /, *, data: str | None = None, ranks: int | None = None, trust: bool = False
) -> None:
    """Score a finished run by its best weights, on its own graph or on another.

    Parameters
    ----------
    run_dir
        The --out directory of a run.
    data
        Another graph with the same features and classes; default: the run's own.
    ranks
        Number of ranks; default: those of the run.
    trust
        Run code that is no part of Sancus where the run names it.
    """
    prediction = _prediction(run_dir, data, ranks, trust=trust)
    if prediction is not None and prediction.arrays:
        scores = "  ".join(f"{split} {score_text(value)}" for split, value in prediction.scores.items())
        print_line(f"{prediction.metric}  {scores}")


def replay(run_dir: Path, /, *, data: str | None = None, trust: bool = False) -> None:
    """Compute a finished run of --schedule async again, in one process: the same weights, bit for bit.

    Parameters
    ----------
    run_dir
        The --out directory of a run.
    data
        Where its graph is now; default: where it was.
    trust
        Run code that is no part of Sancus where the run names it.
    """
    from sancus.launch.exit_codes import EXIT_FAILED
    from sancus.runs.replay_question import replayed

    found = replayed(run_dir, data, trust=trust)
    print_line(str(found))
    if not found.same:
        sys.exit(EXIT_FAILED)


def report(*run_dir: Path, out: Path | None = None) -> None:
    """Write one page on a run, finished or broken, or on several side by side.

    Parameters
    ----------
    run_dir
        The --out directory of a run, or of sancus compare, or several; runs that differ by their seed are
        shown as one.
    out
        The page to write; default: report.html beside the files of the run.
    """
    from sancus.runs.pages import make_report

    print_line(str(make_report(run_dir, out)))


def list_runs(folder: Path = Path("runs"), /) -> None:
    """List the runs below a folder, newest last, with score, bytes and time.

    Parameters
    ----------
    folder
        Where to look.
    """
    from sancus.runs import listing

    found = listing.list_runs(folder)
    if not found:
        raise UserError(f"{folder} holds no run; give a directory that does")
    print_table(listing.table(found))


def _prediction(run_dir: Path, data: str | None, ranks: int | None, *, trust: bool) -> Prediction | None:
    """One exact pass on all ranks; None in the process that only started them."""
    from sancus.runs.check import check
    from sancus.runs.layout import parts_needed
    from sancus.shards.cache import Telling, prepare

    world = detect(os.environ)
    question = question_of(run_dir, data, ranks, world, trust=trust)
    settings = question.config
    backend = choose_backend(settings.factors.backend, world, settings.launch.device)
    check(question.data, settings, launched=True)
    question.check_model()
    parts = parts_needed(settings, question.ranks)
    telling = Telling(timeout=settings.launch.timeout)
    how = (settings.factors.partitioner, parts, settings.factors.row_order, telling)
    shards = prepare(question.data, *how)
    if world is None and question.ranks > 1:
        raise RanksNeeded(question.ranks, backend)
    from sancus.runs.predict import predict_rank

    return predict_rank(settings, world or ALONE, backend, shards, run_dir)
