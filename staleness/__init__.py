"""Staleness policies: must an owner's payload cross now, or may the others go on with their history?

A policy is a pure decision on a small view (`staleness.base.View`). It knows nothing of communication, of
graphs, or of any other factor. Definitions, algorithms and figures of SANCUS are cited by their numbers in
the text that joins it with DistDGL and ByteGNN, not by those of PVLDB 15(9): see `docs/papers.md`.
"""

POLICIES: dict[str, str] = {
    "always": f"{__name__}.always:Always",
    "epoch-fixed": f"{__name__}.epoch_fixed:EpochFixed",
    "epoch-adaptive": f"{__name__}.epoch_adaptive:EpochAdaptive",
    "pipelined": f"{__name__}.pipelined:Pipelined",
    "periodic": f"{__name__}.periodic:Periodic",
    "variation-gap": f"{__name__}.variation_gap:VariationGap",
    "row-gap": f"{__name__}.row_gap:RowGap",
    "never": f"{__name__}.never:Never",
    "drop": f"{__name__}.drop:Drop",
}
