"""The verb `compare`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from sancus.cli.command import run_verbs
from sancus.cli.printing import print_line, print_table
from sancus.cli.train import read_flags, train_alone
from sancus.cli.warm import warm_up
from sancus.launch.process import fork_command


def compare(
    data: str,
    /,
    *flags: Annotated[str, Parameter(allow_leading_hyphen=True)],
    presets: Annotated[list[str], Parameter(consume_multiple=True)],
    seeds: int = 1,
    target: float | None = None,
    out: Path,
) -> None:
    """Train under several presets, interleaved, and show accuracy, bytes and time side by side.

    Parameters
    ----------
    data
        Graph: synthetic, synthetic:reddit@0.05, or a .npz file.
    flags
        Any flags of sancus train, for every run: --ranks 4 --epochs 100 ….
    presets
        Presets to compare; ratios are to the first.
    seeds
        Seeds 0, 1, … of every preset.
    target
        Also tell after how many epochs and seconds validation reached this score.
    out
        Directory for all runs, compare.json and report.html.
    """
    from sancus.report.comparison import comparison_rows
    from sancus.report.page import write_report
    from sancus.runs.check import check
    from sancus.runs.compare import Comparison, run_all

    def run_train(arguments: Sequence[str]) -> int:
        warm_up()
        return fork_command(partial(run_verbs, train_alone()), arguments)

    comparison = Comparison(data, presets, seeds, out, flags, target)
    for preset in presets:
        _, settings = read_flags(comparison.arguments(preset, 0)[1:])
        check(data, settings, launched=False)
    print_table(comparison_rows(run_all(comparison, run_train, print_line)))
    page = write_report(*comparison.directories(), out=out / "report.html")
    print_line(f"files in {out}; open {page}")
