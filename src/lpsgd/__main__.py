"""``lpsgd`` and ``python -m lpsgd``: hand over to the laboratory's command line."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def main() -> int:
    """Run the command line; without the ``lab`` extra, say how to install it."""
    if find_spec("fcntl") is None:  # which locks the folder of a run
        print(
            "lpsgd's command line needs Linux or macOS; on Windows run it in WSL. The optimizers "
            "themselves run everywhere",
            file=sys.stderr,
        )
        return 1
    try:
        from lpsgd.lab.cli import app as cli
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
