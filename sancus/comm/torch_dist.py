"""Transports over torch.distributed: gloo, and NCCL for CUDA tensors."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import torch
import torch.distributed as dist

from sancus.comm.errors import CommError
from sancus.comm.notes import StoreNotes
from sancus.comm.transport import Transfer, Transport
from sancus.errors import UserError

HOST = torch.device("cpu")


class TorchTransport(Transport):
    """A process group of torch.distributed, and a second one for what travels in the background."""

    def __init__(
        self, members: Sequence[int], timeout: float, group: dist.ProcessGroup | None = None
    ) -> None:
        """`members` are processes of the whole run; `group` is theirs, the default one where it is None."""
        super().__init__(list(members).index(dist.get_rank()), len(members), timeout)
        self._members = tuple(members)
        self._group = group
        self._second_group: dist.ProcessGroup | None = None
        self._on_gpu = dist.get_backend(group) == "nccl"
        self._device = torch.device("cuda", torch.cuda.current_device()) if self._on_gpu else HOST
        self.in_order = self._on_gpu

    @property
    def device(self) -> torch.device:
        """The host for gloo, this process's GPU for NCCL."""
        return self._device

    def broadcast(self, tensor: torch.Tensor, owner: int, *, background: bool) -> Transfer:
        group = self._group_for(background=background)
        return self._transfer(dist.broadcast(tensor, src=self._members[owner], group=group, async_op=True))

    def send(self, tensor: torch.Tensor, receiver: int, tag: int) -> Transfer:
        work = dist.isend(tensor, dst=self._members[receiver], group=self._group, tag=tag)
        assert work is not None
        return Transfer(lambda: self._wait(work), lambda: None)

    def receive(self, tensor: torch.Tensor, sender: int, tag: int) -> Transfer:
        work = dist.irecv(tensor, src=self._members[sender], group=self._group, tag=tag)
        assert work is not None
        return Transfer(lambda: self._wait(work), lambda: None)

    def pass_on(
        self, receive: torch.Tensor | None, sender: int, send: torch.Tensor | None, receiver: int
    ) -> Transfer:
        """One group of NCCL's calls, so that neither waits for the other."""
        calls = []
        if receive is not None:
            calls.append(dist.P2POp(dist.irecv, receive, self._members[sender], self._group))
        if send is not None:
            calls.append(dist.P2POp(dist.isend, send, self._members[receiver], self._group))
        works = dist.batch_isend_irecv(calls)

        def finish() -> None:
            for work in works:
                self._wait(work)

        return Transfer(finish, lambda: None)

    def all_to_all(
        self,
        send: torch.Tensor,
        send_counts: Sequence[int],
        receive: torch.Tensor,
        receive_counts: Sequence[int],
        *,
        background: bool,
    ) -> Transfer:
        group, counts = self._group_for(background=background), (list(receive_counts), list(send_counts))
        work = dist.all_to_all_single(receive, send, *counts, group=group, async_op=True)
        return self._transfer(work)

    def all_gather(self, tensor: torch.Tensor, gathered: torch.Tensor) -> Transfer:
        work = dist.all_gather(list(gathered.unbind()), tensor, group=self._group, async_op=True)
        return self._transfer(work)

    def split(self, members: Sequence[int]) -> TorchTransport | None:
        """A process group of their own, which torch lets only all processes of the run make together."""
        ranks = [self._members[place] for place in members]
        limit = timedelta(seconds=self.timeout)
        group = dist.new_group(ranks, timeout=limit)
        return TorchTransport(ranks, self.timeout, group) if self.rank in members else None

    def _group_for(self, *, background: bool) -> dist.ProcessGroup | None:
        """Background transfers have connections and threads of their own, so that nothing waits behind them.

        All members come here first at the same use, so the group is made when it is needed; where these are
        not all processes of the run, without the others.
        """
        if background and self._second_group is None:
            limit = timedelta(seconds=self.timeout)
            if self._group is None:
                self._second_group = dist.new_group(timeout=limit)
            else:
                ranks = list(self._members)
                self._second_group = dist.new_group(ranks, timeout=limit, use_local_synchronization=True)
        return self._second_group if background else self._group

    def _transfer(self, work: dist.Work) -> Transfer:
        """The library's threads move the bytes; they also note when a transfer ended.

        NCCL's transfers run on a stream of their group; only the GPU knows when they end.
        """
        if self._on_gpu:
            return Transfer(lambda: self._wait(work), lambda: None)
        moments: list[float] = []
        work.get_future().add_done_callback(lambda _: moments.append(time.perf_counter()))

        return Transfer(lambda: self._wait(work), lambda: moments[0] if moments else None)

    def _wait(self, work: dist.Work) -> None:
        """For NCCL the GPU waits, by an event, and the host goes on: with a timeout it would wait itself.

        A transfer that never ends is then the watchdog's of torch, which has the timeout of the group.
        """
        if self._on_gpu:
            work.wait()
        else:
            work.wait(timedelta(seconds=self.timeout))

    def progress(self) -> None:
        """The library's own threads do it."""

    def close(self) -> None:
        """Left to the end of the process: taking gloo apart can abort it."""

    def abort(self) -> None:
        """Nothing to tear down: the process ends, and peers see their connections close."""


class TorchWorld(TorchTransport):
    """All processes of the run, by the default group of torch.distributed, which is this object's own."""

    backend: ClassVar[str]

    def __init__(self, rank: int, size: int, timeout: float, rendezvous: str | None = None) -> None:
        """Join the others: through the file `rendezvous` for local ranks, else by `env://`."""
        limit = timedelta(seconds=timeout)
        try:
            store = _store(rank, size, rendezvous, limit)
            dist.init_process_group(self.backend, store=store, rank=rank, world_size=size, timeout=limit)
        except (RuntimeError, ValueError) as error:
            raise _cannot_meet(rank, rendezvous, error) from error
        super().__init__(range(size), timeout, None)
        self._meets_at_address = rendezvous is None

    def notes(self) -> StoreNotes | None:
        """Over a connection of its own to the store; not in a file, which would only grow."""
        if not self._meets_at_address:
            return None
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=self.timeout))
        return StoreNotes(_of_this_attempt(store))


class GlooTransport(TorchWorld):
    """gloo over TCP: any machine, CPU tensors."""

    backend = "gloo"


class NcclTransport(TorchWorld):
    """NCCL between GPUs (has never run: no GPU was at hand)."""

    backend = "nccl"


def _store(rank: int, size: int, rendezvous: str | None, limit: timedelta) -> dist.Store:
    """Where ranks meet. Attempts of an elastic launcher never read each other's addresses."""
    if rendezvous is not None:
        return dist.FileStore(str(Path(rendezvous)), size)
    store, _, _ = next(dist.rendezvous("env://", rank, size, timeout=limit))
    return _of_this_attempt(store)


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


def gloo_is_here() -> bool:
    """Whether this torch was built with gloo."""
    return dist.is_available() and dist.is_gloo_available()
