"""Import time: `import lpsgd` with its optimizers against `import torch`, each in a new process.

    python benchmarks/imports.py [--rounds 7]

Prints the ratio of the best times; within 1.10 is the aim.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

CODE = {
    "import torch": "import torch",
    "lpsgd's optimizers": "from lpsgd import LPSGD, LPSGDM, CosineP, param_groups",
    "import lpsgd": "import lpsgd",
}


def seconds(code: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
    return time.perf_counter() - began


def measure(rounds: int) -> dict[str, float]:
    """The best time of each; they take turns, so that other work on the machine hits all alike."""
    best = dict.fromkeys(CODE, float("inf"))
    for _ in range(rounds):
        for name, code in CODE.items():
            best[name] = min(best[name], seconds(code))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description="import time against torch")
    parser.add_argument("--rounds", type=int, default=7, help="processes for each (default 7)")
    best = measure(parser.parse_args().rounds)
    torch_time = best["import torch"]
    for name, time_ in best.items():
        print(f"{name:20} {time_:6.3f} s   {time_ / torch_time:5.3f} x import torch")


if __name__ == "__main__":
    main()
