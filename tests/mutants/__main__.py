"""`python -m tests.mutants [NAME …] [--sample N] [--control] [--jobs J]`: do the tests notice small changes?

Every mutant is made in a copy of the repository, where its tests are run: they must fail. Ends with a table
and with exit code 1 if a mutant lives that should not. `make mutants` runs a sample.

With `--control` nothing is changed, and the tests must pass: a test that fails anyway kills nobody.

The tests of a mutant run in a fork of a process that has torch, scipy and pytest already, and nothing of the
repository: importing them takes longer than most of these tests.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.mutants.catalogue import TOP, Mutant, read_catalogue

COPIED = ("sancus", "staleness", "partitioners", "tests", "experiments", "examples", "docs")
FILES = ("pyproject.toml", "setup.py", "README.md", "CONTRIBUTING.md", "Makefile")
LIBRARIES = (
    "numpy",
    "scipy.sparse.csgraph",
    "torch",
    "safetensors.torch",
    "hypothesis",
    "pytest",
    "cyclopts",
)
OURS = ("tests", "sancus")
NO_TESTS = 5  # pytest's exit code where nothing was collected: the mutant's tests are gone
USAGE = 4
OUTPUT = "output.txt"
TIMEOUT = 600.0


def copy_to(place: Path) -> None:
    """The repository's sources, links as links, without caches."""
    ignored = shutil.ignore_patterns("__pycache__", "results*", "*.png", "fixtures")
    for name in COPIED:
        shutil.copytree(TOP / name, place / name, symlinks=True, ignore=ignored)
    for name in FILES:
        shutil.copyfile(TOP / name, place / name)


class Trial:
    """One mutant under test: a copy of the repository, and a fork in which its tests run."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant
        self.started = time.monotonic()
        self._folder = tempfile.TemporaryDirectory(prefix="sancus-mutant-")
        self._place = Path(self._folder.name)
        copy_to(self._place)
        mutant.apply(self._place)
        self._child = os.fork()
        if not self._child:
            os.setsid()
            os._exit(_pytest(self._place, mutant.tests))

    def outcome(self) -> tuple[str, str] | None:
        """`killed`, `lives` or `broken` (no test ran), and pytest's last line; None before the end."""
        ended, status = os.waitpid(self._child, os.WNOHANG)
        if not ended and time.monotonic() - self.started < TIMEOUT:
            return None
        if not ended:
            os.killpg(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)
            self._folder.cleanup()
            return "killed", f"its tests did not end within {TIMEOUT:g} s"
        last = ((self._place / OUTPUT).read_text().strip().splitlines() or [""])[-1]
        self._folder.cleanup()
        code = os.waitstatus_to_exitcode(status)
        return ("broken" if code in (NO_TESTS, USAGE) else "killed" if code else "lives"), last


def _pytest(place: Path, tests: tuple[str, ...]) -> int:
    """In the fork: forget our modules, and take those of the copy."""
    output = os.open(place / OUTPUT, os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(place)
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]
    sys.path[:] = [str(place), *(path for path in sys.path if path not in ("", str(TOP)))]
    os.environ["PYTHONPATH"] = str(place)
    sys.dont_write_bytecode = True
    code = importlib.import_module("pytest").main(["-x", "-q", "-p", "no:cacheprovider", *tests])
    sys.stdout.flush()
    sys.stderr.flush()
    return int(code)


def trials(mutants: Sequence[Mutant], jobs: int) -> Iterator[tuple[Mutant, str, str, float]]:
    """Every mutant, its outcome, pytest's last line and seconds, as they end; so many at a time."""
    for library in LIBRARIES:
        importlib.import_module(library)
    waiting, running = list(mutants), list[Trial]()
    while waiting or running:
        while waiting and len(running) < jobs:
            running.append(Trial(waiting.pop(0)))
        for trial in list(running):
            outcome = trial.outcome()
            if outcome is not None:
                running.remove(trial)
                yield trial.mutant, *outcome, time.monotonic() - trial.started
        time.sleep(0.1)


def main() -> int:
    """Run, print a line a mutant, then what lives."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these; default: all")
    parser.add_argument("--sample", type=int, default=0, help="only so many, drawn at random")
    parser.add_argument("--seed", type=int, default=None, help="of the draw; default: another one every time")
    parser.add_argument("--control", action="store_true", help="change nothing: the tests must pass")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
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
    if arguments.control:  # one for each choice of tests
        mutants = list({mutant.tests: mutant.control() for mutant in mutants}.values())
    bad = []
    for mutant, outcome, last, seconds in trials(mutants, max(1, arguments.jobs)):
        print(f"{outcome:7} {seconds:5.0f} s  {mutant.name}: {last}", flush=True)
        if outcome == "broken" or (outcome == "lives") != bool(mutant.survives):
            bad.append(mutant)
    for mutant in bad:
        print(f"not as the catalogue says: {mutant.name} ({mutant.file}): {mutant.loses}")
    print(f"{len(mutants) - len(bad)} passed, {len(bad)} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
