"""Communication: the only place that touches torch.distributed or mpi4py, and where bytes are counted.

A `Transport` is what a library does, a `Group` what ranks do together over one (header, ledger, checks), a
`Mesh` the groups of a run.
"""

BACKENDS: dict[str, str] = {
    "gloo": "sancus.comm.torch_dist:GlooTransport",
    "mpi": "sancus.comm.mpi:MpiTransport",
    "nccl": "sancus.comm.torch_dist:NcclTransport",
}
