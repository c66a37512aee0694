"""Fuzz the laboratory for as long as asked: random input, and kills at random moments.

    python scripts/fuzz.py --minutes 60 [--seed 0] [--only stored_files,train]

Most of the time goes to the kills, which take longest. Prints what it has reached at the end, and
at the first failure what to run again.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")
# the processes that are killed find the tests and the package of this checkout
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
)

import lpsgd  # noqa: E402
from tests.lab.fuzz.fuzzers import FUZZERS, run_case  # noqa: E402
from tests.lab.fuzz.kills import KILLERS  # noqa: E402

_TURN = 10.0  # seconds that each fuzzer has between two kill tests


def main() -> None:
    parser = argparse.ArgumentParser(description="fuzz lpsgd's laboratory")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first input")
    parser.add_argument("--only", help="names, separated by commas")
    given = parser.parse_args()
    only = given.only.split(",") if given.only else [*FUZZERS, *KILLERS]
    warnings.simplefilter("ignore")
    inputs: Counter[str] = Counter()
    kills: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    deadline = time.monotonic() + 60 * given.minutes
    try:
        with tempfile.TemporaryDirectory(prefix="lpsgd-fuzz-") as folder:
            os.chdir(folder)
            while time.monotonic() < deadline:
                for name in only:
                    if name in FUZZERS:
                        turn = min(deadline, time.monotonic() + _TURN)
                        while time.monotonic() < turn:
                            run_case(name, given.seed + inputs[name], Path(folder))
                            inputs[name] += 1
                    elif time.monotonic() < deadline:
                        draw = random.Random(f"{name} {given.seed} {ended[name]}")
                        with tempfile.TemporaryDirectory(dir=folder) as place:
                            kills[name] += KILLERS[name](draw, Path(place))
                        ended[name] += 1
                print(_reached(inputs, kills, ended), flush=True)
            os.chdir(ROOT)
    finally:
        print(f"lpsgd {lpsgd.__version__}: {_reached(inputs, kills, ended)}")


def _reached(inputs: Counter[str], kills: Counter[str], ended: Counter[str]) -> str:
    tried = ", ".join(f"{name} {count:,}" for name, count in inputs.items())
    killed = ", ".join(f"{name} {kills[name]} in {ended[name]}" for name in ended)
    return (
        f"{inputs.total():,} inputs ({tried}); {kills.total()} kills ({killed} commands, each of "
        "which ended as if undisturbed)"
    )


if __name__ == "__main__":
    main()
