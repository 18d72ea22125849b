"""The command `skyinfer`, which is also `python -m skyinfer`: Ctrl-C while it is being imported ends it as later on."""

from __future__ import annotations

import sys

_INTERRUPTED = 130


def main() -> int:
    """`command.main.main`, and its import."""
    try:
        from .command.main import main as run

        return run()
    except KeyboardInterrupt:
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
