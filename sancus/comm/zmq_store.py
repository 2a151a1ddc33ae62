"""The latest of everything between processes: a server thread at each owner, over ZeroMQ (extra `async`).

Every rank offers its own shelf (`sancus.comm.latest`) at a port of its own, and asks the others at theirs.
Keys of CURVE are made by every rank for this run; public keys and addresses are gathered once, over the
group. A server admits the keys of this run's ranks and no others, and a client talks to nobody who has not
the key that was gathered: so a stranger who reaches a port can neither read nor write, and what travels is
encrypted.

Clients never wait for an answer to `ask`: a peer that is slow, stopped or dead holds nobody up. There is at
most one question under way for each stream, so nothing piles up at either end.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from sancus.comm.errors import CommError, DisagreementError
from sancus.comm.group import Group
from sancus.comm.latest import OWNER, Answering, Parcel, Shelf
from sancus.comm.ledger import DIRECTIONS, PARAMETER, Ledger, Stream
from sancus.comm.records import gather_json
from sancus.comm.stamp import Stamp
from sancus.errors import UserError

if TYPE_CHECKING:
    import zmq

ASK, CALL = b"ask", b"call"  # kinds of questions
NOTHING = b"nothing"  # the answer where there is nothing newer
FAILED = b"failed"  # the answer to a call that the owner refused; then why
PLACE = struct.Struct("<5q")  # layer, side, owner, receiver, version
STOP = b"stop"
ZAP, ADMITTED, REFUSED = "inproc://zeromq.zap.01", (b"200", b"OK"), (b"400", b"not a rank of this run")


@dataclass(frozen=True)
class Address:
    """Where a rank's server is, and the key that it proves to have."""

    endpoint: str
    key: str  # public, as ZeroMQ writes it in 40 letters


def load_zmq() -> Any:
    """The library; a missing one, or one that cannot encrypt, is the user's to mend."""
    try:
        import zmq
    except ImportError:
        raise UserError(
            "--schedule async needs ZeroMQ between processes; pip install 'sancus[async]'"
        ) from None
    if not zmq.has("curve"):
        raise UserError("this pyzmq cannot encrypt (no CURVE); pip install 'sancus[async]'")
    return zmq


class ZmqStore:
    """One rank's store: its server thread, and its questions to the servers of others."""

    def __init__(self, group: Group, answering: Answering | None, shelf: Shelf | None = None) -> None:
        """All ranks of `group` call it together; `answering` is what rank 0 says to calls.

        `shelf` is that of a store before, where there was one.
        """
        self._zmq = load_zmq()
        self._rank, self._timeout = group.rank, group.transport.timeout
        self._context = self._zmq.Context()
        self.shelf = shelf or Shelf()
        public, secret = self._zmq.curve_keypair()
        host = own_host(group)
        self._server = _Server(self._context, (public, secret), host, self.shelf, answering)
        mine = Address(f"tcp://{host}:{self._server.port}", public.decode())
        self.addresses = [Address(*row) for row in gather_json(group, list(vars(mine).values()), _CPU)]
        self._server.admit({address.key.encode() for address in self.addresses})
        self._server.start()
        others = [rank for rank in range(group.size) if rank != group.rank]
        self._peers = {rank: self._connect(rank, public, secret) for rank in others}
        self._awaited: set[Stream] = set()
        self._calls = self._connect(OWNER, public, secret)
        group.all_gather(torch.zeros(1, dtype=torch.uint8))  # every server admits its callers by now

    def publish(self, stream: Stream, receiver: int, parcel: Parcel) -> None:
        """On the own shelf: whoever asks is answered by the server thread."""
        self.shelf.put(stream, receiver, parcel)

    def ask(self, stream: Stream, newer_than: int) -> None:
        """One question to the owner's server, unless one is under way."""
        if stream not in self._awaited:
            side = DIRECTIONS.index(stream.direction)
            place = PLACE.pack(stream.layer, side, stream.owner, self._rank, newer_than)
            try:
                self._peers[stream.owner].send_multipart([ASK, place], self._zmq.NOBLOCK)
            except self._zmq.Again:
                return  # nobody is there to be asked now
            self._awaited.add(stream)

    def arrived(self) -> list[tuple[Stream, Parcel]]:
        """Answers that are here."""
        found = []
        for owner, peer in self._peers.items():
            while peer.poll(0):
                place, content = peer.recv_multipart(copy=True)
                layer, side, _, _, version = PLACE.unpack(place)
                stream = Stream(layer, DIRECTIONS[side], owner)
                self._awaited.discard(stream)
                if content != NOTHING:
                    found.append((stream, Parcel(version, as_tensor(content))))
        return found

    def call(self, message: torch.Tensor) -> torch.Tensor:
        """Ask rank 0, and wait for its answer."""
        rank = struct.pack("<q", self._rank)
        self._calls.send_multipart([CALL, rank, as_buffer(message)])
        if self._rank != OWNER:
            self.shelf.tally.note(PARAMETER, OWNER, message.numel(), message.numel())
        deadline = time.monotonic() + self._timeout
        while not self._calls.poll(max(0, int((deadline - time.monotonic()) * 1000))):
            if time.monotonic() >= deadline:
                raise CommError(
                    f"rank {self._rank}: rank {OWNER}, which merges, did not answer "
                    f"within {self._timeout:g} seconds"
                )
        kind, content = self._calls.recv_multipart()
        if kind == FAILED:
            raise DisagreementError(content.decode())
        return as_tensor(content)

    def settle(self, ledger: Ledger, stamp: Stamp) -> None:
        """From the tally of the own shelf."""
        self.shelf.tally.settle(ledger, stamp)

    def close(self) -> None:
        """End the server thread; all ranks have agreed that nobody asks any more."""
        self._server.stop()
        for peer in (*self._peers.values(), self._calls):
            peer.close(linger=0)
        self._context.term()

    def _connect(self, rank: int, public: bytes, secret: bytes) -> zmq.Socket[bytes]:
        """Questions to one rank's server; to the own one inside the process."""
        peer = self._context.socket(self._zmq.DEALER)
        peer.linger = 0
        if rank == self._rank:
            peer.connect(_Server.INSIDE)
            return peer
        peer.curve_publickey, peer.curve_secretkey = public, secret
        peer.curve_serverkey = self.addresses[rank].key.encode()
        peer.connect(self.addresses[rank].endpoint)
        return peer


class _Server:
    """A thread that answers questions from a shelf, calls by a function, and who may ask at all."""

    INSIDE = "inproc://shelf"
    CONTROL = "inproc://control"

    def __init__(
        self,
        context: zmq.Context[Any],
        keys: tuple[bytes, bytes],
        host: str,
        shelf: Shelf,
        answering: Answering | None,
    ) -> None:
        zmq = load_zmq()
        self._shelf, self._answering = shelf, answering
        self._admitted: set[bytes] = set()
        self._zap = context.socket(zmq.REP)
        self._zap.bind(ZAP)
        self._questions = context.socket(zmq.ROUTER)
        self._questions.linger = 0
        self._questions.zap_domain = b"sancus"
        self._questions.curve_server = True
        self._questions.curve_publickey, self._questions.curve_secretkey = keys
        self.port = self._questions.bind_to_random_port(f"tcp://{host}", 1024, 65535, 1000)
        self._questions.curve_server = False
        self._questions.bind(self.INSIDE)
        self._stopping = context.socket(zmq.PAIR)
        self._stopping.bind(self.CONTROL)
        self._stopped = context.socket(zmq.PAIR)
        self._stopped.connect(self.CONTROL)
        self._poller = zmq.Poller()
        for one in (self._zap, self._questions, self._stopped):
            self._poller.register(one, zmq.POLLIN)
        self._thread = threading.Thread(target=self._serve, name="store", daemon=True)

    def admit(self, keys: set[bytes]) -> None:
        """Whose questions are answered: who has one of these public keys."""
        from zmq.utils import z85

        self._admitted = {z85.decode(key) for key in keys}

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.send(STOP)
        self._thread.join()
        for one in (self._zap, self._questions, self._stopping, self._stopped):
            one.close(linger=0)

    def _serve(self) -> None:
        while True:
            ready = dict(self._poller.poll())
            if self._stopped in ready:
                return
            if self._zap in ready:
                self._decide_who_may_ask()
            if self._questions in ready:
                self._answer(self._questions.recv_multipart())

    def _decide_who_may_ask(self) -> None:
        """ZeroMQ asks about every connection, with its public key (ZAP, rfc.zeromq.org/spec/27)."""
        version, request, _, _, _, mechanism, *credentials = self._zap.recv_multipart()
        known = mechanism == b"CURVE" and credentials[:1] and credentials[0] in self._admitted
        status, text = ADMITTED if known else REFUSED
        self._zap.send_multipart([version, request, status, text, b"", b""])

    def _answer(self, frames: list[bytes]) -> None:
        """One question; what is none gets no answer."""
        caller, kind, *rest = frames
        if kind == ASK and len(rest) == 1 and len(rest[0]) == PLACE.size:
            layer, side, owner, receiver, newer_than = PLACE.unpack(rest[0])
            stream = Stream(layer, DIRECTIONS[side], owner)
            parcel = self._shelf.get(stream, receiver, newer_than)
            if parcel is None:
                self._questions.send_multipart([caller, rest[0], NOTHING])
            else:
                place = PLACE.pack(layer, side, owner, receiver, parcel.version)
                self._questions.send_multipart([caller, place, as_buffer(parcel.message)])
        elif kind == CALL and len(rest) == 2 and self._answering is not None:
            (rank,) = struct.unpack("<q", rest[0])
            try:
                answer = self._answering(rank, as_tensor(rest[1]))
            except Exception as error:  # the caller hears of it, and stops; the thread serves the others
                self._questions.send_multipart([caller, FAILED, str(error).encode()])
                return
            if rank != OWNER:
                self._shelf.tally.note(PARAMETER, rank, answer.numel(), answer.numel())
            self._questions.send_multipart([caller, CALL, as_buffer(answer)])


_CPU = torch.device("cpu")


def own_host(group: Group) -> str:
    """The address at which the other ranks reach this one: inside the host where all are on one."""
    names = gather_json(group, socket.gethostname(), _CPU)
    if len(set(names)) == 1:
        return "127.0.0.1"
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    return address_of(interface) if interface else socket.gethostbyname(socket.gethostname())


def address_of(interface: str) -> str:
    """The IPv4 address of a network interface (Linux)."""
    import fcntl

    siocgifaddr = 0x8915
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket.fileno(), siocgifaddr, struct.pack("256s", interface.encode()))
        except OSError as error:
            raise UserError(f"GLOO_SOCKET_IFNAME={interface}: no address there ({error.strerror})") from error
    return socket.inet_ntoa(answer[20:24])


def as_buffer(message: torch.Tensor) -> memoryview:
    """The bytes of a message, without a copy."""
    return memoryview(message.contiguous().numpy().data)


def as_tensor(content: bytes) -> torch.Tensor:
    """Bytes as a message `[bytes]` uint8; memory of its own, at an address that is fit for numbers."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).clone()
