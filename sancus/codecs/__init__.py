"""Codecs: how a payload's rows become bits on the wire."""

CODECS: dict[str, str] = {
    "fp32": "sancus.codecs.full:FullPrecision",
}
