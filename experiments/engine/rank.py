"""One rank that trains case after case: `python -m experiments.engine.rank jobs.json`, under a launcher.

Starting ranks takes longer than most cases, so a group of ranks trains all cases of one place. Every case is
what `sancus train` makes of the same flags: the same shards, trainer and ledger; a test compares the numbers.
Every rank reads the kernel's count of its own link as each epoch ends, and leaves one file a case.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from experiments.network.hosts import sent_bytes
from sancus.api import leave
from sancus.comm.group import Group
from sancus.comm.ledger import Direction, Ledger, Stream
from sancus.comm.records import gather_json
from sancus.config.resolve import make_config
from sancus.exchange.encoding import Encoder
from sancus.exchange.figures import run_log
from sancus.graphs.shards import open_shard
from sancus.launch.backend import choose_backend
from sancus.launch.world import detect
from sancus.metrics.bill import StreamKey, join_ledgers
from sancus.runs import build, directory
from sancus.runs.layout import make_schedule
from sancus.training.consensus import Record
from sancus.training.trainer import Trainer


def train(job: dict[str, Any], group: Group) -> dict[str, Any]:
    """Train one case, and return what this rank measured; the epochs and the bill are rank 0's alone."""
    config = make_config(**job["flags"])
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak is that of this case, not of those before
    group.ledger = Ledger()
    place = make_schedule(config).layout(group.size).place(group.rank)
    shard = open_shard(Path(job["shards"]), place.part)
    count = sent_bytes if job["linked"] else lambda: 0
    trainer = build.make_trainer(config, shard, group, torch.device("cpu"))
    widths = note_widths(trainer.exchange.crossing.memory._encoders)  # only a measurement looks in there
    counts, records = [count()], []
    for record in trainer.epochs():
        records.append(record)
        counts.append(count())
    outcome: dict[str, Any] = {"link_bytes": [after - before for before, after in pairwise(counts)]}
    history = trainer.figures.get("history_bytes", trainer.exchange.crossing.figures().history_bytes)
    outcome |= {"history_bytes": history, "peak_bytes": directory.peak_memory(torch.device("cpu"))}
    outcome["widths"] = widths
    bill = _bill(trainer, group)
    outcome["schedule"] = trainer.schedule.describe()
    return outcome | (_result(trainer, records, bill) if group.rank == 0 else {})


def note_widths(encoders: Mapping[Direction, Encoder]) -> dict[Direction, dict[str, int]]:
    """The columns of what this rank sends, by direction and layer: filled as payloads are encoded."""
    widths: dict[Direction, dict[str, int]] = {"forward": {}, "backward": {}}

    def noted(encode: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def call(payload: torch.Tensor, weight: torch.Tensor, stream: Stream, *others: Any) -> torch.Tensor:
            widths[stream.direction][str(stream.layer)] = payload.shape[1]
            return encode(payload, weight, stream, *others)

        return call

    for encoder in encoders.values():
        encoder.encode = noted(encoder.encode)  # type: ignore[method-assign]
    return widths


def _bill(trainer: Trainer, group: Group) -> dict[str, Any]:
    counts = run_log(trainer.exchange.crossing).counts
    members = list(trainer.exchange.group.members)
    ledgers = gather_json(group, group.ledger.record() | {"members": members}, torch.device("cpu"))
    decision_counts: dict[StreamKey, tuple[int, int]] = {}
    decision_counts |= {(s.layer, s.direction, s.owner): count for s, count in counts.items()}
    return join_ledgers(ledgers, decision_counts).to_dict(trainer.next_epoch, group.size)


def _result(trainer: Trainer, records: list[Record], bill: dict[str, Any]) -> dict[str, Any]:
    best = trainer.best
    return {
        "test": best.test,
        "val": best.val,
        "best_epoch": best.epoch,
        "metric": trainer.task.metric,
        "epochs": records,
        "communication": bill,
        "decisions": run_log(trainer.exchange.crossing).decisions.tolist(),
    }


def main() -> None:
    """Join, train all jobs, leave."""
    work = json.loads(Path(sys.argv[1]).read_text())
    world = detect(os.environ)
    assert world is not None, "to be started by torchrun or mpiexec"
    torch.set_num_threads(work["threads"])
    backend = choose_backend("auto", world, "cpu")
    group = build.connect(backend, world, work["timeout"])
    for job in work["jobs"]:
        outcome = train(job, group)
        directory.write_json(Path(f"{job['out']}.rank{world.rank}.json"), outcome)
        if world.rank == 0:
            print(f"{job['name']}: test {outcome['test']:.4f}", flush=True)
    leave(group)


if __name__ == "__main__":
    main()
