"""Settings that only one schedule has: what another would ignore is refused."""

from __future__ import annotations

from typing import Any

from sancus.errors import UserError


def refuse_elsewhere(settings: Any, schedule: str, owner: str, preset: str) -> None:
    """Raise where a setting of `owner`'s section was changed, and one of our other schedules runs.

    A schedule of somebody else's may ask for any section.
    """
    if schedule == owner or schedule not in ("full", "minibatch", "pipeline", "async"):
        return
    for name, unset in vars(type(settings)()).items():
        value = getattr(settings, name)
        if value != unset:
            raise UserError(
                f"--{name.replace('_', '-')} {value}: only --schedule {owner} has it; leave it out, "
                f"or choose --preset {preset}"
            )
