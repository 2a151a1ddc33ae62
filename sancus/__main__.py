"""`python -m sancus`."""

from sancus.cli.app import main

if __name__ == "__main__":
    main()
