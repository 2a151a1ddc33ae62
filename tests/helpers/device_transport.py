"""A transport that moves tensors of the test device itself, as NCCL moves those of GPUs.

Beneath it is gloo. What it moves is no copy to the host: `tests.helpers.device.WAITS` does not see it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from sancus.comm.group import Group
from sancus.comm.torch_dist import TorchTransport
from sancus.comm.transport import Transfer
from tests.helpers.device import install, raw_of


class DeviceTransport(TorchTransport):
    """Messages must be on the device."""

    def __init__(self, size: int, timeout: float) -> None:
        super().__init__(range(size), timeout, None)
        self._device = install()
        self.in_order = True

    def broadcast(self, tensor: torch.Tensor, owner: int, *, background: bool) -> Transfer:
        return super().broadcast(raw_of(tensor), owner, background=background)

    def pass_on(
        self, receive: torch.Tensor | None, sender: int, send: torch.Tensor | None, receiver: int
    ) -> Transfer:
        calls = [] if receive is None else [dist.P2POp(dist.irecv, raw_of(receive), sender)]
        calls += [] if send is None else [dist.P2POp(dist.isend, raw_of(send), receiver)]
        for work in dist.batch_isend_irecv(calls):
            work.wait()  # gloo does not keep the order of what is received and then sent
        return Transfer(lambda: None, lambda: None)

    def all_to_all(
        self,
        send: torch.Tensor,
        send_counts: Sequence[int],
        receive: torch.Tensor,
        receive_counts: Sequence[int],
        *,
        background: bool,
    ) -> Transfer:
        counts = send_counts, raw_of(receive), receive_counts
        return super().all_to_all(raw_of(send), *counts, background=background)

    def all_gather(self, tensor: torch.Tensor, gathered: torch.Tensor) -> Transfer:
        return super().all_gather(raw_of(tensor), raw_of(gathered))


def on_the_device(group: Group) -> Group:
    """The same ranks, over this transport."""
    return Group(DeviceTransport(group.size, group.transport.timeout))
