"""Job scripts: what they say, and what is refused before; `tests/launch/test_jobs.py` runs them."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

import sancus
from sancus.errors import UserError
from tests.helpers.command import run

GRAPH = "synthetic:nodes=300"
KINDS: dict[str, dict[str, Any]] = {
    "slurm": {},
    "torchrun": {"hosts": ["a", "b"]},
    "mpi": {"hosts": ["a", "b"]},
    "kubernetes": {"image": "sancus:1", "claim": "graphs"},
}


def script(kind: str, ranks: int = 4, nodes: int = 2, **settings: Any) -> str:
    return sancus.job(kind, GRAPH, ranks, nodes, **KINDS[kind] | settings).text


def trained(line: str) -> list[str]:
    """The words behind `sancus train` in a line of a script."""
    words = shlex.split(line)
    return words[words.index("train") + 1 :]


@pytest.mark.parametrize("kind", ["slurm", "torchrun", "mpi"])
def test_a_script_is_sound_shell_and_goes_on_when_started_again(kind: str) -> None:
    text = script(kind, out="runs/my run", preset="sancus-e:1", epochs=50)
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    (line,) = [line for line in text.splitlines() if "sancus train" in line]
    words = trained(line.removesuffix("&"))
    assert words[0] == GRAPH and words[words.index("--out") + 1] == "runs/my run"
    assert words[words.index("--resume") + 1] == "auto" and "--checkpoint-every" in words
    assert words[words.index("--preset") + 1] == "sancus-e:1"


def test_slurm_is_told_of_nodes_tasks_cores_and_time() -> None:
    text = script("slurm", ranks=6, nodes=3, cpus=8, time="1-12:00:00", options=["partition=long"])
    told = dict(line[10:].partition("=")[::2] for line in text.splitlines() if line.startswith("#SBATCH --"))
    asked = {"nodes": "3", "ntasks-per-node": "2", "cpus-per-task": "8", "time": "1-12:00:00"}
    assert told.items() >= ({"signal": "B:USR1@120", "partition": "long", "requeue": ""} | asked).items()
    assert told["chdir"] == str(Path.cwd())
    assert "--threads 8" in text and "export OMP_NUM_THREADS=8" in text
    assert '--out "runs/sancus-$SLURM_JOB_ID" --resume auto' in text


def test_mpi_under_slurm_needs_no_address() -> None:
    assert "MASTER_ADDR" in script("slurm")
    text = script("slurm", backend="mpi", mpi="pmix")
    assert "MASTER_ADDR" not in text and "srun --mpi=pmix sancus train" in text


def test_a_manifest_is_a_service_and_an_indexed_job_that_meets_at_pod_0() -> None:
    content = json.loads(script("kubernetes", cpus=4, setup=["export A=1"], name="products"))
    service, job = content["items"]
    assert (content["kind"], service["kind"], job["kind"]) == ("List", "Service", "Job")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["subdomain"] == service["metadata"]["name"] == "products"
    assert container["resources"]["requests"] == {"cpu": "8", "memory": "16Gi"}
    mounted = [mount["name"] for mount in container["volumeMounts"]]
    assert mounted == [volume["name"] for volume in pod["volumes"]]
    command = container["command"][2]
    assert "export A=1" in command and "--master-addr products-0.products" in command
    assert '--out "runs/products" --resume auto' in command


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        ("slurm", {"ranks": 3}, "--ranks 3 on --nodes 2: every node gets the same number of ranks; choose"),
        ("slurm", {"nodes": 0}, "--nodes 0: must be at least 1"),
        ("slurm", {"time": "4h"}, "--time 4h: write it as Slurm does"),
        ("slurm", {"grace": 0}, "--grace 0: must be from 1"),
        ("slurm", {"preset": "leann"}, "leann"),
        ("slurm", {"epochs": 0}, "--epochs 0"),
        ("torchrun", {"hosts": ["a"]}, "1 names for --nodes 2"),
        ("torchrun", {"hosts": ["a", "a"]}, "a stands twice"),
        ("torchrun", {"hosts": ["a", "b'"]}, "is no name of a host"),
        ("torchrun", {"port": 0}, "--port 0"),
        ("torchrun", {"backend": "mpi"}, "see sancus launch mpi"),
        ("mpi", {"backend": "gloo"}, "leave --backend out"),
        ("kubernetes", {"claim": "My Claim"}, "--claim My Claim"),
        ("kubernetes", {"memory": "lots"}, "--memory lots"),
        ("kubernetes", {"mount": "work"}, "--mount work"),
        ("kubernetes", {"retries": -1}, "--retries -1"),
        ("kubernetes", {"backend": "mpi"}, "leave --backend out"),
    ],
)
def test_a_mistake_is_told_before_a_script_is_made(kind: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        script(kind, **settings)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_kinds_and_settings_that_do_not_exist_are_named() -> None:
    with pytest.raises(UserError, match="'slrm' does not exist; choose from"):
        sancus.job("slrm", GRAPH, 2)
    with pytest.raises(UserError, match="image"):
        sancus.job("kubernetes", GRAPH, 2, claim="graphs")


def test_the_command_line_prints_what_python_gives_and_writes_it(tmp_path: Path) -> None:
    flags = (
        "--nodes",
        "2",
        "--ranks",
        "4",
        "--hosts",
        "a",
        "b",
        "--preset",
        "lean",
        "--restarts",
        "2",
        "--out",
        "x",
    )
    printed = run("launch", "torchrun", GRAPH, *flags, cwd=tmp_path)
    assert printed.code == 0, printed
    assert "--max-restarts 2" in printed.out
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        ours = script("torchrun", preset="lean", restarts=2, out="x")
    assert printed.out == ours
    written = run("launch", "torchrun", GRAPH, *flags, "--script", "job.sh", cwd=tmp_path)
    assert (written.code, written.out) == (0, "wrote job.sh\n"), written
    assert (tmp_path / "job.sh").read_text() == ours and (tmp_path / "job.sh").stat().st_mode & 0o100


def test_submit_hands_the_script_over_and_names_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\ncat > seen\necho 17\n")
    (tmp_path / "sbatch").chmod(0o700)
    flags = ("launch", "slurm", GRAPH, "--ranks", "2", "--submit")
    done = run(*flags, cwd=tmp_path, env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert (done.code, done.out) == (0, "17\n"), done
    assert "#SBATCH --ntasks-per-node=2" in (tmp_path / "seen").read_text()
    (tmp_path / "empty").mkdir()
    done = run(*flags, cwd=tmp_path, env={"PATH": str(tmp_path / "empty")})
    assert done.code == 2 and "--submit: sbatch is not on the PATH" in done.err, done
