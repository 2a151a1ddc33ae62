"""Transports: the only place that touches torch.distributed or mpi4py, and where bytes are counted."""

BACKENDS: dict[str, str] = {
    "gloo": "sancus.comm.torch_dist:GlooTransport",
    "mpi": "sancus.comm.mpi:MpiTransport",
    "nccl": "sancus.comm.torch_dist:NcclTransport",
}
