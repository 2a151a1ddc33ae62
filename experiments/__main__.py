"""Run experiments: `python -m experiments sancus-table5`, all of them with `all`, small with `--quick`.

A full run writes `results.json` and the README of its folder. A quick one, or one with `--out`, leaves the
repository as it is. A run that was stopped goes on where it was, in `--work`. One experiment that fails does
not stop those after it. `python -m experiments.documents` writes every document from all `results.json`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from experiments import documents
from experiments.engine import results, runner, tables
from experiments.engine.experiment import Experiment, names, read
from sancus.errors import UserError

HERE = Path(__file__).parent


def run(name: str, flags: argparse.Namespace) -> None:
    """One experiment: run it, or read its results; then its tables."""
    folder = HERE / name
    experiment = read(folder, quick=flags.quick)
    say(f"{experiment.title}: {len(experiment.cases)} cases")
    start = time.monotonic()
    work: Path | None = None if flags.quick else flags.work / name
    content = measure(experiment, flags.quick, work)
    say(f"{name} took {time.monotonic() - start:.0f} s")
    out: Path | None = flags.out
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        results.write(out / f"{name}.json", content)
    elif not flags.quick:
        results.write(folder / results.RESULTS_FILE, content)
        documents.write([folder / "README.md"])
    if work is not None:
        shutil.rmtree(work)
    say(tables.section(content, experiment.tables))


def measure(experiment: Experiment, quick: bool, work: Path | None) -> dict[str, object]:
    """Train all cases; the content of `results.json`."""
    command = f"python -m experiments {experiment.name}" + (" --quick" if quick else "")
    return results.summarise(experiment, runner.run(experiment, say, work), command)


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
    parser.add_argument(
        "--work", type=Path, default=Path("runs/experiments"), help="where cases are kept until all are done"
    )
    parser.add_argument("--minutes", type=float, help="after so many no further experiment is begun")
    flags = parser.parse_args()
    failures, start = 0, time.monotonic()
    for name in names(HERE) if flags.names == ["all"] else flags.names:
        if flags.minutes is not None and time.monotonic() - start > 60 * flags.minutes:
            say(f"{name} was not begun: {flags.minutes:g} minutes are over")
            continue
        try:
            run(name, flags)
        except (UserError, LookupError) as error:  # the second: a sentence misses a number
            print(f"experiments: {name}: {error}", file=sys.stderr, flush=True)
            failures += 1
    return 2 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
