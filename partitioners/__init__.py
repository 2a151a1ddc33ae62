"""Partitioners: who owns which rows?

A partitioner assigns every node of a graph to one part; each part becomes the block of one rank.
Adding one is a file with a frozen dataclass (`base.Partitioner`) and a line in the table below. What an
assignment costs is measured in `quality`. This package knows numpy, scipy and METIS, and nothing of
training.
"""

PARTITIONERS: dict[str, str] = {
    "contiguous": f"{__name__}.contiguous:Contiguous",
    "random": f"{__name__}.random:Random",
    "metis": f"{__name__}.metis:Metis",
    "bytegnn": f"{__name__}.bytegnn:ByteGnn",
    "ldg": f"{__name__}.ldg:Ldg",
}
