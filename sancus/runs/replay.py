"""A run of ranks that waited for nobody, computed again by one process: the same weights, bit for bit.

Ranks are threads until each has made its first step, which all make together; then one after another takes
the step that is next in the log of merges (`sancus.training.replaying`). Settings, parts and the number of
threads a rank are those of the run: sums in another order round otherwise.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors

from sancus.comm.group import Group
from sancus.comm.threads import results, run_threads
from sancus.config.settings import Config
from sancus.errors import UserError
from sancus.runs.belongings import CHECKPOINTS, LOGS, RUN_FILE
from sancus.runs.build import make_trainer
from sancus.runs.checkpoints import reader
from sancus.runs.module import make_module
from sancus.shards.cache import Shards
from sancus.training.asynchronous import Asynchronous
from sancus.training.chronicle import LOG
from sancus.training.free_rank import FreeRank
from sancus.training.joining import make_join
from sancus.training.merging import Books, Merger, Row, Rules
from sancus.training.replaying import Archive, Difference, ReplayStore, check_log, replay
from sancus.training.schedule import Work
from sancus.training.script import first_step

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Replay:
    """What came out."""

    merges: int
    ranks: int
    difference: Difference | None  # None: the same weights after every merge
    weights: dict[str, torch.Tensor]  # of the replay, after the last merge that was made
    saved: bool | None  # whether the newest checkpoint has these weights; None where it is of another epoch

    @property
    def same(self) -> bool:
        """Whether the run was computed again, bit for bit."""
        return self.difference is None and self.saved is not False

    def __str__(self) -> str:
        if self.difference is not None:
            return str(self.difference)
        told = f"{self.merges:,} merges of {self.ranks} ranks: the same weights after each, bit for bit"
        if self.saved is None:
            return told
        return told + ("; the checkpoint holds them" if self.saved else "; but the checkpoint holds others")


def read_log(run_dir: Path) -> list[Row]:
    """Every merge of a run."""
    path = run_dir / LOGS / LOG
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); give the --out directory of an async run"
        ) from error
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(_row(line))
        except (ValueError, TypeError, LookupError, RecursionError):
            if number < len(lines):
                raise UserError(f"{path}: line {number} is damaged, so the run cannot be replayed") from None
    if not rows:
        raise UserError(f"{path} has no merges; nothing can be replayed")
    return rows


def _row(line: bytes) -> Row:
    row: Row = json.loads(line)
    numbers = [row[name] for name in ("merge", "rank", "step", "base")] + [
        n for one in row["used"] for n in one
    ]
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError
    if any(len(one) != 3 for one in row["used"]) or not isinstance(row["weights"], str):
        raise ValueError
    if row["base"] >= row["merge"]:
        raise ValueError
    return row


def threads_of(run_dir: Path) -> int:
    """Threads that each rank had."""
    facts: dict[str, Any] = json.loads((run_dir / RUN_FILE).read_text())
    return int(facts["hardware"]["threads"])


def replay_run(
    run_dir: Path,
    config: Config,
    ranks: int,
    shards: Shards,
    after_merge: Callable[[int], None] = lambda merge: None,
) -> Replay:
    """Compute it again; `config` is that of the run."""
    log = read_log(run_dir)
    check_log(log, ranks)
    torch.set_num_threads(threads_of(run_dir))
    config = replace(config, factors=replace(config.factors, broadcast="library"))
    archive = Archive(log)
    stores = [ReplayStore(rank, archive) for rank in range(ranks)]
    held = [shards.open(rank) for rank in range(ranks)]
    module = make_module(config, held[0].manifest["graph"], config.model)

    def begin(group: Group) -> tuple[Work, FreeRank, torch.Tensor, Any]:
        trainer = make_trainer(config, held[group.rank], group, CPU, copy.deepcopy(module))
        assert isinstance(trainer.schedule, Asynchronous)
        rank = trainer.schedule.stretches.rank
        start = rank.weights()
        return trainer.schedule.stretches.work, rank, start, first_step(rank, stores[group.rank])

    begun = results(run_threads(ranks, begin))
    free = [rank for _, rank, *_ in begun]
    merger = Merger(
        begun[0][2],
        Books(steps=[0] * ranks, losses=[0.0] * ranks),
        Rules(ranks, len(log)),
        make_join(begun[0][0], config.training, config.asynchronous.merge),
        lambda: 0.0,
    )
    difference = replay(log, free, stores, merger, [first for *_, first in begun], after_merge)
    free[0].load(merger.weights)
    weights = {name: value.clone() for name, value in begun[0][0].step.model.state_dict().items()}
    saved = None if difference is not None else _is_saved(run_dir, weights, len(log) // ranks)
    return Replay(merger.books.merges, ranks, difference, weights, saved)


def _is_saved(run_dir: Path, weights: dict[str, torch.Tensor], epoch: int) -> bool | None:
    """Whether the newest checkpoint has these weights, if it is of that epoch."""
    files = reader.read_newest(run_dir / CHECKPOINTS)
    if files is None or json.loads(files["state.json"])["next_epoch"] != epoch:
        return None
    saved = load_tensors(files["weights.safetensors"])
    return saved.keys() == weights.keys() and all(torch.equal(saved[name], weights[name]) for name in weights)
