r"""LPMuon: the l_p step on the singular values of matrices, with Muon at p = inf.

One rule for matrices (and kernels, flattened to output x rest), with m the averaged gradient:

.. math::
    m_t &= \beta m_{t-1} + (1-\beta) g_t, \qquad
    x_t = \beta m_t + (1-\beta) g_t \ \text{(Nesterov) or}\ m_t \\
    u_t &= 0.2 \sqrt{\max(r, c)}\; U (S/\operatorname{rms} S)^{\alpha} V^T, \qquad
    x_t = U S V^T, \quad \alpha = 1/(p-1) \\
    \theta_{t+1} &= (1 - \eta\lambda)\,\theta_t - \eta\, u_t

and AdamW's for everything else. The power of the singular values is in ``_schatten.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from lpsgd import _checks as checks
from lpsgd._base import COMMON_CHECKS, Group, LpOptimizer, working_dtype
from lpsgd._dtensor import is_sharded, local_part, part_of, unsharded
from lpsgd._foreach import scalar
from lpsgd._schatten import by_eigenvalues, by_products, lp_matrix_direction
from lpsgd.geometry import Exponent
from lpsgd.schedule import PFunction, exponent_at, exponent_dtype

__all__ = ["LPMuon", "is_matrix"]

_LEAST_SHARE = 1e-3  # of coordinates that the cautious mask keeps, by which the rest is scaled up


def is_matrix(param: Tensor) -> bool:
    """Whether a parameter has singular values: two dimensions or more, and elements."""
    return param.ndim >= 2 and param.numel() > 0


class LPMuon(LpOptimizer):
    r"""Steepest descent in the Schatten-p norm on averaged momentum; Muon at p = inf.

    .. math::
        m_t &= \beta m_{t-1} + (1-\beta) g_t, \qquad x_t = \beta m_t + (1-\beta) g_t \\
        u_t &= 0.2 \sqrt{\max(r, c)}\; U \Bigl(\frac{S}{\operatorname{rms} S}\Bigr)^{\alpha} V^T,
        \qquad x_t = U S V^T, \quad \alpha = \frac{1}{p-1} \\
        \theta_{t+1} &= (1 - \eta\lambda)\,\theta_t - \eta\, u_t

    for every parameter of two dimensions or more, a kernel flattened to output x rest. Biases,
    scales of norms and groups with ``use_muon=False`` (embeddings and the last layer, as
    ``param_groups(model, muon=True)`` marks them) follow AdamW's rule with the same ``lr``. The
    factor gives u the root mean square 0.2 of AdamW's steps, so that learning rates are
    of the size of AdamW's (in docs/study.md the best were 0.6 to 5 times AdamW's).

    Singular values below 1/256 of :math:`\|x\|_{S_4} = (\sum S^4)^{1/4}` stay proportional,
    :math:`S^\alpha` being :math:`S (S^2 + \varepsilon^2)^{(\alpha-1)/2}`, so that noise is not
    amplified to the size of the signal. Rank 1, repeated values and zero are no special cases.

    Args:
        params: parameters, named parameters, or dicts that define parameter groups.
        lr: the learning rate eta, a number or a tensor of one element.
        momentum: the coefficient beta of the average, in [0, 1).
        p: the norm exponent: a number from 2 to inf, a 0-d tensor, or a schedule ``step -> p``.
            A negative p stands for an exponent past infinity, :math:`\alpha = 1/(p-1)` in (-1, 0),
            which makes small singular values larger than large ones.
        weight_decay: the decoupled decay lambda.
        alpha: the power itself instead of ``p``, above -1 and at most 1.
        nesterov: look ahead, as Muon does; else x = m.
        cautious: zero the coordinates in which u and the gradient differ in sign, and scale up the
            others to compensate.
        normalize_rows: divide each row of u by the running root mean square of that row, as NorMuon
            does, at the same length of the whole.
        betas: of AdamW's rule; the second is also that of the rows' running mean.
        eps: of AdamW's rule, and of the rows.
        exact: take singular values by eigenvalues of the smaller Gram matrix (True), or powers of
            them by matrix products (False), to 1.4 % in the root mean square, less exactly for
            negative p (``scripts/fit_schatten.py --check``). None chooses the first on a CPU, where
            it is also faster, and the second elsewhere.
        maximize: maximize the objective instead of minimizing it.
        foreach: stack matrices of equal shape into one batch; None does so except on a CPU.
        capturable: keep count and p in tensors on the parameters' device, for graph capture.
        differentiable: not supported, because the derivative of singular vectors is unbounded.

    A NaN or infinite gradient makes momentum and parameters NaN permanently, as in torch's own
    optimizers: check before ``step``, or use ``torch.amp.GradScaler``, which skips such a step.

    Example:
        >>> from lpsgd import LPMuon, param_groups
        >>> layers = torch.nn.Linear(10, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
        >>> model = torch.nn.Sequential(*layers)
        >>> optimizer = LPMuon(param_groups(model, weight_decay=0.05, muon=True), lr=2e-2)
        >>> model(torch.ones(4, 10)).square().mean().backward()
        >>> optimizer.step()
    """

    _checks: ClassVar = {
        **COMMON_CHECKS,
        "p": checks.matrix_exponent_or_schedule,
        "momentum": checks.fraction,
        "betas": checks.fraction_pair,
        "eps": checks.positive,
        "nesterov": checks.flag,
        "cautious": checks.flag,
        "normalize_rows": checks.flag,
        "use_muon": checks.flag,
        "exact": checks.optional_flag,
    }

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 2e-2,
        momentum: float = 0.95,
        p: float | Tensor | PFunction = math.inf,
        weight_decay: float = 0.0,
        *,
        alpha: float | None = None,
        nesterov: bool = True,
        cautious: bool = True,
        normalize_rows: bool = True,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        exact: bool | None = None,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "p": p if alpha is None else _exponent_of(alpha, p),
                "weight_decay": weight_decay,
                "nesterov": nesterov,
                "cautious": cautious,
                "normalize_rows": normalize_rows,
                "betas": betas,
                "eps": eps,
                "use_muon": True,
                "exact": exact,
                "maximize": maximize,
                "foreach": foreach,
                "capturable": capturable,
                "differentiable": differentiable,
            },
        )

    def _exponent_at(self, schedule: PFunction, count: int) -> float:
        return exponent_at(schedule, count, checks.check_matrix_exponent)

    def _check_group(self, group: Group) -> None:
        super()._check_group(group)
        if group.get("differentiable"):
            raise ValueError(
                "LPMuon cannot be differentiable: the derivative of singular vectors is unbounded "
                "where singular values meet. Use LPSGDM, or detach the step"
            )

    def add_param_group(self, param_group: Group) -> None:
        """Add a group, during training too; it starts at the optimizer's current count."""
        super().add_param_group(param_group)
        for param in self.param_groups[-1]["params"]:
            if param.is_complex():
                self.param_groups.pop()
                raise ValueError(
                    f"LPMuon does not take complex parameters, got one of {param.dtype}; give "
                    "torch.view_as_real of it, or use LPSGDM"
                )

    def _buffer_names(self, group: Group) -> tuple[str, ...]:
        return ("momentum_buffer", "second_moment")

    def _new_buffer(self, name: str, param: Tensor, group: Group) -> Tensor:
        """Momentum for all; a second moment of each coordinate, but of each row of a matrix."""
        if name == "second_moment" and group["use_muon"] and is_matrix(param):
            rows = param.shape[0] if group["normalize_rows"] else 0
            return torch.zeros(rows, 1, dtype=working_dtype(param), device=param.device)
        return super()._new_buffer(name, param, group)

    def _update(
        self,
        group: Group,
        params: list[Tensor],
        grads: list[Tensor],
        buffers: list[list[Tensor]],
        step: Tensor,
        p: Exponent | None,
    ) -> None:
        assert p is not None
        lr, p = (scalar(value, params, group["capturable"]) for value in (group["lr"], p))
        count = scalar(step, params, group["capturable"]) + 1
        if isinstance(count, Tensor):  # a power of an integer tensor would be of single precision
            count = count.to(exponent_dtype(count.device))
        roles = list(zip(params, grads, buffers[0], buffers[1], strict=True))
        matrices = [some for some in roles if group["use_muon"] and is_matrix(some[0])]
        others = [some for some in roles if not (group["use_muon"] and is_matrix(some[0]))]
        for some in others:
            if some[0].numel() > 0:
                _adamw(*some, group, lr=lr, count=count)
        for batch in _batches(matrices, group["foreach"]):
            _matrix_step(batch, group, lr=lr, alpha=1 / (p - 1), count=count)


def _exponent_of(alpha: float, p: Any) -> float:
    """p = 1 + 1/alpha; negative past infinity."""
    if p is not math.inf and p != math.inf:
        raise ValueError(f"alpha={alpha!r} and p={p!r} say the same thing twice; give one of them")
    checks.power("alpha", alpha)
    return math.inf if alpha == 0 else 1 + 1 / alpha


Role = tuple[Tensor, Tensor, Tensor, Tensor]  # parameter, gradient, momentum, second moment


def _batches(matrices: Sequence[Role], foreach: bool | None) -> Iterator[list[Role]]:
    """The matrices one by one, or those of equal shape, dtype and device together."""
    together: dict[Any, list[Role]] = {}
    for index, some in enumerate(matrices):
        param = some[0]
        stacked = not is_sharded(param) and (foreach or (foreach is None and not param.is_cpu))
        key = (_flat(param).shape, param.dtype, param.device) if stacked else index
        together.setdefault(key, []).append(some)
    yield from together.values()


def _matrix_step(
    batch: Sequence[Role],
    group: Group,
    *,
    lr: float | Tensor,
    alpha: float | Tensor,
    count: float | Tensor,
) -> None:
    """One step of matrices of one shape, as (batch, rows, columns)."""
    beta = group["momentum"]
    whole = [tuple(unsharded(t) for t in some[1:3]) for some in batch]
    g = torch.stack([_flat(grad) for grad, _ in whole]).to(batch[0][2].dtype)
    if group["maximize"]:
        g = -g
    m = torch.stack([_flat(momentum) for _, momentum in whole]).lerp(g, 1 - beta)
    x = g.lerp(m, beta) if group["nesterov"] else m
    exact = g.is_cpu if group["exact"] is None else group["exact"]
    u = lp_matrix_direction(x, alpha, by_eigenvalues if exact else by_products)
    if group["normalize_rows"]:
        beta2 = group["betas"][1]
        # a loader may have sharded them, where a matrix has one column and so their shape
        rows = torch.stack([unsharded(some[3]) for some in batch])
        rows = rows.lerp(u.square().mean(-1, True), 1 - beta2)
        for some, v in zip(batch, rows, strict=True):
            local_part(some[3]).copy_(part_of(v, some[3]))
        u = _rescaled_rows(u, rows / (1 - beta2**count), group["eps"])
    if group["cautious"]:
        agree = (u * g > 0).to(u.dtype)
        u = u * (agree / agree.mean((-2, -1), keepdim=True).clamp(min=_LEAST_SHARE))
    keep = 1 - lr * group["weight_decay"]
    for (param, _, momentum, _), new_m, step in zip(batch, m, u * -lr, strict=True):
        local_part(momentum).copy_(part_of(new_m, momentum))
        theta = local_part(param)
        theta.copy_(theta.to(step.dtype) * keep + part_of(step, param))


def _rescaled_rows(u: Tensor, mean_squares: Tensor, eps: float) -> Tensor:
    """u with each row over its running root mean square, and the norm that it had (NorMuon)."""
    scaled = u / (mean_squares.sqrt() + eps)
    before = torch.linalg.matrix_norm(u, keepdim=True)
    after = torch.linalg.matrix_norm(scaled, keepdim=True)
    made: Tensor = scaled * (before / torch.where(after > 0, after, 1.0))
    return made


def _adamw(
    param: Tensor,
    grad: Tensor,
    first: Tensor,
    second: Tensor,
    group: Group,
    *,
    lr: float | Tensor,
    count: float | Tensor,
) -> None:
    """AdamW's rule for what has no singular values."""
    beta1, beta2 = group["betas"]
    g = -grad.to(first.dtype) if group["maximize"] else grad.to(first.dtype)
    first.lerp_(g, 1 - beta1)
    second.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    denominator = (second / (1 - beta2**count)).sqrt_().add_(group["eps"])
    u = first / denominator / (1 - beta1**count)
    param.copy_(param.to(u.dtype) * (1 - lr * group["weight_decay"]) - u * lr)


def _flat(tensor: Tensor) -> Tensor:
    """A matrix as it is, a kernel as output x rest."""
    return tensor if tensor.ndim == 2 else tensor.reshape(tensor.shape[0], -1)
