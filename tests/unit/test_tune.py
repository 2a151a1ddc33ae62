"""The search of `sancus tune`, with a table in place of runs: what is tried, kept and chosen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from sancus.advise.candidates import Candidate, candidates, reference
from sancus.advise.costs import Cost
from sancus.advise.estimate import Estimate
from sancus.advise.sends import travels_later
from sancus.advise.tune import TUNE_FILE, Search, Tuning, Verdict
from sancus.config.resolve import make_config
from sancus.errors import UserError

EPOCHS, SEEDS = 90, 2


def known(size: float, *, by_drift: bool = False) -> Cost:
    return Cost(Estimate(4, {(0, "forward"): size}, {"runtime": 1.0}, 1.0, size / 10), by_drift)


class Bench:
    """Stands for training: a candidate's score at the end, and what it really sends."""

    def __init__(self, tuning: Tuning, scores: Mapping[str, float], sent: Mapping[str, float]) -> None:
        self.tuning, self.scores, self.sent = tuning, scores, sent
        self.trained: list[tuple[str, int, int]] = []

    def train(self, candidate: Candidate, seed: int, epochs: int) -> int:
        self.trained.append((candidate.name, seed, epochs))
        score, place = self.scores[candidate.name], self.tuning.directory(candidate, seed)
        if score < 0:
            return 1
        place.mkdir(parents=True, exist_ok=True)
        bytes_ = {
            "wire_bytes": self.sent.get(candidate.name, 1.0),
            "parameter_bytes": 0,
            "agreement_bytes": 0,
        }
        lines = [{"epoch": epoch, "val": min(score, epoch / 20), **bytes_} for epoch in range(epochs)]
        (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return 0


def search(
    out: Path, sizes: Mapping[str, float], scores: Mapping[str, float], **more: Mapping[str, float]
) -> tuple[Search, Bench]:
    tuning = Tuning(out, EPOCHS, within=1.0, objective="bytes", seeds=SEEDS)
    bench = Bench(tuning, scores, more.get("sent", {}))
    made = {name: Candidate(name, {"preset": name}) for name in sizes}
    drift = more.get("sent", {})
    verdicts = {
        name: Verdict(made[name], known(size, by_drift=name in drift)) for name, size in sizes.items()
    }
    return Search(tuning, verdicts, bench.train, lambda line: None), bench


SIZES = {"exact": 100.0, "a": 10.0, "b": 20.0, "c": 30.0, "d": 40.0, "e": 50.0, "f": 60.0, "dear": 200.0}
SCORES = dict.fromkeys(SIZES, 0.80)


def test_the_cheapest_within_the_budget_is_chosen_and_the_bad_are_dropped_early(tmp_path: Path) -> None:
    looking, bench = search(tmp_path, SIZES, SCORES | {"a": 0.40, "b": 0.785, "c": 0.793})
    assert looking.find().candidate.name == "c"
    assert max(epochs for name, _, epochs in bench.trained if name == "a") < EPOCHS
    assert not [name for name, *_ in bench.trained if name == "dear"]
    full = {name for name, _, epochs in bench.trained if epochs == EPOCHS}
    assert full == {"exact", "b", "c"}, "b is 1.5 points behind: only a full run shows it"
    why = {name: verdict.why for name, verdict in looking.verdicts.items()}
    assert (
        why["c"] == "chosen"
        and "points behind exact" in why["a"]
        and why["dear"] == "costs no less than exact"
    )


def test_what_a_round_put_aside_follows_where_the_finalists_fail(tmp_path: Path) -> None:
    close = dict.fromkeys("abcd", 0.785)  # within reach of short runs, behind in full ones
    looking, _ = search(tmp_path, SIZES, SCORES | close | {"e": 0.795, "f": 0.80})
    assert looking.find().candidate.name == "e"


def test_exact_is_chosen_where_nothing_else_is_good_enough(tmp_path: Path) -> None:
    looking, bench = search(tmp_path, SIZES, dict.fromkeys(SIZES, 0.5) | {"exact": 0.8, "a": -1.0})
    assert looking.find().candidate.name == "exact"
    assert ("exact", SEEDS - 1, EPOCHS) in bench.trained
    assert "exit code 1" in looking.verdicts["a"].why


def test_a_policy_that_looks_at_drift_is_judged_by_what_it_sends(tmp_path: Path) -> None:
    looking, _ = search(tmp_path, {"exact": 100.0, "a": 10.0, "b": 90.0}, SCORES, sent={"b": 5.0, "a": 99.0})
    assert looking.find().candidate.name == "b"


def test_a_search_that_was_stopped_goes_on(tmp_path: Path) -> None:
    scores = SCORES | {"a": 0.40, "b": 0.785, "c": 0.793}
    first, _ = search(tmp_path, SIZES, scores)
    first.find()
    again, idle = search(tmp_path, SIZES, scores)
    assert again.find().candidate.name == "c" and idle.trained == []
    place = first.tuning.directory(first.verdicts["c"].candidate, 1)
    lines = (place / "metrics.jsonl").read_text().splitlines()
    (place / "metrics.jsonl").write_text("\n".join(lines[:40]) + "\n" + lines[40][:9])
    third, some = search(tmp_path, SIZES, scores)
    assert third.find().candidate.name == "c" and some.trained == [("c", 1, EPOCHS)]
    record = json.loads((tmp_path / TUNE_FILE).read_text())
    assert record["chosen"] == "c" and {row["name"] for row in record["candidates"]} == set(SIZES)


def test_every_candidate_is_a_run_and_has_a_folder_of_its_own(tmp_path: Path) -> None:
    tried = [reference(), *candidates()]
    for candidate in tried:
        make_config(None, **candidate.settings)
    tuning = Tuning(tmp_path, EPOCHS)
    assert len({tuning.directory(candidate, 0) for candidate in tried}) == len(tried) > 30


def test_what_travels_later_hides_behind_the_computation() -> None:
    assert (
        travels_later("pipelined")
        and not travels_later("always")
        and not travels_later("epoch-fixed:bound=3")
    )
    cost = Cost(Estimate(4, {(0, "forward"): 8.0}, {}, 1.0, 3.0), later=True)
    assert (cost.of("time"), Cost(cost.estimate).of("time")) == (3.0, 4.0)


@pytest.mark.parametrize(
    "settings", [{"within": -1}, {"within": float("nan")}, {"seeds": 0}, {"objective": "luck"}]
)
def test_a_mistake_is_told(settings: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"--{next(iter(settings))}"):
        Tuning(tmp_path, EPOCHS, **settings)  # type: ignore[arg-type]
