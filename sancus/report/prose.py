"""The page in words: its first paragraph, and what its terms mean wherever they stand."""

from __future__ import annotations

import html
import re
import statistics
from collections.abc import Sequence

from sancus.report.groups import RunGroup, an_epoch, of_result
from sancus.report.markup import Markup, join, tag
from sancus.report.run_reader import RunFiles, number, section
from sancus.report.summary import skip_share
from sancus.report.units import bytes_text, count_text, score_text, seconds_text, share_text
from sancus.report.volume import all_an_epoch, fewer_than_in_full, ratio, times_text

TERMS = {
    "owner": "the rank that computes a row and sends it to the others",
    "stream": "what one owner sends in one layer and one direction",
    "payload": "the rows that an owner sends in one use of a stream",
    "history": "the rows of another rank that were received last, and are used until new ones come",
    "agreement": "small messages by which ranks decide alike",
    "SEND": "the rows cross now",
    "SKIP": "the rows do not cross; the others use their history",
    "age": "how many epochs ago a history was made; 0 is fresh",
    "codec": "how rows are made smaller before they cross: in how many bits a value",
    "halo": "rows of other ranks that a rank needs",
}
# A term and its plural; the longest first.
TERM = re.compile(rf"\b({'|'.join(sorted(TERMS, key=len, reverse=True))})(s?)\b")


def explained(text: str) -> Markup:
    """Text whose terms say what they mean when the pointer rests on them; each term once."""
    done: set[str] = set()

    def explain(match: re.Match[str]) -> str:
        term, plural = match.groups()
        if term in done:
            return match.group()
        done.add(term)
        return tag("abbr", term + plural, title=TERMS[term])

    return Markup(TERM.sub(explain, html.escape(text, quote=False)))


def glossary() -> Markup:
    """All terms, for readers without a pointer."""
    pairs = [part for term, meaning in TERMS.items() for part in (tag("dt", term), tag("dd", meaning))]
    return tag("details", tag("summary", "What the words mean"), tag("dl", *pairs), class_="words")


def opening(runs: Sequence[RunFiles], groups: Sequence[RunGroup]) -> Markup:
    """What was run, what it saved and what it cost, in sentences; nothing where too little is known."""
    sentences = _of_one(runs[0]) if len(groups) == 1 else _of_many(groups)
    return tag("p", explained(" ".join(sentences)), class_="opening") if sentences else join([])


def _of_one(files: RunFiles) -> list[str]:
    run = files.run
    result, config = section(run, "result"), section(run, "config")
    epochs, ranks = number(result.get("epochs")), number(section(run, "hardware").get("ranks"))
    if not epochs or not ranks:
        return []
    who = "One process" if ranks == 1 else f"{count_text(ranks)} ranks"
    under = f" under preset {config['preset']}" if config.get("preset") else ""
    sentences = [f"{who} trained for {count_text(epochs)} epochs{under}."]
    whole = all_an_epoch(files)
    if whole is not None and ranks > 1:
        saving, skipped = fewer_than_in_full(run), skip_share(run)
        fewer = f", {times_text(saving.in_all)} fewer than with every row sent in full" if saving else ""
        sentences.append(f"{bytes_text(whole)} crossed between them in an epoch{fewer}.")
        if skipped:
            sentences.append(
                f"{share_text(skipped)} of all sends were skipped, where the others used their history."
            )
    score, seconds = number(result.get("test")), number(result.get("seconds_per_epoch"))
    if score is not None:
        metric = result.get("metric") or "score"
        sentences.append(f"Test {metric} is {score_text(score)}, at the epoch that was best in validation.")
    if seconds is not None:
        sentences.append(f"An epoch took {seconds_text(seconds)}.")
    return sentences


def _of_many(groups: Sequence[RunGroup]) -> list[str]:
    known = [(group, size) for group in groups if (size := group.mean(all_an_epoch))]
    if len(known) < 2:
        return []
    (first, most), (least, fewest) = known[0], min(known, key=lambda pair: pair[1])
    sentences = [
        f"{len(groups)} settings, held against {first.label}, which sends {bytes_text(most)} in an epoch."
    ]
    if least is not first:
        times = times_text(ratio(most, fewest))
        sentences.append(f"{least.label} sends least: {bytes_text(fewest)}, {times} fewer in all.")
    sentences += [sentence] if (sentence := best_score(groups)) else []
    fastest = [(group, seconds) for group in groups if (seconds := group.mean(an_epoch("seconds")))]
    if fastest:
        group, seconds = min(fastest, key=lambda pair: pair[1])
        sentences.append(f"The shortest epoch is that of {group.label}, {seconds_text(seconds)}.")
    return sentences


def best_score(groups: Sequence[RunGroup]) -> str | None:
    """Who scores best; where others are within the deviation of its seeds, that nobody does."""
    scores = [(group, group.values(of_result("test"))) for group in groups]
    scored = [(group, values, statistics.fmean(values)) for group, values in scores if values]
    if len(scored) < 2:
        return None
    best, values, top = max(scored, key=lambda entry: entry[2])
    if len(values) < 2:
        span = _span([mean for *_, mean in scored])
        return f"With one seed each, scores are {span}: that shows no order."
    margin = statistics.stdev(values)
    close = [
        group.label
        for group, others, mean in scored
        if group is not best and top - mean <= max(margin, _deviation(others))
    ]
    if close:
        return f"No score is best: {', '.join([best.label, *close])} are within a deviation of each other."
    return f"{best.label} scores best with {score_text(top)}."


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _span(means: Sequence[float]) -> str:
    low, high = score_text(min(means)), score_text(max(means))
    return low if low == high else f"{low} to {high}"
