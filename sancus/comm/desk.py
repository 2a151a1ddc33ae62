"""What all groups of one process share: one ledger, observer, clock, stopwatch, stamp, one list of checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from sancus.comm.checks import Checks
from sancus.comm.clock import Clock
from sancus.comm.ledger import Ledger
from sancus.comm.observer import Observer
from sancus.comm.stamp import CHECKSUM, Stamp
from sancus.comm.stopwatch import Stopwatch

Item = TypeVar("Item")


@dataclass
class Desk:
    """The books of a process; whoever replaces an item replaces it for all groups."""

    ledger: Ledger = field(default_factory=Ledger)
    observer: Observer = field(default_factory=Observer)
    clock: Clock = field(default_factory=Clock)
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    checks: Checks = field(default_factory=Checks)  # that a device has yet to answer
    stamp: Stamp = CHECKSUM  # of every message from now on; a tag where ranks share a secret
    number: int = 0  # of the last collective of all processes: how far this one is, for its observer


class OnDesk(Generic[Item]):
    """An attribute of a group that is the item of the same name on the group's `desk`."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, group: Any, owner: type) -> Item:
        item: Item = getattr(group.desk, self._name)
        return item

    def __set__(self, group: Any, item: Item) -> None:
        setattr(group.desk, self._name, item)
