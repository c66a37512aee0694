r"""The geometry of l_p steepest descent, as pure functions.

For the norm :math:`\|d\|_p` with :math:`2 \le p \le \infty` the paper uses

.. math::
    \rho(p) = \frac{p-2}{p-1} = 1 - \frac{1}{p-1}, \qquad
    \alpha(p) = 1 - \rho = \frac{1}{p-1}, \qquad
    q = \frac{p}{p-1} = 1 + \alpha,

written here in the forms that are also right at :math:`p = \infty`. The direction of steepest
descent for the gradient x is :math:`u = x / (|x| + \varepsilon)^\rho`, coordinate by coordinate
(the paper's equations ``lpsd`` and ``eq:ut``); p = 2 gives the gradient itself and p = inf
:math:`x / (|x| + \varepsilon)`, which is sign(x) but for eps.

``p`` is a number or a 0-d tensor everywhere, ``x`` a real floating-point tensor.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from lpsgd._dtensor import largest_entry

Exponent: TypeAlias = "float | Tensor"
Normalize: TypeAlias = 'Literal["dual", "rms"] | None'

NORMALIZATIONS: tuple[Normalize, ...] = (None, "dual", "rms")


def alpha(p: Exponent) -> Exponent:
    """The power that the direction takes of each coordinate: alpha = 1/(p-1), 1 at p=2, 0 at inf.

    >>> alpha(2.0), alpha(3.0), alpha(float("inf"))
    (1.0, 0.5, 0.0)
    """
    return 1 / (p - 1)


def rho(p: Exponent) -> Exponent:
    """The exponent of the paper's scaling: rho = (p-2)/(p-1), 0 at p = 2, 1 at p = inf.

    >>> rho(2.0), rho(3.0), rho(float("inf"))
    (0.0, 0.5, 1.0)
    """
    return 1 - alpha(p)


def dual_exponent(p: Exponent) -> Exponent:
    """The exponent of the dual norm: q = p/(p-1), so that 1/p + 1/q = 1.

    >>> dual_exponent(2.0), dual_exponent(3.0), dual_exponent(float("inf"))
    (2.0, 1.5, 1.0)
    """
    return 1 + alpha(p)


def lp_norm(x: Tensor, p: Exponent) -> Tensor:
    r"""The norm :math:`\|x\|_p = \max|x| \cdot \| x/\max|x| \|_p` for finite p >= 1.

    Dividing by the largest entry first keeps every power in range: in float32 the norm of entries
    from 1e-30 to 1e30 neither overflows nor vanishes.

    >>> lp_norm(torch.tensor([3e30, -4e30]), 2.0)
    tensor(5.0000e+30)
    """
    largest, total = _sum_of_powers(x, p)
    norm: Tensor = largest * total ** (1 / p)
    return norm


def _sum_of_powers(x: Tensor, p: Exponent) -> tuple[Tensor, Tensor]:
    """max|x| and the sum of (|x|/max|x|)^p."""
    magnitude = x.abs()
    largest = largest_entry(magnitude)
    scaled = magnitude / torch.where(largest == 0, 1.0, largest)
    # 1 for a tensor of zeros, so that a root of 0 does not spoil derivatives
    return largest, torch.where(largest == 0, 1.0, (scaled**p).sum())


def rms(x: Tensor) -> Tensor:
    """The root mean square of the entries of x.

    >>> rms(torch.tensor([3.0, -4.0, 0.0, 0.0]))
    tensor(2.5000)
    """
    # not lp_norm(x, 2) / sqrt(d), which overflows for many entries near the largest number
    largest, total = _sum_of_powers(x, 2.0)
    root: Tensor = largest * (total / x.numel()) ** 0.5
    return root


def rms_floor(p: Exponent, eps: float) -> Exponent:
    """The rms below which ``normalize="rms"`` fades out: the direction of an entry of size eps."""
    return eps / (2 * eps) ** rho(p)


def lp_direction(x: Tensor, p: Exponent, eps: float = 1e-8) -> Tensor:
    r"""The paper's scaling :math:`u = x / (|x| + \varepsilon)^{\rho(p)}` (equation ``eq:ut``).

    >>> x = torch.tensor([4.0, -9.0, 0.0])
    >>> lp_direction(x, 3.0)  # alpha = 1/2: the signed square root
    tensor([ 2., -3.,  0.])
    >>> lp_direction(x, 2.0)
    tensor([ 4., -9.,  0.])
    """
    if not isinstance(p, Tensor):
        if p == 2:
            return x
        if p == float("inf"):
            return x / (x.abs() + eps)
    return x / (x.abs() + eps) ** rho(p)  # whose inverse would leave the range for large x


def normalized_direction(
    x: Tensor, p: Exponent, eps: float = 1e-8, normalize: Normalize = None
) -> Tensor:
    r"""The direction u of :func:`lp_direction`, its length set over the whole tensor.

    - ``None``: u, as in the paper's algorithms.
    - ``"dual"``: :math:`u \, \|x\|_q^{\rho}` restores the factor that the paper leaves out of its
      equation ``core``. As eps -> 0 this is exact steepest descent, the minimiser of
      :math:`\langle x, d\rangle + \tfrac12 \|d\|_p^2` up to sign.
    - ``"rms"``: :math:`u / \max(\mathrm{rms}(u), \varepsilon/(2\varepsilon)^\rho)` gives the step
      the same length for every p; a tensor whose entries are all far below eps fades out.

    >>> x = torch.tensor([4.0, -9.0, 0.0])
    >>> u = normalized_direction(x, 3.0, normalize="dual")
    >>> torch.allclose(lp_norm(u, 3.0), lp_norm(x, 1.5))  # the duality of norms
    True
    """
    u, factor = direction_and_factor(x, p, eps, normalize)
    return u if factor is None else u * factor


def direction_and_factor(
    x: Tensor, p: Exponent, eps: float, normalize: Normalize
) -> tuple[Tensor, Tensor | None]:
    """The direction in two parts, of which u is in range for every x, and the factor at most 2 d.

    Their product may be out of range where the step, a small learning rate times it, is not.
    """
    u = lp_direction(x, p, eps)
    if normalize == "dual" and u is not x:  # at p = 2 the factor is 1
        first, second = dual_factors(*_sum_of_powers(x, dual_exponent(p)), p)
        return u * first, second
    if normalize == "rms":
        return u / torch.clamp(rms(u), min=rms_floor(p, eps)), None
    return u, None


def dual_factors(largest: Tensor, total: Tensor, p: Exponent) -> tuple[Tensor, Tensor]:
    """||x||_q^rho in two factors, u times the first of which is in range, for ||x||_q may not be.

    ``largest`` is max|x| and ``total`` the sum of (|x|/max|x|)^q. A large max|x|^rho comes first,
    halved because u of the largest number may be rounded up to infinity; a small one comes last,
    so that what it makes denormal is rounded only once.
    """
    power = torch.where(largest == 0, 1.0, largest) ** rho(p)
    large = largest > 1
    rest = total ** (rho(p) / dual_exponent(p))
    return torch.where(large, power / 2, 1.0), torch.where(large, 2.0, power) * rest


def gradient_density(gradients: Tensor | Iterable[Tensor]) -> Tensor:
    r"""How evenly a gradient is spread: :math:`\|g\|_1^2 / (d \, \|g\|_2^2)`, from 1/d to 1.

    1 when all coordinates are equally large (sign and gradient then agree), 1/d when one coordinate
    holds everything. Several tensors are taken as one long vector. A zero gradient gives 0.

    >>> gradient_density(torch.tensor([1.0, -1.0, 1.0, 1.0]))
    tensor(1., dtype=torch.float64)
    >>> gradient_density([torch.tensor([2.0]), torch.zeros(3)])
    tensor(0.2500, dtype=torch.float64)
    """
    tensors = [gradients] if isinstance(gradients, Tensor) else list(gradients)
    tensors = [g for g in tensors if g.numel() > 0]
    if not tensors:
        return torch.zeros((), dtype=torch.float64)
    # 1-norm and 2-norm of each tensor first: both are accurate in the tensor's own precision
    ones = torch.stack([lp_norm(g, 1.0).double().cpu() for g in tensors])
    twos = torch.stack([lp_norm(g, 2.0).double().cpu() for g in tensors])
    count = sum(g.numel() for g in tensors)
    l1, l2 = ones.sum(), torch.linalg.vector_norm(twos)
    # not l2 > 0, which would give a NaN a density
    return torch.where(l2 != 0, (l1 / torch.where(l2 != 0, l2, 1.0)) ** 2 / count, 0.0)
