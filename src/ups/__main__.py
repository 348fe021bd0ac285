"""`ups` and `python -m ups`: the command line, unless an installed package adds to it what cannot be had."""

from __future__ import annotations

import sys

from ups.types import ConfigError


def main() -> None:
    """Run the command; where it cannot even be put together, a sentence says which package is to blame."""
    try:
        from ups.cli.app import main as run
    except ConfigError as error:
        print(f"ups: {error}", file=sys.stderr)
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
