"""Where graphs come from: one reader a source, listed in one table.

A reader is a class `Reader(text)`, cheap to construct and checked when constructed, with `load()`
and `fingerprint()` (the contract is `sancus.datasets.open.Reader`). `text` is what follows the
reader's name in `name:text`; a reader named like a file suffix also gets the paths with that suffix.
"""

READERS: dict[str, str] = {
    "npz": "sancus.datasets.npz:NpzReader",
    "synthetic": "sancus.datasets.synthetic:SyntheticReader",
}
