"""Package metadata. Imports nothing but setuptools, so that it runs before torch is there."""

import re
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
VERSION = re.search(r'^__version__ = "([^"]+)"', (ROOT / "sancus" / "__init__.py").read_text(), re.M)
assert VERSION is not None, 'sancus/__init__.py must hold a line __version__ = "..."'

NATIVE = "sancus/kernels/native"


class BuildLibrary(build_ext):
    """Compiles the native kernel as a plain shared library: no Python or torch header, so no version lock.

    With threads where the compiler has OpenMP, without them where it has not. Where nothing compiles the
    installation goes on, since the torch kernel needs no compiler. Either way it says what will be used.
    """

    def get_ext_filename(self, fullname):
        """`libsancus.so` beside its loader, whatever the Python version."""
        return str(Path(*fullname.split(".")).with_name("libsancus.so"))

    def build_extension(self, ext):
        """Try with OpenMP, then without, then do without."""
        plain_compile, plain_link = ext.extra_compile_args, ext.extra_link_args
        for openmp in (["-fopenmp"], []):
            ext.extra_compile_args, ext.extra_link_args = plain_compile + openmp, plain_link + openmp
            try:
                super().build_extension(ext)
            except Exception as error:
                reason = error
            else:
                threads = "with OpenMP" if openmp else "for one thread: the compiler has no OpenMP"
                print(f"sancus: kernel 'native' compiled {threads}; --kernel auto will use it")
                return
        print(f"sancus: kernel 'native' not compiled ({reason}); --kernel auto will use 'torch'")


class AnyPythonWheel(bdist_wheel):
    """The library does not know Python, so one wheel a platform serves every version of it."""

    def get_tag(self):
        """`py3-none-<platform>`."""
        return "py3", "none", super().get_tag()[2]


setup(
    name="sancus",
    version=VERSION[1],
    description="Decentralised full-graph GNN training that avoids communication and shows the bill",
    license="MIT",
    python_requires=">=3.11",
    packages=find_packages(
        include=["sancus*"]
    ),  # follows sancus/staleness and sancus/partitioners, which are links
    package_dir={"": "."},  # one root: an editable install is a plain .pth file
    package_data={"": ["*.c", "*.h", "*.css", "*.html", "*.js", "py.typed"]},
    ext_modules=[
        Extension(
            "sancus.kernels.native.libsancus",
            sources=[f"{NATIVE}/{name}.c" for name in ("bits", "common", "drop", "edges", "rows", "spmm")],
            depends=[str(path) for path in sorted((ROOT / NATIVE).glob("*.h"))],
            libraries=["m"],
            # No contraction: the bits of a packed row may not depend on the machine. spmm asks for its FMA.
            extra_compile_args=["-std=c11", "-O3", "-g0", "-ffp-contract=off", "-fvisibility=hidden"],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": AnyPythonWheel},
    entry_points={"console_scripts": ["sancus = sancus.cli.app:main"]},
    # Ranges here, for people who install Sancus beside other things; requirements/lock.txt holds the
    # exact versions that `make setup` installs and that the tests ran with.
    install_requires=[
        "torch>=2.6",
        "numpy>=1.26",
        "scipy>=1.11",
        "pymetis>=2023.1",
        "safetensors>=0.4",
        "cyclopts>=4",
        "plotly>=6",  # for the plotly.js that it carries
        "rich>=13",
        "xxhash>=3",
    ],
    extras_require={
        "mpi": ["mpi4py>=4", "mpich"],  # a complete MPI from PyPI, no system package
        "torch-sparse": ["torch-sparse", "torch-scatter"],  # compiled from source: about 25 minutes
        "pyg": ["torch-geometric"],
        "experiments": ["matplotlib>=3.8"],  # only for the plots of RESULTS.md
        "ogb": ["ogb"],  # only to download: its files are read by sancus
        "tensorboard": ["tensorboard"],
        "dev": [
            "hypothesis>=6.100",
            "mypy>=1.11",
            "pytest>=8.1",
            "pytest-benchmark>=4",
            "pytest-timeout>=2.3",
            "ruff>=0.6",
            "websocket-client>=1.6",
        ],
    },
)
