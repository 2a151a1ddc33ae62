"""Codecs: how a payload's rows become bits on the wire; `--codec` chooses from the table below."""

CODECS: dict[str, str] = {
    "fp32": "sancus.codecs.full:FullPrecision",
    "fp16": "sancus.codecs.half:Float16",
    "bf16": "sancus.codecs.half:BFloat16",
    "int8": "sancus.codecs.low_bit:Int8",
    "int4": "sancus.codecs.low_bit:Int4",
    "int2": "sancus.codecs.low_bit:Int2",
    "int1": "sancus.codecs.low_bit:Int1",
    "auto": "sancus.codecs.auto:AutoBits",
}
