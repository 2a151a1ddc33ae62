"""Models, written against the calls of `sancus.models.neighbourhood`."""

MODELS: dict[str, str] = {
    "gcn": "sancus.models.gcn:GCN",
    "sage": "sancus.models.sage:GraphSAGE",
    "gin": "sancus.models.gin:GIN",
    "gat": "sancus.models.gat:GAT",
    "gatv2": "sancus.models.gat:GATv2",
    "gcnii": "sancus.models.gcnii:GCNII",
    "resgcn+": "sancus.models.resgcn:ResGCNPlus",
}
