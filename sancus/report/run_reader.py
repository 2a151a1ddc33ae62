"""Reads the files of a run, also of a killed one, which leaves some of them, or half of one.

What cannot be read is left out and said in `missing`; a report shows the rest. Values are looked up
through `section`, `number` and `numbers`, which answer "nothing" where a file has something else.
"""

from __future__ import annotations

import json
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sancus.report.ages import Decisions, check_shape
from sancus.report.rank_logs import read_rank_logs
from sancus.report.seconds import PARTS

SECTIONS = (
    "config",
    "command",
    "versions",
    "hardware",
    "graph",
    "partition",
    "result",
    "communication",
    "cache",
    "memory",
)
# Figures of an epoch that charts are made of; an older version may not have written all of them.
EPOCH_KEYS = (
    "loss",
    "train",
    "val",
    "test",
    "seconds",
    *PARTS,
    "compute_seconds",
    "comm_seconds",
    "hidden_seconds",
    "wire_bytes",
    "raw_bytes",
    "agreement_bytes",
    "parameter_bytes",
    "sends",
    "skips",
    "max_age",
)


@dataclass(frozen=True)
class RunFiles:
    """What a run left behind, as far as it can be read."""

    directory: Path
    run: dict[str, Any]  # run.json
    epochs: list[dict[str, Any]]  # metrics.jsonl, by epoch; of a repeated epoch the last line counts
    decisions: Decisions | None  # decisions.npz: [epochs, layers, 2, owners]
    drift: npt.NDArray[np.float32] | None  # the same shape; NaN where nothing was measured
    errors: npt.NDArray[np.float32] | None  # of codecs, likewise
    missing: list[str]  # one sentence for everything that is not there


def read(run_dir: Path) -> RunFiles:
    """Read `run.json`, `metrics.jsonl` and `decisions.npz`."""
    if not run_dir.is_dir():
        raise FileNotFoundError(f"{run_dir} is not a directory; give the --out directory of a run")
    missing: list[str] = []
    run = _read_run(run_dir / "run.json", missing)
    epochs = _read_epochs(run_dir / "metrics.jsonl", missing)
    decisions, drift, errors = _read_arrays(run_dir / "decisions.npz", missing)
    return RunFiles(run_dir, run, epochs, decisions, drift, errors, missing)


def section(data: Any, *names: str) -> dict[str, Any]:
    """The dictionary under `names`, or an empty one."""
    for name in names:
        data = data.get(name) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}


def number(value: Any) -> float | None:
    """`value` if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def numbers(value: Any) -> list[float | None]:
    """A list with one number a rank; a place that holds no number is `None`."""
    return [number(item) for item in value] if isinstance(value, list) else []


def items(value: Any) -> list[dict[str, Any]]:
    """A list of dictionaries; anything else in it is left out."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _read_run(path: Path, missing: list[str]) -> dict[str, Any]:
    try:
        run = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        missing.append("run.json is not there: settings, result and bill are unknown.")
        return {}
    except ValueError as error:
        missing.append(f"run.json cannot be read ({error}): settings, result and bill are unknown.")
        return {}
    if not isinstance(run, dict):
        missing.append("run.json is not a JSON object: settings, result and bill are unknown.")
        return {}
    absent = [name for name in SECTIONS if not run.get(name)]
    if absent:
        missing.append(f"run.json has no {', '.join(absent)}.")
    return run


def _read_epochs(path: Path, missing: list[str]) -> list[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        missing.append("metrics.jsonl is not there: there are no curves.")
        return []
    by_epoch: dict[float, dict[str, Any]] = {}
    bad: list[int] = []
    for place, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        epoch = _read_line(line)
        key = number(section(epoch).get("epoch"))
        if key is None:
            bad.append(place)
        else:
            by_epoch[key] = section(epoch)
    if bad:
        which = f"line {bad[0]} is" if len(bad) == 1 else f"{len(bad)} lines, the first of them {bad[0]}, are"
        missing.append(f"metrics.jsonl: {which} not a complete record and left out.")
    if not by_epoch:
        missing.append("metrics.jsonl has no epoch: there are no curves.")
    else:
        never = [key for key in EPOCH_KEYS if all(key not in epoch for epoch in by_epoch.values())]
        if never:
            missing.append(f"metrics.jsonl has no {', '.join(never)}: an older version wrote it.")
    return [by_epoch[key] for key in sorted(by_epoch)]


def _read_arrays(path: Path, missing: list[str]) -> tuple[Decisions | None, Any, Any]:
    """Decisions, drift and codec errors; a file of an older version lacks some."""
    nothing = "who sent when is unknown."
    try:
        with np.load(path, allow_pickle=False) as arrays:
            decisions: Any = arrays.get("decisions")
            drift: Any = arrays.get("drift")
            errors: Any = arrays.get("codec_error")
    except FileNotFoundError:
        log_arrays = read_rank_logs(path.parent / "logs")
        source = nothing if log_arrays is None else "who sent when is taken from the logs of the ranks."
        missing.append(f"decisions.npz is not there: {source}")
        return log_arrays or (None, None, None)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        missing.append(f"decisions.npz cannot be read ({error}): {nothing}")
        return None, None, None
    if not check_shape(decisions) or decisions.dtype.kind != "i":
        missing.append(f"decisions.npz holds no decisions: {nothing}")
        return None, None, None
    if not check_shape(drift) or drift.shape != decisions.shape or drift.dtype.kind != "f":
        missing.append("decisions.npz has no drift by stream: an older version wrote it.")
        drift = None
    if not check_shape(errors) or errors.shape != decisions.shape or errors.dtype.kind != "f":
        errors = None
    return decisions, drift, errors


def _read_line(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None
