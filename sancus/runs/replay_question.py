"""What a replay asks of a finished run: its settings and its parts, in this one process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sancus.errors import UserError
from sancus.runs.check import check
from sancus.runs.layout import make_schedule, parts_needed
from sancus.runs.question import question_of
from sancus.shards.cache import Telling, prepare
from sancus.training.asynchronous import Asynchronous

if TYPE_CHECKING:
    from sancus.runs.replay import Replay


def replayed(run_dir: Path, data: str | None = None, *, trust: bool = False) -> Replay:
    """The run, computed again; `data` is where its graph is now."""
    question = question_of(run_dir, data, None, None, trust=trust, whole=False)
    config, ranks = question.config, question.ranks
    if not isinstance(make_schedule(config), Asynchronous):
        raise UserError(
            f"{run_dir} was trained with --schedule {config.schedule}: only async runs have merges to replay"
        )
    question.check_model()
    check(question.data, config, launched=True)
    telling = Telling(timeout=config.launch.timeout)
    factors = config.factors
    shards = prepare(
        question.data, factors.partitioner, parts_needed(config, ranks), factors.row_order, telling
    )
    from sancus.runs.replay import replay_run

    return replay_run(run_dir, config, ranks, shards)
