"""The flags of `sancus train`: what was typed, completed by files and presets (`sancus.config.resolve`)."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path

import cyclopts
from cyclopts import App

from sancus.config.presets import DEFAULT
from sancus.config.resolve import Layer, missing_settings, read_config, repeatable, settings_of_run
from sancus.errors import UserError
from sancus.launch.world import detect
from sancus.runs.belongings import CHECKPOINTS
from sancus.runs.checkpoints.reader import read_settings


def fill_flags(app: App, commands: tuple[str, ...], arguments: cyclopts.ArgumentCollection) -> None:
    """Give every flag of `train` that was not typed its value; other verbs have no preset, and are left."""
    flags = {_field_name(argument.name): argument for argument in arguments}
    if "preset" not in flags:
        return
    typed = {name: argument.tokens[0].value for name, argument in flags.items() if argument.tokens}
    launched = detect(os.environ) is not None
    earlier = []
    if "config" in typed:
        settings = repeatable(read_config(Path(typed["config"])), launched=launched)
        earlier.append(Layer(f"--config {typed['config']}", settings))
    if typed.get("resume", "auto") != "auto":
        settings = repeatable(
            settings_of_run(read_settings(Path(typed["resume"]) / CHECKPOINTS)), launched=launched
        )
        earlier.append(Layer(f"--resume {typed['resume']}", settings))
    for layer in missing_settings(typed, earlier, DEFAULT):
        _fill(flags, layer)


def _fill(flags: Mapping[str, cyclopts.Argument], layer: Layer) -> None:
    """Set the flags that nobody has set yet, as if they had been typed."""
    for name, value in layer.values.items():
        if name not in flags:
            near = difflib.get_close_matches(name, flags, n=1)
            hint = f"; did you mean {near[0]}?" if near else "; see sancus train --help"
            raise UserError(f"{layer.source}: setting {name!r} does not exist{hint}")
        argument = flags[name]
        if not argument.tokens:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            keyword = argument.name if argument.name.startswith("--") else None
            argument.append(cyclopts.Token(keyword=keyword, value=text, source=layer.source))


def _field_name(flag: str) -> str:
    """`--eval-every` is the field `eval_every`, `DATA` is `data`."""
    return flag.removeprefix("--").replace("-", "_").lower()
