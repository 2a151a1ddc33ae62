"""A real Jupyter kernel: cells run in it, and what they show."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.helpers import command

Message = dict[str, Any]


@contextlib.contextmanager
def kernel(folder: Path) -> Iterator[tuple[Any, Any]]:
    """A kernel that works in `folder`: its manager, and a client; ended at the end."""
    from jupyter_client.manager import KernelManager

    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(env=command.environment(), cwd=str(folder))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=command.TIMEOUT)
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def run_cell(client: Any, code: str) -> list[Message]:
    """Run a cell; its messages until the kernel is idle."""
    client.execute(code)
    return read_cell(client)


def read_cell(client: Any) -> list[Message]:
    """The messages of the cell that runs, until the kernel is idle."""
    messages: list[Message] = []
    while True:
        try:
            message = client.get_iopub_msg(timeout=command.TIMEOUT)
        except queue.Empty:
            raise AssertionError(f"the kernel is silent after {messages}") from None
        messages.append(message)
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            return messages


def contents(messages: list[Message], kind: str) -> list[Any]:
    """The contents of all messages of a kind."""
    return [message["content"] for message in messages if message["msg_type"] == kind]
