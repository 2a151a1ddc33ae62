"""Settings, presets, and the one way from flags to a `Config`."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """`sancus.config.Config`, where earlier versions had it; read when it is used."""
    if name == "Config":
        from sancus.config.settings import Config

        return Config
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
