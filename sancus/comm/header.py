"""The header of a message: what it says of itself, checked before a byte of it is used.

If one rank leaves out a collective, or makes one too many, libraries may hand the others bytes of another
one, with no error. So every message travels behind a few 64-bit words, the last of them a checksum of its
content. A receiver knows what it expects; anything else is a `DisagreementError` that names the sender.
There are two kinds, with the same verbs `seal`, `blank` and `unseal`:

- a `Plain` message, of a collective that any caller makes (40 bytes): its kind (operation and dtype), the
  collective's running number, what it is for (purpose, layer, direction, epoch), and its shape;
- a `Payload` (64 bytes): sequence, owner, layer and direction, version, rows, columns, element size.

Headers are counted as agreement. The last words are a stamp (`sancus.comm.stamp`): a checksum by xxhash, at
memory speed, or a tag of 24 bytes more, which nobody can make who lacks the secret of the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sancus.comm.checks import Checks
from sancus.comm.clock import Clock
from sancus.comm.errors import DisagreementError
from sancus.comm.ledger import DIRECTIONS, PURPOSES, Entry, Stream
from sancus.comm.stamp import CHECKSUM, EVERYONE, Route, Stamp, Word

WORD = 8  # bytes
PLAIN_WORDS = ("kind", "number", "label", "shape", "checksum")
PAYLOAD_WORDS = ("sequence", "owner", "stream", "version", "rows", "columns", "element size", "checksum")
PLAIN_HEADER = WORD * len(PLAIN_WORDS)
PAYLOAD_HEADER = WORD * len(PAYLOAD_WORDS)
OPERATIONS = ("broadcast", "all-to-all", "all-gather", "send")
DTYPES = (
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.bool,
)


@dataclass(frozen=True)
class Header:
    """One message: the words that it must begin with, and how long its content is.

    In lists of messages, one for each rank, None stands for no message at all.
    """

    title: str  # the message in an error's sentence
    names: tuple[str, ...]  # of the words, the stamp's last
    words: tuple[int, ...]  # their values, without the stamp
    content: int  # bytes
    route: Route
    stamp: Stamp

    @property
    def overhead(self) -> int:
        """Bytes before the content."""
        return WORD * len(self.names)

    def stamped(self, content: torch.Tensor) -> list[Word]:
        """All words, with the stamp of this content."""
        return [*self.words, *self.stamp.words(self.route, self.words, content)]

    def check(self, message: torch.Tensor, rank: int, checks: Checks | None = None) -> torch.Tensor:
        """The content of a message, as bytes of its own memory, if the message is the one described here.

        One in the memory of a device is compared there, and `checks` hears of the outcome, to raise it later.
        """
        content = message[self.overhead :]
        words = message[: self.overhead].clone().view(torch.int64)
        expected = self.stamped(content)
        if message.device.type == "cpu" or checks is None:
            self._compare(words, expected, rank)
        else:
            wanted = _tensor_of(expected, message.device)
            checks.add((words != wanted).any(), lambda: self._compare(words, wanted.tolist(), rank))
        return content

    def _compare(self, words: torch.Tensor, expected: Sequence[Word], rank: int) -> None:
        """Raise where the words that came are not the expected ones."""
        for name, got, wanted in zip(self.names, words.tolist(), map(int, expected), strict=True):
            if got == wanted:
                continue
            if name in self.stamp.names and self.stamp.wrong:  # a right tag is for nobody to read
                raise DisagreementError(f"rank {rank}: {self.title} {self.stamp.wrong}")
            raise DisagreementError(
                f"rank {rank}: {self.title} has {name} {got}, not {wanted}: the ranks disagree"
            )


@dataclass(frozen=True)
class Plain:
    """What the messages of one collective have in common."""

    operation: str
    number: int  # of the collective, from 1, so that zeros are no header
    label: int  # what it is for, see `label_of`
    dtype: torch.dtype
    shape: tuple[int, ...]  # of a row
    group: str = ""
    stamp: Stamp = CHECKSUM

    @property
    def overhead(self) -> int:
        """Bytes of a header."""
        return overhead(PLAIN_WORDS, self.stamp)

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape) * self.dtype.itemsize

    def header(self, rows: int, sender: int, receiver: int = EVERYONE) -> Header | None:
        """That of a message of so many rows; None for no rows."""
        if not rows:
            return None
        kind = OPERATIONS.index(self.operation) * len(DTYPES) + DTYPES.index(self.dtype)
        words = (kind, self.number, self.label, hash((rows, *self.shape)))
        title = f"{self.operation} {self.number}: what came from rank {sender}"
        route, names = (self.group, sender, receiver), _names(PLAIN_WORDS, self.stamp)
        return Header(title, names, words, rows * self.width, route, self.stamp)


@dataclass(frozen=True)
class Payload:
    """What the payloads of one owner at one use of its stream have in common."""

    sequence: int  # of the use, from 1, so that zeros are no header
    stream: Stream
    version: int
    group: str = ""
    stamp: Stamp = CHECKSUM

    def header(self, wire: torch.Tensor, sender: int, receiver: int = EVERYONE) -> Header | None:
        """That of a message whose content is like `wire [rows, w]`; None for no rows."""
        if not len(wire):
            return None
        stream = self.stream
        place = stream.layer * len(DIRECTIONS) + DIRECTIONS.index(stream.direction)
        shape = (wire.shape[0], wire.shape[1], wire.element_size())
        title = (
            f"the payload from rank {sender} ({stream.direction}, layer {stream.layer}, epoch {self.version})"
        )
        words = (self.sequence, stream.owner, place, self.version, *shape)
        route, names = (self.group, sender, receiver), _names(PAYLOAD_WORDS, self.stamp)
        return Header(title, names, words, wire.nbytes, route, self.stamp)


def overhead(words: Sequence[str], stamp: Stamp) -> int:
    """Bytes of a header with these words, of which the last stands for the stamp."""
    return WORD * (len(words) - 1 + len(stamp.names))


def _names(words: Sequence[str], stamp: Stamp) -> tuple[str, ...]:
    return (*words[:-1], *stamp.names)


def size_of(header: Header | None) -> int:
    """Bytes of a message, header and content."""
    return 0 if header is None else header.overhead + header.content


def seal(
    contents: Sequence[torch.Tensor], headers: Sequence[Header | None], device: torch.device
) -> torch.Tensor:
    """Messages one after another, as bytes: each content, all of one dtype, behind its header."""
    sealed = _room(headers, device)
    for content, header, message in zip(contents, headers, messages(sealed, headers), strict=True):
        if header is not None:
            room = message[header.overhead :]
            room.view(content.dtype).view(content.shape).copy_(content.detach())
            words = _tensor_of(header.stamped(room), device)
            message[: header.overhead] = words.view(torch.uint8)
    return sealed


def blank(headers: Sequence[Header | None], device: torch.device) -> torch.Tensor:
    """Room to receive such messages into; headers are zeroed, so that a message that never came is none."""
    room = _room(headers, device)
    for header, message in zip(headers, messages(room, headers), strict=True):
        if header is not None:
            message[: header.overhead] = 0
    return room


def unseal(
    sealed: torch.Tensor,
    headers: Sequence[Header | None],
    out: torch.Tensor,
    rank: int,
    checks: Checks | None = None,
) -> None:
    """Check every message, and copy the contents one after another to a contiguous `out`.

    What the host will read is checked at once; for the rest see `Header.check`.
    """
    room, start = as_bytes(out), 0
    if out.device.type == "cpu":
        sealed = sealed.cpu()
    for header, message in zip(headers, messages(sealed, headers), strict=True):
        if header is not None:
            room[start : start + header.content] = header.check(message, rank, checks)
            start += header.content


def _tensor_of(words: Sequence[Word], device: torch.device) -> torch.Tensor:
    """Words `[k]` int64; those that only the device knows stay there."""
    if device.type == "cpu":
        return torch.tensor(words, dtype=torch.int64)
    known = [0 if isinstance(word, torch.Tensor) else word for word in words]
    there = torch.tensor(known, dtype=torch.int64).to(device, non_blocking=True)
    for place, word in enumerate(words):
        if isinstance(word, torch.Tensor):
            there[place] = word
    return there


def _room(headers: Sequence[Header | None], device: torch.device) -> torch.Tensor:
    """Memory for such messages; on the host beside a GPU pinned, so that the GPU copies by itself."""
    pinned = device.type == "cpu" and torch.cuda.is_initialized()
    return torch.empty(sum(map(size_of, headers)), dtype=torch.uint8, device=device, pin_memory=pinned)


def messages(sealed: torch.Tensor, headers: Sequence[Header | None]) -> Sequence[torch.Tensor]:
    """The messages of a buffer that holds one for each header, in its own memory."""
    return sealed.split([size_of(header) for header in headers])


def label_of(entry: Entry, clock: Clock) -> int:
    """A number for what a message is for, and when; of a payload whose rows they are is left out.

    What stages hand on is of a chunk, which both ends must mean.
    """
    stream = entry.stream
    place: tuple[int, ...] = (-1, -1)
    if stream is not None:
        place = (stream.layer, DIRECTIONS.index(stream.direction))
        place += (stream.owner,) if entry.purpose == "boundary" else ()
    return hash((PURPOSES.index(entry.purpose), *place, clock.epoch, clock.step, clock.exact))


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's own memory as bytes."""
    if not tensor.numel():  # a mapped array without entries has strides that cannot be viewed
        return torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return tensor.detach().view(-1).view(torch.uint8)
