"""`lean` against `exact` and `partition-only` on every graph at hand: accuracy, and bytes against `cagnet`.

    SANCUS_DATA=... python -m experiments.lean.run --out runs/lean

Every figure comes from a `sancus compare`, which is printed before it runs; what is in `--out` already is not
run again. `exact` computes the same numbers whatever the parts (the law), so its seeds run once a graph.
`cagnet`'s bytes are its formula, `(p−1)·N·Σ(f_{ℓ-1}+f_ℓ)` values an epoch, which the tests check.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

GRAPHS = [
    *("synthetic", "cora", "citeseer", "pubmed", "squirrel", "dblp", "amazon-computers"),
    *("linux-include", "wordnet", "coauthor-physics", "acl-papers"),
]
VALUE_BYTES = 4


def compare(out: Path, graph: str, presets: list[str], seeds: int, flags: list[str]) -> dict[str, Any]:
    """The rows of a comparison by preset; run where it was not run before."""
    target = out / "compare.json"
    if not target.exists():
        arguments = [graph, *flags, "--presets", *presets, "--seeds", str(seeds), "--out", str(out)]
        print("$", shlex.join(["sancus", "compare", *arguments]), flush=True)
        log = out.with_suffix(".log")
        log.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(out, ignore_errors=True)  # of a comparison that was stopped
        with log.open("w") as file:
            command = [sys.executable, "-m", "sancus", "compare", *arguments]
            subprocess.run(command, check=True, stdout=file, stderr=subprocess.STDOUT)
    return {row["preset"]: row for row in json.loads(target.read_text())["rows"]}


def measure(options: argparse.Namespace, graph: str, ranks: int, parts: str) -> list[str]:
    """One row of the table: a graph, its parts, and a number of ranks."""
    common = ["--ranks", str(ranks), "--partitioner", parts, *shlex.split(options.flags)]
    full = [*common, "--epochs", str(options.epochs), "--eval-every", "5"]
    once = ["--ranks", "4", "--partitioner", "metis", *shlex.split(options.flags)]
    once += ["--epochs", str(options.epochs), "--eval-every", "5"]
    folder = options.out / graph
    exact = compare(folder / "exact", graph, ["exact"], options.seeds, once)["exact"]
    lean = compare(folder / f"lean-{parts}-{ranks}", graph, ["lean"], options.seeds, full)["lean"]
    alone = compare(folder / f"alone-{parts}-{ranks}", graph, ["partition-only"], 1, full)["partition-only"]
    short = compare(folder / f"bytes-{parts}-{ranks}", graph, ["exact"], 1, [*common, "--epochs", "3"])
    scores = [100 * row["test"]["mean"] for row in (exact, lean, alone)]
    run = _read(Path(lean["directories"][0]))
    cagnet = _cagnet_bytes(run, ranks)
    steady = [statistics.median(_epoch_bytes(row)[1:]) for row in (short["exact"], lean)]
    mean = statistics.fmean(_epoch_bytes(lean))
    return [
        f"{graph}, {parts}, {ranks}",
        f"{scores[0]:.1f} ± {100 * exact['test']['deviation']:.1f}",
        f"{scores[1] - scores[0]:+.1f} ± {100 * lean['test']['deviation']:.1f}",
        f"{scores[2] - scores[0]:+.1f}",
        f"{cagnet / 1e6:.1f} MB",
        f"{cagnet / steady[0]:,.0f}",
        f"{cagnet / steady[1]:,.0f} ({cagnet / mean:,.0f})",
    ]


def _read(directory: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((directory / "run.json").read_text())
    return content


def _epoch_bytes(row: dict[str, Any]) -> list[int]:
    """Payload bytes of every epoch of the first seed."""
    lines = (Path(row["directories"][0]) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["wire_bytes"] for line in lines]


def _cagnet_bytes(run: dict[str, Any], ranks: int) -> int:
    graph, shape = run["graph"], run["config"]["shape"]
    widths = [graph["features"], *[shape["hidden"]] * (shape["layers"] - 1), graph["classes"]]
    values = sum(before + after for before, after in itertools.pairwise(widths))
    return int((ranks - 1) * graph["nodes"] * values * VALUE_BYTES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--graphs", nargs="+", default=GRAPHS)
    parser.add_argument("--ranks", nargs="+", type=int, default=[4, 8])
    parser.add_argument("--parts", nargs="+", default=["metis", "random"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--flags", default="", help="more flags of sancus train, in one word")
    options = parser.parse_args()
    head = ["graph, parts, ranks", "`exact`", "`lean`", "`partition-only`", "`cagnet` an epoch"]
    table = [[*head, "`exact`: times fewer", "`lean`: times fewer"]]
    for ranks in options.ranks:
        for graph in options.graphs:
            table += [measure(options, graph, ranks, parts) for parts in options.parts]
    for place, row in enumerate(table):
        print("|", " | ".join(row), "|")
        if not place:
            print("|" + "---|" * len(row))


if __name__ == "__main__":
    main()
