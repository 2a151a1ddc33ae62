"""What mpiexec starts in place of a rank: a few modules of Python, and no torch.

It hands its environment, its output and its line to mpiexec over to a fork of the server of MPI's ranks
(`tests/helpers/mpi_server.py`), which becomes the rank, and ends as that ends. So torch is imported once a
test run, not once a rank of MPI.
"""

import json
import os
import socket
import sys

EXIT_LOST = 70  # the rank ended without a word: it was killed


def main() -> None:
    address, request = sys.argv[1], json.loads(sys.argv[2])
    line = int(os.environ["PMI_FD"])  # by which MPICH's launcher and its ranks talk
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.connect(address)
        message = json.dumps(request | {"env": dict(os.environ)}).encode()
        socket.send_fds(server, [len(message).to_bytes(8, "big")], [1, 2, line])
        server.sendall(message)
        answer = server.recv(1)
        server.recv(1)  # until the rank itself has ended: it takes leave of mpiexec after its answer
    os._exit(answer[0] if answer else EXIT_LOST)


if __name__ == "__main__":
    main()
