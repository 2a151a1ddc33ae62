"""Where graphs come from: one reader a source, listed in one table.

A reader is a class `Reader(text)`, cheap to construct and checked when constructed, with `load()`
and `fingerprint()` (the contract is `sancus.datasets.open.Reader`). `text` is what follows the
reader's name in `name:text`. A reader of files also has `recognises(path)`, by which the format of a path is
found: the first in the table that recognises it reads it.
"""

READERS: dict[str, str] = {
    "synthetic": "sancus.datasets.synthetic:SyntheticReader",
    "gnn-benchmark": "sancus.datasets.gnn_benchmark:GnnBenchmarkReader",
    "heterophilous": "sancus.datasets.heterophilous:HeterophilousReader",
    "npz": "sancus.datasets.npz:NpzReader",
    "nodes": "sancus.datasets.node_folder:NodeFolderReader",
    "graphsaint": "sancus.datasets.graphsaint:GraphSaintReader",
    "ogb-folder": "sancus.datasets.ogb_folder:OgbFolderReader",
    "planetoid": "sancus.datasets.planetoid:PlanetoidReader",
    "wikics": "sancus.datasets.wikics:WikiCsReader",
    "mtx": "sancus.datasets.matrix_market:MatrixMarketReader",
    "pt": "sancus.datasets.torch_file:TorchFileReader",
    "edges": "sancus.datasets.edge_list:EdgeListReader",
    "pyg": "sancus.datasets.named:PygReader",
    "ogb": "sancus.datasets.named:OgbReader",
}
