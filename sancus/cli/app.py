"""Verbs and flags; nothing else."""

from __future__ import annotations

import difflib
import json
import os
import shlex
import sys
import traceback
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, NoReturn

import cyclopts
from cyclopts import App, Parameter

from sancus import __version__
from sancus.cli.about import doctor, list_plugins
from sancus.cli.data import estimate, info, partition
from sancus.cli.runs import evaluate, predict
from sancus.config.presets import DEFAULT, preset_settings
from sancus.config.settings import Config, flatten
from sancus.console.speaker import speaker
from sancus.errors import UserError
from sancus.launch import world as launch
from sancus.launch.interrupt import Stopped, heed_signals
from sancus.runs.logs import note_end

Flat = Parameter(name="*")
INTERRUPTED = "interrupted"


class _Flags:
    """The flags of `train`: what was typed, and what is filled in where nothing was."""

    def __init__(self, arguments: cyclopts.ArgumentCollection) -> None:
        self._named = {_field_name(argument.name): argument for argument in arguments}

    def __contains__(self, name: str) -> bool:
        return name in self._named

    def typed(self, name: str) -> str | None:
        """The text of a flag, None where there is none."""
        tokens = self._named[name].tokens
        return tokens[0].value if tokens else None

    def fill(self, values: Mapping[str, Any], source: str) -> None:
        """Set the flags that nobody has set yet."""
        for name, value in values.items():
            if name not in self._named:
                near = difflib.get_close_matches(name, self._named, n=1)
                hint = f"; did you mean {near[0]}?" if near else "; see sancus train --help"
                raise UserError(f"{source}: setting {name!r} does not exist{hint}")
            argument = self._named[name]
            if not argument.tokens:
                text = str(value).lower() if isinstance(value, bool) else str(value)
                keyword = argument.name if argument.name.startswith("--") else None
                argument.append(cyclopts.Token(keyword=keyword, value=text, source=source))


def _field_name(flag: str) -> str:
    """`--eval-every` is the field `eval_every`, `DATA` is `data`."""
    return flag.removeprefix("--").replace("-", "_").lower()


def _defaults(app: App, commands: tuple[str, ...], arguments: cyclopts.ArgumentCollection) -> None:
    """Fill flags that were not typed: from a typed `--preset`, then `--config`, then `--resume`.

    A preset that only the file names comes last: it completes a file that does not hold all settings. Where
    nobody names one, it is the default.
    """
    flags = _Flags(arguments)
    if "preset" not in flags:
        return
    typed, config, resume = (flags.typed(name) for name in ("preset", "config", "resume"))
    if typed is not None:
        flags.fill(preset_settings(typed), f"--preset {typed}")
    if config is not None:
        flags.fill(_repeatable(_read_config(Path(config))), f"--config {config}")
    if resume not in (None, "auto"):
        flags.fill(_repeatable(_settings_of_run(Path(resume))), f"--resume {resume}")
    flags.fill({"preset": DEFAULT}, "the default")
    named = flags.typed("preset")
    assert named is not None
    flags.fill(preset_settings(named), f"preset {named}")


def _repeatable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a new run takes over of an earlier one: not where it wrote, nor ranks against a launcher."""
    left_out = {"out", "overwrite", "resume", "quiet", "restarts"}
    if launch.detect(os.environ) is not None:
        left_out |= {"ranks"}
    return {name: value for name, value in flatten(settings).items() if name not in left_out}


def _read_config(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise UserError(
            f"--config {path}: cannot be read ({error.strerror}); give the run.json of a run"
        ) from error
    except ValueError as error:
        raise UserError(f"--config {path}: is not JSON ({error}); give the run.json of a run") from error
    settings = content.get("config", content) if isinstance(content, dict) else None
    if not isinstance(settings, dict):
        raise UserError(f"--config {path}: holds no settings; give the run.json of a run")
    return settings


def _settings_of_run(directory: Path) -> dict[str, Any]:
    """What the newest readable checkpoint of a run was made with; damage is reported when it is loaded."""
    for state in sorted(directory.glob("checkpoint/epoch-*/state.json"), reverse=True):
        try:
            settings: dict[str, Any] = json.loads(state.read_text())["extra"]["config"]
            return settings
        except (OSError, ValueError, LookupError, TypeError):
            continue
    return {}


app = App(
    name="sancus",
    help="Decentralised full-graph GNN training that avoids communication and shows the bill.",
    version=__version__,
    config=_defaults,
    result_action="return_value",
    suppress_keyboard_interrupt=False,
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
        Graph: synthetic, synthetic:reddit@0.05, a file, a folder, a name, or what sancus partition wrote.
    settings
        Everything else.
    config
        Repeat an earlier run: take graph and settings from its run.json; flags override them.
    """
    from sancus.graphs.shards import read_manifest
    from sancus.shards.cache import check, parts_of, prepare
    from sancus.shards.memory import check_memory

    world = launch.detect(os.environ)
    if world is not None and world.launcher == "local":
        launch.follow_parent(os.environ.get(launch.LAUNCHER_PID))
    ranks = launch.check_ranks(settings.launch.ranks or (parts_of(data) if world is None else None), world)
    backend = launch.choose_backend(settings.factors.backend, world, settings.launch.device)
    speaks = not settings.output.quiet and (world is None or world.rank == 0)
    say = speaker(quiet=not speaks, verbose=settings.output.verbose)
    check(data, settings, launched=world is not None)
    with closing(say):
        shards = prepare(data, settings.factors.partitioner, ranks, say, settings.factors.row_order)
    if world is None:
        check_memory(read_manifest(shards), settings, ranks)
    if world is None and ranks > 1:
        launch.spawn(sys.argv[1:], ranks, backend, settings.launch.restarts)
    from sancus.runs.session import Request, run_rank

    command = shlex.join(["sancus", *sys.argv[1:]])
    done = run_rank(Request(data, settings, command), world or launch.ALONE, backend, shards, say)
    if done is not None and speaks:
        print_result(*done, verbose=settings.output.verbose)


@app.command
def compare(
    data: str,
    /,
    *flags: Annotated[str, Parameter(allow_leading_hyphen=True)],
    presets: Annotated[list[str], Parameter(consume_multiple=True)],
    seeds: int = 1,
    target: float | None = None,
    out: Path,
) -> None:
    """Train under several presets, interleaved, and show accuracy, bytes and time side by side.

    Parameters
    ----------
    data
        Graph: synthetic, synthetic:reddit@0.05, or a .npz file.
    flags
        Any flags of sancus train, for every run: --ranks 4 --epochs 100 ….
    presets
        Presets to compare; ratios are to the first.
    seeds
        Seeds 0, 1, … of every preset.
    target
        Also tell after how many epochs and seconds validation reached this score.
    out
        Directory for all runs, compare.json and report.html.
    """
    from sancus.report.comparison import comparison_rows
    from sancus.report.page import write_report
    from sancus.runs.compare import Comparison, run_all
    from sancus.shards.cache import check

    comparison = Comparison(data, presets, seeds, out, flags, target)
    for preset in presets:
        arguments = comparison.arguments(preset, 0)
        _, bound, *_ = app.parse_args(arguments, exit_on_error=False, print_error=False)
        check(data, bound.arguments["settings"], launched=False)
    print_table(comparison_rows(run_all(comparison, print_line)))
    page = write_report(*comparison.directories(), out=out / "report.html")
    print_line(f"files in {out}; open {page}")


data_verbs = App(name="data", help="Look at graphs.")
app.command(data_verbs)
app.command(predict)
app.command(evaluate)
app.command(partition)
app.command(estimate)
data_verbs.command(info)
app.command(list_plugins, name="list")
app.command(doctor)


@app.command
def report(*run_dir: Path, out: Path | None = None) -> None:
    """Write one page on a run, finished or broken, or on several side by side.

    Parameters
    ----------
    run_dir
        The --out directory of a run, or several; runs that differ by their seed are shown as one.
    out
        The page to write; default: report.html beside the files of the run.
    """
    from sancus.report.page import write_report
    from sancus.runs.directory import holds_run

    if not run_dir:
        raise UserError("RUN_DIR is missing: give the --out directory of one run or of several")
    for directory in run_dir:
        if not holds_run(directory):
            raise UserError(f"{directory} holds no run; give the --out directory of one")
    if out is None and len(run_dir) > 1:
        raise UserError(f"{len(run_dir)} runs need --out: the page to write, e.g. --out report.html")
    try:
        print_line(str(write_report(*run_dir, out=out)))
    except OSError as error:
        where = out or run_dir[0]
        raise UserError(f"cannot write {where}: {error.strerror or error}; choose another --out") from error


def print_table(rows: list[list[str]]) -> None:
    """A plain table; the first row is its head. A line is never broken, so that it can be copied."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print_line("  ".join(cells).rstrip())


def print_line(line: str) -> None:
    """One plain line, seen at once."""
    print(line, flush=True)


def print_result(run: dict[str, Any], directory: Path, *, verbose: bool) -> None:
    """The last lines of a run: the bill, the score, and where the files are."""
    from sancus.report.summary import bill, breakdown

    print_table([["the bill", ""], *([label, value] for label, value in bill(run))])
    if verbose:
        print_table(breakdown(run))
    result = run["result"]
    print_line(
        f"test {result['metric']} {result['test']:.4f} at the best validation epoch "
        f"({result['best_epoch'] + 1} of {result['epochs']}, val {result['val']:.4f})"
    )
    print_line(f"files in {directory}; open {directory / 'report.html'}")


def main() -> None:
    """Entry point: a user's mistake is one line and exit code 2."""
    from sancus.comm.errors import CommError

    try:
        app(sys.argv[1:], exit_on_error=False, print_error=False)
        sys.stdout.flush()
        _finish_rank()
    except UserError as error:
        _leave(launch.EXIT_USER, str(error))
    except cyclopts.CycloptsError as error:
        _leave(launch.EXIT_USER, _mistyped(error))
    except CommError as error:
        _leave(launch.EXIT_PEER, str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _leave(launch.EXIT_PIPE)
    except Stopped as stop:
        _leave(launch.exit_code(stop.number), str(stop))
    except KeyboardInterrupt:
        _leave(launch.EXIT_INTERRUPTED, INTERRUPTED)
    except MemoryError as error:
        _leave(launch.EXIT_FAILED, f"out of memory: {error or 'no more can be had'}; see sancus estimate")
    except Exception:
        _leave(launch.EXIT_FAILED, "failed with the error above", traceback.format_exc())


def _mistyped(error: cyclopts.CycloptsError) -> str:
    """One line on a command line that cannot be read."""
    if isinstance(error, cyclopts.UnusedCliTokensError):
        return f"too many arguments: {shlex.join(error.unused_tokens or [])}; see sancus train --help"
    return " ".join(str(error).split())


def _leave(code: int, line: str = "", details: str = "") -> NoReturn:
    """End this process with a last line. A rank ends at once: it waits for no collective of the others."""
    world = _world()
    if code not in launch.EXIT_SAVED:
        heed_signals()  # nothing is left to be saved: a launcher that ends this process ends it now
    note_end(f"{details}{line or f'ended with exit code {code}'}", failed=True)
    silent = not line
    if world is not None and code in launch.EXIT_SAVED:
        silent = world.rank > 0 or line == INTERRUPTED
    if not silent and launch.may_speak(world, lost_peers=code == launch.EXIT_PEER):
        named = world is not None and (world.rank > 0 or details) and not line.startswith("rank ")
        who = f"rank {world.rank}: " if world is not None and named else ""
        sys.stderr.write(f"{details}sancus: {who}{line}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    if world is not None:
        os._exit(code)
    sys.exit(code)


def _finish_rank() -> None:
    """A rank that is done leaves at once: gloo's threads can abort a process while Python takes it apart."""
    world = _world()
    if world is not None and world.launcher in ("local", "torchrun"):
        sys.stderr.flush()
        os._exit(0)


def _world() -> launch.World | None:
    try:
        return launch.detect(os.environ)
    except UserError:
        return None
