"""What one step of every registered optimizer costs, as a ratio to torch's SGD with momentum.

    python benchmarks/registered.py

All of them step the parameters of one ResNet-18 in float32 with the registry's settings. Rounds are
interleaved: each times every optimizer once, so that a busy machine slows all alike, and a ratio is
taken within its round. The table shows the median ratio and the middle half of the ratios.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time

import torch

from lpsgd.lab.models import create
from lpsgd.peers import registry

PEER = "sgd"


def make_optimizers(model: torch.nn.Module) -> dict[str, torch.optim.Optimizer]:
    """Every registered optimizer, on the same parameters."""
    return {
        name: registry.build(
            name, model, {}, total_steps=10**6, steps_per_epoch=10**3, total_epochs=10**3
        )
        for name in registry.names()
    }


def seconds_of_a_step(optimizer: torch.optim.Optimizer, steps: int) -> float:
    """The time of one step, a mean over ``steps``."""
    start = time.perf_counter()
    for _ in range(steps):
        optimizer.step()
    return (time.perf_counter() - start) / steps


def state_elements(optimizer: torch.optim.Optimizer) -> int:
    """The number of state elements, without the counts."""
    return sum(
        value.numel()
        for state in optimizer.state.values()
        for key, value in state.items()
        if torch.is_tensor(value) and key != "step"
    )


def measure(rounds: int, steps: int, width: int) -> None:
    """Time all optimizers and print the table."""
    torch.manual_seed(0)
    model = create("resnet18", input_shape=(3, 32, 32), classes=10, width=width)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter) * 1e-3
    elements = sum(parameter.numel() for parameter in model.parameters())
    optimizers = make_optimizers(model)
    for optimizer in optimizers.values():
        seconds_of_a_step(optimizer, 2)  # state is made, memory is touched
    times = {name: [] for name in optimizers}
    for _ in range(rounds):
        for name, optimizer in optimizers.items():
            times[name].append(seconds_of_a_step(optimizer, steps))

    print(
        f"ResNet-18 of width {width}, {elements / 1e6:.1f} M parameters in "
        f"{len(list(model.parameters()))} tensors, float32, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}, {platform.machine()}; {rounds} rounds of {steps} steps\n"
    )
    print(f"| optimizer | ms a step | ratio to {PEER} | middle half | state, x parameters |")
    print("|---|---:|---:|---:|---:|")
    for name, seconds in times.items():
        ratios = [mine / peer for mine, peer in zip(seconds, times[PEER], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        state = state_elements(optimizers[name]) / elements
        print(
            f"| {name} | {1e3 * statistics.median(seconds):.1f} | {middle:.2f} "
            f"| {low:.2f} to {high:.2f} | {state:.0f} |"
        )


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=3, help="steps timed at once")
    parser.add_argument("--width", type=int, default=64, help="channels of the first layer")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    measure(arguments.rounds, arguments.steps, arguments.width)


if __name__ == "__main__":
    main()
