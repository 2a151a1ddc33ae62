"""The first words of ranks that share a secret: they make the key of this run, and name who has another.

Every rank gathers a number that it drew for this run; the key is made of all of them and the secret. A second
gather shows that all have the same key, without showing it. From then on every message has a tag under that
key (`sancus.comm.stamp`). The first gather has the form of the one by which ranks without a secret compare
their settings, so that a rank without one is met here, and named on all ranks, instead of waited for.
"""

from __future__ import annotations

import hashlib
import os

import torch

from sancus.comm.group import Group
from sancus.comm.secret import ADVICE
from sancus.comm.stamp import Tag
from sancus.errors import UserError

GREETING = b"secret"  # begins what is gathered by a rank that has one
GATHERED = 16  # bytes: a greeting and a number, or a digest of settings


def share_key(group: Group, secret: bytes, device: torch.device | None = None) -> None:
    """Make the key of this run; all ranks call it, before anything else, and stop where one has another."""
    drawn = GREETING + os.urandom(GATHERED - len(GREETING))
    everyone = _gather(group, drawn, device)
    check_greetings(everyone)
    master = hashlib.blake2b(secret, digest_size=32, person=b"sancus secret").digest()
    key = hashlib.blake2b(everyone, key=master, digest_size=32, person=b"sancus run").digest()
    shown = hashlib.blake2b(b"", key=key, digest_size=GATHERED, person=b"sancus hello").digest()
    answers = _rows(_gather(group, shown, device))
    for rank, answer in enumerate(answers):
        if answer != answers[0]:
            raise UserError(f"rank {rank} has another secret than rank 0; {ADVICE}")
    group.desk.stamp = Tag(key)


def check_greetings(everyone: bytes) -> None:
    """Of the first gather of a run `[p, GATHERED]`: either all ranks have a secret, or none has."""
    having = [row.startswith(GREETING) for row in _rows(everyone)]
    if any(having) and not all(having):
        without, one = having.index(False), having.index(True)
        raise UserError(f"rank {without} has no secret, and rank {one} has one; {ADVICE}")


def _gather(group: Group, mine: bytes, device: torch.device | None) -> bytes:
    tensor = torch.frombuffer(bytearray(mine), dtype=torch.uint8).to(device or group.transport.device)
    return group.all_gather(tensor).cpu().numpy().tobytes()


def _rows(everyone: bytes) -> list[bytes]:
    return [everyone[start : start + GATHERED] for start in range(0, len(everyone), GATHERED)]
