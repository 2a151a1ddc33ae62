"""`python -m sancus`."""

from sancus.cli.entry import main

if __name__ == "__main__":
    main()
