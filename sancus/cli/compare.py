"""The verb `compare`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from sancus.cli.command import run_verbs
from sancus.cli.printing import print_line, print_table
from sancus.cli.train import read_flags, train_alone
from sancus.cli.warm import warm_up
from sancus.errors import UserError
from sancus.launch.process import fork_command


def compare(
    data: str,
    /,
    *flags: Annotated[str, Parameter(allow_leading_hyphen=True)],
    presets: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    seeds: int = 1,
    target: float | None = None,
    out: Path | None = None,
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
    from sancus.runs.check import check
    from sancus.runs.compare import Comparison, run_all
    from sancus.runs.pages import make_report

    if out is None:
        raise UserError("--out is missing: the directory for all runs, the table and the report")
    comparison = Comparison(data, presets or [], seeds, out, flags, target)

    def run_train(preset: str, seed: int) -> int:
        warm_up()
        return fork_command(partial(run_verbs, train_alone()), comparison.arguments(preset, seed))

    for preset in comparison.presets:
        _, settings = read_flags(comparison.arguments(preset, 0)[1:])
        check(data, settings, launched=False)
    print_table(comparison_rows(run_all(comparison, run_train, print_line)))
    page = make_report([out])
    print_line(f"files in {out}; open {page}")
