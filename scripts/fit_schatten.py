"""Fit the chain of polynomials of src/lpsgd/_schatten.py, and print it with its errors.

    python scripts/fit_schatten.py               # fit; about a minute
    python scripts/fit_schatten.py --check       # only the errors of the chain in the package

The iterates y_0 = s, y_k = y_{k-1} (a_k + b_k y_{k-1}^2 + c_k y_{k-1}^4) are to span, for every
alpha, something close to s (s^2 + FLOOR^2)^((alpha-1)/2) on (0, 1]. The weights of a combination
are linear, and are eliminated for each alpha by least squares of the relative error (variable
projection); Levenberg and Marquardt's method finds the coefficients that are left.
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import Tensor

from lpsgd._schatten import CHAIN, FLOOR

# alpha and the weight of its error: Muon's first, a little of what lies past infinity
ALPHAS = ((0.0, 1.5), (0.05, 1.0), (0.15, 1.0), (0.3, 1.0), (0.6, 1.0), (-0.3, 0.3))
SHOWN = (-0.5, -0.3, -0.15, 0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
MUON = (3.4445, -4.7750, 2.0315)  # Jordan et al. (2024)
LARGEST = 4.0  # no iterate may be larger on [0, 1.05], where rounding may lead
STARTS, ITERATIONS = 6, 600


def points(count: int) -> Tensor:
    """Singular values from FLOOR/16 to 1 in equal ratios."""
    return torch.exp(torch.linspace(math.log(FLOOR / 16), 0, count, dtype=torch.float64))


def target(s: Tensor, alpha: float) -> Tensor:
    return s * (s * s + FLOOR**2) ** ((alpha - 1) / 2)


def iterates(chain: Tensor, s: Tensor) -> Tensor:
    """The columns y_0(s), ..., y_K(s)."""
    columns = [s]
    for a, b, c in chain.view(-1, 3):
        y = columns[-1]
        columns.append(y * (a + y * y * (b + y * y * c)))
    return torch.stack(columns, dim=1)


def residual(chain: Tensor, s: Tensor) -> Tensor:
    """The relative errors of the best combination for each alpha, one below the other."""
    columns = iterates(chain, s)
    errors = []
    for alpha, weight in ALPHAS:
        basis, _ = torch.linalg.qr(columns / target(s, alpha).unsqueeze(1))
        one = torch.ones_like(s)
        errors.append(weight * (one - basis @ (basis.mT @ one)))
    return torch.cat(errors)


def jacobian(chain: Tensor, s: Tensor) -> Tensor:
    """By central differences."""
    columns = []
    for i, value in enumerate(chain.tolist()):
        shift = torch.zeros_like(chain)
        shift[i] = 1e-6 * max(1.0, abs(value))
        difference = residual(chain + shift, s) - residual(chain - shift, s)
        columns.append(difference / (2 * shift[i]))
    return torch.stack(columns, dim=1)


def fit(chain: Tensor, s: Tensor) -> tuple[Tensor, float]:
    """Levenberg and Marquardt's method from ``chain`` on; the chain and its sum of squares."""
    inside = torch.linspace(0, 1.05, 2000, dtype=torch.float64)
    damping, r = 1e-3, residual(chain, s)
    value = float(r @ r)
    for _ in range(ITERATIONS):
        slope = jacobian(chain, s)
        gradient, curvature = slope.mT @ r, slope.mT @ slope
        scale = torch.diag(curvature.diagonal() + 1e-9)
        for _ in range(10):
            tried = chain - torch.linalg.solve(curvature + damping * scale, gradient)
            new = residual(tried, s)
            if float(new @ new) < value and iterates(tried, inside).abs().max() < LARGEST:
                break
            damping *= 4
        else:
            break
        gained = value - float(new @ new)
        chain, r, value = tried, new, float(new @ new)
        damping = max(damping / 4, 1e-10)
        if gained < 1e-7 * value:
            break
    return chain, value


def best_fit(stages: int) -> Tensor:
    """The best of a few starts: Muon's coefficients, small changes of them, and the package's."""
    draw = torch.Generator().manual_seed(0)
    s, found = points(240), []
    muon = torch.tensor(MUON * stages, dtype=torch.float64)
    starts = {"Muon": muon}
    for trial in range(1, STARTS):
        noise = torch.randn(muon.shape, generator=draw, dtype=torch.float64)
        starts[f"Muon, changed ({trial})"] = muon * (1 + 0.002 * noise)
    if stages == len(CHAIN):
        starts["the package's"] = torch.tensor(CHAIN, dtype=torch.float64).flatten()
    for name, start in starts.items():
        r = residual(start, s)
        found.append(fit(start, s))
        print(f"{name}: sum of squares {float(r @ r):.4f} -> {found[-1][1]:.4f}", flush=True)
    return min(found, key=lambda pair: pair[1])[0]


def errors(chain: Tensor) -> list[tuple[float, float, float]]:
    """alpha, root mean square and largest relative error of the best combination."""
    s = points(2000)
    rows = []
    for alpha in SHOWN:
        columns = iterates(chain, s) / target(s, alpha).unsqueeze(1)
        weights = torch.linalg.lstsq(columns, torch.ones_like(s).unsqueeze(1)).solution
        error = (columns @ weights - 1).abs()
        rows.append((alpha, float(error.square().mean().sqrt()), float(error.max())))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--stages", type=int, default=len(CHAIN))
    parser.add_argument("--check", action="store_true", help="only the chain of the package")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    packaged = torch.tensor(CHAIN, dtype=torch.float64).flatten()
    chain = packaged if asked.check else best_fit(asked.stages)
    for a, b, c in chain.view(-1, 3).tolist():
        print(f"    ({a:.6f}, {b:.6f}, {c:.6f}),")
    print(f"{'alpha':>7}{'rms':>9}{'largest':>9}")
    for alpha, rms, largest in errors(chain):
        print(f"{alpha:7.2f}{100 * rms:8.2f}%{100 * largest:8.2f}%")


if __name__ == "__main__":
    main()
