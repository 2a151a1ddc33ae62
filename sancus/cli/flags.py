"""The flags of `sancus train`: what was typed, and what files and presets fill in where nothing was."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cyclopts
from cyclopts import App

from sancus.config.presets import DEFAULT, preset_settings
from sancus.config.settings import flatten
from sancus.errors import UserError
from sancus.launch.world import detect


class _Flags:
    """The flags of `train`: what was typed, and what is filled in where nothing was."""

    def __init__(self, arguments: cyclopts.ArgumentCollection) -> None:
        self._named = {_field_name(argument.name): argument for argument in arguments}

    def __contains__(self, name: str) -> bool:
        return name in self._named

    def typed(self, name: str) -> str | None:
        """The text of a flag, None where there is none."""
        tokens = self._named[name].tokens
        return tokens[0].value if tokens else None

    def fill(self, values: Mapping[str, Any], source: str) -> None:
        """Set the flags that nobody has set yet."""
        for name, value in values.items():
            if name not in self._named:
                near = difflib.get_close_matches(name, self._named, n=1)
                hint = f"; did you mean {near[0]}?" if near else "; see sancus train --help"
                raise UserError(f"{source}: setting {name!r} does not exist{hint}")
            argument = self._named[name]
            if not argument.tokens:
                text = str(value).lower() if isinstance(value, bool) else str(value)
                keyword = argument.name if argument.name.startswith("--") else None
                argument.append(cyclopts.Token(keyword=keyword, value=text, source=source))


def _field_name(flag: str) -> str:
    """`--eval-every` is the field `eval_every`, `DATA` is `data`."""
    return flag.removeprefix("--").replace("-", "_").lower()


def fill_flags(app: App, commands: tuple[str, ...], arguments: cyclopts.ArgumentCollection) -> None:
    """Fill flags that were not typed: from a typed `--preset`, then `--config`, then `--resume`.

    A preset that only the file names comes last: it completes a file that does not hold all settings. Where
    nobody names one, it is the default.
    """
    flags = _Flags(arguments)
    if "preset" not in flags:
        return
    typed, config, resume = (flags.typed(name) for name in ("preset", "config", "resume"))
    if typed is not None:
        flags.fill(preset_settings(typed), f"--preset {typed}")
    if config is not None:
        flags.fill(_repeatable(_read_config(Path(config))), f"--config {config}")
    if resume not in (None, "auto"):
        flags.fill(_repeatable(_settings_of_run(Path(resume))), f"--resume {resume}")
    flags.fill({"preset": DEFAULT}, "the default")
    named = flags.typed("preset")
    assert named is not None
    flags.fill(preset_settings(named), f"preset {named}")


def _repeatable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a new run takes over of an earlier one: not where it wrote, nor ranks against a launcher."""
    left_out = {"out", "overwrite", "resume", "quiet", "restarts"}
    if detect(os.environ) is not None:
        left_out |= {"ranks"}
    return {name: value for name, value in flatten(settings).items() if name not in left_out}


def _read_config(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise UserError(
            f"--config {path}: cannot be read ({error.strerror}); give the run.json of a run"
        ) from error
    except ValueError as error:
        raise UserError(f"--config {path}: is not JSON ({error}); give the run.json of a run") from error
    settings = content.get("config", content) if isinstance(content, dict) else None
    if not isinstance(settings, dict):
        raise UserError(f"--config {path}: holds no settings; give the run.json of a run")
    return settings


def _settings_of_run(directory: Path) -> dict[str, Any]:
    """What the newest readable checkpoint of a run was made with; damage is reported when it is loaded."""
    for state in sorted(directory.glob("checkpoint/epoch-*/state.json"), reverse=True):
        try:
            settings: dict[str, Any] = json.loads(state.read_text())["extra"]["config"]
            return settings
        except (OSError, ValueError, LookupError, TypeError):
            continue
    return {}
