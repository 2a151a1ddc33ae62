"""Staleness policies: must an owner's payload cross now, or may the others go on with their history?

A policy is a pure decision on numbers that are the same on every rank (`staleness.base.View`). It knows
nothing of communication, of graphs, or of any other factor.
"""

POLICIES: dict[str, str] = {
    "always": "staleness.always:Always",
}
