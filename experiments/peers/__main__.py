"""Beside real peers: `python -m experiments.peers` trains one graph with PyG, DGL and Sancus.

Everyone drops the same: the input of every layer, or nothing. With constant dense features preset `exact`
would drop `Â X` instead of `X`, which is another noise: that is a row of its own.

Peers run through their public packages, each in a virtual environment of its own, which is made at the first
run (`--environments`, default under the cache; DGL's brings several GB). What is compared is interleaved,
repeat after repeat. Every run has 2 threads: a process with two, or two ranks with one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments import documents
from experiments.engine import results
from experiments.engine.figures import BILLED_BYTES
from experiments.engine.measured import Measured
from experiments.peers.findings import table
from experiments.peers.footprint import Footprint
from sancus.datasets.home import home
from sancus.datasets.open import open_graph
from sancus.errors import UserError

HERE = Path(__file__).parent
PEERS = ("pyg", "dgl")
OURS, OTHER_DROPOUT = "sancus exact", "sancus exact, drops Â X"
TITLE = "Beside PyG and DGL"


@dataclass(frozen=True)
class Task:
    """A training task that every program runs: model, size, epochs."""

    name: str
    model: str
    layers: int
    hidden: int
    epochs: int
    dropout: float

    def flags(self, seed: int) -> list[str]:
        """Its flags, which every program understands."""
        shape = ["--model", self.model, "--layers", str(self.layers), "--hidden", str(self.hidden)]
        return [*shape, "--epochs", str(self.epochs), "--seed", str(seed), "--dropout", str(self.dropout)]


TASKS = (
    Task("GCN, 2 × 128, no dropout", "gcn", 2, 128, 12, 0.0),
    Task("GCN, 2 × 128, dropout 0.5", "gcn", 2, 128, 12, 0.5),
    Task("GraphSAGE, 3 × 256, no dropout", "sage", 3, 256, 8, 0.0),
    Task("GraphSAGE, 3 × 256, dropout 0.5", "sage", 3, 256, 8, 0.5),
)
QUICK = (Task("GCN, 2 × 128, dropout 0.5", "gcn", 2, 128, 3, 0.5),)


def environment(peer: str, folder: Path) -> Path:
    """The Python of a peer's virtual environment; made if it is not there."""
    python = folder / peer / "bin" / "python"
    if not python.exists():
        print(f"making the environment of {peer} in {python.parent.parent}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", python.parent.parent], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "-r", HERE / f"{peer}.txt"], check=True)
    return python


def export(data: str, path: Path) -> None:
    """The graph as plain arrays, for programs that know nothing of us."""
    graph = open_graph(data)
    np.savez(
        path,
        indptr=graph.adjacency.indptr.astype(np.int64),
        indices=graph.adjacency.indices.astype(np.int64),
        x=np.asarray(graph.features, np.float32),
        y=np.asarray(graph.labels, np.int64),
        train_mask=graph.train_mask,
        val_mask=graph.val_mask,
        test_mask=graph.test_mask,
    )


def partition(data: str, out: Path) -> Path:
    """The graph as our shards, made before anything is measured."""
    command = [sys.executable, "-m", "sancus", "partition", data, "--parts", "2", "--out", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return out


def run_peer(python: Path, peer: str, graph: Path, task: Task, seed: int) -> dict[str, Any]:
    """Train a task with a peer's program in a process of its own; what it printed, and its peak memory."""
    command = [str(python), str(HERE / f"{peer}_train.py"), str(graph), *task.flags(seed), "--threads", "2"]
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(command, stdout=output, stderr=errors) as process:
            peak = wait_for(process)
        for file in (output, errors):
            file.seek(0)
        if process.returncode:
            why = errors.read().strip()[-2000:]
            raise UserError(f"{peer} ended with exit code {process.returncode}: {why}")
        result: dict[str, Any] = json.loads(output.read().splitlines()[-1])
    return result | {"peak_bytes": peak}


def wait_for(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process to end; the peak memory of it and its descendants, in bytes."""
    with Footprint(process.pid) as footprint:
        process.wait()
    return footprint.peak_bytes


def run_ours(shards: Path, folder: Path, input_dropped: bool, task: Task, seed: int) -> dict[str, Any]:
    """`sancus train` with two ranks of one thread; `input_dropped`: dropout falls on `X`, as in the peers."""
    out = folder / f"ours-{task.model}-{task.dropout}-{input_dropped}-{seed}"
    place = ["--ranks", "2", "--threads", "1", "--preset", "exact", "--quiet", "--out", str(out)]
    place += ["--eval-every", str(task.epochs)]
    if input_dropped and task.dropout:
        place.append("--no-reuse-input")
    command = [sys.executable, "-m", "sancus", "train", str(shards), *task.flags(seed), *place]
    with subprocess.Popen(command) as process:
        peak = wait_for(process)
    if process.returncode:
        raise UserError(f"sancus train ended with exit code {process.returncode}")
    run = json.loads((out / "run.json").read_text())
    epochs = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {
        "seconds": [epoch["seconds"] for epoch in epochs],
        "compute_seconds": [epoch["compute_seconds"] for epoch in epochs],
        "all_bytes": [sum(epoch[name] for name in BILLED_BYTES) for epoch in epochs],
        "payload_bytes": [epoch["wire_bytes"] for epoch in epochs],
        "test": run["result"]["test"],
        "peak_bytes": peak,
        "versions": run["versions"],
    }


Run = Callable[[Task, int], dict[str, Any]]


def measure(
    tasks: Sequence[Task],
    repeats: int,
    everyone: Mapping[str, Run],
    rows: list[dict[str, Any]],
    keep: Path | None,
) -> list[dict[str, Any]]:
    """All tasks by everyone, in turn; `rows` were measured before, and `keep` remembers after each."""
    known = {(row["task"], row["who"], row["seed"]) for row in rows}
    for task, seed, who in itertools.product(tasks, range(repeats), everyone):
        if (task.name, who, seed) in known or (who == OTHER_DROPOUT and not task.dropout):
            continue
        print(f"{task.name}, repeat {seed}: {who}", flush=True)
        rows.append({"task": task.name, "who": who, "seed": seed} | everyone[who](task, seed))
        if keep is not None:
            results.write(keep, {"rows": rows})
    return rows


def compare(
    data: str, tasks: Sequence[Task], repeats: int, pythons: Mapping[str, Path], keep: Path | None
) -> list[dict[str, Any]]:
    """Write the graph for the peers, then measure; what `keep` holds is not measured again."""
    rows = results.read(keep)["rows"] if keep is not None and keep.exists() else []
    with tempfile.TemporaryDirectory(prefix="sancus-peers-") as name:
        folder, graph = Path(name), Path(name) / "graph.npz"
        export(data, graph)
        shards = partition(data, folder / "shards")
        everyone: dict[str, Run] = {peer: partial(run_peer, pythons[peer], peer, graph) for peer in pythons}
        everyone[OURS] = partial(run_ours, shards, folder, True)
        everyone[OTHER_DROPOUT] = partial(run_ours, shards, folder, False)
        return measure(tasks, repeats, everyone, rows, keep)


def main() -> int:
    """Read the flags, run everyone, write results and table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="synthetic:reddit@0.05")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path("runs/experiments"), help="keeps what is done")
    parser.add_argument("--environments", type=Path, default=home() / "peers")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--quick", action="store_true", help="one small task; writes nothing")
    flags = parser.parse_args()
    data = "synthetic:reddit@0.02" if flags.quick else flags.data
    try:
        pythons = {peer: environment(peer, flags.environments) for peer in flags.peers}
        repeats = 1 if flags.quick else flags.repeats
        keep = None if flags.quick else flags.work / "peers.json"
        rows = compare(data, QUICK if flags.quick else TASKS, repeats, pythons, keep)
    except UserError as error:
        print(f"experiments.peers: {error}", file=sys.stderr)
        return 2
    content = results.heading("python -m experiments.peers") | {"title": TITLE, "data": data, "runs": rows}
    print(table(Measured("peers", content)))
    if keep is not None:
        results.write(HERE / results.RESULTS_FILE, content)
        documents.write([HERE / "README.md"])
        keep.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
