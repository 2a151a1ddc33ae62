"""How a run's ranks are laid out by its schedule. Imports no torch: shards are cut before any rank starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sancus.config.settings import Config
from sancus.plugins import build
from sancus.training import SCHEDULES

if TYPE_CHECKING:
    from sancus.training.schedule import Schedule


def make_schedule(config: Config) -> Schedule:
    """The schedule of a configuration: it says which rows and layers run when."""
    schedule: Schedule = build("schedule", SCHEDULES, config.training.schedule)
    return schedule


def parts_needed(config: Config, ranks: int) -> int:
    """Into how many parts the graph is cut for so many ranks."""
    return make_schedule(config).layout(ranks).parts
