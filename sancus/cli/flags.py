"""The flags of `sancus train`: what was typed, completed by files and presets (`sancus.config.resolve`)."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args, get_origin

import cyclopts
from cyclopts import App

from sancus.config.presets import DEFAULT
from sancus.config.resolve import (
    Layer,
    missing_settings,
    read_config,
    repeatable,
    settings_of_run,
)
from sancus.config.trust import check_trust
from sancus.errors import UserError
from sancus.launch.world import RUN, detect
from sancus.runs.belongings import CHECKPOINTS
from sancus.runs.checkpoints.reader import read_settings


def fill_flags(app: App, commands: tuple[str, ...], arguments: cyclopts.ArgumentCollection) -> None:
    """Give every flag of `train` that was not typed its value; other verbs have no preset, and are left."""
    for argument in arguments:
        _check_tokens(argument)
    flags = {_field_name(argument.name): argument for argument in arguments}
    if "preset" not in flags:
        return
    typed = {name: argument.tokens[0].value for name, argument in flags.items() if argument.tokens}
    launched = detect(os.environ) is not None and RUN not in os.environ  # by another launcher than ours
    earlier = []
    if "config" in typed:
        settings = repeatable(read_config(Path(typed["config"])), launched=launched)
        earlier.append(Layer(f"--config {typed['config']}", settings))
    if typed.get("resume", "auto") != "auto":
        settings = repeatable(
            settings_of_run(read_settings(Path(typed["resume"]) / CHECKPOINTS)), launched=launched
        )
        earlier.append(Layer(f"--resume {typed['resume']}", settings))
    trusted = "trust" in typed and bool(flags["trust"].convert())
    for layer in missing_settings(typed, earlier, DEFAULT):
        filled = _fill(flags, layer)
        if layer in earlier and not trusted:
            check_trust(filled, layer.source)


def _check_tokens(argument: cyclopts.Argument) -> None:
    """Refuse what would be taken for something else: 2.5 for 2, and nothing for the current directory."""
    kinds = {argument.hint, *get_args(argument.hint)}
    words = {word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)}
    for token in argument.tokens:
        if int in kinds and token.value not in words and _is_broken(token.value):
            raise UserError(f"{argument.name} {token.value}: must be a whole number")
        if Path in kinds and token.value == "":
            raise UserError(f"{argument.name} '' names nothing; give a path, . for the current directory")


def _is_broken(text: str) -> bool:
    try:
        return not float(text).is_integer()
    except ValueError:
        return False


def _fill(flags: Mapping[str, cyclopts.Argument], layer: Layer) -> dict[str, str]:
    """Set the flags that nobody has set yet, as if they had been typed; which, and to what."""
    filled = {}
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
            filled[name] = text
    return filled


def _field_name(flag: str) -> str:
    """`--eval-every` is the field `eval_every`, `DATA` is `data`."""
    return flag.removeprefix("--").replace("-", "_").lower()
