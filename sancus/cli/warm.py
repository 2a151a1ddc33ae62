"""Imports made ahead: a process that forks ranks imports once what each of them would import."""

from __future__ import annotations

import importlib

# What ranks import sooner or later; the last one comes with the first optimiser.
LATER = (
    "sancus.runs.session",
    "sancus.runs.predict",
    "sancus.comm.torch_dist",
    "torch._dynamo",
)


def warm_up() -> None:
    """Import what ranks need, so that forks have it."""
    for name in LATER:
        importlib.import_module(name)
