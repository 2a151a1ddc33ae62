"""Models, written against the exchange's two calls."""

MODELS: dict[str, str] = {
    "gcn": "sancus.models.gcn:GCN",
    "sage": "sancus.models.sage:GraphSAGE",
}
