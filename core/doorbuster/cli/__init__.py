"""The command line. Everything else is imported when a command needs it, so help is quick."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process and exit with its code (0 good, 1 failed, 2 usage)."""
    from doorbuster.cli.app import run

    sys.exit(run(sys.argv[1:]))
