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
    """Made on rank 0 with the run's `directory` and its `config`."""

    def epoch(self, record: Record) -> None:
        """The figures of an epoch, as in `metrics.jsonl`."""
        ...

    def finish(self, run: Mapping[str, Any]) -> None:
        """The contents of `run.json`; nothing comes after."""
        ...


def check_tracker(spec: str | None) -> None:
    """A tracker that was asked for and cannot be imported is a mistake, found before anything starts."""
    package = NEEDS.get((spec or "").partition(":")[0])
    if package is not None and find_spec(package) is None:
        raise UserError(
            f"--track {spec} needs {package}; pip install 'sancus[{package}]', or leave --track out"
        )


class Guarded:
    """A tracker that may fail: it then says so once, and is left out. Without a spec it does nothing."""

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
        """Pass it on."""
        try:
            if self._tracker is not None:
                self._tracker.epoch(record)
        except Exception as error:
            self._give_up(error)

    def finish(self, run: Mapping[str, Any]) -> None:
        """Pass it on."""
        try:
            if self._tracker is not None:
                self._tracker.finish(run)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._tracker = None
        self._say(f"warning: --track {self._spec} failed and is left out: {type(error).__name__}: {error}")
