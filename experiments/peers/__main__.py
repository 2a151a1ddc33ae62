"""Beside real peers: `python -m experiments.peers` trains one graph with PyG, DGL and Sancus.

Peers run through their public packages, each in a virtual environment of its own, which is made at the first
run (`--environments`, default under the cache; DGL's brings several GB). What is compared is interleaved,
repeat after repeat. Every run has 2 threads: a process with two, or two ranks with one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.engine import results, tables
from experiments.peers.footprint import Footprint
from sancus.datasets.home import home
from sancus.datasets.open import open_graph
from sancus.errors import UserError

HERE = Path(__file__).parent
PEERS = ("pyg", "dgl")
OURS = "sancus exact"
TITLE = "Beside PyG and DGL"
HEAD = (
    *("task", "program", "epoch, s", "spread, s", "first epoch, s", "peak memory, MB", "test %"),
    *("epoch to ours", "our memory to it"),
)


@dataclass(frozen=True)
class Task:
    """A training task that every program runs: model, size, epochs."""

    name: str
    model: str
    layers: int
    hidden: int
    epochs: int

    def flags(self, seed: int) -> list[str]:
        """Its flags, which every program understands."""
        shape = ["--model", self.model, "--layers", str(self.layers), "--hidden", str(self.hidden)]
        return [*shape, "--epochs", str(self.epochs), "--seed", str(seed), "--dropout", "0.5"]


TASKS = (Task("GCN, 2 × 128", "gcn", 2, 128, 16), Task("GraphSAGE, 3 × 256", "sage", 3, 256, 12))
QUICK = (Task("GCN, 2 × 128", "gcn", 2, 128, 3),)


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


def run_ours(shards: Path, folder: Path, task: Task, seed: int) -> dict[str, Any]:
    """`sancus train` with two ranks of one thread."""
    out = folder / f"ours-{task.model}-{seed}"
    place = ["--ranks", "2", "--threads", "1", "--preset", "exact", "--quiet", "--out", str(out)]
    place += ["--eval-every", str(task.epochs)]
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
        "test": run["result"]["test"],
        "peak_bytes": peak,
        "versions": run["versions"],
    }


Run = Callable[[Task, int], dict[str, Any]]


def measure(tasks: Sequence[Task], repeats: int, everyone: Mapping[str, Run]) -> list[dict[str, Any]]:
    """All tasks by everyone, in turn."""
    rows = []
    for task, seed, who in itertools.product(tasks, range(repeats), everyone):
        print(f"{task.name}, repeat {seed}: {who}", flush=True)
        rows.append({"task": task.name, "who": who, "seed": seed} | everyone[who](task, seed))
    return rows


def compare(
    data: str, tasks: Sequence[Task], repeats: int, pythons: Mapping[str, Path]
) -> list[dict[str, Any]]:
    """Write the graph for the peers, then measure."""
    with tempfile.TemporaryDirectory(prefix="sancus-peers-") as name:
        folder, graph = Path(name), Path(name) / "graph.npz"
        export(data, graph)
        shards = partition(data, folder / "shards")
        everyone: dict[str, Run] = {peer: partial(run_peer, pythons[peer], peer, graph) for peer in pythons}
        return measure(tasks, repeats, everyone | {OURS: partial(run_ours, shards, folder)})


def table(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Epoch (median of all but the first epochs of all repeats), memory, accuracy; and how we compare."""
    cells = [list(HEAD)]
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = [row for row in rows if row["task"] == task]
        runs_of = {
            who: [row for row in mine if row["who"] == who] for who in dict.fromkeys(r["who"] for r in mine)
        }
        epoch, memory = _epoch(runs_of[OURS]), _memory(runs_of[OURS])
        for who, runs in runs_of.items():
            later = [second for run in runs for second in run["seconds"][1:]]
            cells.append(
                [
                    task,
                    who,
                    f"{_epoch(runs):.3g}",
                    f"{min(later):.3g} to {max(later):.3g}",
                    f"{statistics.median(run['seconds'][0] for run in runs):.3g}",
                    f"{_memory(runs) / 1e6:.0f}",
                    f"{100 * statistics.fmean(run['test'] for run in runs):.1f}",
                    f"{_epoch(runs) / epoch:.1f} ×",
                    f"{memory / _memory(runs):.0%}",
                ]
            )
    return cells


def _epoch(runs: Sequence[Mapping[str, Any]]) -> float:
    return statistics.median(second for run in runs for second in run["seconds"][1:])


def _memory(runs: Sequence[Mapping[str, Any]]) -> float:
    return statistics.median(run["peak_bytes"] for run in runs)


def main() -> int:
    """Read the flags, run everyone, write results and table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="synthetic:reddit@0.5")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--environments", type=Path, default=home() / "peers")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--quick", action="store_true", help="one small task; writes nothing")
    flags = parser.parse_args()
    data = "synthetic:reddit@0.02" if flags.quick else flags.data
    try:
        pythons = {peer: environment(peer, flags.environments) for peer in flags.peers}
        repeats = 1 if flags.quick else flags.repeats
        rows = compare(data, QUICK if flags.quick else TASKS, repeats, pythons)
    except UserError as error:
        print(f"experiments.peers: {error}", file=sys.stderr)
        return 2
    content = results.heading("python -m experiments.peers") | {"title": TITLE, "data": data, "runs": rows}
    head = f"    {content['command']}\n\n{results.describe(content['machine'])}, {content['date']}; {data}."
    text = f"{head}\n\n{tables.render(table(rows))}"
    print(text)
    if not flags.quick:
        results.write(HERE / results.RESULTS_FILE, content)
        tables.fill(HERE / "README.md", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
