"""`--stages auto`: the stages of a run, chosen before it begins.

By the time that is predicted for a common machine and network, not for those at hand: so all ranks choose
the same, also on several hosts, and again when a run is repeated. `sancus estimate --stages auto --link …`
predicts for others. What was chosen is kept beside the shards, so that only one rank of a host looks at the
graph.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash

from sancus.config.settings import Config
from sancus.console.speaker import Speaker
from sancus.datasets.accept import accept
from sancus.datasets.home import home
from sancus.datasets.open import fingerprint, open_graph
from sancus.errors import UserError
from sancus.graphs.graph import Graph
from sancus.plans import AUTO
from sancus.shards.cache import is_shards
from sancus.shards.identity import fingerprint_of

LINK, LATENCY, SPMM, GEMM = 1.25e9, 50e-6, 1e9, 2e10  # 10 Gbit/s; multiply-adds a second of one core


def settled(graph: Any, config: Config, ranks: int, say: Speaker) -> Config:
    """The settings, with stages and chunks in place of `--stages auto`; `graph` is what the user gave."""
    if config.pipeline.stages != AUTO:
        return config
    if isinstance(graph, str | Path):
        source = str(graph)
        if is_shards(source):
            raise UserError(
                f"--stages auto: {source} is cut into parts already; name the graph, or a number of stages"
            )
        return _kept(fingerprint(source), lambda: open_graph(source), config, ranks, say)
    accepted = accept(graph)
    return _kept(fingerprint_of(accepted), lambda: accepted, config, ranks, say)


def _kept(identity: str, load: Callable[[], Graph], config: Config, ranks: int, say: Speaker) -> Config:
    """What was chosen before for the same graph and settings, or is now."""
    key = xxhash.xxh3_128_hexdigest(json.dumps([identity, config.to_dict(), ranks], default=str).encode())
    path = home() / "stages" / f"{key}.json"
    try:
        chosen = json.loads(path.read_text())
        stages, chunks = int(chosen["stages"]), int(chosen["chunks"])
    except (OSError, ValueError, KeyError, TypeError):
        from sancus.advise.estimate import Machine
        from sancus.advise.staged import choose_stages

        say.step("choosing stages")
        pipeline = choose_stages(load(), config, ranks, Machine(LINK, LATENCY, SPMM, GEMM)).pipeline
        assert isinstance(pipeline.stages, int)
        stages, chunks = pipeline.stages, pipeline.chunks
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_text(json.dumps({"stages": stages, "chunks": chunks}))
        os.replace(partial, path)
    return dataclasses.replace(
        config, pipeline=dataclasses.replace(config.pipeline, stages=stages, chunks=chunks)
    )
