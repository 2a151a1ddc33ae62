"""The settings of a program: by name, as the flags of the command line, and with the same default preset."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sancus.config.presets import DEFAULT
from sancus.config.resolve import make_config, repeatable, settings_of_run
from sancus.config.settings import Config
from sancus.config.trust import check_trust
from sancus.launch.world import detect
from sancus.runs.belongings import CHECKPOINTS
from sancus.runs.checkpoints.reader import read_settings


def settings(
    config: Config | Mapping[str, Any] | None = None, *, trust: bool = False, **flags: Any
) -> Config:
    """A checked configuration: `sancus.settings(hidden=16, plan="block", preset="sancus-e:1")`.

    `flags` override `config`, which is what this returned before, or a dictionary of settings. A preset
    fills in what neither names: `lean`, as on the command line, where none is named. With `resume=DIR`
    everything else is that of the run there; `trust=True` runs code of others that it names.
    """
    resume, resumed = flags.get("resume"), None
    if isinstance(resume, str | Path) and str(resume) not in ("", "auto"):
        recorded = settings_of_run(read_settings(Path(resume) / CHECKPOINTS))
        resumed = repeatable(recorded, launched=detect(os.environ) is not None)
        if not trust:
            named = {name: value for name, value in resumed.items() if name not in flags}
            check_trust(named, f"resume={str(resume)!r}")
    return make_config(config, default_preset=DEFAULT, resumed=resumed, **flags)
