"""The command line: every mistake is one line and exit code 2 before any rank starts; help needs no torch."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sancus.cli import app as cli
from sancus.codecs import CODECS
from sancus.comm import BACKENDS
from sancus.config.presets import PRESETS
from sancus.datasets import READERS
from sancus.errors import UserError
from sancus.kernels import KERNELS
from sancus.launch import world
from sancus.launch.backend import choose_backend
from sancus.launch.exit_codes import EXIT_PIPE, EXIT_USER
from sancus.launch.world import World, detect
from sancus.models import MODELS
from sancus.partitioners import PARTITIONERS
from sancus.plans import PLANS
from sancus.staleness import POLICIES
from tests.helpers.command import TIMEOUT, TOP, endings_of, environment, home

GRAPH = "synthetic:nodes=60,features=4,classes=3"
TABLES = (PARTITIONERS, PLANS, POLICIES, CODECS, BACKENDS, KERNELS, MODELS, READERS, PRESETS)


@dataclass(frozen=True)
class Mistake:
    """A command that is refused; `{folder}` in it is a folder that the fixture `folder` has filled."""

    args: str
    says: str  # pattern
    env: dict[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    torch: bool = False  # whether torch has to be imported to find out


def train(flags: str, says: str, **more: Any) -> Mistake:
    return Mistake(f"train {GRAPH} {flags}", says, **more)


MISTAKES = {
    "command": Mistake("trian", r"Unknown command .*train"),
    "flag": train("--rank 2", r"Unknown option: --rank\. Did you mean --ranks"),
    "preset": train("--preset cagnett", r"'cagnett' .*cagnet, .*digest.*did you mean cagnet\?"),
    "plan": train("--plan hallo", r"plan 'hallo' .*block, drawn, halo.*did you mean halo\?"),
    "model": train("--model gnc", r"model 'gnc' .*gcn, gcnii.*did you mean gin or gcn\?"),
    "partitioner": train("--partitioner metsi", r"'metsi' .*contiguous.*did you mean metis\?"),
    "policy": train("--staleness alway", r"policy 'alway' .*did you mean always\?"),
    "backward policy": train("--backward alway", r"policy 'alway' .*did you mean always\?"),
    "codec": train("--codec fp23", r"codec 'fp23' .*fp32"),
    "backend": train("--backend glo", r"backend 'glo' .*auto, gloo, mpi, nccl.*did you mean gloo\?"),
    "kernel": train("--kernel torhc", r"kernel 'torhc' .*did you mean torch\?"),
    "graph": Mistake("train synthetik", r"'synthetik' does not exist.*did you mean synthetic\?"),
    "shape": Mistake("train reddit@0.1", r"did you mean synthetic:reddit@0.1\?"),
    "graph setting": Mistake("train synthetic:nodes=many", r"nodes='many' is not a whole number"),
    "graph file": Mistake("train {folder}/none.npz", r"none\.npz' does not exist"),
    "graph pipe": Mistake("data info {folder}/pipe.npz", r"pipe\.npz' is neither a file nor a folder"),
    "graph suffix": Mistake("train {folder}/file.txt", r"file\.txt: no labels; put labels\.csv"),
    "no archive": Mistake("train {folder}/noise.npz", r"noise\.npz: is not a \.npz archive"),
    "empty mask": Mistake("train {folder}/mask.npz", r"mask\.npz: val_mask selects no node"),
    "label": Mistake(
        "train {folder}/label.npz", r"label\.npz: y holds label 7 for node 2; labels are 0 to 2"
    ),
    "edge": Mistake("train {folder}/edge.npz", r"edge\.npz: edge_index .*node"),
    "nan": Mistake("train {folder}/nan.npz", r"nan\.npz: x .*NaN"),
    "two graphs": Mistake("train a b", r"too many arguments: b"),
    "no value": train("--epochs", r"--epochs requires an argument"),
    "no number": train("--epochs many", r"--epochs.*many"),
    "no choice": train("--order first", r"--order.*aggregate-first"),
    "epochs": train("--epochs 0", r"--epochs 0: must be at least 1"),
    "dropout": train("--dropout 1", r"--dropout 1.0: must be at least 0 and below 1"),
    "rate": train("--lr nan", r"--lr nan: must be"),
    "huge rate": train("--lr 3e38", r"--lr 3e\+38: must be at most 1e\+30; steps would not be finite"),
    "huge seed": train(
        f"--seed {2**70}", r"--seed 1180591620717411303424: must be at most 18446744073709551615"
    ),
    "no rank": train("--ranks 0", r"--ranks 0: must be at least 1"),
    "ranks": train("--ranks 61", r"61 ranks for 60 nodes"),
    "timeout": train("--timeout nan", r"--timeout nan: must be above 0"),
    "long timeout": train("--timeout 1e30", r"--timeout 1e\+30: must be above 0 and at most"),
    "partitioner seed": train("--partitioner metis:seed=-1", r"seed=-1 is out of range"),
    "partitioner setting": train("--partitioner metis:sed=1", r"no setting 'sed'.*seed"),
    "partitioner refuses": train("--partitioner tests.unit.test_cli:Refuses", r"Refuses': I refuse"),
    "partitioner wrong": train("--partitioner tests.unit.test_cli:Wrong", r"Wrong': node 0 .*part 99"),
    "module": train("--model no.such:Model", r"cannot import 'no\.such'"),
    "class": train("--partitioner tests.unit.test_cli:None", r"has no class 'None'"),
    "model setting": train("--model gcn:depth=3", r"model 'gcn' has no setting 'depth'", torch=True),
    "no mpi4py": train("--backend mpi", r"--backend mpi needs mpi4py; pip install", missing=("mpi4py",)),
    "nccl": train("--backend nccl", r"--backend nccl moves CUDA tensors; add --device cuda"),
    "cuda": train("--device cuda --ranks 2", r"torch finds no GPU here", torch=True),
    "resume nothing": train("--resume {folder}", r"--resume .*no checkpoint there"),
    "resume damaged": train("--resume {folder}/damaged", r"no whole checkpoint in ", torch=True),
    "out is a run": train("--out {folder}/run", r"--out .*run holds a run already.*--overwrite"),
    "out is a broken run": train("--out {folder}/broken", r"holds a run already"),
    "out under a file": train("--out {folder}/file.txt/run", r"cannot write a run to .*file\.txt is a file"),
    "out is a file": train("--out {folder}/file.txt --ranks 2", r"cannot write a run to .*is a file"),
    "overwrite what": train("--overwrite", r"--overwrite needs --out"),
    "home": train("", r"cannot write to .*SANCUS_HOME", env={"SANCUS_HOME": "{folder}/file.txt/home"}),
    "config is text": train("--config {folder}/file.txt", r"file\.txt: is not JSON"),
    "config is missing": train("--config {folder}/none", r"none: cannot be read \(No such file"),
    "config is a list": train("--config {folder}/list.json", r"list\.json: holds no settings"),
    "config misspelt": train(
        "--config {folder}/misspelt.json", r"'epohcs' does not exist; did you mean epochs"
    ),
    "config value": train("--config {folder}/value.json", r"--epochs from --config .*\"many\""),
    "report of nothing": Mistake("report {folder}", r"holds no run"),
    "report of what": Mistake("report", r"RUN_DIR is missing"),
    "rank is text": train("", r"RANK='x', which is not a whole", env={"RANK": "x", "WORLD_SIZE": "2"}),
    "rank too high": train("", r"RANK=2 and WORLD_SIZE=2", env={"RANK": "2", "WORLD_SIZE": "2"}),
    "rank of what": train("", r"left WORLD_SIZE unset", env={"RANK": "0"}),
    "meet where": train("", r"needs MASTER_ADDR and MASTER_PORT", env={"RANK": "0", "WORLD_SIZE": "2"}),
    "other ranks": train(
        "--ranks 3",
        r"--ranks 3, but mpiexec started 2 ranks",
        env={"PMI_RANK": "0", "PMI_SIZE": "2"},
    ),
    "mpi under torchrun": train(
        "--backend mpi", r"ranks that mpiexec started, but torchrun did", env={"RANK": "0", "WORLD_SIZE": "2"}
    ),
    "gloo under mpiexec": train(
        "--backend gloo", r"needs MASTER_ADDR.*or use --backend mpi", env={"PMI_RANK": "0", "PMI_SIZE": "2"}
    ),
    "port": train(
        "",
        r"port \d+ of 127\.0\.0\.1 is in use",
        env={"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}"},
        torch=True,
    ),
}


class Refuses:
    def assign(self, adjacency: Any, parts: int) -> Any:
        raise ValueError("I refuse")


class Wrong:
    def assign(self, adjacency: Any, parts: int) -> Any:
        return np.full(adjacency.shape[0], 99)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the mistakes are about."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "file.txt").write_text("no JSON, no graph")
    os.mkfifo(folder / "pipe.npz")
    (folder / "noise.npz").write_bytes(b"noise")
    (folder / "list.json").write_text("[1]")
    (folder / "misspelt.json").write_text('{"config": {"training": {"epohcs": 3}}}')
    (folder / "value.json").write_text('{"config": {"training": {"epochs": "many"}}}')
    (folder / "run").mkdir()
    (folder / "run/run.json").write_text("{}")
    (folder / "broken").mkdir()
    (folder / "broken/metrics.jsonl").write_text("")
    (folder / "damaged/checkpoint/epoch-00000003").mkdir(parents=True)
    nodes = 6
    good = {
        "edge_index": np.array([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]]),
        "x": np.ones((nodes, 2), np.float32),
        "y": np.arange(nodes) % 3,
        "classes": np.array(3),
    }
    good |= {f"{name}_mask": np.arange(nodes) % 3 == i for i, name in enumerate(("train", "val", "test"))}

    def save(name: str, field: str, place: Any, value: Any) -> None:
        array = good[field].copy()
        array[place] = value
        np.savez(folder / f"{name}.npz", **(good | {field: array}))

    save("mask", "val_mask", slice(None), False)
    save("label", "y", 2, 7)
    save("edge", "edge_index", (0, 3), nodes)
    save("nan", "x", (1, 1), np.nan)
    return folder


@pytest.fixture(scope="module")
def busy_port() -> Iterator[int]:
    with contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture(scope="module")
def refusals(folder: Path, busy_port: int) -> dict[str, dict[str, Any]]:
    def fill(text: str) -> str:
        return text.format(folder=folder, port=busy_port)

    cases = [
        {
            "args": [fill(arg) for arg in mistake.args.split()],
            "env": {name: fill(value) for name, value in mistake.env.items()},
            "missing": mistake.missing,
        }
        for mistake in MISTAKES.values()
    ]
    return dict(zip(MISTAKES, endings_of(cases, home()), strict=True))


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line(name: str, refusals: dict[str, dict[str, Any]]) -> None:
    mistake, result = MISTAKES[name], refusals[name]
    assert result["code"] == EXIT_USER, result
    assert result["err"].startswith("sancus: "), result
    assert result["err"].count("\n") == 1 and result["err"].endswith("\n"), result
    assert re.search(mistake.says, result["err"]), result
    assert mistake.torch or result["torch"] == "False", "torch was imported to find a mistake that needs none"


def test_a_refused_run_leaves_no_cache_behind(refusals: dict[str, dict[str, Any]]) -> None:
    assert refusals["partitioner wrong"]["code"] == EXIT_USER
    kept = [path for path in (home() / "shards").iterdir() if path.is_dir()]
    assert all((path / "manifest.json").exists() for path in kept), kept


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, Any]]:
    commands = ("", "--help", "--version", "train --help", "report --help", "list")
    cases = [{"args": command.split(), "env": {}, "missing": []} for command in commands]
    return dict(zip(commands, endings_of(cases, home()), strict=True))


@pytest.mark.parametrize("command", ["", "--help", "--version", "train --help", "report --help", "list"])
def test_answers_without_torch(command: str, answers: dict[str, dict[str, Any]]) -> None:
    answer = answers[command]
    assert (answer["code"], answer["err"], answer["torch"]) == (0, "", "False"), answer
    assert answer["out"].strip()


def test_list_names_every_plug_in(answers: dict[str, dict[str, Any]]) -> None:
    rows = [line.split() for line in answers["list"]["out"].splitlines()]
    named = {row[1] for row in rows if len(row) > 2}
    assert named >= {name for table in TABLES for name in table}
    assert all(len(row) > 2 for row in rows), "a plug-in has no summary"


def test_every_flag_is_explained(answers: dict[str, dict[str, Any]]) -> None:
    lines = answers["train --help"]["out"].splitlines()
    flags = [line for line in lines if re.match(r"│ --", line)]
    assert len(flags) > 30
    assert not [line for line in flags if re.match(r"│ --[a-z-]+( --no-[a-z-]+)?( [A-Z]+)? +(\[.*)?│$", line)]


def settings(*args: str) -> dict[str, Any]:
    """What `train` would have been called with."""
    _, bound, _ = cli.app.parse_args(["train", *args], exit_on_error=False, print_error=False)
    bound.apply_defaults()
    flat: dict[str, Any] = {}
    config = bound.arguments["settings"].to_dict()
    for section in config.values():
        flat |= section if isinstance(section, dict) else {}
    return flat | {"data": bound.arguments["data"], "preset": config["preset"], "model": config["model"]}


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A run.json."""
    config = {
        "data": "synthetic:nodes=99",
        "preset": "cagnet",
        "factors": {"plan": "block", "reuse_input": False, "order": "transform-first"},
        "training": {"epochs": 7},
        "launch": {"ranks": 3, "threads": None},
        "output": {"out": "somewhere", "overwrite": True, "quiet": True, "resume": None},
    }
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"config": config, "command": "sancus train"}))
    return path


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("--preset cagnet", {"plan": "block", "reuse_input": False, "order": "aggregate-first"}),
        ("--preset cagnet --plan halo", {"plan": "halo", "reuse_input": False}),
        ("--preset cagnet --reuse-input", {"plan": "block", "reuse_input": True}),
        ("--config CONFIG", {"data": "synthetic:nodes=99", "epochs": 7, "ranks": 3, "preset": "cagnet"}),
        ("--config CONFIG", {"out": None, "overwrite": False, "quiet": False, "order": "transform-first"}),
        ("--config CONFIG", {"skip_input_gradient": False}),  # completed by the preset that the file names
        ("synthetic --config CONFIG --epochs 9", {"data": "synthetic", "epochs": 9, "ranks": 3}),
        ("--config CONFIG --preset exact", {"plan": "auto", "order": "auto", "epochs": 7, "preset": "exact"}),
    ],
)
def test_flags_beat_presets_beat_files(args: str, expected: dict[str, Any], earlier: Path) -> None:
    found = settings(*args.replace("CONFIG", str(earlier)).split())
    assert {name: found[name] for name in expected} == expected


def test_a_launcher_overrules_the_ranks_of_a_file(earlier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert settings("--config", str(earlier))["ranks"] is None


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, None),
        (
            {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
            World(3, 4, 1, 2, "torchrun"),
        ),
        (
            {"PMI_RANK": "1", "PMI_SIZE": "3", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"},
            World(1, 3, 0, 1, "mpiexec"),
        ),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"},
            World(1, 3, 1, 3, "mpiexec"),
        ),
        (
            {
                "SLURM_PROCID": "2",
                "SLURM_STEP_NUM_TASKS": "4",
                "SLURM_LOCALID": "0",
                "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
            },
            World(2, 4, 0, 2, "srun"),
        ),
        (
            {
                "SLURM_PROCID": "6",
                "SLURM_STEP_NUM_TASKS": "7",
                "SLURM_LOCALID": "0",
                "SLURM_NODEID": "3",
                "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
            },
            World(6, 7, 0, 1, "srun"),
        ),
        (  # srun --mpi=pmi2
            {
                "PMI_RANK": "3",
                "PMI_SIZE": "4",
                "SLURM_PROCID": "3",
                "SLURM_STEP_NUM_TASKS": "4",
                "SLURM_LOCALID": "1",
                "SLURM_NODEID": "1",
                "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
            },
            World(3, 4, 1, 2, "mpiexec"),
        ),
        ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4"}, None),  # a batch script, not a step of srun
    ],
)
def test_who_am_i(env: dict[str, str], expected: World | None) -> None:
    assert detect(env) == expected


def test_threads_are_the_share_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "cores", lambda: 8)
    assert World(0, 6, 0, 3, "torchrun").threads(None) == 2
    assert World(0, 6, 0, 3, "torchrun").threads(5) == 5
    assert World(0, 32, 0, 32, "local").threads(None) == 1


def test_mpi_without_mpiexec(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="needs mpiexec, which is not on the PATH"):
        choose_backend("mpi", None, "cpu")


def test_a_closed_pipe_is_no_error() -> None:
    shell = f"{sys.executable} -m sancus list | head -c 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", shell],
        env=environment(),
        cwd=TOP,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )
    assert (done.returncode, done.stdout, done.stderr) in [(EXIT_PIPE, "k", ""), (0, "k", "")]
