"""Builds the C library; all else is in pyproject.toml. Imports only setuptools: torch is not there yet."""

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
NATIVE = "sancus/kernels/native"
SOURCES = ("attend", "bits", "common", "drop", "edges", "rows", "sample", "spmm")


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
    ext_modules=[
        Extension(
            "sancus.kernels.native.libsancus",
            sources=[f"{NATIVE}/{name}.c" for name in SOURCES],
            depends=[str(path) for path in sorted((ROOT / NATIVE).glob("*.h"))],
            libraries=["m"],
            # No contraction: the bits of a packed row may not depend on the machine. spmm asks for its FMA.
            extra_compile_args=["-std=c11", "-O3", "-g0", "-ffp-contract=off", "-fvisibility=hidden"],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": AnyPythonWheel},
)
