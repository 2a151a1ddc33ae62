"""What a program gives as its graph, to shards on this host's disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sancus.config.settings import Config
from sancus.datasets.accept import accept
from sancus.datasets.open import check_source
from sancus.shards.cache import Shards, Telling, is_shards, prepare, prepare_graph


def shards_of(
    graph: Any, config: Config, parts: int, telling: Telling, chunks: int = 1
) -> tuple[str, Shards]:
    """The name of a graph, and its shards in so many parts; built if they are not in the cache.

    The rows of a part are sorted by `chunks`.
    """
    how = (config.factors.partitioner, parts, config.factors.row_order, telling, chunks)
    if isinstance(graph, str | Path):
        if not is_shards(str(graph)):
            check_source(str(graph))
        return str(graph), prepare(str(graph), *how)
    accepted = accept(graph)
    return accepted.name, prepare_graph(accepted, *how)
