"""What a model's constructor is given: the one rule for ours and for the user's own. Imports no torch.

- A constructor with an argument named `settings` gets `features`, `classes` and all `ModelSettings`: ours.
- Any other gets features, hidden width and classes as its first three arguments, and, by name, every setting
  of `ModelSettings` that it asks for (or all of them, if it takes `**settings`).

Further arguments are the model's own settings: `--model my_file.py:Net:rate=0.3`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from sancus.errors import UserError
from sancus.models.settings import ModelSettings
from sancus.plugins import choices

NORMALISATIONS = ("symmetric", "mean", "sum")
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
ANYTHING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
SHAPE = ("features", "hidden", "classes")


def given_names(target: Callable[..., Any]) -> frozenset[str]:
    """The constructor arguments that a user cannot set in a spec, because Sancus fills them."""
    parameters = inspect.signature(target).parameters
    if _takes_settings(parameters):
        return frozenset({"features", "classes", "settings"})
    fields = {field.name for field in dataclasses.fields(ModelSettings)}
    return frozenset(_shape_arguments(parameters)) | (fields & set(parameters))


def construct(
    target: Callable[..., Any],
    features: int,
    classes: int,
    settings: ModelSettings,
    own: Mapping[str, Any] | None = None,
) -> Any:
    """Call a model's constructor; `own` are the settings of its spec."""
    parameters = inspect.signature(target).parameters
    if _takes_settings(parameters):
        return target(features=features, classes=classes, settings=settings, **(own or {}))
    shape = _shape_arguments(parameters)
    if len(shape) < len(SHAPE):
        raise UserError(
            f"model {_name(target)}: the constructor takes {len(shape)} positional arguments; it must take "
            f"{len(SHAPE)}: the number of features, the hidden width, the number of classes"
        )
    fields = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    everything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    asked = {
        name: value
        for name, value in fields.items()
        if name not in shape and name != "hidden" and (everything or name in parameters)
    }
    return target(features, settings.hidden, classes, **asked, **(own or {}))


def normalisation_of(target: object) -> Any:
    """The `normalisation` that a model names for `Â`, or `symmetric`."""
    kind = getattr(target, "normalisation", "symmetric")
    if kind not in NORMALISATIONS:
        raise UserError(
            f"model {_name(target)}: normalisation {kind!r} does not exist; "
            f"choose from {choices(NORMALISATIONS, str(kind))}"
        )
    return kind


def _takes_settings(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Whether all settings go in as one: asked for by name, or `(*arguments, **settings)` passes them on."""
    named = [name for name, p in parameters.items() if p.kind not in ANYTHING]
    return "settings" in named or not named


def _shape_arguments(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    return [name for name, p in parameters.items() if p.kind in POSITIONAL][: len(SHAPE)]


def _name(target: object) -> str:
    return getattr(target, "__name__", type(target).__name__)
