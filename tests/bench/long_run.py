"""A long run, and what it holds on the way: `python -m tests.bench.long_run --epochs 50000`.

Two processes train on a tiny graph under a policy that measures drift and a codec whose errors are looked at,
with a checkpoint every 20 epochs, so that whatever grows with the epochs grows as fast as it can. Printed
are, after 1 000, 10 000 and all epochs: the largest resident memory of a rank, the time of a checkpoint
(least of the last 50, since other work slows some of them) and its size; at last the memory when all is
written, the report included. docs/faults.md has the table.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from unittest import mock

from sancus.comm.group import Group
from sancus.runs.saved_work import SavedWork
from tests.faults.sessions import newest, train
from tests.helpers.processes import run_ranks

GRAPH = "synthetic:nodes=34,features=8,classes=2,degree=5"
WORK = (GRAPH, "--hidden", "8", "--threads", "1", "--staleness", "variation-gap:gap=0.02", "--codec", "int4")
EVERY, LAST = 20, 50
DEADLINE = 86400.0


@dataclass(frozen=True)
class Look:
    """One rank at one moment."""

    epoch: int
    memory: int  # resident bytes
    seconds: float  # of a checkpoint
    checkpoint: int  # its bytes, of all ranks
    logs: int  # bytes of `metrics.jsonl` and the logs of ranks


def resident() -> int:
    """Bytes of this process that are in memory."""
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmRSS"].split()[0]) * 1024


def size_of(folder: Path, pattern: str = "*") -> int:
    """Bytes of the files of a folder."""
    return sum(file.stat().st_size for file in folder.glob(pattern) if file.is_file())


def watch(group: Group, out: Path, epochs: int, marks: tuple[int, ...]) -> list[dict[str, float]]:
    """Train on one rank; what it held at each mark, and at last when everything is written."""
    looks: list[Look] = []
    seconds: list[float] = []
    write = SavedWork.write

    def timed(work: SavedWork, *arguments: object) -> bool:
        start = time.perf_counter()
        done = write(work, *arguments)  # type: ignore[arg-type]
        seconds.append(time.perf_counter() - start)
        return done

    def look(epoch: int) -> None:
        if epoch in marks:
            logs = size_of(out, "metrics.jsonl") + size_of(out / "logs")
            looks.append(Look(epoch, resident(), min(seconds[-LAST:]), size_of(newest(out)), logs))

    flags = ("--checkpoint-every", str(EVERY), "--epochs", str(epochs), "--out", out)
    with mock.patch.object(SavedWork, "write", timed):
        train(group, *WORK, *flags, before_epoch=look)
    looks.append(replace(looks[-1], epoch=epochs, memory=resident()))
    return [asdict(one) for one in looks]


def main() -> None:
    """Read the flags, train, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=50_000)
    parser.add_argument("--ranks", type=int, default=2)
    flags = parser.parse_args()
    marks = (*(mark for mark in (1000, 10_000) if mark < flags.epochs - 1), flags.epochs - 1)
    with tempfile.TemporaryDirectory(prefix="sancus-long-") as folder:
        arguments = {"out": Path(folder) / "run", "epochs": flags.epochs, "marks": marks}
        ranks = run_ranks("tests.bench.long_run:watch", flags.ranks, timeout=DEADLINE, **arguments)
    print("| epochs | memory of a rank | a checkpoint takes | and has | metrics and logs |")
    print("|---|---|---|---|---|")
    for looks in zip(*ranks, strict=True):
        memory, seconds = (max(one[name] for one in looks) for name in ("memory", "seconds"))
        sizes = f"{looks[0]['checkpoint'] / 1e3:.1f} kB | {looks[0]['logs'] / 1e6:.1f} MB"
        print(f"| {looks[0]['epoch']} | {memory / 1e6:.0f} MB | {seconds * 1e3:.1f} ms | {sizes} |")


if __name__ == "__main__":
    main()
