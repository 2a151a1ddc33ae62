"""The store of ranks that wait for nobody: the latest version alone, and for nobody but its receivers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import zmq
from zmq.utils.monitor import recv_monitor_message

from sancus.comm.errors import CommError, DisagreementError
from sancus.comm.group import Group
from sancus.comm.header import Payload, blank, seal
from sancus.comm.latest import OWNER, LatestStore, MemoryStore, Parcel, Shelf
from sancus.comm.ledger import Ledger, Stream
from sancus.comm.stamp import CHECKSUM
from sancus.comm.zmq_store import ASK, CALL, PLACE, ZmqStore, address_of
from sancus.errors import UserError
from tests.helpers.threads import results, run_threads

RANKS = 3
CPU = torch.device("cpu")
REFUSED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
    zmq.EVENT_DISCONNECTED,
)
UNDER_WAY = (zmq.EVENT_CONNECTED, zmq.EVENT_CONNECT_DELAYED, zmq.EVENT_CONNECT_RETRIED)


def echo(rank: int, message: torch.Tensor) -> torch.Tensor:
    return torch.cat([message, torch.tensor([rank], dtype=torch.uint8)])


def refuse(rank: int, message: torch.Tensor) -> torch.Tensor:
    raise ValueError(f"what rank {rank} sent is damaged")


def numbers(value: int, size: int = 40) -> torch.Tensor:
    return torch.full((size,), value, dtype=torch.uint8)


def take(store: LatestStore, stream: Stream, newer_than: int) -> Parcel:
    """Ask until there is something."""
    while True:
        store.ask(stream, newer_than)
        for found, parcel in store.arrived():
            assert found == stream
            return parcel


def between_threads(function: Callable[[LatestStore, Group], Any], answering: Any = echo) -> list[Any]:
    """`function` on every rank, over ZeroMQ; the stores are closed when all are done."""

    def run(group: Group) -> Any:
        store = ZmqStore(group, answering if group.rank == OWNER else None)
        try:
            return function(store, group)
        finally:
            group.all_gather(torch.zeros(1))
            store.close()

    return run_threads(RANKS, run)


def in_memory(function: Callable[[LatestStore, Group], Any], answering: Any = echo) -> list[Any]:
    shelves = {rank: Shelf() for rank in range(RANKS)}
    return run_threads(RANKS, lambda group: function(MemoryStore(group.rank, shelves, answering), group))


KINDS = pytest.mark.parametrize("ranks_with", [in_memory, between_threads])


@KINDS
def test_the_latest_version_is_all_there_is(ranks_with: Callable[..., list[Any]]) -> None:
    def run(store: LatestStore, group: Group) -> list[tuple[int, int]]:
        stream, receiver = Stream(1, "forward", group.rank), (group.rank + 1) % RANKS
        for version in range(1, 9):
            store.publish(stream, receiver, Parcel(version, numbers(10 * group.rank + version)))
        group.all_gather(torch.zeros(1))
        other = Stream(1, "forward", (group.rank - 1) % RANKS)
        first = take(store, other, 3)
        group.all_gather(torch.zeros(1))
        store.publish(stream, receiver, Parcel(20, numbers(99)))
        second = take(store, other, first.version)
        return [(parcel.version, int(parcel.message[0])) for parcel in (first, second)]

    found = results(ranks_with(run))
    assert found == [[(8, 10 * ((rank - 1) % RANKS) + 8), (20, 99)] for rank in range(RANKS)]


@KINDS
def test_calls_are_answered_and_bytes_are_counted(ranks_with: Callable[..., list[Any]]) -> None:
    def run(store: LatestStore, group: Group) -> tuple[list[int], dict[str, int]]:
        answer = store.call(numbers(7, 100))
        group.all_gather(torch.zeros(1))
        ledger = Ledger()
        store.settle(ledger, CHECKSUM)
        return answer[[0, -1]].tolist(), {"parameter": ledger.wire_of("parameter")}

    for rank, (answer, bytes_of) in enumerate(results(ranks_with(run))):
        assert answer == [7, rank]
        header = 64  # bytes of each message are agreement
        assert bytes_of["parameter"] == (2 * (101 - header) if rank == OWNER else 100 - header)


@KINDS
def test_versions_never_go_back(ranks_with: Callable[..., list[Any]]) -> None:
    def run(store: LatestStore, group: Group) -> None:
        stream = Stream(0, "forward", group.rank)
        store.publish(stream, 0, Parcel(5, numbers(1)))
        with pytest.raises(AssertionError, match="never go back"):
            store.publish(stream, 0, Parcel(5, numbers(2)))

    results(ranks_with(run))


def test_a_reader_that_is_stopped_costs_one_message() -> None:
    """5000 versions for a reader that asked, and never looks: neither end piles up."""

    def run(store: ZmqStore, group: Group) -> int:
        if group.rank == 1:
            for _ in range(5000):
                store.ask(Stream(1, "forward", 0), 0)
        if group.rank == 0:
            for version in range(1, 5001):
                store.publish(Stream(1, "forward", 0), 1, Parcel(version, numbers(version % 251, 1000)))
        group.all_gather(torch.zeros(1))
        return store.shelf.nbytes + len(store._awaited)

    assert results(between_threads(run)) == [1000, 1, 0]


def test_a_call_that_is_refused_is_an_error_of_the_caller_alone() -> None:
    def run(store: LatestStore, group: Group) -> str:
        with pytest.raises(DisagreementError) as caught:
            store.call(numbers(1))
        return str(caught.value)

    told = results(between_threads(run, refuse))
    assert told == [f"what rank {rank} sent is damaged" for rank in range(RANKS)]


def test_a_call_that_nobody_answers_ends() -> None:
    def run(store: ZmqStore, group: Group) -> None:
        store._timeout = 0.05
        with pytest.raises(CommError, match="rank 0, which merges, did not answer within"):
            store.call(numbers(1))

    results(between_threads(run, None))


def test_a_payload_that_was_changed_on_its_way_is_refused() -> None:
    stream, wire = Stream(2, "forward", 1), torch.arange(12.0).view(4, 3)
    header = Payload(8, stream, 7, "latest", CHECKSUM).header(wire, 1, 0)
    message = seal([wire], [header], CPU)
    for place in (0, 30, len(message) - 1):
        torn = message.clone()
        torn[place] += 1
        with pytest.raises(DisagreementError, match="the payload from rank 1"):
            header.check(torn, 0)
    assert len(blank([header], CPU)) == len(message)


@pytest.mark.parametrize("keys", ["none", "own"])
def test_a_stranger_can_neither_read_nor_write(keys: str) -> None:
    """Who has not a key of this run is refused at the handshake, also when it knows the server's."""
    heard: list[int] = []

    def answering(rank: int, message: torch.Tensor) -> torch.Tensor:
        heard.append(int(message[0]))
        return message

    def run(store: ZmqStore, group: Group) -> list[int]:
        if group.rank == 1:
            return []
        store.publish(Stream(0, "forward", group.rank), 1, Parcel(1, numbers(5)))
        store.call(numbers(1))
        if group.rank == 2:
            return []
        return _events_of_a_stranger(store, keys)

    events = results(between_threads(run, answering))[0]
    assert events[-1] in REFUSED and zmq.EVENT_HANDSHAKE_SUCCEEDED not in events
    assert set(heard) == {1}  # the stranger's 66 was never heard


def _events_of_a_stranger(store: ZmqStore, keys: str) -> list[int]:
    """What happens to a connection from outside, until it is refused."""
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.linger = 0
    if keys == "own":
        stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
        stranger.curve_serverkey = store.addresses[0].key.encode()
    monitor, events = stranger.get_monitor_socket(), []
    stranger.connect(store.addresses[0].endpoint)
    stranger.send_multipart([ASK, PLACE.pack(0, 0, 0, 1, -1)])
    stranger.send_multipart([CALL, bytes(8), bytes([66])])
    while not events or events[-1] in UNDER_WAY:
        events.append(recv_monitor_message(monitor)["event"])
    assert not stranger.poll(0)
    context.destroy(linger=0)
    return events


def test_nonsense_leaves_the_server_alone() -> None:
    """A rank whose memory went wrong sends what is no question: others are served as before."""

    def run(store: ZmqStore, group: Group) -> int:
        if group.rank == 1:
            for frames in ([b""], [ASK, b"short"], [CALL], [b"what", b"is", b"this"]):
                store._calls.send_multipart(frames)
        group.all_gather(torch.zeros(1))
        return int(store.call(numbers(3))[0])

    assert results(between_threads(run)) == [3] * RANKS


def test_the_address_of_an_interface() -> None:
    assert address_of("lo") == "127.0.0.1"
    with pytest.raises(UserError, match="GLOO_SOCKET_IFNAME=nosuch0: no address there"):
        address_of("nosuch0")


def test_no_thread_is_left() -> None:
    between_threads(lambda store, group: None)
    assert not [thread for thread in threading.enumerate() if thread.name == "store"]
