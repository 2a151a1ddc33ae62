"""`python -m tests.chaos --trials 500`: trials one after the other, each in a fork of this process.

    python -m tests.chaos --seeds 1234     # this one again, with its story

A failure prints its seed, this command, and what happened. `--record FILE` collects one line a trial; the
same command goes on with the seeds that FILE does not have yet, or that failed there.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from sancus.cli.warm import warm_up
from sancus.launch.interrupt import unblock_signals
from sancus.launch.process import follow_parent, fork
from sancus.report.assets import packed_library
from tests.chaos.drawn import DISK, NETWORK, Trial, draw
from tests.chaos.place import Place, network_reason
from tests.chaos.trial import Broken, Execution, RefusedError

DEADLINE = 1800.0  # seconds for one trial, whose commands have deadlines of their own
Outcome = Literal["same", "refused", "unavailable", "failed"]


@dataclass(frozen=True)
class Report:
    """What came of a trial."""

    seed: int
    outcome: Outcome
    backend: str
    ranks: int
    disturbances: list[tuple[str, bool]]  # by name: whether it met a run
    processor_seconds: float
    said: str = ""


def main() -> int:
    """Run the trials that the command line asks for; 1 where one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--first", type=int, default=1, help="the seed of the first trial")
    parser.add_argument("--seeds", type=int, nargs="+", help="these, in place of --first and --trials")
    parser.add_argument("--minutes", type=float, default=240.0, help="no trial begins after so many")
    parser.add_argument("--record", type=Path, help="one line of JSON a trial is appended here")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # removes the trial's folder
    warm_up()
    packed_library()  # so that forks need not compress it
    begun, failed = time.monotonic(), 0
    seeds = options.seeds or range(options.first, options.first + options.trials)
    done = passed(options.record)
    seeds = [seed for seed in seeds if seed not in done]
    for seed in seeds:
        if time.monotonic() - begun > 60 * options.minutes:
            print(f"time is up before seed {seed}", flush=True)
            break
        report = attempt(draw(seed))
        failed += report.outcome == "failed"
        tell(report, verbose=len(seeds) == 1)
        if options.record is not None:
            with options.record.open("a") as file:
                file.write(json.dumps(asdict(report)) + "\n")
    return int(failed > 0)


def passed(record: Path | None) -> set[int]:
    """The seeds of which a record says that nothing was wrong, the last time."""
    if record is None or not record.exists():
        return set()
    reports = map(json.loads, record.read_text().splitlines())
    outcomes = {report["seed"]: report["outcome"] for report in reports}
    return {seed for seed, outcome in outcomes.items() if outcome != "failed"}


def attempt(trial: Trial) -> Report:
    """A trial in a fork, which ends with all that it started."""
    with tempfile.TemporaryDirectory(prefix="sancus-chaos-") as name:
        parent, answer = str(os.getpid()), Path(name) / "report.json"
        child = fork()
        if not child:
            try:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                follow_parent(parent)
                unblock_signals()
                answer.write_text(json.dumps(asdict(conduct(trial, Path(name)))))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        _, _, used = os.wait4(child, 0)
        seconds = used.ru_utime + used.ru_stime
        if answer.exists():
            return Report(**json.loads(answer.read_text()) | {"processor_seconds": round(seconds, 2)})
        return Report(trial.seed, "failed", trial.backend, trial.ranks, [], seconds, "the trial itself broke")


def conduct(trial: Trial, folder: Path) -> Report:
    """A trial in this process, which is never used for anything else."""
    outcome: Outcome = "same"
    said = ""
    needed = network_reason() if trial.networked else None
    place = Place(folder)
    execution = Execution(trial, place)
    private = any(one.kind in (*DISK, *NETWORK) for one in trial.disturbances)
    if needed is not None or (private and not place.private):
        outcome, said = "unavailable", needed or "no disk of its own can be mounted here"
    else:
        try:
            execution.run()
        except RefusedError as error:
            outcome, said = "refused", str(error)
        except Broken as error:
            outcome, said = "failed", f"{error}\n\n{trial}\n\n{''.join(execution.story)}"
        except Exception:
            outcome, said = "failed", f"{traceback.format_exc()}\n{trial}\n\n{''.join(execution.story)}"
    met = execution.reached + [False] * (len(trial.disturbances) - len(execution.reached))
    names = [(one.name, reached) for one, reached in zip(trial.disturbances, met, strict=True)]
    if not said:
        said = f"{trial}\n\n{''.join(execution.story)}"
    return Report(trial.seed, outcome, trial.backend, trial.ranks, names, 0.0, said)


def tell(report: Report, *, verbose: bool) -> None:
    """One line a trial, and the whole story of one that failed."""
    what = "; ".join(f"{name}{'' if reached else ' (met no run)'}" for name, reached in report.disturbances)
    print(
        f"seed {report.seed}: {report.outcome}, {report.ranks} ranks, {report.backend}: {what} "
        f"({report.processor_seconds:.1f} s)",
        flush=True,
    )
    if report.outcome in ("failed", "refused") or verbose:
        print(report.said, flush=True)
    if report.outcome == "failed":
        print(f"again: python -m tests.chaos --seeds {report.seed}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
