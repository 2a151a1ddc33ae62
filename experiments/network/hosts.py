"""Hosts on a network: anonymous namespaces, each with one link of a given rate to one switch.

    with Network(4, "100mbit") as network:
        subprocess.run(network.hosts[0].command(["ping", "-c", "1", network.hosts[1].address]))

A host is a process that does nothing but hold namespaces: network, processes, host name. Nothing has a name
on the machine itself, so nothing can clash, and nothing is left: the holders die with the process that made
them, however that ends; the kernel then kills all that runs in their namespaces, and removes the links.

Every link is full duplex. Its rate is kept by a token bucket on both ends: the host's, for what it sends, and
the switch's, for what it receives.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from sancus.errors import UserError
from sancus.launch.process import follow_parent

SYSTEM_PATH = "/usr/sbin:/sbin"  # where `tc` is; not every shell looks there
INTERFACE = "eth0"
SWITCH = "switch"
HEAD_ADDRESS = "10.77.255.1"
LEAST_BURST = 1 << 17  # bytes; one packet of the kernel's segmentation offload is up to 64 KiB
BURST_SECONDS = 1e-3
QUEUE_SECONDS = 0.2  # what a full queue takes to drain, as in a switch with large buffers
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
START_SECONDS = 20.0
ISOLATED = ("--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")


def bits_per_second(rate: str) -> float:
    """A rate such as `100mbit` or `2.5gbit` as a number."""
    text = rate.lower().removesuffix("/s")
    for unit, scale in UNITS.items():
        number = text.removesuffix(unit)
        try:
            if number != text and float(number) > 0:
                return float(number) * scale
        except ValueError:
            break
    raise UserError(f"link rate {rate!r}: give a number and one of {', '.join(UNITS)}, e.g. 100mbit")


@dataclass(frozen=True)
class Host:
    """One machine of the network."""

    name: str
    holder: int  # the process whose namespaces these are
    address: str

    def command(self, command: Sequence[str]) -> list[str]:
        """A command line that runs `command` on this host."""
        return [*self._enter("--net", "--uts", "--pid", "--mount"), *command]

    def on_its_network(self, command: Sequence[str]) -> list[str]:
        """A command line that has this host's network, but sees all processes: for launchers."""
        return [*self._enter("--net"), *command]

    def _enter(self, *namespaces: str) -> list[str]:
        return ["nsenter", "--target", str(self.holder), *namespaces, f"--wd={Path.cwd()}", "--"]

    def sent_bytes(self) -> int:
        """Bytes that this host's link has carried away so far."""
        return sent_bytes(Path(f"/proc/{self.holder}/net/dev"))


def sent_bytes(table: Path = Path("/proc/self/net/dev")) -> int:
    """The kernel's count of bytes sent over the link, of the network that a process is on."""
    for line in table.read_text().splitlines():
        name, _, figures = line.partition(":")
        if name.strip() == INTERFACE:
            return int(figures.split()[8])
    raise AssertionError(f"no {INTERFACE} in {table}: not on a host of this network")


class Network:
    """Hosts `0 … size-1` around one switch, while the context is open."""

    def __init__(self, size: int, rate: str) -> None:
        bits_per_second(rate)
        self.size = size
        self.rate = rate
        self.hosts: list[Host] = []
        self.head: Host | None = None  # beside the switch, no rank's link: for a launcher
        self._holders: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the hosts and everything that runs on them."""
        for holder in self._holders:
            holder.kill()
        for holder in self._holders:
            holder.wait()
        self._holders.clear()
        self.hosts.clear()

    def _build(self) -> None:
        self.head = Host(SWITCH, self._hold(), HEAD_ADDRESS)
        enter = self.head.on_its_network
        _run(
            enter,
            "ip link set lo up",
            f"ip link add {SWITCH} type bridge mcast_snooping 0",
            f"ip address add {HEAD_ADDRESS}/16 dev {SWITCH}",
            f"ip link set {SWITCH} up",
        )
        for number in range(self.size):
            host = Host(f"host{number}", self._hold(), f"10.77.{number // 250}.{number % 250 + 1}")
            port = f"port{number}"
            _run(
                enter,
                f"ip link add {port} type veth peer name {INTERFACE} netns {host.holder}",
                f"ip link set {port} master {SWITCH} up",
                self._bucket(port),
            )
            _run(
                host.command,
                f"hostname {host.name}",
                "ip link set lo up",
                f"ip address add {host.address}/16 dev {INTERFACE}",
                f"ip link set {INTERFACE} up",
                self._bucket(INTERFACE),
            )
            self.hosts.append(host)

    def _bucket(self, interface: str) -> str:
        rate = bits_per_second(self.rate)
        burst = max(LEAST_BURST, int(rate / 8 * BURST_SECONDS))
        queue = max(4 * LEAST_BURST, int(rate / 8 * QUEUE_SECONDS))
        return f"tc qdisc add dev {interface} root tbf rate {rate:.0f}bit burst {burst} limit {queue}"

    def _hold(self) -> int:
        """Start a process in namespaces of its own, and return its process id as this machine sees it."""
        holder = subprocess.Popen(
            ["unshare", *ISOLATED, "sleep", "infinity"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=follow_parent,
        )
        self._holders.append(holder)
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and holder.poll() is None:
            for child in children.read_text().split():
                if Path(f"/proc/{child}/comm").read_text().strip() == "sleep":
                    return int(child)
            time.sleep(0.005)
        holder.kill()
        assert holder.stderr is not None
        reason = holder.stderr.read().decode().strip() or "a namespace was not ready in time"
        raise UserError(f"no network of namespaces here: {reason}; it needs Linux and the rights of root")


def unavailable() -> str | None:
    """Why there can be no network of namespaces here; None where there can."""
    try:
        with Network(1, "1gbit"):
            return None
    except (UserError, OSError) as error:
        return str(error)


def _run(enter: Callable[[Sequence[str]], list[str]], *commands: str) -> None:
    wider = os.environ | {"PATH": f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_PATH}"}
    for command in commands:
        process = subprocess.run(enter(command.split()), env=wider, capture_output=True, check=False)
        if process.returncode:
            reason = process.stderr.decode().strip().splitlines()
            raise UserError(
                f"no network of namespaces here: {command!r} failed: {reason[-1] if reason else ''}; "
                "it needs root, iproute2 and the kernel's veth, bridge and tbf"
            )
