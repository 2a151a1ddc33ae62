"""What every cache of the table promises, and what `vip` computes."""

from __future__ import annotations

import pytest
import torch

from sancus.kernels.topology import Topology
from sancus.plugins import build
from sancus.store import CACHES
from sancus.store.column_sums import Columns
from sancus.store.kept_rows import Cache, Reads, rows_to_keep
from sancus.store.vip import Vip
from tests.helpers.topologies import dense_of, topology

NODES = 14


def reads(fanouts: tuple[int, ...] = (2, 3), rate: float = 0.25) -> Reads:
    return Reads(Columns(topology(NODES, seed=3)), torch.tensor([1, 4, 9]), rate, fanouts)


@pytest.mark.parametrize("name", CACHES)
def test_the_contract_of_a_cache(name: str) -> None:
    """It keeps rows of others alone, no more than its share, the most wanted ones, each once."""
    remote = torch.arange(NODES) >= 4
    for share in (0.1, 0.5, 1.0):
        cache: Cache = build("cache", CACHES, f"{name}:share={share}")
        scores = cache.scores(reads())
        assert scores.shape == (NODES,) and bool((scores >= 0).all())
        kept = rows_to_keep(cache, reads(), remote)
        assert bool(remote[kept].all()) and len(kept) <= share * 10
        assert kept.tolist() == sorted(set(kept.tolist())) and bool((scores[kept] > 0).all())
        left = torch.tensor(
            [node for node in range(4, NODES) if node not in kept.tolist()], dtype=torch.int64
        )
        assert len(kept) == int(share * 10) or not bool((scores[left] > 0).any())
        assert not len(left) or not len(kept) or scores[left].max() <= scores[kept].min()


def test_a_row_that_no_batch_can_read_is_not_kept() -> None:
    lonely = Topology(
        torch.tensor([0, 1, 1, 1]), torch.tensor([1], dtype=torch.int32), None, torch.ones(3).double(), None
    )
    seen = Reads(Columns(lonely), torch.tensor([0]), 1.0, (5,))
    everything = torch.tensor([False, True, True])
    assert rows_to_keep(Vip(1.0), seen, everything).tolist() == [1]


def test_vip_is_the_probability_of_independent_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the formula, product by product; with all neighbours, reached nodes are certain."""
    monkeypatch.setattr("sancus.store.column_sums._AT_ONCE", 1)  # row by row
    for fanouts, rate in (((2, 3), 0.25), ((1,), 0.5), ((-1, 2), 1.0)):
        seen = reads(fanouts, rate)
        pattern = dense_of(topology(NODES, seed=3)) != 0
        reached = [rate if node in (1, 4, 9) else 0.0 for node in range(NODES)]
        unread = [1 - share for share in reached]
        for fanout in fanouts:
            missed = [1.0] * NODES
            for target in range(NODES):
                near = torch.nonzero(pattern[target]).flatten().tolist()
                for source in near:
                    drawn = 1.0 if fanout < 0 else min(1.0, fanout / len(near))
                    missed[source] *= 1 - drawn * reached[target]
            reached = [1 - share for share in missed]
            unread = [a * b for a, b in zip(unread, missed, strict=True)]
        expected = torch.tensor([1 - share for share in unread], dtype=torch.float64)
        torch.testing.assert_close(Vip().scores(seen), expected)
