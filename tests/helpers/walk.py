"""A stranger's walk: every command of the documentation, on tiny data, one page after the other.

    python -m tests.helpers.walk                    # all pages: a few minutes
    python -m tests.helpers.walk docs/start.md      # one of them

Each page has an empty working directory and an empty home. Graphs are replaced by one of 200 nodes, 4 or 8
ranks by 2, epochs by 3; what needs several machines or Slurm is only read (`tests/launch/test_docs.py`).
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.helpers.command import TOP, Result, run
from tests.helpers.documents import PAGES, Command, commands

NODES, FEATURES, CLASSES = 200, 12, 4
SYNTHETIC = f"synthetic:nodes={NODES},features={FEATURES},classes={CLASSES},degree=8"
FEW = {"--ranks": "2", "--parts": "2", "--epochs": "3", "--seeds": "1"}
GRAPHS = re.compile(r"ogbn_\w+/|products\.zip|edges(\.csv|:graph).*")
SEVERAL_MACHINES = ("--nnodes", "-hosts", "srun")
TIMEOUT = 800.0


def small(words: tuple[str, ...]) -> list[str]:
    """The same command on little data, with few ranks and epochs."""
    out: list[str] = []
    for word in words:
        before = out[-1] if out else ""
        if before in FEW and word.isdigit():
            word = FEW[before]
        elif GRAPHS.fullmatch(word):
            word = "graph.npz"
        elif word == "synthetic":
            word = SYNTHETIC
        elif word == "RUN_DIR":
            word = "runs/mine"
        out.append(word)
    if out[0] in ("train", "compare"):
        out += [] if "--epochs" in out else ["--epochs", "3"]
        out += ["--hidden", "8"] if "--hidden" not in out else []
    return out


def furnish(folder: Path, page: str) -> None:
    """What the reader of a page has: a graph under several names, a model, the files that the page shows."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, NODES)
    split = rng.integers(0, 3, NODES)
    masks = {f"{name}_mask": split == place for place, name in enumerate(("train", "val", "test"))}
    features = (np.eye(FEATURES)[labels] + rng.normal(size=(NODES, FEATURES))).astype(np.float32)
    edges = rng.integers(0, NODES, (2, 8 * NODES))
    (folder / "path/to").mkdir(parents=True)
    for name in ("graph", "other", "path/to/graph", "cora", "linux-include"):
        np.savez(
            folder / f"{name}.npz", edge_index=np.hstack([edges, edges[::-1]]), x=features, y=labels, **masks
        )
    shutil.copy(TOP / "examples" / "my_model.py", folder / "my_file.py")
    text = (TOP / page).read_text()
    for block in re.findall(r'```python\n("""\w+\.py:.*?)```', text, re.S):
        (folder / block[3:].partition(":")[0]).write_text(block)
    for name, table in re.findall(r"`([\w/]+\.csv)`[^`]*```csv\n(.*?)```", text, re.S):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(table)


def walk(page: str, folder: Path) -> Iterator[tuple[Command, Result]]:
    """Every command of a page that one machine can run, in order, and how it ended."""
    furnish(folder, page)
    env = {"SANCUS_HOME": str(folder / "home"), "SANCUS_DATA": str(folder), "HOME": str(folder / "home")}
    done: set[tuple[str, ...]] = set()
    for command in commands():
        arguments = command.sancus
        if (
            command.page != page
            or arguments is None
            or any(word in SEVERAL_MACHINES for word in command.words)
        ):
            continue
        args = small(arguments)
        if "runs/mine" in args and not (folder / "runs/mine").exists() and args[0] != "train":
            run(
                "train",
                "graph.npz",
                "--epochs",
                "3",
                "--out",
                "runs/mine",
                env=env,
                cwd=folder,
                timeout=TIMEOUT,
            )
        if tuple(args) in done and "--out" in args:
            args.append("--overwrite")
        done.add(tuple(args))
        if command.words[0] in ("torchrun", "mpiexec"):
            launcher = command.words[0]
            yield command, run(*args, launcher=launcher, ranks=2, env=env, cwd=folder, timeout=TIMEOUT)  # type: ignore[arg-type]
        else:
            yield command, run(*args, env=env, cwd=folder, timeout=TIMEOUT)


def main() -> None:
    """Print one line a command; exit code 1 where one failed."""
    failed = 0
    for page in sys.argv[1:] or PAGES:
        with tempfile.TemporaryDirectory(prefix="sancus-walk-") as name:
            for command, result in walk(page, Path(name)):
                print(
                    f"{'ok' if result.code == 0 else 'FAILED':7}{result.seconds:6.1f} s  {command}",
                    flush=True,
                )
                if result.code:
                    failed += 1
                    print(result)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
