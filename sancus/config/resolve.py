"""The one way to a `Config`: from what was typed, or passed in Python, from files, presets and defaults.

Settings come in layers; the first layer that names a setting decides it:

1. what was typed: flags, or keywords in Python;
2. the preset that was typed, as it is a shorthand for flags;
3. earlier settings: a `--config` file, the run of `--resume`, a `Config` that Python code passes;
4. the preset that those name, which completes a file that does not hold all settings; else the default one.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sancus.config.presets import preset_settings
from sancus.config.settings import Config, fields_by_flag, flatten
from sancus.config.types import check_types
from sancus.errors import UserError
from sancus.plugins import Table, choices
from sancus.training import SCHEDULES

PLAIN_PRESET = "exact"  # that of `Config()`, where nobody says which preset is the default


@dataclass(frozen=True)
class Renamed:
    """A setting that had another name before: one of these values under the old name means the new one."""

    name: str
    values: frozenset[str]
    table: Table  # what the old name has the names of today

    def meant(self, value: str) -> str | None:
        """The value of the new name that was mistyped under the old one, if any."""
        near = difflib.get_close_matches(value, sorted(self.values), n=1, cutoff=NEAR)
        return near[0] if near and value not in self.table else None


NEAR = 0.65  # how alike a mistyped value is: between pipeline and linear, which are two things, 0.57
YOUNGER = frozenset({"sampling", "link", "pipeline", "asynchronous"})  # sections of later versions

SECTIONS = (
    "factors",
    "shape",
    "training",
    "sampling",
    "link",
    "pipeline",
    "asynchronous",
    "launch",
    "output",
)
RENAMED = {"schedule": Renamed("lr_schedule", frozenset({"constant", "cosine", "linear"}), SCHEDULES)}


@dataclass(frozen=True)
class Layer:
    """Settings by the names of their flags, and where they come from, in the words of a message."""

    source: str
    values: Mapping[str, Any]


def missing_settings(
    typed: Mapping[str, Any], earlier: Sequence[Layer], default_preset: str
) -> Iterator[Layer]:
    """The layers below what was typed, first come first served; settings in them may be decided already.

    Mini-batches have none of the traffic that a default preset saves: theirs is the plain one.
    """
    if _in_batches(typed, earlier):
        default_preset = PLAIN_PRESET
    if "preset" in typed:
        yield Layer(f"--preset {typed['preset']}", preset_settings(typed["preset"]))
    yield from earlier
    if "preset" not in typed:
        preset = next((layer.values["preset"] for layer in earlier if "preset" in layer.values), None)
        if preset is None:
            yield Layer("the default", {"preset": default_preset})
        preset = preset or default_preset
        yield Layer(f"preset {preset}", preset_settings(preset))


def _in_batches(typed: Mapping[str, Any], earlier: Sequence[Layer]) -> bool:
    """Whether the settings that decide name a batch size."""
    layers = (typed, *(layer.values for layer in earlier))
    return str(next((values["batch_size"] for values in layers if "batch_size" in values), 0)) != "0"


def make_config(
    config: Config | Mapping[str, Any] | None = None,
    *,
    default_preset: str = PLAIN_PRESET,
    resumed: Mapping[str, Any] | None = None,
    **flags: Any,
) -> Config:
    """A configuration from flag names (`hidden=16`, `plan="block"`, `preset="sancus-e:1"`).

    `flags` override `config`, which overrides the settings of a run that is `resumed`; a preset fills in
    what none of them names.
    """
    if config is not None and not isinstance(config, Config | Mapping):
        raise UserError(
            f"config is a {type(config).__name__}; give a dictionary, or what sancus.settings gave"
        )
    typed = modern((flatten(config) if isinstance(config, Mapping) else {}) | flags)
    base = config if isinstance(config, Config) else None
    unset = base or Config()
    sections = {
        section: [item.name for item in dataclasses.fields(getattr(unset, section))] for section in SECTIONS
    }
    flat_names = [name for names in sections.values() for name in names]
    for name in typed:
        if name not in ("preset", "model", *flat_names):
            raise UserError(f"setting {name!r} does not exist; choose from {choices(flat_names, name)}")
    typed = check_types(Config, typed)
    earlier = [Layer("config", base.flat())] if base is not None else []
    if resumed:
        earlier.append(Layer("resume", resumed))
    values = dict(typed)
    for layer in missing_settings(typed, earlier, default_preset):
        values = {**layer.values, **values}
    parts: dict[str, Any] = {name: values[name] for name in ("preset", "model") if name in values}
    for section, names in sections.items():
        mine = {name: values[name] for name in names if name in values}
        parts[section] = dataclasses.replace(getattr(unset, section), **mine)
    return dataclasses.replace(unset, **parts)


def modern(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of any version of ours, by the names of today."""
    return {_name_of_today(name, str(value)): value for name, value in values.items()}


def _name_of_today(name: str, value: str) -> str:
    new = RENAMED.get(name)
    if new is None or value in new.values:
        return name if new is None else new.name
    meant = new.meant(value)
    if meant is not None:
        flag = f"--{new.name.replace('_', '-')}"
        allowed = choices(new.table, value)
        raise UserError(f"{name} {value!r} does not exist; choose from {allowed}, or use {flag} {meant}")
    return name


def modern_arguments(arguments: Sequence[str]) -> list[str]:
    """A command line with the flags of today: `--schedule cosine` is `--lr-schedule cosine`."""
    renamed = list(arguments)
    for place, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        following = arguments[place + 1] if not equals and place + 1 < len(arguments) else value
        name = flag.removeprefix("--").replace("-", "_") if flag.startswith("--") else ""
        new = _name_of_today(name, following)
        if new != name:
            renamed[place] = f"--{new.replace('_', '-')}{equals}{value}"
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
    everything = Config().to_dict().items()
    sections = [name for name, value in everything if isinstance(value, Mapping) and name not in YOUNGER]
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
