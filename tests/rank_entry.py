"""What each rank of `tests.processes.run_ranks` runs: join, call the function, leave the result."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from pathlib import Path

import torch

from sancus.launch import World, detect
from sancus.run import connect


def main() -> None:
    function, folder, backend, timeout = sys.argv[1:]
    torch.set_num_threads(1)
    found = detect(os.environ)
    assert found is not None
    world = World(found.rank, found.size, found.rank, found.size, found.launcher, str(Path(folder) / "store"))
    module, _, name = function.partition(":")
    work = getattr(importlib.import_module(module), name)
    arguments = pickle.loads((Path(folder) / "arguments").read_bytes())
    transport = connect(backend, world, float(timeout))
    try:
        result = work(transport, **arguments)
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        transport.abort()
        os._exit(1)
    (Path(folder) / f"result-{world.rank}").write_bytes(pickle.dumps(result))
    transport.close()
    if backend != "mpi":
        os._exit(0)


if __name__ == "__main__":
    main()
