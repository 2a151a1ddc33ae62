"""`sancus compare`: the same data, partition and seeds under several presets, interleaved, side by side.

Runs are ordinary `sancus train` commands, each in processes of its own, one after another, all presets of a
seed before the next seed, so that a machine that slows down slows all of them. Everything shown is read from
the files that they leave.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sancus.errors import UserError
from sancus.report.seconds import PARTS
from sancus.runs.belongings import METRICS_FILE, RUN_FILE
from sancus.runs.directory import write_json

COMPARE_FILE = "compare.json"
TIMES = ("compute_seconds", "comm_seconds", *PARTS)  # of an epoch


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds (0 for one seed); None where no seed has the figure."""

    mean: float | None
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Spread:
        """The mean and deviation of the values that are known: a score may be undefined."""
        known = [value for value in values if value is not None]
        if not known:
            return cls(None, None)
        return cls(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else 0.0)


@dataclass(frozen=True)
class Comparison:
    """What to compare: the data, the presets, the seeds and the flags of every run."""

    data: str
    presets: Sequence[str]
    seeds: int
    out: Path
    flags: Sequence[str]  # for every `sancus train`
    target: float | None = None  # a validation score to reach

    def __post_init__(self) -> None:
        if not self.presets:
            raise UserError("--presets: name at least one preset; sancus list shows them")
        twice = next((preset for preset in self.presets if list(self.presets).count(preset) > 1), None)
        if twice is not None:
            raise UserError(f"--presets names {twice} twice; name each once, and repeat runs with --seeds")
        if self.seeds < 1:
            raise UserError(f"--seeds {self.seeds}: must be at least 1")
        if self.target is not None and not 0.0 < self.target <= 1.0:
            raise UserError(f"--target {self.target}: a score is between 0 and 1")
        if (self.out / COMPARE_FILE).exists():
            raise UserError(f"--out {self.out} holds a comparison already; choose another directory")

    def arguments(self, preset: str, seed: int) -> list[str]:
        """The command line of one run."""
        return [
            *("train", self.data, "--preset", preset, "--seed", str(seed)),
            *("--out", str(self.directory(preset, seed)), "--quiet", *self.flags),
        ]

    def directories(self) -> list[Path]:
        """The directories of all runs, ordered by preset, then by seed."""
        return [self.directory(preset, seed) for preset in self.presets for seed in range(self.seeds)]

    def directory(self, preset: str, seed: int) -> Path:
        """Where one run leaves its files."""
        return self.out / f"{preset.replace(':', '-')}-seed{seed}"


def run_all(
    comparison: Comparison, run: Callable[[str, int], int], say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Run, read, summarise; one row a preset, written to `compare.json`.

    `run` trains under a preset with a seed into its directory of the comparison; 0 where that ended well.
    """
    total = comparison.seeds * len(comparison.presets)
    done = 0
    for seed in range(comparison.seeds):
        for preset in comparison.presets:
            done += 1
            say(f"run {done} of {total}: {preset}, seed {seed}")
            code = run(preset, seed)
            if code:
                raise UserError(f"{preset}, seed {seed} ended with exit code {code}; nothing was compared")
    rows = [_checked_row(comparison, preset) for preset in comparison.presets]
    for row in rows:
        for kind in ("all", "wire", "forward"):
            row[f"{kind}_ratio"] = _ratio(row[f"{kind}_bytes"]["mean"], rows[0][f"{kind}_bytes"]["mean"])
    content = {
        "data": comparison.data,
        "flags": list(comparison.flags),
        "seeds": comparison.seeds,
        "target": comparison.target,
        "rows": rows,
    }
    write_json(comparison.out / COMPARE_FILE, content)
    return rows


def _checked_row(comparison: Comparison, preset: str) -> dict[str, Any]:
    """The row of a preset; files that were damaged since they were written are told in one line."""
    try:
        return _row(comparison, preset)
    except (OSError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
        place = comparison.directory(preset, 0).parent / f"{preset.replace(':', '-')}-seed*"
        raise UserError(
            f"{RUN_FILE} or {METRICS_FILE} in {place} is damaged ({type(error).__name__}: {error}); "
            "compare again into another directory"
        ) from error


def _row(comparison: Comparison, preset: str) -> dict[str, Any]:
    """The row of the table for one preset: means and deviations over its seeds."""
    directories = [comparison.directory(preset, seed) for seed in range(comparison.seeds)]
    runs = [json.loads((directory / RUN_FILE).read_text()) for directory in directories]
    epochs = [_read_lines(directory / METRICS_FILE) for directory in directories]
    reached = [_reach(lines, comparison.target) for lines in epochs]
    figures: dict[str, Sequence[float | None]] = {
        "test": [run["result"]["test"] for run in runs],
        "all_bytes": [run["communication"]["per_epoch"]["all_bytes"] for run in runs],
        "wire_bytes": [run["communication"]["per_epoch"]["wire_bytes"] for run in runs],
        "forward_bytes": [_forward_bytes(run) for run in runs],
        "seconds": [run["result"]["seconds_per_epoch"] for run in runs],
        **{name: [_mean(lines, name) for lines in epochs] for name in TIMES},
        "history_bytes": [max(run["cache"]["history_bytes"]) for run in runs],
        "max_age": [max(line["max_age"] for line in lines) for lines in epochs],
    }
    row: dict[str, Any] = {"preset": preset, "metric": runs[0]["result"]["metric"]}
    for name, values in figures.items():
        spread = Spread.of(values)
        row[name] = {"mean": spread.mean, "deviation": spread.deviation}
    hits = [hit for hit in reached if hit is not None]
    row["reached"] = len(hits)
    for place, name in enumerate(("epochs_to_target", "seconds_to_target")):
        row[name] = statistics.fmean(hit[place] for hit in hits) if hits else None
    errors = [error for run in runs if (error := run["communication"]["codec_error"]) is not None]
    row["codec_error"] = statistics.fmean(errors) if errors else None
    row["directories"] = [str(directory) for directory in directories]
    return row


def _forward_bytes(run: dict[str, Any]) -> float:
    """Embedding payloads an epoch, without gradients."""
    streams = run["communication"]["streams"]
    total = sum(stream["wire_bytes"] for stream in streams if stream["direction"] == "forward")
    return float(total) / max(1, run["result"]["epochs"])


def _reach(lines: Sequence[dict[str, Any]], target: float | None) -> tuple[int, float] | None:
    """Epochs and training seconds until validation first reached the target."""
    if target is None:
        return None
    seconds = 0.0
    for line in lines:
        seconds += line["seconds"]
        if line["val"] is not None and line["val"] >= target:
            return line["epoch"] + 1, seconds
    return None


def _read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _mean(lines: Sequence[dict[str, Any]], name: str) -> float:
    return statistics.fmean(line[name] for line in lines)


def _ratio(value: float, first: float) -> float | None:
    return value / first if first else None
