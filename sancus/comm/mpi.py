"""Transports over MPI: mpi4py on host buffers, as raw bytes, no pickled messages."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from sancus.comm.transport import Transfer, Transport

if TYPE_CHECKING:
    from mpi4py import MPI

SPIN_SECONDS = 1e-3
NAP_SECONDS = 5e-5
SHARED_MEMORY = "/dev/shm/mpich_shm_"  # how the names of what ranks of a host share begin


class Communicator(Transport):
    """The members of a communicator of MPI: MPICH or Open MPI, CPU tensors."""

    leaves_together = True

    def __init__(self, comm: MPI.Comm, timeout: float) -> None:
        """`comm` is this object's own."""
        from mpi4py import MPI

        super().__init__(comm.rank, comm.size, timeout)
        self.comm = comm
        self._byte = MPI.BYTE
        self._nobody = MPI.UNDEFINED
        self._under_way: list[_Request] = []
        self._parts: list[Communicator] = []

    def split(self, members: Sequence[int]) -> Communicator | None:
        """A communicator of their own, by MPI's `Split`."""
        inside = self.rank in members
        comm = self.comm.Split(0 if inside else self._nobody, self.rank)
        if not inside:
            return None
        part = Communicator(comm, self.timeout)
        self._parts.append(part)
        return part

    def progress(self) -> None:
        """MPI moves bytes only inside its own calls: look at every background transfer."""
        self._under_way = [request for request in self._under_way if not request.look()]

    def broadcast(self, tensor: torch.Tensor, owner: int, *, background: bool) -> Transfer:
        return self._transfer(self.comm.Ibcast([_bytes(tensor), self._byte], root=owner), background)

    def send(self, tensor: torch.Tensor, receiver: int, tag: int) -> Transfer:
        return self._transfer(self.comm.Isend([_bytes(tensor), self._byte], dest=receiver, tag=tag))

    def receive(self, tensor: torch.Tensor, sender: int, tag: int) -> Transfer:
        return self._transfer(self.comm.Irecv([_bytes(tensor), self._byte], source=sender, tag=tag))

    def all_to_all(
        self,
        send: torch.Tensor,
        send_counts: Sequence[int],
        receive: torch.Tensor,
        receive_counts: Sequence[int],
        *,
        background: bool,
    ) -> Transfer:
        def message(tensor: torch.Tensor, counts: Sequence[int]) -> list[object]:
            width = tensor.nbytes // max(1, len(tensor))
            sizes = [count * width for count in counts]
            starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64).tolist()
            return [_bytes(tensor), (sizes, starts), self._byte]

        sent, received = message(send, send_counts), message(receive, receive_counts)
        return self._transfer(self.comm.Ialltoallv(sent, received), background)

    def all_gather(self, tensor: torch.Tensor, gathered: torch.Tensor) -> Transfer:
        sent, received = [_bytes(tensor), self._byte], [_bytes(gathered), self._byte]
        return self._transfer(self.comm.Iallgather(sent, received))

    def _transfer(self, request: MPI.Request, background: bool = False) -> Transfer:
        pending = _Request(request, self.timeout)
        if background:
            self._under_way.append(pending)
        return Transfer(pending.finish, lambda: pending.ended)

    def close(self) -> None:
        """Free the communicators, which all members do together; mpi4py finalises MPI at exit."""
        for part in self._parts:
            part.close()
        self.comm.Free()

    def abort(self) -> None:
        """End the whole MPI world: peers of a failed rank would otherwise wait for ever."""
        self.comm.Abort(1)


class MpiTransport(Communicator):
    """All processes of the run, as mpiexec started them."""

    def __init__(self, rank: int, size: int, timeout: float, rendezvous: str | None = None) -> None:
        """Join the world that mpiexec made; `rendezvous` has no meaning under MPI.

        Joining (the import) waits for all ranks and knows no timeout, so an alarm ends this process, and
        with it the world, if a rank never comes. UCX, below MPICH, would keep SIGHUP for its debugging.
        """
        del rendezvous
        os.environ.setdefault("UCX_DEBUG_SIGNO", "0")
        signal.setitimer(signal.ITIMER_REAL, timeout)
        from mpi4py import MPI

        comm = MPI.COMM_WORLD.Dup()
        signal.setitimer(signal.ITIMER_REAL, 0)
        _forget_shared_memory()
        assert (comm.rank, comm.size) == (rank, size), "the launcher and MPI disagree on ranks"
        super().__init__(comm, timeout)


class _Request:
    """A request of MPI, which has no wait with a timeout."""

    def __init__(self, request: MPI.Request, timeout: float) -> None:
        self._request = request
        self._timeout = timeout
        self.ended: float | None = None  # when it was first seen to have ended

    def look(self) -> bool:
        """Whether it has ended; a look also moves bytes."""
        if self.ended is None and self._request.Test():
            self.ended = time.perf_counter()
        return self.ended is not None

    def finish(self) -> None:
        """Look, yielding the core, until done or too late."""
        started = time.monotonic()
        while not self.look():
            waited = time.monotonic() - started
            if waited > self._timeout:
                raise RuntimeError(f"no answer within {self._timeout:g} s")
            if waited > SPIN_SECONDS:
                time.sleep(NAP_SECONDS)
            else:
                os.sched_yield()


def _forget_shared_memory() -> None:
    """Take the name of MPICH's shared memory away, as all ranks have it: it is gone with the last of them.

    MPICH itself removes it in an orderly end alone, and so left megabytes behind after any other.
    """
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return
    for name in {line.split(maxsplit=5)[-1] for line in lines if SHARED_MEMORY in line}:
        Path(name).unlink(missing_ok=True)


def _bytes(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """The memory of a contiguous host tensor as bytes, without a copy."""
    return tensor.detach().view(-1).view(torch.uint8).numpy()
