"""Transports over torch.distributed: gloo, and NCCL for CUDA tensors."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from sancus.comm.errors import CommError
from sancus.comm.group import Group, Transfer
from sancus.comm.notes import StoreNotes
from sancus.errors import UserError


class TorchTransport(Group):
    """Any backend of torch.distributed; the group is this object's own."""

    backend = "gloo"

    def __init__(self, rank: int, size: int, timeout: float, rendezvous: str | None = None) -> None:
        """Join the group: through the file `rendezvous` for local ranks, else by `env://`."""
        super().__init__(rank, size, timeout)
        limit = timedelta(seconds=timeout)
        try:
            store = self._store(rendezvous, limit)
            dist.init_process_group(self.backend, store=store, rank=rank, world_size=size, timeout=limit)
        except (RuntimeError, ValueError) as error:
            raise _cannot_meet(rank, rendezvous, error) from error
        self._second_group: dist.ProcessGroup | None = None
        self._meets_at_address = rendezvous is None

    def notes(self) -> StoreNotes | None:
        """Over a connection of its own to the store; not in a file, which would only grow."""
        if not self._meets_at_address:
            return None
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=self.timeout))
        return StoreNotes(_of_this_attempt(store))

    def _store(self, rendezvous: str | None, limit: timedelta) -> dist.Store:
        """Where ranks meet. Attempts of an elastic launcher never read each other's addresses."""
        if rendezvous is not None:
            return dist.FileStore(str(Path(rendezvous)), self.size)
        store, _, _ = next(dist.rendezvous("env://", self.rank, self.size, timeout=limit))
        return _of_this_attempt(store)

    def _broadcast(self, tensor: torch.Tensor, owner: int, *, background: bool) -> Transfer:
        group = self._group(background=background)
        return self._transfer(dist.broadcast(tensor, src=owner, group=group, async_op=True))

    def _send(self, tensor: torch.Tensor, receiver: int, tag: int) -> Transfer:
        work = dist.isend(tensor, dst=receiver, tag=tag)
        assert work is not None
        return Transfer(lambda: self._wait(work), lambda: None)

    def _receive(self, tensor: torch.Tensor, sender: int, tag: int) -> Transfer:
        work = dist.irecv(tensor, src=sender, tag=tag)
        assert work is not None
        return Transfer(lambda: self._wait(work), lambda: None)

    def _all_to_all(
        self,
        send: torch.Tensor,
        send_counts: Sequence[int],
        receive: torch.Tensor,
        receive_counts: Sequence[int],
        *,
        background: bool,
    ) -> Transfer:
        group, counts = self._group(background=background), (list(receive_counts), list(send_counts))
        work = dist.all_to_all_single(receive, send, *counts, group=group, async_op=True)
        return self._transfer(work)

    def _all_gather(self, tensor: torch.Tensor, gathered: torch.Tensor) -> Transfer:
        return self._transfer(dist.all_gather(list(gathered.unbind()), tensor, async_op=True))

    def _group(self, *, background: bool) -> dist.ProcessGroup | None:
        """Background transfers have connections and threads of their own, so that nothing waits behind them.

        All ranks come here first at the same use, so the group is made when it is needed.
        """
        if background and self._second_group is None:
            self._second_group = dist.new_group(timeout=timedelta(seconds=self.timeout))
        return self._second_group if background else None

    def _transfer(self, work: dist.Work) -> Transfer:
        """The library's threads move the bytes; they also note when a transfer ended."""
        moments: list[float] = []
        work.get_future().add_done_callback(lambda _: moments.append(time.perf_counter()))

        return Transfer(lambda: self._wait(work), lambda: moments[0] if moments else None)

    def _wait(self, work: dist.Work) -> None:
        work.wait(timedelta(seconds=self.timeout))

    def progress(self) -> None:
        """The library's own threads do it."""

    def close(self) -> None:
        """All ranks leave together, so that nobody's connection breaks while others still talk.

        The group is left to the end of the process: taking gloo apart can abort it. A peer that is already
        gone is no error here, as nothing is left to be said.
        """
        with contextlib.suppress(CommError):
            self.all_gather(torch.zeros(1, dtype=torch.uint8, device=self._device()))

    def abort(self) -> None:
        """Nothing to tear down: the process ends, and peers see their connections close."""

    def _device(self) -> torch.device:
        return torch.device("cpu")


def _of_this_attempt(store: dist.Store) -> dist.Store:
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"sancus_attempt_{attempt}", store)


def _cannot_meet(rank: int, rendezvous: str | None, error: Exception) -> Exception:
    """Local ranks only miss each other when one died; elsewhere the address is the user's."""
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if rendezvous is not None:
        return CommError(f"rank {rank}: cannot meet the other ranks: {reason}")
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if "EADDRINUSE" in str(error):
        return UserError(f"port {port} of {address} is in use; set MASTER_PORT to a free one")
    return UserError(
        f"rank {rank} cannot meet the others at {address}:{port}: {reason}; "
        "check MASTER_ADDR, MASTER_PORT and that all ranks were started"
    )


class GlooTransport(TorchTransport):
    """gloo over TCP: any machine, CPU tensors."""

    backend = "gloo"


class NcclTransport(TorchTransport):
    """NCCL between CUDA devices (untested: no GPU was at hand)."""

    backend = "nccl"

    def _device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device())


def gloo_is_here() -> bool:
    """Whether this torch was built with gloo."""
    return dist.is_available() and dist.is_gloo_available()
