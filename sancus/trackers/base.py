"""The contract of a tracker, and the guard that keeps its failures from the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from sancus.errors import UserError
from sancus.plugins import build
from sancus.trackers import NEEDS, TRACKERS

Record = Mapping[str, float | int | None]


class Tracker(Protocol):
    """Takes the figures of every epoch; made on rank 0 with the run's `directory` and its `config`."""

    def epoch(self, record: Record) -> None:
        """The figures of an epoch, as in `metrics.jsonl`."""
        ...

    def finish(self, run: Mapping[str, Any]) -> None:
        """The contents of `run.json`; nothing comes after."""
        ...


def check_tracker(spec: str | None) -> None:
    """Raise a `UserError` before anything starts if the package that a tracker needs is not installed."""
    package = NEEDS.get((spec or "").partition(":")[0])
    if package is not None and find_spec(package) is None:
        raise UserError(
            f"--track {spec} needs {package}; pip install 'sancus[{package}]', or leave --track out"
        )


class Guarded:
    """A tracker whose failure does not stop the run: it warns once, and is then off; none without a spec."""

    def __init__(
        self, spec: str | None, directory: Path | None, config: Mapping[str, Any], say: Callable[[str], None]
    ) -> None:
        self._say, self._spec = say, spec
        self._tracker: Tracker | None = None
        if spec is not None and directory is not None:
            try:
                self._tracker = build("tracker", TRACKERS, spec, directory=directory, config=config)
            except Exception as error:
                self._give_up(error)

    def epoch(self, record: Record) -> None:
        """Pass the figures of an epoch to the tracker."""
        try:
            if self._tracker is not None:
                self._tracker.epoch(record)
        except Exception as error:
            self._give_up(error)

    def finish(self, run: Mapping[str, Any]) -> None:
        """Pass the contents of `run.json` to the tracker."""
        try:
            if self._tracker is not None:
                self._tracker.finish(run)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._tracker = None
        self._say(f"warning: --track {self._spec} failed and is left out: {type(error).__name__}: {error}")
