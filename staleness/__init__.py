"""Staleness policies: must an owner's payload cross now, or may the others go on with their history?

A policy is a pure decision on a small view (`staleness.base.View`). It knows nothing of communication, of
graphs, or of any other factor.
"""

POLICIES: dict[str, str] = {
    "always": "staleness.always:Always",
    "epoch-fixed": "staleness.epoch_fixed:EpochFixed",
    "epoch-adaptive": "staleness.epoch_adaptive:EpochAdaptive",
    "pipelined": "staleness.pipelined:Pipelined",
    "variation-gap": "staleness.variation_gap:VariationGap",
    "never": "staleness.never:Never",
    "drop": "staleness.drop:Drop",
}
