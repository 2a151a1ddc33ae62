"""The one way to a `Config`: from what was typed, or passed in Python, from files, presets and defaults.

Settings come in layers; the first layer that names a setting decides it:

1. what was typed: flags, or keywords in Python;
2. the preset that was typed, as it is a shorthand for flags;
3. earlier settings: a `--config` file, the run of `--resume`, a `Config` that Python code passes;
4. the preset that those name, which completes a file that does not hold all settings; else the default one.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sancus.config.presets import preset_settings
from sancus.config.settings import Config, fields_by_flag, flatten
from sancus.errors import UserError
from sancus.plugins import choices

PYTHON_PRESET = "exact"  # where Python code names none


@dataclass(frozen=True)
class Renamed:
    """A setting that had another name before: one of these values under the old name means the new one."""

    name: str
    values: frozenset[str]


RENAMED = {"schedule": Renamed("lr_schedule", frozenset({"constant", "cosine", "linear"}))}


@dataclass(frozen=True)
class Layer:
    """Settings by the names of their flags, and where they come from, in the words of a message."""

    source: str
    values: Mapping[str, Any]


def missing_settings(
    typed: Mapping[str, Any], earlier: Sequence[Layer], default_preset: str
) -> Iterator[Layer]:
    """The layers below what was typed, first come first served; settings in them may be decided already."""
    if "preset" in typed:
        yield Layer(f"--preset {typed['preset']}", preset_settings(typed["preset"]))
    yield from earlier
    if "preset" not in typed:
        preset = next((layer.values["preset"] for layer in earlier if "preset" in layer.values), None)
        if preset is None:
            yield Layer("the default", {"preset": default_preset})
        preset = preset or default_preset
        yield Layer(f"preset {preset}", preset_settings(preset))


def make_config(config: Config | Mapping[str, Any] | None = None, **flags: Any) -> Config:
    """A configuration from flag names (`hidden=16`, `plan="block"`, `preset="sancus-e:1"`).

    `flags` override `config`; a preset fills in what neither names.
    """
    typed = modern((dict(config) if isinstance(config, Mapping) else {}) | flags)
    base = config if isinstance(config, Config) else None
    unset = base or Config()
    sections = {
        section: [item.name for item in dataclasses.fields(getattr(unset, section))]
        for section in ("factors", "shape", "training", "launch")
    }
    flat_names = [name for names in sections.values() for name in names]
    for name in typed:
        if name not in ("preset", "model", *flat_names):
            raise UserError(f"setting {name!r} does not exist; choose from {choices(flat_names, name)}")
    earlier = [Layer("config", base.flat())] if base is not None else []
    values = dict(typed)
    for layer in missing_settings(typed, earlier, PYTHON_PRESET):
        values = {**layer.values, **values}
    parts: dict[str, Any] = {name: values[name] for name in ("preset", "model") if name in values}
    for section, names in sections.items():
        mine = {name: values[name] for name in names if name in values}
        parts[section] = dataclasses.replace(getattr(unset, section), **mine)
    return dataclasses.replace(unset, **parts)


def modern(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of any version of ours, by the names of today."""
    renamed = {}
    for name, value in values.items():
        new = RENAMED.get(name)
        renamed[new.name if new is not None and str(value) in new.values else name] = value
    return renamed


def modern_arguments(arguments: Sequence[str]) -> list[str]:
    """A command line with the flags of today: `--schedule cosine` is `--lr-schedule cosine`."""
    renamed = list(arguments)
    for place, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        following = arguments[place + 1] if not equals and place + 1 < len(arguments) else value
        new = RENAMED.get(flag.removeprefix("--").replace("-", "_")) if flag.startswith("--") else None
        if new is not None and following in new.values:
            renamed[place] = f"--{new.name.replace('_', '-')}{equals}{value}"
    return renamed


def repeatable(settings: Mapping[str, Any], *, launched: bool) -> dict[str, Any]:
    """What a new run takes over of an earlier one's settings: not what belongs to one start of a run.

    `launched` says that a launcher has decided the number of ranks.
    """
    fields = fields_by_flag()
    left_out = {name for name, item in fields.items() if not item.metadata.get("repeat", True)}
    left_out |= {"ranks"} if launched else set()
    return {name: value for name, value in modern(flatten(settings)).items() if name not in left_out}


def changed_on_resume(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The settings that are others than in an earlier run, of those that may not change when it is resumed.

    A setting that the earlier version did not have counts as its default, which does what was done then.
    """
    fields = fields_by_flag()
    defaults = flatten(Config().to_dict())
    old, new = (defaults | modern(flatten(settings)) for settings in (before, now))
    fixed = [name for name, item in fields.items() if not item.metadata.get("may_change", False)]
    return sorted(name for name in fixed if old.get(name) != new.get(name))


def _of_a_run(settings: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a run of any version of ours.

    One that the version did not have counts as its default, which does what was done then: not as what the
    run's preset sets today.
    """
    return flatten(Config().to_dict()) | modern(flatten(settings))


def _is_record(settings: Mapping[str, Any]) -> bool:
    """Whether a run wrote these settings down, not a person, who may leave some out: no section lacks."""
    sections = [name for name, value in Config().to_dict().items() if isinstance(value, Mapping)]
    return all(isinstance(settings.get(name), Mapping) for name in sections)


def read_config(path: Path) -> dict[str, Any]:
    """The settings in a `run.json`, or in a file that holds nothing else: that need not have all of them."""
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
    return _of_a_run(settings) if _is_record(settings) else settings


def settings_of_run(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a run, from those that its checkpoint recorded; none where it recorded none."""
    return _of_a_run(recorded) if recorded else {}
