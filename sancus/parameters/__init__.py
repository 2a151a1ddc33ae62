"""Sums of what is trained, over the replicas of a model: in full, in few bits, in low rank."""

PARAMETER_CODECS: dict[str, str] = {
    "fp32": "sancus.parameters.full:FullPrecision",
    "int8": "sancus.parameters.low_bit:Int8",
    "int4": "sancus.parameters.low_bit:Int4",
    "int2": "sancus.parameters.low_bit:Int2",
    "int1": "sancus.parameters.low_bit:Int1",
    "low-rank": "sancus.parameters.low_rank:LowRank",
}
EXACT = "fp32"  # the one that loses nothing
