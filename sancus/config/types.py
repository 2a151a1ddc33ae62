"""The types of settings that a program passes; what is typed on the command line is converted there."""

from __future__ import annotations

import dataclasses
import numbers
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sancus.errors import UserError
from sancus.plugins import choices

WORDS: dict[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
}


def check_types(settings: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, by the names of flags, as their fields want them; one of a wrong type is refused."""
    hints = _hints(settings)
    return {name: _checked(name, value, hints[name]) for name, value in values.items()}


def _hints(settings: type[Any]) -> dict[str, Any]:
    """The type of every setting, those of the sections inside included."""
    found: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(settings).items():
        section = isinstance(hint, type) and dataclasses.is_dataclass(hint)
        found |= _hints(hint) if section else {name: hint}
    return found


def check_number(name: str, value: Any) -> None:
    """Refuse what is no whole number from 1 on: of ranks, of parts, of seeds."""
    if _checked(name, value, int) < 1:
        raise UserError(f"{name}={value}: must be at least 1")


def _checked(name: str, value: Any, hint: Any) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        if value is None:
            return None
        arms = [arm for arm in typing.get_args(hint) if arm is not type(None)]
        literals = [arm for arm in arms if typing.get_origin(arm) is typing.Literal]
        words = {word for literal in literals for word in typing.get_args(literal)}
        if isinstance(value, str) and value in words:
            return value
        hint = arms[0]
    if typing.get_origin(hint) is typing.Literal:
        allowed = [str(word) for word in typing.get_args(hint)]
        if value not in allowed:
            raise UserError(f"{name}={value!r} is not one of {choices(allowed, str(value))}")
        return value
    if hint is Path and value == "":
        raise UserError(f"{name}='' names nothing; give a directory, '.' for the current one")
    converted = _converted(value, hint)
    if converted is None:
        raise UserError(f"{name}={value!r} is a {type(value).__name__}; it must be {WORDS[hint]}")
    return converted


def _converted(value: Any, hint: Any) -> Any:
    """The value as `hint`; None where it is of another kind. Numbers of numpy are numbers."""
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        return bool(value) if hint is bool else None
    if hint is int and isinstance(value, numbers.Integral):
        return int(value)
    if hint is float and isinstance(value, numbers.Real):
        return float(value)
    if hint is str and isinstance(value, str):
        return value
    if hint is Path and isinstance(value, str | Path):
        return Path(value)
    return None
