"""A file name says what is in it: none stands in two rooms, but where it means the same in each of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]

SHARED = {
    "__init__": "a package",
    "__main__": "a package that is run",
    "attention": "weights of edges by content: the inner loops, and their use in the exchange",
    "auto": "a plug-in's file is called like the plug-in",
    "base": "the contract of a kind of plug-in",
    "build": "from settings to objects",
    "compare": "the verb, and the comparison",
    "data": "the verbs that look at data, and their calls",
    "errors": "a user's mistakes, and those between ranks",
    "full": "a plug-in's file is called like the plug-in",
    "labels": "label propagation: of the model, and of the exchange",
    "layout": "how ranks are laid out: any, and those of a run",
    "low_bit": "codecs of few bits: of payloads, and of parameters",
    "mpi": "MPI: as a transport, and as a launcher",
    "settings": "the settings of a room",
    "shards": "shards on disk, and the verbs that move them",
    "store": "a store: of rows, and of checkpoints",
    "times": "where the seconds of an epoch go: measured, and drawn",
    "train": "the verb, and its call",
    "tune": "the verb, the search, and its call",
    "volume": "bytes: predicted, and reported",
}


def test_a_name_stands_in_one_room() -> None:
    files = {
        path.resolve()
        for room in ("sancus", "staleness", "partitioners")
        for path in (ROOT / room).rglob("*.py")
    }
    names = Counter(path.stem for path in files)
    assert {name for name, count in names.items() if count > 1} - set(SHARED) == set()
