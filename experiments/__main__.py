"""Run experiments: `python -m experiments sancus-table5`, all of them with `all`, small with `--quick`.

A full run writes `results.json` and the tables in the README of its folder. A quick one, or one with `--out`,
leaves the repository as it is. `--tables` writes the tables again from `results.json`, without a run.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from experiments.engine import results, runner, tables
from experiments.engine.experiment import Experiment, names, read
from sancus.errors import UserError

HERE = Path(__file__).parent


def run(name: str, flags: argparse.Namespace) -> None:
    """One experiment: run it, or read its results; then its tables."""
    folder = HERE / name
    experiment = read(folder, quick=flags.quick)
    if flags.tables:
        content = results.read(folder / results.RESULTS_FILE)
        tables.fill(folder / "README.md", tables.section(content, experiment.tables))
        return
    say(f"{experiment.title}: {len(experiment.cases)} cases")
    start = time.monotonic()
    content = measure(experiment, flags.quick)
    say(f"{name} took {time.monotonic() - start:.0f} s")
    out: Path | None = flags.out
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        results.write(out / f"{name}.json", content)
    elif not flags.quick:
        results.write(folder / results.RESULTS_FILE, content)
        tables.fill(folder / "README.md", tables.section(content, experiment.tables))
    say(tables.section(content, experiment.tables))


def measure(experiment: Experiment, quick: bool) -> dict[str, object]:
    """Train all cases; the content of `results.json`."""
    command = f"python -m experiments {experiment.name}" + (" --quick" if quick else "")
    return results.summarise(experiment, runner.run(experiment, say), command)


def say(line: str) -> None:
    """Progress, seen at once."""
    print(line, flush=True)


def main() -> int:
    """Read the flags; a mistake is one line."""
    parser = argparse.ArgumentParser(
        prog="experiments", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", metavar="name", help=f"all, or: {', '.join(names(HERE))}")
    parser.add_argument("--quick", action="store_true", help="minutes instead of hours: small forms")
    parser.add_argument("--out", type=Path, help="write the results here, not into the repository")
    parser.add_argument("--tables", action="store_true", help="only write the tables, from results.json")
    flags = parser.parse_args()
    try:
        for name in names(HERE) if flags.names == ["all"] else flags.names:
            run(name, flags)
    except UserError as error:
        print(f"experiments: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
