"""What an epoch costs beside PyG and DGL."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.engine.measured import Measured, listing, span
from experiments.engine.tables import NOTHING, render

PEERS = {"pyg": "PyG", "dgl": "DGL"}
OURS = "sancus exact"
Runs = Sequence[Mapping[str, Any]]
HEAD = (
    *("task", "program", "epoch, s", "spread, s", "first epoch, s", "peak memory, MB", "test %"),
    *("epoch to ours", "our memory to it", "all MB/epoch", "payload MB/epoch"),
)


def runs(measured: Measured, task: str, who: str) -> Runs:
    """All repeats of a task by one program."""
    return [run for run in measured.content["runs"] if (run["task"], run["who"]) == (task, who)]


def tasks(measured: Measured) -> list[str]:
    """The tasks, in their order."""
    return list(dict.fromkeys(run["task"] for run in measured.content["runs"]))


def epoch(some: Runs) -> float:
    """Median seconds of all but the first epochs of all repeats."""
    return statistics.median(second for run in some for second in run["seconds"][1:])


def memory(some: Runs) -> float:
    """Median peak memory in bytes."""
    return statistics.median(run["peak_bytes"] for run in some)


def score(some: Runs) -> str:
    """Test accuracy after the last epoch, with its spread."""
    tests = [100 * run["test"] for run in some]
    spread = f" ± {statistics.stdev(tests):.1f}" if len(tests) > 1 else ""
    return f"{statistics.fmean(tests):.1f}{spread}"


def table(measured: Measured) -> str:
    """Epoch, memory, accuracy; and how we compare."""
    rows = [list(HEAD)]
    for task in tasks(measured):
        ours = runs(measured, task, OURS)
        for who in dict.fromkeys(run["who"] for run in measured.content["runs"] if run["task"] == task):
            mine = runs(measured, task, who)
            later = [second for run in mine for second in run["seconds"][1:]]
            rows.append(
                [
                    *(
                        task,
                        PEERS.get(who, who),
                        f"{epoch(mine):.3g}",
                        f"{min(later):.3g} to {max(later):.3g}",
                    ),
                    f"{statistics.median(run['seconds'][0] for run in mine):.3g}",
                    *(f"{memory(mine) / 1e6:.0f}", score(mine), f"{epoch(mine) / epoch(ours):.1f} ×"),
                    f"{memory(ours) / memory(mine):.0%}",
                    *(_megabytes(mine, name) for name in ("all_bytes", "payload_bytes")),
                ]
            )
    return render(rows)


def _megabytes(some: Runs, name: str) -> str:
    """Of an epoch after the first; a peer is one process and sends nothing."""
    if name not in some[0]:
        return NOTHING
    return f"{statistics.median(size for run in some for size in run[name][1:]) / 1e6:.3g}"


def section(measured: Measured) -> str:
    """Command, machine and table."""
    head = f"    {measured.content['command']}\n\n{measured.machine}; {measured.content['data']}."
    return f"{head}\n\n{table(measured)}"


def ratios(measured: Measured, peer: str, model: str) -> list[float]:
    """How many times longer a peer's epoch is, for every task of a model."""
    some = [task for task in tasks(measured) if task.startswith(model) and runs(measured, task, peer)]
    return [epoch(runs(measured, task, peer)) / epoch(runs(measured, task, OURS)) for task in some]


def text(measured: Measured) -> str:
    """What holds."""
    models = list(dict.fromkeys(task.partition(",")[0] for task in tasks(measured)))
    peers = [peer for peer in PEERS if any(run["who"] == peer for run in measured.content["runs"])]
    lines = []
    for model in models:
        slower = [f"{PEERS[peer]}'s {_span(ratios(measured, peer, model))} times" for peer in peers]
        lines.append(f"{model}: an epoch takes {listing(slower)} as long as ours")
    shares = [
        memory(runs(measured, task, OURS)) / memory(runs(measured, task, peer))
        for task in tasks(measured)
        for peer in peers
    ]
    drop = [task for task in tasks(measured) if not task.endswith("no dropout")]
    tests = "; ".join(
        f"{task}: "
        + ", ".join(
            f"{PEERS.get(who, who)} {score(runs(measured, task, who))}"
            for who in dict.fromkeys(run["who"] for run in measured.content["runs"] if run["task"] == task)
        )
        for task in drop
    )
    return (
        f"**What it shows.** {'. '.join(lines)} (with and without dropout). Our peak memory is "
        f"{span(f'{min(shares):.0%}', f'{max(shares):.0%}')} of theirs. With dropout everyone drops the input of every layer; "
        "the row that drops `Â X` instead, which is what `exact` does with dense features unless `--no-reuse-input` is given, is "
        f"faster, and another training. Test % after the last epoch: {tests}."
    )


def _span(values: Sequence[float]) -> str:
    return span(f"{min(values):.1f}", f"{max(values):.1f}")


def page(measured: Measured) -> str:
    """The table of docs/results.md."""
    peers = [peer for peer in PEERS if any(run["who"] == peer for run in measured.content["runs"])]
    everyone = [*peers, OURS]
    heads = [f"epoch, s: {PEERS.get(who, 'Sancus')}" for who in everyone]
    heads += [f"peak MB: {PEERS.get(who, 'Sancus')}" for who in everyone]
    heads += [f"test %: {PEERS.get(who, 'Sancus')}" for who in everyone]
    rows = [["model", *heads]]
    for task in tasks(measured):
        mine = [runs(measured, task, who) for who in everyone]
        cells = [f"{epoch(some):.3g}" for some in mine] + [f"{memory(some) / 1e6:.0f}" for some in mine]
        rows.append([task, *cells, *(score(some) for some in mine)])
    return "\n\n".join(
        [
            "And with no slow link at all, `exact` with 2 ranks × 1 thread beside PyG and DGL with 2 threads, full batch, on "
            f"`{measured.content['data']}`, all of them dropping the same ({measured.machine}; `{measured.content['command']}`, "
            "[more](../experiments/peers/README.md)):",
            render(rows),
        ]
    )
