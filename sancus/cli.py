"""Verbs and flags; nothing else."""

from __future__ import annotations

import json
import os
import shlex
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import cyclopts
from cyclopts import App, Parameter

from sancus import __version__, launch
from sancus.config import PRESETS, Config, flatten, preset
from sancus.errors import UserError

Flat = Parameter(name="*")


def _defaults(app: App, commands: tuple[str, ...], arguments: cyclopts.ArgumentCollection) -> None:
    """Fill flags that were not given: first from `--config FILE`, then from `--preset NAME`."""
    named = {argument.name: argument for argument in arguments}
    if "--preset" not in named:
        return

    def fill(values: dict[str, Any]) -> None:
        for name, value in values.items():
            argument = named.get("--" + name.replace("_", "-"))
            if argument is not None and not argument.tokens:
                text = str(value).lower() if isinstance(value, bool) else str(value)
                argument.append(cyclopts.Token(keyword=argument.name, value=text, source="preset"))

    if named["--config"].tokens:
        fill(_read_config(Path(named["--config"].tokens[0].value)))
    if named["--preset"].tokens:
        fill(dict(preset(named["--preset"].tokens[0].value).settings))


def _read_config(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
        return flatten(content.get("config", content))
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"--config {path}: not a run.json that can be read ({error})") from error


app = App(
    name="sancus",
    help="Decentralised full-graph GNN training that avoids communication and shows the bill.",
    version=__version__,
    config=_defaults,
)


@app.command
def train(
    data: str = "synthetic",
    /,
    *,
    settings: Annotated[Config, Flat] = Config(),  # noqa: B008
    config: Path | None = None,
) -> None:
    """Train a model on a whole graph, with several ranks, and print the bill.

    Parameters
    ----------
    data
        Graph: synthetic, synthetic:reddit@0.05, or a .npz file.
    settings
        Everything else.
    config
        Take the settings of an earlier run: its run.json.
    """
    from sancus.prepare import prepare

    world = launch.detect(os.environ)
    if world is not None and world.launcher == "local":
        launch.follow_parent()
    ranks = launch.check_ranks(settings.launch.ranks, world)
    backend = launch.choose_backend(settings.factors.backend, world, settings.launch.device)
    speaks = not settings.output.quiet and (world is None or world.rank == 0)
    say = print_line if speaks else lambda line: None
    _check(data, settings, may_overwrite=world is not None)
    shards = prepare(data, settings.factors.partitioner, ranks, say)
    if world is None and ranks > 1:
        sys.exit(launch.spawn(sys.argv[1:], ranks, backend))
    from sancus.session import Request, run_rank

    command = shlex.join(["sancus", *sys.argv[1:]])
    run = run_rank(Request(data, settings, command), world or launch.ALONE, backend, shards, say)
    if run is not None and speaks:
        print_bill(run)


@app.command
def report(run_dir: Path, /) -> None:
    """Write report.html of a finished or broken run again.

    Parameters
    ----------
    run_dir
        The --out directory of a run.
    """
    from sancus.report.page import write_report

    if not run_dir.is_dir():
        raise UserError(f"{run_dir} is not a directory; give the --out directory of a run")
    print_line(str(write_report(run_dir)))


@app.command(name="list")
def list_plugins() -> None:
    """Name every plug-in and preset."""
    from rich.console import Console
    from rich.table import Table

    from partitioners import PARTITIONERS
    from sancus.codecs import CODECS
    from sancus.comm import BACKENDS
    from sancus.datasets import READERS
    from sancus.kernels import KERNELS
    from sancus.models import MODELS
    from sancus.plans import PLANS
    from sancus.plugins import summary
    from staleness import POLICIES

    table = Table("kind", "name", "what it is", box=None, pad_edge=False)
    kinds = {
        "partitioner": PARTITIONERS,
        "plan": PLANS,
        "policy": POLICIES,
        "codec": CODECS,
        "backend": BACKENDS,
        "kernel": KERNELS,
        "model": MODELS,
        "data": READERS,
    }
    for kind, entries in kinds.items():
        for name, target in entries.items():
            table.add_row(kind, name, summary(target))
    for name, settings in PRESETS.items():
        table.add_row("preset", name, settings.summary)
    Console().print(table)


def print_line(line: str) -> None:
    """One plain line, seen at once."""
    print(line, flush=True)


def print_bill(run: dict[str, Any]) -> None:
    """The last table of a run."""
    from rich.console import Console
    from rich.table import Table

    from sancus.report.summary import bill

    table = Table("the bill", "", box=None, pad_edge=False)
    for label, value in bill(run):
        table.add_row(label, value)
    Console().print(table)


def _check(data: str, settings: Config, *, may_overwrite: bool) -> None:
    """What can be refused before anything is loaded or started."""
    from sancus.datasets.open import check_source
    from sancus.plugins import parse, settings_of

    check_source(data)
    for kind, table, spec in settings.factors.specs():
        parsed = parse(kind, table, spec)
        if parsed.settings or parsed.name not in table:
            settings_of(kind, parsed, frozenset({"operator", "bench"}))
    out = settings.output
    if out.out is not None and out.out != out.resume and (out.out / "run.json").exists() and not may_overwrite and not out.overwrite:
        raise UserError(f"--out {out.out} holds a run already; choose another directory, or add --overwrite")


def main() -> None:
    """Entry point: a user's mistake is one line and exit code 2."""
    from sancus.comm.errors import CommError

    rank = os.environ.get("RANK") or os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK")
    who = f"rank {rank}: " if rank not in (None, "0") else ""
    try:
        app(sys.argv[1:], exit_on_error=False, print_error=False)
    except UserError as error:
        sys.stderr.write(f"sancus: {who}{error}\n")
        sys.exit(launch.EXIT_USER)
    except cyclopts.CycloptsError as error:
        sys.stderr.write(f"sancus: {who}{' '.join(str(error).split())}\n")
        sys.exit(launch.EXIT_USER)
    except CommError as error:
        sys.stderr.write(f"sancus: {error}\n")
        sys.stderr.flush()
        os._exit(launch.EXIT_PEER)
    except Exception:
        traceback.print_exc()
        sys.stderr.write(f"sancus: {who or 'rank 0: '}failed with the error above\n")
        sys.stderr.flush()
        os._exit(launch.EXIT_FAILED)
