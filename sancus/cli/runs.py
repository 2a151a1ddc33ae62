"""The verbs that use the files of a run: `predict`, `evaluate` and `report`. Torch is imported late."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from sancus.cli.printing import print_line, score_text
from sancus.cli.train import read_flags
from sancus.errors import UserError
from sancus.launch.backend import choose_backend
from sancus.launch.spawn import RanksNeeded
from sancus.launch.world import ALONE, check_ranks, detect
from sancus.runs.belongings import REPORT_FILE, RUN_FILE, Belongings, is_proven
from sancus.runs.directory import holds_run

if TYPE_CHECKING:
    from sancus.runs.predict import Prediction


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
    prediction = _prediction(run_dir, data, ranks)
    if prediction is not None and prediction.arrays:
        from sancus.runs.predict import write_predictions

        write_predictions(prediction, out)
        print_line(
            f"{len(prediction.arrays['logits']):,} nodes: {', '.join(sorted(prediction.arrays))} in {out}"
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
    prediction = _prediction(run_dir, data, ranks)
    if prediction is not None and prediction.arrays:
        scores = "  ".join(f"{split} {score_text(value)}" for split, value in prediction.scores.items())
        print_line(f"{prediction.metric}  {scores}")


def report(*run_dir: Path, out: Path | None = None) -> None:
    """Write one page on a run, finished or broken, or on several side by side.

    Parameters
    ----------
    run_dir
        The --out directory of a run, or several; runs that differ by their seed are shown as one.
    out
        The page to write; default: report.html beside the files of the run.
    """
    from sancus.report.page import write_report

    if not run_dir:
        raise UserError("RUN_DIR is missing: give the --out directory of one run or of several")
    for directory in run_dir:
        if not holds_run(directory):
            raise UserError(f"{directory} holds no run; give the --out directory of one")
    if out is None and len(run_dir) > 1:
        raise UserError(f"{len(run_dir)} runs need --out: the page to write, e.g. --out report.html")
    page = run_dir[0] / REPORT_FILE
    if out is None and page.exists() and not is_proven(run_dir[0], REPORT_FILE):
        raise UserError(
            f"{page} is not as a run has written it; move it away, or write to another with --out"
        )
    publish = Belongings.of(run_dir[0]).publish if out is None else os.replace
    try:
        print_line(str(write_report(*run_dir, out=out, publish=publish)))
    except OSError as error:
        where = out or run_dir[0]
        raise UserError(f"cannot write {where}: {error.strerror or error}; choose another --out") from error


def _prediction(run_dir: Path, data: str | None, ranks: int | None) -> Prediction | None:
    """One exact pass on all ranks; None in the process that only started them."""
    from sancus.runs.check import check
    from sancus.runs.layout import parts_needed
    from sancus.shards.cache import Telling, prepare

    if not (run_dir / RUN_FILE).is_file():
        raise UserError(f"{run_dir} holds no finished run; give the --out directory of one")
    world = detect(os.environ)
    count = check_ranks(ranks, world)
    repeated = [*([data] if data else []), "--config", str(run_dir / RUN_FILE)]
    # One exact pass over the whole graph, whatever the schedule of training was.
    source, settings = read_flags([*repeated, "--ranks", str(count), "--schedule", "full"])
    backend = choose_backend(settings.factors.backend, world, settings.launch.device)
    check(source, settings, launched=True)
    parts = parts_needed(settings, count)
    telling = Telling(timeout=settings.launch.timeout)
    shards = prepare(source, settings.factors.partitioner, parts, settings.factors.row_order, telling)
    if world is None and count > 1:
        raise RanksNeeded(count, backend)
    from sancus.runs.predict import predict_rank

    return predict_rank(settings, world or ALONE, backend, shards, run_dir)
