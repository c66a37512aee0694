"""``lpsgd`` and ``python -m lpsgd``: hand over to the laboratory's command line."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; without the ``lab`` extra, say how to install it."""
    try:
        from lpsgd.lab import cli
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "lpsgd":
            raise
        print(
            f"lpsgd's command line needs the package {error.name!r}: pip install 'lpsgd[lab]'",
            file=sys.stderr,
        )
        return 1
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
