"""`sancus tune`: the cheapest settings whose validation score stays within a budget of `exact`.

Candidates are ranked by what `sancus estimate` says they cost on the link. In rounds of longer and longer
runs those that fall behind `exact` are dropped, and of the others the cheaper half is kept (successive
halving); runs go on from their checkpoints, so that a round costs only its further epochs. At the end the
finalists are trained in full with all seeds, the cheapest first, and the first within the budget is chosen.
Where a finalist fails, those that a round had put aside follow, in order of cost. `exact` itself is the last:
what is chosen costs no more, and scores no worse than the budget allows.

What a trial has really sent replaces what was estimated, so that policies that look at drift are judged by
what they do. Everything is read from the files of the runs: a search that was stopped goes on.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from sancus.advise.candidates import Candidate, reference
from sancus.advise.costs import Cost, Objective
from sancus.errors import UserError
from sancus.report.units import bytes_text, seconds_text
from sancus.runs.belongings import METRICS_FILE
from sancus.runs.directory import write_json

TUNE_FILE = "tune.json"
HEADS: dict[Objective, str] = {
    "time": "seconds an epoch",
    "bytes": "bytes an epoch",
    "memory": "memory a rank",
}
SHORTER = 3  # a round has so many times the epochs of the one before
ROUNDS = 2  # before the full runs
LEAST_EPOCHS = 5
EARLY_POINTS = 2.0  # further behind than the budget that a short run of one seed may be
LEAST_KEPT = 3


@dataclass(frozen=True)
class Tuning:
    """What is looked for, and how hard."""

    out: Path
    epochs: int
    within: float = 0.5  # points of the validation score
    objective: Objective = "time"
    seeds: int = 3

    def __post_init__(self) -> None:
        if not (math.isfinite(self.within) and 0 <= self.within <= 100):
            raise UserError(f"--within {self.within}: points of the score, from 0 to 100")
        if self.seeds < 1:
            raise UserError(f"--seeds {self.seeds}: must be at least 1")
        if self.objective not in get_args(Objective):
            raise UserError(f"--objective {self.objective}: choose {', '.join(get_args(Objective))}")

    def rounds(self) -> list[int]:
        """Epochs of the short rounds; none where the full runs are short themselves."""
        lengths = [self.epochs // SHORTER ** (ROUNDS - number) for number in range(ROUNDS)]
        return [epochs for epochs in lengths if LEAST_EPOCHS <= epochs < self.epochs]

    def directory(self, candidate: Candidate, seed: int) -> Path:
        """Where a run leaves its files, however long it is."""
        return self.out / f"{candidate.folder}-seed{seed}"


@dataclass
class Verdict:
    """What became of a candidate."""

    candidate: Candidate
    known: Cost
    sent: float | None = None  # bytes of an epoch, in its longest trial
    behind: float | None = None  # points behind exact, in its longest trial
    epochs: int = 0
    seeds: int = 0
    why: str = "not tried"

    def cost(self, objective: Objective) -> float:
        """Seconds or bytes of an epoch, or bytes of memory."""
        return self.known.of(objective, self.sent)


@dataclass
class Search:
    """A search under way. `train` has a candidate reach so many epochs with a seed; its exit code."""

    tuning: Tuning
    verdicts: Mapping[str, Verdict]  # by name; that of exact among them
    train: Callable[[Candidate, int, int], int]
    say: Callable[[str], None]

    def find(self) -> Verdict:
        """Search, write `tune.json`, and give what was chosen."""
        self._exact.why = "what all are measured by"
        chosen = self._find()
        chosen.why = "chosen"
        write_json(self.tuning.out / TUNE_FILE, self._record(chosen))
        return chosen

    def _find(self) -> Verdict:
        field, aside = self._cheaper(self._others()), list[Verdict]()
        for epochs in self.tuning.rounds():
            passed = [verdict for verdict in field if self._passes(verdict, epochs, 1, EARLY_POINTS)]
            passed = self._cheaper(passed)
            kept = max(LEAST_KEPT, math.ceil(len(passed) / 2))
            for verdict in passed:
                verdict.why = "within reach in short runs, and dearer than the choice"
            aside, field = passed[kept:] + aside, passed[:kept]
        for verdict in self._cheaper([*field, *aside]):
            if self._passes(verdict, self.tuning.epochs, self.tuning.seeds, 0.0) and self._cheaper([verdict]):
                return verdict
        self._reach(self._exact, self.tuning.epochs, self.tuning.seeds)
        return self._exact

    @property
    def _exact(self) -> Verdict:
        return self.verdicts[reference().name]

    def _others(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts.values() if verdict is not self._exact]

    def _cheaper(self, verdicts: Iterable[Verdict]) -> list[Verdict]:
        """Those that cost less than exact, the cheapest first."""
        bar = self._exact.cost(self.tuning.objective)
        costs = [(verdict.cost(self.tuning.objective), verdict) for verdict in verdicts]
        for cost, verdict in costs:
            if cost >= bar:
                verdict.why = "costs no less than exact"
        return [verdict for cost, verdict in sorted(costs, key=lambda pair: pair[0]) if cost < bar]

    def _passes(self, verdict: Verdict, epochs: int, seeds: int, allowance: float) -> bool:
        """Whether a candidate stays within the budget; a seed that is far behind spares the others."""
        for count in range(1, seeds + 1):
            bar = self._reach(self._exact, epochs, count)
            score = self._reach(verdict, epochs, count)
            if score is None or bar is None:
                return False
            verdict.behind = 100 * (bar - score)
            budget = self.tuning.within + allowance
            last = count == seeds
            if verdict.behind > budget + (0.0 if last else EARLY_POINTS):
                verdict.why = f"{verdict.behind:.1f} points behind exact after {epochs} epochs"
                return False
        return True

    def _reach(self, verdict: Verdict, epochs: int, seeds: int) -> float | None:
        """The mean best validation score within so many epochs; None where a run failed or has none."""
        scores, sent = list[float](), list[float]()
        for seed in range(seeds):
            file = self.tuning.directory(verdict.candidate, seed) / METRICS_FILE
            if len(_lines(file)) < epochs:
                self.say(f"{verdict.candidate.name}, seed {seed}, to epoch {epochs}")
                code = self.train(verdict.candidate, seed, epochs)
                if code and verdict is self._exact:
                    raise UserError(f"exact, seed {seed}: ended with exit code {code}; nothing can be judged")
                if code:
                    verdict.why = f"its run with seed {seed} ended with exit code {code}"
                    return None
            lines = _lines(file)[:epochs]
            known = [line["val"] for line in lines if line["val"] is not None]
            if not known:
                verdict.why = f"its validation score is undefined with seed {seed}"
                return None
            scores.append(max(known))
            sent += [_all_bytes(line) for line in lines]
        verdict.epochs, verdict.seeds = epochs, seeds
        verdict.sent = statistics.fmean(sent)
        return statistics.fmean(scores)

    def _record(self, chosen: Verdict) -> dict[str, Any]:
        """Everything about the search, for `tune.json`."""
        verdicts = sorted(self.verdicts.values(), key=lambda verdict: verdict.cost(self.tuning.objective))
        return {
            "objective": self.tuning.objective,
            "within": self.tuning.within,
            "epochs": self.tuning.epochs,
            "seeds": self.tuning.seeds,
            "chosen": chosen.candidate.name,
            "settings": dict(chosen.candidate.settings),
            "trained_epochs": trained_epochs(self.tuning, [verdict.candidate for verdict in verdicts]),
            "candidates": [
                {
                    "name": verdict.candidate.name,
                    "settings": dict(verdict.candidate.settings),
                    "cost": verdict.cost(self.tuning.objective),
                    "bytes": verdict.cost("bytes"),
                    "seconds": verdict.cost("time"),
                    "memory": verdict.cost("memory"),
                    "behind": verdict.behind,
                    "epochs": verdict.epochs,
                    "seeds": verdict.seeds,
                    "why": verdict.why,
                }
                for verdict in verdicts
            ],
        }


def trained_epochs(tuning: Tuning, tried: Sequence[Candidate]) -> int:
    """Epochs of all runs of a search together."""
    files = [
        tuning.directory(candidate, seed) / METRICS_FILE
        for candidate in tried
        for seed in range(tuning.seeds)
    ]
    return sum(len(_lines(file)) for file in files)


def verdict_rows(search: Search) -> list[list[str]]:
    """A table of all candidates, the cheapest first: cost, score, and why."""
    objective = search.tuning.objective
    unit = seconds_text if objective == "time" else bytes_text
    rows = [["candidate", HEADS[objective], "points behind exact", "epochs", "seeds", "why"]]
    for verdict in sorted(search.verdicts.values(), key=lambda verdict: verdict.cost(objective)):
        behind = "–" if verdict.behind is None else f"{verdict.behind:.2f}"
        tried = [str(verdict.epochs or "–"), str(verdict.seeds or "–")]
        rows.append([verdict.candidate.name, unit(verdict.cost(objective)), behind, *tried, verdict.why])
    return rows


def _lines(file: Path) -> list[dict[str, Any]]:
    """The epochs that a run has done; a line that is not whole yet, or damaged, ends them."""
    try:
        return list(_whole(file.read_text().splitlines()))
    except OSError:
        return []


def _whole(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines):
        try:
            content = json.loads(line)
        except ValueError:
            return
        if not isinstance(content, dict) or content.get("epoch") != number:
            return
        yield content


def _all_bytes(line: Mapping[str, Any]) -> float:
    return float(line["wire_bytes"] + line["parameter_bytes"] + line["agreement_bytes"])
