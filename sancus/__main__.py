"""`python -m sancus`."""

from sancus.cli import main

if __name__ == "__main__":
    main()
