"""What a program asks its local ranks to do, and what they give back: files in a private folder.

Ranks are forks of a fresh process, never of the program: that may have threads, an event loop, or a
notebook's kernel, and none of these survives a fork. So the errand has to be carried over. A model may be a
class that exists in a notebook's cell alone: cloudpickle takes it along by value, from us to a process of
ours, in a file that nobody else may write. What comes back is JSON and `.npz`, without pickles.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import cloudpickle
import numpy as np

from sancus.console.speaker import Speaker
from sancus.errors import UserError
from sancus.launch.world import World

ERRAND_FILE = "errand"
FACTS_FILE, ARRAYS_FILE = "facts.json", "arrays.npz"
Arrays = dict[str, "np.ndarray[Any, Any]"]


@dataclass(frozen=True)
class Findings:
    """What rank 0 gives back: facts that JSON can hold, and arrays by name."""

    facts: dict[str, Any]
    arrays: Arrays

    def write(self, folder: Path) -> None:
        """Leave them for the program."""
        np.savez(folder / ARRAYS_FILE, allow_pickle=False, **self.arrays)
        (folder / FACTS_FILE).write_text(json.dumps(self.facts))

    @classmethod
    def read(cls, folder: Path) -> Findings:
        """What rank 0 has left."""
        with np.load(folder / ARRAYS_FILE, allow_pickle=False) as arrays:
            return cls(json.loads((folder / FACTS_FILE).read_text()), dict(arrays))


class Errand(Protocol):
    """Work for all ranks."""

    def run(self, world: World, say: Speaker) -> Findings | None:
        """Do it as one rank; on rank 0, what was found."""
        ...


def pack(errand: Errand, model: object, folder: Path) -> None:
    """Write an errand for the ranks. A model whose module they cannot import goes along by value."""
    module = sys.modules.get((model if isinstance(model, type) else type(model)).__module__)
    by_value = module is not None and module.__name__ != "__main__" and not _importable(module.__name__)
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        content = cloudpickle.dumps(errand)
    except Exception as error:
        raise UserError(
            f"the model cannot be sent to other processes ({type(error).__name__}: {error}); "
            "keep files, locks and generators out of it"
        ) from error
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)
    (folder / ERRAND_FILE).write_bytes(content)


def unpack(folder: Path) -> Errand:
    """The errand of this rank, from the folder that its program made for it."""
    errand: Errand = cloudpickle.loads((folder / ERRAND_FILE).read_bytes())
    return errand


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
