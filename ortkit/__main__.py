"""`python -m ortkit` and the `ortkit` command."""

from __future__ import annotations

import sys

from ortkit.cli.main import run
from ortkit.cli.supervise import supervised


def main() -> None:
    """Run the command line and exit with its code."""
    sys.exit(supervised(lambda: run(sys.argv[1:])))


if __name__ == "__main__":
    main()
