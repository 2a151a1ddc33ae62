"""Samples: which neighbours a batch of seeds draws, hop by hop, and the neighbourhood that they make."""

SAMPLERS: dict[str, str] = {
    "neighbour": "sancus.sampling.neighbour:Neighbour",
    "labor": "sancus.sampling.labor:Labor",
}
