"""Sancus: decentralised full-graph GNN training that avoids communication and shows the bill.

`sancus.train` trains in one call; the pieces of a loop of one's own are in `sancus.api`. Public names are
imported when first used, so that the command line starts before torch is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from sancus.api import Exchange as Exchange
    from sancus.api import Result as Result
    from sancus.api import gather_rows as gather_rows
    from sancus.api import join as join
    from sancus.api import load as load
    from sancus.api import make_exchange as make_exchange
    from sancus.api import make_task as make_task
    from sancus.api import pull_shards as pull_shards
    from sancus.api import push_shards as push_shards
    from sancus.api import score as score
    from sancus.api import settings as settings
    from sancus.api import train as train
    from sancus.config.settings import Config as Config
    from sancus.errors import RankError as RankError
    from sancus.errors import UserError as UserError
    from sancus.graphs.graph import Graph as Graph
    from sancus.programs.after import compare as compare
    from sancus.programs.after import list_runs as list_runs
    from sancus.programs.after import predict as predict
    from sancus.programs.after import replay as replay
    from sancus.programs.after import write_report as write_report
    from sancus.programs.clusters import job as job
    from sancus.programs.data import estimate as estimate
    from sancus.programs.data import info as info
    from sancus.programs.data import partition as partition
    from sancus.programs.data import probe as probe
    from sancus.programs.tune import tune as tune
    from sancus.training.parameter_sync import sum_gradients as sum_gradients
    from sancus.training.trainer import Trainer as Trainer

_PUBLIC = {
    "Result": "sancus.api",
    "gather_rows": "sancus.api",
    "join": "sancus.api",
    "load": "sancus.api",
    "make_exchange": "sancus.api",
    "make_task": "sancus.api",
    "pull_shards": "sancus.api",
    "push_shards": "sancus.api",
    "score": "sancus.api",
    "settings": "sancus.api",
    "train": "sancus.api",
    "compare": "sancus.programs.after",
    "predict": "sancus.programs.after",
    "replay": "sancus.programs.after",
    "list_runs": "sancus.programs.after",
    "write_report": "sancus.programs.after",
    "job": "sancus.programs.clusters",
    "partition": "sancus.programs.data",
    "estimate": "sancus.programs.data",
    "info": "sancus.programs.data",
    "probe": "sancus.programs.data",
    "tune": "sancus.programs.tune",
    "Config": "sancus.config.settings",
    "RankError": "sancus.errors",
    "UserError": "sancus.errors",
    "Exchange": "sancus.api",
    "Graph": "sancus.graphs.graph",
    "Trainer": "sancus.training.trainer",
    "sum_gradients": "sancus.training.parameter_sync",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'sancus' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    """What can be asked for."""
    return sorted({*globals(), *_PUBLIC})
