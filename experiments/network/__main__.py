"""Ranks over slow links: `python -m experiments.network --hosts 4 --rate 1gbit -- -m sancus train …`.

Runs `python …` as one rank on each host of a new network, and prints what the kernel counted on the links.
"""

from __future__ import annotations

import argparse
import sys

from experiments.network.hosts import Network
from experiments.network.launch import run_ranks
from sancus.errors import UserError


def main() -> int:
    """Read the flags, run, report the bytes of every link."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="1gbit", help="of every link: 100mbit, 2.5gbit, …")
    parser.add_argument("--launcher", choices=["torchrun", "mpiexec"], default="torchrun")
    parser.add_argument("program", nargs="+", help="for python: -m sancus train …")
    flags = parser.parse_args()
    try:
        with Network(flags.hosts, flags.rate) as network:
            code = run_ranks(network, flags.program, flags.launcher)
            for host in network.hosts:
                print(f"{host.name} {host.address}: {host.sent_bytes():,} bytes sent over its link")
    except UserError as error:
        print(f"experiments.network: {error}", file=sys.stderr)
        return 2
    return code


if __name__ == "__main__":
    sys.exit(main())
