"""Forks ranks of MPI for `tests.helpers.processes.run_ranks`: torch is imported once, not once a rank.

mpiexec starts stubs (`tests/helpers/mpi_stub.py`); each comes here, over a socket whose address is this
program's argument, with the place of a rank in MPI's world. A fork takes that place. It ends when its stub
does, so that mpiexec, and whoever kills it, ends the ranks as always.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

from sancus.cli.warm import warm_up
from sancus.launch.process import follow_parent
from tests.helpers import rank_entry


def main() -> None:
    follow_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks tell their stubs how they ended, not this process
    warm_up()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(sys.argv[1])
        listener.listen(64)
        print("ready", flush=True)
        while True:
            stub, _ = listener.accept()
            if not os.fork():
                listener.close()
                _be(stub)
            stub.close()


def _be(stub: socket.socket) -> NoReturn:
    """In the fork: be the rank that a stub asks for, until its end."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        request = _take_place(stub)
        threading.Thread(target=_end_with, args=(stub,), daemon=True).start()
        rank_entry.work(
            request["function"], Path(request["folder"]), "mpi", request["timeout"], leave=_leave(stub)
        )
        from mpi4py import MPI

        MPI.Finalize()
        stub.send(bytes([0]))
        # MPICH takes leave of mpiexec in a handler of C's exit; without it all ranks are killed.
        ctypes.CDLL(None).exit(0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        _leave(stub)(1)


def _take_place(stub: socket.socket) -> dict[str, Any]:
    """The request, with this process's environment, output and line to mpiexec as the stub has them."""
    head, places, _, _ = socket.recv_fds(stub, 8, 3)
    size, message = int.from_bytes(head, "big"), b""
    while len(message) < size:
        message += stub.recv(size - len(message))
    request: dict[str, Any] = json.loads(message)
    out, err, line = places
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.environ.clear()
    os.environ |= request["env"] | {"PMI_FD": str(line)}
    return request


def _end_with(stub: socket.socket) -> None:
    """A stub says nothing more: what is received is its end."""
    stub.recv(1)
    os._exit(1)


def _leave(stub: socket.socket) -> Any:
    def leave(code: int) -> NoReturn:
        sys.stdout.flush()
        sys.stderr.flush()
        stub.send(bytes([code]))
        os._exit(code)

    return leave


if __name__ == "__main__":
    main()
