"""How a run's ranks are laid out by its schedule. Imports no torch: shards are cut before any rank starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sancus.config.kinds import sections_wanted
from sancus.config.settings import Config
from sancus.plugins import build, load, parse
from sancus.training import SCHEDULES

if TYPE_CHECKING:
    from sancus.training.schedule import Schedule


def make_schedule(config: Config) -> Schedule:
    """The schedule of a configuration: it says which rows and layers run when."""
    spec = config.schedule
    wanted = sections_wanted(load("schedule", parse("schedule", SCHEDULES, spec)))
    sections = {name: getattr(config, name) for name in wanted}
    schedule: Schedule = build("schedule", SCHEDULES, spec, **sections)
    return schedule


def parts_needed(config: Config, ranks: int) -> int:
    """Into how many parts the graph is cut for so many ranks."""
    return make_schedule(config).layout(ranks).parts


def chunks_needed(config: Config, ranks: int) -> int:
    """By how many chunks the rows of every part are sorted."""
    return make_schedule(config).chunks(ranks)
