"""What a measurement will take, told before it starts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from math import ceil

import torch

from lpsgd.curvature.operator import HessianOperator


@dataclass(frozen=True)
class Cost:
    """Seconds for all products, and bytes held meanwhile."""

    products: int
    seconds: float
    basis_bytes: int  # the Lanczos basis, on its own device
    graph_bytes: int  # graphs kept between products, on the device of the products

    def __str__(self) -> str:
        return (
            f"{self.products} products, about {timedelta(seconds=ceil(self.seconds))}; "
            f"memory {_size(self.basis_bytes)} for the Lanczos basis "
            f"and {_size(self.graph_bytes)} for graphs"
        )


def measure_cost(operator: HessianOperator, products: int, lanczos: int) -> Cost:
    """Run one product to build what is kept and a second to time it."""
    vector = torch.ones(operator.shape[0], device=operator.device, dtype=operator.dtype)
    operator @ vector
    _synchronise(operator.device)
    start = time.perf_counter()
    operator @ vector
    _synchronise(operator.device)
    seconds = (time.perf_counter() - start) * products
    entry = torch.finfo(operator.dtype).bits // 8
    basis = min(lanczos, operator.shape[0]) * operator.shape[0] * entry
    return Cost(products, seconds, basis, operator.graph_bytes)


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GB" if count >= 2**27 else f"{count / 2**20:.1f} MB"


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
