r"""The l_p step on singular values: a power of a matrix's singular values, exactly or by products.

For :math:`X = U S V^T` and :math:`\alpha = 1/(p-1)`, steepest descent in the Schatten-p norm moves
along :math:`U S^\alpha V^T`. Here the power is taken as the paper takes it of coordinates, with a
small constant that keeps zero at zero:

.. math::
    X (X^T X + \varepsilon^2)^{-\rho/2} = (X X^T + \varepsilon^2)^{-\rho/2} X, \qquad
    \rho = 1 - \alpha, \quad \varepsilon = 2^{-8} \|X\|_{S_4}

:math:`\|X\|_{S_4} = \|X X^T\|_F^{1/2}` lies between the largest singular value and
:math:`r^{1/4}` times it. Singular values well above :math:`\varepsilon` are raised to the power
alpha, those below pass through in proportion: what is below the noise of the Gram matrix in
float32 (about :math:`10^{-3}` of the largest) is never lifted to the size of the signal.

Both ways to compute it need the Gram matrix of the shorter side alone. `by_eigenvalues` takes its
eigenvalues: exact to rounding, and on a CPU the faster one. `by_products` uses matrix products and
nothing else, for GPUs and compiled graphs: every alpha is a combination of the iterates of one
fixed chain of odd polynomials, so that changing p changes a handful of weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lpsgd._foreach import as_tensor

FLOOR = 2.0**-8
"""epsilon over the Schatten-4 norm"""

RMS = 0.2
"""The root mean square of a step's entries, AdamW's in practice, so that its rates carry over"""

# Five odd polynomials y <- y (a + b y^2 + c y^4), of which the iterates y_0 = s, y_1, ..., y_5 are
# ramps that end at ever smaller s. Fitted (scripts/fit_schatten.py) so that combinations of them
# come close to s (s^2 + FLOOR^2)^(-rho/2) on [0, 1] for every alpha: root mean square of the
# relative error 1.2 % at alpha = 0, at most 1.4 % up to 1, 2 % at -0.15, 4.4 % at -0.3.
CHAIN = (
    (4.318608, -9.738791, 6.244814),
    (3.464623, -5.326366, 2.453358),
    (3.277621, -4.954578, 2.220324),
    (3.54757, -5.109862, 2.221715),
    (5.659546, -5.972275, 1.936952),
)
POINTS = 256  # at which the weights of a combination are fitted


def lp_matrix_direction(
    x: Tensor,
    alpha: float | Tensor,
    power: Callable[[Tensor, float | Tensor], Tensor] | None = None,
) -> Tensor:
    r"""The step of matrices ``x`` (..., rows, columns): singular values to the power alpha.

    .. math::
        u = 0.2 \sqrt{\max(r, c)}\; U \Bigl(\frac{S}{\operatorname{rms}(S)}\Bigr)^{\alpha} V^T

    so that u has AdamW's root mean square of 0.2: exactly at alpha = 1 (the normalised gradient)
    and at alpha = 0 (Muon) where x has full rank, and at most 0.2 between. Zero gives zero.
    ``power`` is how to take it: `by_eigenvalues` (the default on a CPU) or `by_products`.
    """
    rows, columns = x.shape[-2:]
    if power is None:
        power = by_eigenvalues if x.is_cpu else by_products
    scale = RMS * math.sqrt(max(rows, columns))
    # The largest entry first, so that squares neither overflow nor vanish.
    largest = x.abs().amax(dim=(-2, -1), keepdim=True)
    x = x / torch.where(largest > 0, largest, 1.0)
    rms = torch.linalg.matrix_norm(x, keepdim=True) / math.sqrt(min(rows, columns))
    rms = torch.where(rms > 0, rms, 1.0)
    if not isinstance(alpha, Tensor) and alpha == 1:
        unit: Tensor = x * (scale / rms)
        return unit
    if rows > columns:
        x = x.mT
    gram = x @ x.mT
    square = torch.linalg.matrix_norm(gram, keepdim=True)  # of the Schatten-4 norm
    square = torch.where(square > 0, square, 1.0)
    # (S/rms)^alpha = (S/norm)^alpha (norm/rms)^alpha; power() gives S^alpha/S of S/norm
    factor = scale * (square.sqrt() / rms) ** alpha / square.sqrt()
    u: Tensor = (power(gram / square, alpha) * factor) @ x
    return u.mT if rows > columns else u


def by_eigenvalues(gram: Tensor, alpha: float | Tensor) -> Tensor:
    """(gram + FLOOR^2)^(-rho/2) by the eigenvalues of the Gram matrix."""
    # LAPACK refuses what is not finite; the step is then NaN, as with torch's own optimizers
    finite = gram.isfinite().all(-1, True).all(-2, True)
    # Of a singular matrix, such as that of a layer with dead units, LAPACK gives NaN in single
    # precision now and then, or gives up: so FLOOR^2 is added before, and not to the eigenvalues.
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    values, vectors = torch.linalg.eigh(torch.where(finite, gram, 0.0) + FLOOR**2 * eye)
    scaled = values.clamp(min=FLOOR**2) ** ((alpha - 1) / 2)
    made: Tensor = (vectors * scaled.unsqueeze(-2)) @ vectors.mT
    return made * torch.where(finite, 1.0, torch.nan)


def by_products(gram: Tensor, alpha: float | Tensor) -> Tensor:
    """(gram + FLOOR^2)^(-rho/2) by matrix products alone.

    It is right to 1.4 % in the root mean square for p from 2 to infinity, less exactly for negative
    p (``scripts/fit_schatten.py --check``).

    With y_k = q_k(G) x, one stage is q <- (a + b G + c G^2) q and G <- (a + b G + c G^2)^2 G; all
    these matrices commute.
    """
    weights = chain_weights(alpha, gram.device).to(gram.dtype)
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    total = eye * weights[0]
    q: Tensor | None = None
    for stage, (a, b, c) in enumerate(CHAIN, start=1):
        poly = a * eye + b * gram + c * (gram @ gram)
        q = poly if q is None else poly @ q
        total = total + weights[stage] * q
        if stage < len(CHAIN):
            gram = poly @ gram @ poly
    return total


def chain_weights(alpha: float | Tensor, device: torch.device) -> Tensor:
    """The weights w for which sum_k w_k y_k(s) is nearest to s (s^2 + FLOOR^2)^(-rho/2).

    By least squares of the relative error, as tensor operations: a value of alpha that lies on a
    device or in a graph is not looked at.
    """
    alpha = as_tensor(alpha, device)
    # from FLOOR/16, in equal ratios: below FLOOR the target is a straight line
    exponents = torch.linspace(math.log(FLOOR / 16), 0, POINTS, dtype=alpha.dtype, device=device)
    s = exponents.exp()
    target = s * (s * s + FLOOR**2) ** ((alpha - 1) / 2)
    iterates = [s]
    for a, b, c in CHAIN:
        y = iterates[-1]
        y2 = y * y
        iterates.append(y * (a + y2 * (b + y2 * c)))
    relative = torch.stack(iterates, dim=1) / target.unsqueeze(1)
    normal = relative.mT @ relative
    # not `solve`, for which the host waits to see whether it failed
    weights: Tensor = torch.linalg.solve_ex(normal, relative.sum(dim=0)).result
    return weights
