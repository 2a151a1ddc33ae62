"""Samples: which neighbours a batch of seeds draws, hop by hop, and the neighbourhood that they make."""

SAMPLERS: dict[str, str] = {
    "neighbour": "sancus.sampling.neighbour:Neighbour",
    "labor": "sancus.sampling.labor:Labor",
    "cluster": "sancus.sampling.cluster:Cluster",
    "saint": "sancus.sampling.saint:Saint",
}
OF_SUBGRAPHS = frozenset({"cluster", "saint"})  # they draw nodes, and take all neighbours among these
