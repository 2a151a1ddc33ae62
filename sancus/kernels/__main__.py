"""`python -m sancus.kernels` says which kernel `--kernel auto` uses here; `make setup` ends with it."""

from sancus.kernels.auto import AutoKernel
from sancus.kernels.native.library import UnavailableError, library

if __name__ == "__main__":
    print(f"--kernel auto uses {AutoKernel().describe()}")
    try:
        library()
    except UnavailableError as error:
        print(f"native cannot be used: {error}")
