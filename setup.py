"""Package metadata. Imports nothing but setuptools, so that it runs before torch is there."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'^__version__ = "([^"]+)"', (ROOT / "sancus" / "__init__.py").read_text(), re.M)
assert VERSION is not None, 'sancus/__init__.py must hold a line __version__ = "..."'

setup(
    name="sancus",
    version=VERSION[1],
    description="Decentralised full-graph GNN training that avoids communication and shows the bill",
    license="MIT",
    python_requires=">=3.11",
    packages=find_packages(include=["sancus*", "partitioners*", "staleness*"]),
    package_dir={"": "."},  # one root for all three packages: an editable install is a plain .pth file
    package_data={"": ["*.c", "*.h", "*.css", "*.html", "*.js", "py.typed"]},
    entry_points={"console_scripts": ["sancus = sancus.cli:main"]},
    # Ranges here, for people who install Sancus beside other things; requirements/lock.txt holds the
    # exact versions that `make setup` installs and that the tests ran with.
    install_requires=[
        "torch>=2.6",
        "numpy>=1.26",
        "scipy>=1.11",
        "pymetis>=2023.1",
        "safetensors>=0.4",
        "cyclopts>=4",
        "rich>=13",
        "xxhash>=3",
    ],
    extras_require={
        "mpi": ["mpi4py>=4", "mpich"],  # a complete MPI from PyPI, no system package
        "torch-sparse": ["torch-sparse", "torch-scatter"],  # compiled from source: about 25 minutes
        "pyg": ["torch-geometric"],
        "report": [],  # the report needs only the standard library
        "dev": [
            "hypothesis>=6.100",
            "mypy>=1.11",
            "pytest>=8.1",
            "pytest-benchmark>=4",
            "pytest-timeout>=2.3",
            "ruff>=0.6",
        ],
    },
)
