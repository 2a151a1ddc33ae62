"""A secret that ranks share: who lacks it is named, what was changed or sent again is refused."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sancus.comm.errors import DisagreementError
from sancus.comm.group import Group
from sancus.comm.header import Payload, Plain, blank, seal, unseal
from sancus.comm.hello import GATHERED, check_greetings, share_key
from sancus.comm.ledger import AGREEMENT, Entry, Stream
from sancus.comm.secret import LEAST, SECRET, SECRET_FILE, read_secret
from sancus.comm.stamp import Tag
from sancus.comm.transport import Transfer
from sancus.config.settings import Config, FactorSettings
from sancus.errors import UserError
from sancus.models.build import make_model
from sancus.models.settings import ModelSettings
from sancus.training.settings import TrainingSettings
from tests.helpers.accountant import CountingTransport
from tests.helpers.command import environment
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.threads import Board, open_own, results, run_threads, thread_trainer

CPU = torch.device("cpu")
ONE, OTHER = b"correct horse battery staple", b"incorrect horse battery staple"
RANKS = 3
MORE = 24  # bytes of a header, with a secret


# Where it comes from.


def test_where_a_secret_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"  " + ONE + b"\n")
    assert read_secret({}) is None
    assert read_secret({SECRET: ONE.decode()}) == read_secret({SECRET_FILE: str(file)}) == ONE


@pytest.mark.parametrize(
    "given, says",
    [
        ({SECRET: "tiny-one"}, rf"the secret of {SECRET} has 8 bytes; {LEAST} to \d+ are allowed"),
        ({SECRET: ""}, "has 0 bytes"),
        ({SECRET: "x" * 5000}, "has 5000 bytes"),
        ({SECRET_FILE: "/nowhere/at/all"}, r"cannot be read \(No such file"),
        ({SECRET_FILE: "/dev"}, "is no file"),
        ({SECRET_FILE: "/dev/zero"}, "is no file"),
        ({SECRET: ONE.decode(), SECRET_FILE: "/dev/null"}, "are both set; unset one"),
    ],
)
def test_a_secret_that_cannot_be_used(given: dict[str, str], says: str) -> None:
    with pytest.raises(UserError, match=says) as error:
        read_secret(given)
    assert "\n" not in str(error.value)
    assert not any(secret and secret in str(error.value) for secret in [given.get(SECRET)])


# The first words.


def greet(secrets: list[bytes | None]) -> list[Any]:
    """What happens to ranks with these secrets; one without compares settings, as a run does first."""

    def rank(group: Group) -> bytes:
        secret = secrets[group.rank]
        if secret is None:
            check_greetings(group.all_gather(torch.zeros(GATHERED, dtype=torch.uint8)).numpy().tobytes())
            return b""
        share_key(group, secret, CPU)
        assert isinstance(group.desk.stamp, Tag)
        return group.desk.stamp.key

    return run_threads(len(secrets), rank)


def test_ranks_with_one_secret_make_one_key_and_another_for_every_run() -> None:
    first, second = results(greet([ONE] * RANKS)), results(greet([ONE] * RANKS))
    assert len(set(first)) == len(set(second)) == 1 and first != second
    assert results(greet([None] * RANKS)) == [b""] * RANKS


@pytest.mark.parametrize(
    "secrets, says",
    [
        ([ONE, OTHER, ONE], f"rank 1 has another secret than rank 0; give all ranks the same {SECRET}"),
        ([ONE, OTHER, OTHER], "rank 1 has another secret than rank 0"),
        ([ONE, ONE, None], "rank 2 has no secret, and rank 0 has one"),
        ([None, ONE, None], "rank 0 has no secret, and rank 1 has one"),
    ],
)
def test_a_rank_with_another_secret_is_named_on_all(secrets: list[bytes | None], says: str) -> None:
    errors = greet(secrets)
    assert all(isinstance(error, UserError) and says in str(error) for error in errors), errors
    assert len(set(map(str, errors))) == 1 and b"horse" not in str(errors).encode()


# What is sealed.


Replace = Callable[[int, int, bytes], bytes]  # of what a rank sends in its gather number …


class Tapped(CountingTransport):
    """Somebody on the line: what each rank sends of a gather may be replaced, and is recorded."""

    def __init__(self, rank: int, size: int, board: Board, replace: Replace) -> None:
        super().__init__(rank, size, board)
        self._replace = replace
        self.calls = 0

    def all_gather(self, tensor: torch.Tensor, gathered: torch.Tensor) -> Transfer:
        self.calls += 1
        sent = self._replace(self.rank, self.calls, tensor.numpy().tobytes())
        return super().all_gather(torch.frombuffer(bytearray(sent), dtype=torch.uint8), gathered)


def tapped(replace: Replace, *, secret: bytes | None = ONE, gathers: int = 3) -> list[Any]:
    """Two ranks that gather their numbers, in rounds after those of the key."""

    def rank(group: Group) -> list[Any]:
        if secret is not None:
            share_key(group, secret, CPU)
        return [group.all_gather(torch.tensor([group.rank, 7])).tolist() for _ in range(gathers)]

    return run_threads(2, rank, lambda number, size, board: Group(Tapped(number, size, board, replace)))


def forged(message: bytes) -> bytes:
    """Another content, with the checksum that belongs to it: whoever is on the line can do that."""
    plain = Plain("all-gather", 1, 0, torch.int64, (2,)).header(1, 0)
    sealed = seal([torch.tensor([6, 6])], [plain], CPU).numpy().tobytes()
    return message[: plain.overhead - 8] + sealed[plain.overhead - 8 :]


def test_a_forged_message_passes_a_checksum_and_not_a_tag() -> None:
    def on_the_line(rank: int, call: int, message: bytes) -> bytes:
        return forged(message) if rank == 1 and call == 1 else message

    believed = results(tapped(on_the_line, secret=None, gathers=1))
    assert believed[0] == [[[0, 7], [6, 6]]]

    def later(rank: int, call: int, message: bytes) -> bytes:
        return message[:-16] + b"\6" * 16 if rank == 1 and call == 3 else message

    refused = tapped(later)
    assert isinstance(refused[0], DisagreementError)
    assert "what came from rank 1 was changed on its way, or comes from somebody without" in str(refused[0])
    assert "not " not in str(refused[0]), "the right tag is told"


@pytest.mark.parametrize("bit", [0, 70, 200, 300, 500, 8 * 64, 8 * 64 + 77])
def test_any_bit_counts(bit: int) -> None:
    def flip(rank: int, call: int, message: bytes) -> bytes:
        spoilt = bytearray(message)
        if rank == 1 and call == 4:
            spoilt[bit // 8] ^= 1 << bit % 8
        return bytes(spoilt)

    assert isinstance(tapped(flip)[0], DisagreementError)


@pytest.mark.parametrize("of", ["an earlier message", "the other rank", "another run"])
def test_what_was_recorded_is_refused(of: str) -> None:
    """Sent again in the same run, in the name of another rank, or in another run at the same place."""
    heard: dict[tuple[int, int], bytes] = {}

    def listen(rank: int, call: int, message: bytes) -> bytes:
        heard[rank, call] = message
        return message

    results(tapped(listen))
    before = dict(heard)

    def again(rank: int, call: int, message: bytes) -> bytes:
        heard[rank, call] = message
        if rank == 1 and call == 4:
            if of == "an earlier message":
                return heard[1, 3]
            return before[1, 4] if of == "another run" else message
        return message

    if of == "the other rank":
        words = Plain("all-gather", 4, 5, torch.int64, (2,), "all", Tag(ONE))
        content, out = torch.tensor([[1, 7]]), torch.empty(1, 2, dtype=torch.int64)
        sealed = seal([content], [words.header(1, 0)], CPU)
        unseal(sealed, [words.header(1, 0)], out, 1)
        with pytest.raises(DisagreementError, match="rank 2 was changed on its way"):
            unseal(sealed, [words.header(1, 2)], out, 1)
        with pytest.raises(DisagreementError, match="rank 0 was changed on its way"):
            unseal(sealed, [words.header(1, 0, 1)], out, 1)
        return
    outcome = tapped(again)[0]
    assert isinstance(outcome, DisagreementError), outcome
    assert ("has number 3, not 4" if of == "an earlier message" else "was changed") in str(outcome)


def test_payloads_have_tags_too() -> None:
    stream, wire = Stream(1, "forward", 0), torch.rand(3, 2)
    mine = Payload(9, stream, 4, "parts", Tag(ONE)).header(wire, 0, 1)
    for key, receiver, group in ((ONE, 1, "parts"), (OTHER, 1, "parts"), (ONE, 2, "parts"), (ONE, 1, "all")):
        theirs = Payload(9, stream, 4, group, Tag(key)).header(wire, 0, receiver)
        message = seal([wire], [mine], CPU)
        assert len(message) == 64 + MORE + wire.nbytes == len(blank([theirs], CPU))
        if (key, receiver, group) == (ONE, 1, "parts"):
            assert torch.equal(theirs.check(message, 1), message[theirs.overhead :])
        else:
            with pytest.raises(DisagreementError, match="without the secret"):
                theirs.check(message, 1)


# A run.


@pytest.mark.parametrize("plan, staleness", [("block", "variation-gap:gap=0.01"), ("halo", "pipelined")])
def test_a_run_computes_the_same_and_pays_24_bytes_a_message(
    plan: str, staleness: str, tmp_path: Path
) -> None:
    folder = shards_of(awkward_graph(), "random", RANKS, tmp_path)
    config = Config(
        factors=FactorSettings(plan=plan, staleness=staleness, backward=staleness, broadcast="library"),
        shape=ModelSettings(layers=2, hidden=4, dropout=0.0),
        training=TrainingSettings(epochs=3, dtype="float64"),
    )
    torch.manual_seed(0)
    model = make_model("gcn", 7, 3, config.shape).double()

    def train(secret: bytes | None) -> list[Any]:
        class Counted(Group):
            messages = 0

            def _count(self, entry: Entry, sizes: Any, overhead: int) -> None:
                self.messages += sum(bool(s) and place != self.rank for place, s in enumerate(sizes))
                super()._count(entry, sizes, overhead)

        def rank(group: Counted) -> Any:  # type: ignore[override]
            hello = 0
            if secret is not None:
                share_key(group, secret, CPU)
                hello = group.messages
            trainer = thread_trainer(config, open_own(folder, group), group, model=copy.deepcopy(model))
            losses = [[record[name] for name in ("loss", "val", "sends")] for record in trainer.epochs()]
            weights = [parameter.detach().clone() for parameter in trainer.model.parameters()]
            agreement = group.ledger.wire_of("agreement")
            others = {p: group.ledger.wire_of(p) for p in ("payload", "parameter", "evaluation")}
            return losses, weights, others, agreement, hello, group.messages

        return results(run_threads(RANKS, rank, lambda r, s, b: Counted(CountingTransport(r, s, b))))

    for bare, sealed in zip(train(None), train(ONE), strict=True):
        assert bare[0] == sealed[0]
        assert all(torch.equal(one, other) for one, other in zip(bare[1], sealed[1], strict=True))
        assert bare[2] == sealed[2]
        hello, messages = sealed[4:]
        assert messages == bare[5] + hello
        assert sealed[3] - bare[3] == hello * (40 + GATHERED) + MORE * bare[5]


@pytest.mark.slow
def test_the_secrets_of_a_real_run(tmp_path: Path) -> None:
    """Two ranks that meet through a file: with one secret nothing tells it, with two they end in one line."""
    argv = ["train", "synthetic:nodes=60,features=4,classes=3", "--epochs", "2", "--hidden", "4", "--quiet"]

    def ranks(name: str, secrets: list[bytes]) -> list[tuple[int, str]]:
        processes = []
        for rank, secret in enumerate(secrets):
            own = {"RANK": str(rank), "WORLD_SIZE": "2", "SANCUS_RENDEZVOUS": str(tmp_path / f"{name}.meet")}
            more = {SECRET: secret.decode()}
            if rank:
                (tmp_path / f"{name}.key").write_bytes(secret)
                more = {SECRET_FILE: str(tmp_path / f"{name}.key")}
            command = [sys.executable, "-m", "sancus", *argv, "--out", str(tmp_path / name)]
            processes.append(
                subprocess.Popen(
                    command,
                    env=environment(own | more),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            said = Path(f"/proc/{processes[-1].pid}/cmdline").read_bytes()
            assert secret not in said
        told = [process.communicate(timeout=400)[0] for process in processes]
        return [(process.returncode, text) for process, text in zip(processes, told, strict=True)]

    for code, text in ranks("same", [ONE, ONE]):
        assert code == 0 and "horse" not in text, text
    files = [path for path in (tmp_path / "same").rglob("*") if path.is_file()]
    assert any(path.name == "run.json" for path in files)
    assert not any(b"horse" in path.read_bytes() for path in files)
    for code, text in ranks("other", [ONE, OTHER]):
        assert code == 2, text
        assert "horse" not in text
    assert AGREEMENT.purpose == "agreement" and SECRET not in os.environ
