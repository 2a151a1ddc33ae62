"""Where the model of a run comes from, as `run.json` keeps it: so that a prediction finds it again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE, GIVEN = "file", "given"


def describe_model(spec: str, given: object | None) -> dict[str, Any]:
    """The section `model` of `run.json`: the whole path of a user's file, or a name in a program.

    `given` is a class or a module that a program passed instead of the spec.
    """
    if given is not None and not isinstance(given, str):
        kind = given if isinstance(given, type) else type(given)
        return {GIVEN: getattr(given, "__name__", kind.__name__)}
    spec = given if isinstance(given, str) else spec
    name = spec.partition(":")[0]
    return {FILE: str(Path(name).expanduser().resolve())} if name.endswith(".py") else {}


def given_name(facts: Mapping[str, Any]) -> str | None:
    """The name of the class that a program gave; None where the run's settings name its model."""
    model = facts.get("model")
    return model.get(GIVEN) if isinstance(model, dict) else None


def model_spec(facts: Mapping[str, Any], spec: str) -> str:
    """The spec of a run's model; its file is looked for where it was, if it is not below this directory."""
    model = facts.get("model")
    place = model.get(FILE) if isinstance(model, dict) else None
    name, colon, rest = spec.partition(":")
    if not isinstance(place, str) or not name.endswith(".py") or Path(name).expanduser().is_file():
        return spec
    return f"{place}{colon}{rest}"
