"""`python -m tests.mutants [NAME …] [--sample N] [--seed S]`: do the tests notice small changes of meaning?

Every mutant is made in a copy of the repository, where its tests are run: they must fail. Ends with a table
and with exit code 1 if a mutant lives that should not. `make mutants` runs a sample.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutants.catalogue import TOP, Mutant, read_catalogue

COPIED = ("sancus", "staleness", "partitioners", "tests", "experiments", "examples", "docs")
FILES = ("pyproject.toml", "setup.py", "README.md", "CONTRIBUTING.md", "Makefile")
NO_TESTS = 5  # pytest's exit code where nothing was collected: the mutant's tests are gone
USAGE = 4
TIMEOUT = 600.0


def copy_to(place: Path) -> None:
    """The repository's sources, links as links, without caches."""
    ignored = shutil.ignore_patterns("__pycache__", "results*", "*.png", "fixtures")
    for name in COPIED:
        shutil.copytree(TOP / name, place / name, symlinks=True, ignore=ignored)
    for name in FILES:
        shutil.copyfile(TOP / name, place / name)


def fate(mutant: Mutant) -> tuple[str, str]:
    """`killed`, `lives` or `broken` (its tests do not run), and the last line that pytest printed."""
    with tempfile.TemporaryDirectory(prefix="sancus-mutant-") as name:
        place = Path(name)
        copy_to(place)
        mutant.apply(place)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests]
        try:
            done = subprocess.run(
                command,
                cwd=place,
                env=os.environ | {"PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            return "killed", f"its tests did not end within {TIMEOUT:g} s"
    last = (done.stdout.strip().splitlines() or [""])[-1]
    if done.returncode in (NO_TESTS, USAGE):
        return "broken", last
    return ("killed" if done.returncode else "lives"), last


def main() -> int:
    """Run, print a line a mutant, then what lives."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these; default: all")
    parser.add_argument("--sample", type=int, default=0, help="only so many, drawn at random")
    parser.add_argument("--seed", type=int, default=None, help="of the draw; default: another one every time")
    arguments = parser.parse_args()
    mutants = read_catalogue()
    unknown = set(arguments.names) - {mutant.name for mutant in mutants}
    if unknown:
        parser.error(f"no mutant {', '.join(sorted(unknown))}; see tests/mutants/catalogue.toml")
    mutants = [mutant for mutant in mutants if not arguments.names or mutant.name in arguments.names]
    if arguments.sample:
        seed = random.randrange(1 << 16) if arguments.seed is None else arguments.seed
        print(f"{arguments.sample} of {len(mutants)} mutants, seed {seed}", flush=True)
        mutants = random.Random(seed).sample(mutants, min(arguments.sample, len(mutants)))
    bad = []
    for mutant in mutants:
        started = time.monotonic()
        outcome, last = fate(mutant)
        print(f"{outcome:7} {time.monotonic() - started:5.0f} s  {mutant.name}: {last}", flush=True)
        if outcome == "broken" or (outcome == "lives") != bool(mutant.survives):
            bad.append(mutant)
    for mutant in bad:
        print(f"not as the catalogue says: {mutant.name} ({mutant.file}): {mutant.loses}")
    print(f"{len(mutants) - len(bad)} passed, {len(bad)} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
