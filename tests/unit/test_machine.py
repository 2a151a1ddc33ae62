"""`sancus probe`: what it measures is the same on all ranks, and reads as flags of `sancus estimate`."""

from __future__ import annotations

import pytest

from sancus.advise import machine
from sancus.advise.estimate import Machine, probe
from sancus.advise.machine import flags_of, machine_rows, measure
from sancus.comm.alone import Alone
from sancus.comm.group import Group
from tests.helpers.command import run
from tests.helpers.processes import run_ranks


def measured(group: Group) -> Machine:
    return measure(group, 0.01)


@pytest.mark.slow
def test_ranks_measure_one_machine() -> None:
    first, *others = run_ranks(f"{__name__}:measured", ranks=3)
    assert all(other == first for other in others)
    assert min(first.link, first.latency, first.spmm, first.gemm) > 0


def test_a_link_is_what_its_exchanges_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 µs a message and 1 MB/s into a rank, whatever the clock of this machine says."""

    class Three:
        size, rank = 3, 0

    def exchange(group: object, size: int) -> float:
        return 2 * (100e-6 + (size - machine.SMALL) / 1e6)

    monkeypatch.setattr(machine, "_exchange", exchange)
    monkeypatch.setattr(Three, "all_gather", lambda self, mine, entry: mine[None] + 1.0, raising=False)
    latency, link = machine._measure_link(Three(), 0.5)  # type: ignore[arg-type]
    assert latency == pytest.approx(100e-6) and link == pytest.approx(1e6, rel=1e-3)


def test_what_is_measured_reads_as_flags() -> None:
    given = Machine(117.5e6, 6.25e-5, 1.5e9, 2.5e10)
    flags = flags_of(given)
    words = dict(zip(flags[::2], flags[1::2], strict=True))
    again = probe(words["--link"], *(float(words[name]) for name in ("--latency", "--spmm", "--gemm")))
    assert again == given
    alone = measure(Group(Alone()), 0.0)
    assert "--link" not in flags_of(alone) and machine_rows(alone)[1][1] == "one rank has none"


def test_the_verb_prints_flags_and_names_mistakes() -> None:
    done = run("probe")
    assert done.code == 0 and "for sancus estimate: --spmm" in done.out, done
    wrong = run("probe", "--seconds", "0")
    assert wrong.code == 2 and "--seconds 0: must be above 0" in wrong.err, wrong
