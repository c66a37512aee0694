r"""LPSGD and LPSGDM, the two algorithms of the paper: class -> functional -> single / multi.

The one update rule, with x = g (Algorithm 1) or x = m (Algorithm 2):

.. math::
    m_t &= \beta m_{t-1} + (1-\beta) g_t               && \text{(eq:momentum\_buffer)} \\
    u_t &= x_t / (|x_t| + \varepsilon)^{\rho(p)}        && \text{(eq:ut)} \\
    \theta_{t+1} &= (1 - \eta\lambda) \theta_t - \eta u_t && \text{(eq:practical\_update)}

``_single_tensor`` is this rule as it is written; ``_multi_tensor`` computes the same with foreach
operations and one temporary; ``_kernel`` with one pass of C code (fused.py), which takes no memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

from lpsgd import _checks as checks
from lpsgd import fused as fused_kernel
from lpsgd import geometry
from lpsgd._base import COMMON_CHECKS, Group, LpOptimizer, working_dtype
from lpsgd._dtensor import PLAIN, Shards, are_plain, local_part
from lpsgd._foreach import (
    any_negative,
    as_number,
    as_tensor,
    copy_,
    divide_by_largest_,
    is_dense,
    on_device,
    pow_,
    real,
    require_memory,
    scalar,
    scaling_,
    visible,
)
from lpsgd._rounding import MOMENTUM, PARAMETER, noise_key, round_into
from lpsgd.geometry import Exponent, Normalize
from lpsgd.schedule import PFunction

__all__ = ["LPSGD", "LPSGDM", "lp_descent"]

_CHECKS = {
    **COMMON_CHECKS,
    "p": checks.exponent_or_schedule,
    "eps": checks.positive,
    "normalize": checks.one_of(*geometry.NORMALIZATIONS),
}


class LPSGD(LpOptimizer):
    r"""Stochastic l_p-norm steepest descent (the paper's Algorithm 1, with decoupled decay).

    .. math::
        u_t = \frac{g_t}{(|g_t| + \varepsilon)^{\rho}}, \quad \rho = \frac{p-2}{p-1}, \qquad
        \theta_{t+1} = (1 - \eta\lambda)\,\theta_t - \eta\, u_t

    The arguments are those of :class:`LPSGDM` but for ``momentum`` and ``state_dtype``; it keeps no
    buffer. The advice on the learning rate is the same: start at 1e-2, then try 3e-3 and 3e-2.

    Example:
        >>> from lpsgd import LPSGD, CosineP
        >>> model = torch.nn.Linear(10, 1)
        >>> optimizer = LPSGD(model.parameters(), lr=0.01, p=CosineP(6, total_steps=100))
        >>> model(torch.ones(4, 10)).square().mean().backward()
        >>> optimizer.step()
        >>> optimizer.param_groups[0]["p"]
        6.0
    """

    _checks = _CHECKS

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        p: float | Tensor | PFunction = 6.0,
        weight_decay: float = 0.0,
        eps: float = 1e-8,
        *,
        normalize: Normalize = None,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "p": p,
                "weight_decay": weight_decay,
                "eps": eps,
                "normalize": normalize,
                "maximize": maximize,
                "foreach": foreach,
                "fused": fused,
                "capturable": capturable,
                "differentiable": differentiable,
            },
        )

    def add_param_group(self, param_group: Group) -> None:
        """Add a group, during training too; it starts at the optimizer's current count."""
        super().add_param_group(param_group)
        if self.param_groups[-1]["fused"]:
            # of what has no memory yet, the first step decides
            known = [p for p in self.param_groups[-1]["params"] if not (is_lazy(p) or p.is_meta)]
            try:
                with torch.no_grad():
                    _demand_fused([real(param) for param in known])
            except RuntimeError:
                self.param_groups.pop()
                raise

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
        lp_descent(
            params,
            grads,
            buffers[0] if buffers else None,
            p=p,
            lr=group["lr"],
            momentum=group.get("momentum", 0.0),
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            normalize=group["normalize"],
            maximize=group["maximize"],
            foreach=group["foreach"],
            fused=group["fused"],
            capturable=group["capturable"],
            differentiable=group["differentiable"],
            count=step,
        )


class LPSGDM(LPSGD):
    r"""l_p-norm steepest descent on averaged momentum, with decoupled decay (Algorithm 2).

    .. math::
        m_t &= \beta m_{t-1} + (1-\beta) g_t, \qquad m_0 = 0 \\
        u_t &= \frac{m_t}{(|m_t| + \varepsilon)^{\rho}}, \qquad \rho = \frac{p-2}{p-1} \\
        \theta_{t+1} &= (1 - \eta\lambda)\,\theta_t - \eta\, u_t

    Args:
        params: parameters, named parameters, or dicts that define parameter groups.
        lr: the learning rate eta, a number or a tensor of one element. Start at 1e-2, then try
            3e-3 and 3e-2. The default is the paper's most frequent value, for runs of 200 epochs,
            and too small for shorter ones.
        momentum: the coefficient beta of the average, in [0, 1); 0 keeps no buffer.
        p: the norm exponent: a number from 2 to inf, a 0-d tensor, or a schedule ``step -> p``
            such as :class:`~lpsgd.CosineP`. The paper's method is a schedule; a schedule is kept
            in ``group["p_schedule"]``, and each step writes the value that it uses to
            ``group["p"]``. Without a schedule ``group["p"]`` may be set by hand.
        weight_decay: the decoupled decay lambda.
        eps: the constant epsilon > 0 that keeps the scaling finite at zero. Below the smallest
            normal number of the arithmetic (1.2e-38 in float32) it counts as that number.
        state_dtype: the dtype of the momentum; None means float32 for half-precision parameters,
            else the parameter's own. ``torch.bfloat16`` halves its memory: it is then rounded
            stochastically, and so are bfloat16 parameters, which keeps steps and decay far below
            their spacing right on average.
        normalize: sets the length of each tensor's step. ``None``: as in the paper. ``"dual"``:
            restores the factor ||x||_q^rho that the paper drops, so that the step is exact
            steepest descent as eps -> 0. ``"rms"``: unit root mean square, so that one learning
            rate serves every p; without it, annealing p is also a hidden decay of the step.
        maximize: climb instead of descending.
        foreach: use the multi-tensor path; None chooses it where ``fused`` does not run, unless
            ``differentiable``.
        fused: update everything in one pass without temporary memory: on a CPU by a kernel that
            is compiled when lpsgd is installed, elsewhere by code that Inductor compiles (not
            measured on a GPU by us). None chooses the kernel where it can run, and never compiles;
            True raises where fused cannot run.
        capturable: keep count and p in tensors on the parameters' device, for graph capture. The
            value of p is then not looked at, and so not checked, during a step.
        differentiable: let autograd see the step.

    Range: every finite gradient gives the step of the formula, from denormal numbers (which have
    few digits) to the largest; the momentum needs the difference of gradient and momentum to be
    finite, so that both must stay below half of the largest number where signs change. With p or lr
    in a tensor, gradients above a quarter of the largest number may not move their parameter.

    Example:
        >>> from lpsgd import LPSGDM, CosineP
        >>> model = torch.nn.Linear(10, 1)
        >>> schedule = CosineP(6, total_epochs=200, steps_per_epoch=391)  # the paper's
        >>> optimizer = LPSGDM(model.parameters(), lr=1e-2, p=schedule, weight_decay=0.01)
        >>> model(torch.ones(4, 10)).square().mean().backward()
        >>> optimizer.step()
    """

    _checks: ClassVar = {
        **_CHECKS,
        "momentum": checks.fraction,
        "state_dtype": checks.floating_dtype,
    }

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        momentum: float = 0.9,
        p: float | Tensor | PFunction = 6.0,
        weight_decay: float = 0.0,
        eps: float = 1e-8,
        *,
        state_dtype: torch.dtype | None = None,
        normalize: Normalize = None,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        LpOptimizer.__init__(
            self,
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "p": p,
                "weight_decay": weight_decay,
                "eps": eps,
                "state_dtype": state_dtype,
                "normalize": normalize,
                "maximize": maximize,
                "foreach": foreach,
                "fused": fused,
                "capturable": capturable,
                "differentiable": differentiable,
            },
        )

    def _buffer_names(self, group: Group) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] != 0 else ()


def lp_descent(
    params: list[Tensor],
    grads: list[Tensor],
    momentum_buffers: list[Tensor] | None,
    *,
    p: Exponent,
    lr: float | Tensor,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    eps: float = 1e-8,
    normalize: Normalize = None,
    maximize: bool = False,
    foreach: bool | None = None,
    fused: bool | None = None,
    capturable: bool = False,
    differentiable: bool = False,
    count: int | Tensor = 0,
) -> None:
    """The functional form: one step of LPSGD, or of LPSGDM where there are momentum buffers.

    Parameters and buffers are changed in place, gradients are not. ``maximize`` turns only the step
    around: the rule is odd in x, so the buffer averages the gradient as it was given. ``count`` is
    the number of steps before this one, from which bfloat16 buffers take the noise of rounding.
    """
    untouched = capturable or differentiable
    lr, p = scalar(lr, params, untouched), scalar(p, params, untouched)
    if torch.bfloat16 in {buffer.dtype for buffer in momentum_buffers or ()}:
        count = scalar(count, params, untouched)  # type: ignore[assignment]
    else:
        count = 0
    tensors = _real_tensors(params, grads, momentum_buffers)
    if not tensors[0]:
        return
    rule = _rule(*tensors, foreach, fused, capturable, differentiable)
    rule(
        *tensors,
        p=p,
        step=lr if maximize else -lr,
        keep=1 - lr * weight_decay if weight_decay != 0 else 1.0,
        momentum=momentum,
        eps=eps,
        normalize=normalize,
        differentiable=differentiable,
        count=count,
    )


def _rounds_stochastically(buffer: Tensor | None) -> bool:
    """Whether a step rounds this momentum, and a parameter of its dtype, stochastically."""
    return buffer is not None and buffer.dtype == torch.bfloat16


def _rule(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor] | None,
    foreach: bool | None,
    fused: bool | None,
    capturable: bool,
    differentiable: bool,
) -> Callable[..., None]:
    """The path that these tensors take, as the settings ask."""
    if fused:
        if _demand_fused(params, grads, buffers or ()) == "kernel":
            return _kernel  # which looks for the memory itself
        require_memory(params, grads, buffers or ())
        # in a graph that is being compiled anyway, the foreach path is compiled with the rest
        return _multi_tensor if torch.compiler.is_compiling() else _compiled_multi_tensor
    if differentiable:
        return _single_tensor
    eager = fused is False or foreach is not None or capturable
    if not eager and fused_kernel.refusal(params, grads, buffers or ()) is None:
        return _kernel
    require_memory(params, grads, buffers or ())
    # foreach operations do not write to negative views
    if foreach is None and any_negative([*params, *(buffers or ())]):
        return _single_tensor
    return _single_tensor if foreach is False else _multi_tensor


def _demand_fused(
    params: Sequence[Tensor], grads: Sequence[Tensor] = (), buffers: Sequence[Tensor] = ()
) -> str:
    """How fused=True runs: by our kernel on a CPU, by Inductor elsewhere; raises if not at all."""
    reason: str | None
    if params and are_plain(params) and not any(param.is_cpu for param in params):
        devices = _get_fused_kernels_supported_devices()
        odd = {p for p in params if p.device.type not in devices or not p.is_floating_point()}
        if not odd:
            return "compiled"
        kinds = ", ".join(sorted({f"{param.dtype} on {param.device}" for param in odd}))
        reason = f"it takes floating-point tensors on {', '.join(devices)}, not {kinds}"
    else:
        reason = fused_kernel.refusal(params, grads, buffers)
    if reason is not None:
        raise RuntimeError(f"fused=True cannot run here: {reason}")
    return "kernel"


def _real_tensors(
    params: list[Tensor], grads: list[Tensor], buffers: list[Tensor] | None
) -> tuple[list[Tensor], list[Tensor], list[Tensor] | None]:
    """The lists with complex tensors as pairs of reals, and without those that have no elements."""
    # Many tensors, few answers: sets are faster than a question to each.
    complex_ = any(dtype.is_complex for dtype in {param.dtype for param in params})
    if not complex_ and 0 not in {param.numel() for param in params}:
        return params, grads, buffers
    chosen = [i for i, param in enumerate(params) if param.numel() > 0]
    return (
        [real(params[i]) for i in chosen],
        [real(grads[i].resolve_conj()) for i in chosen],  # a parameter must not be copied
        None if buffers is None else [buffers[i] for i in chosen],
    )


def _single_tensor(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor] | None,
    *,
    p: Exponent,
    step: float | Tensor,
    keep: float | Tensor,
    momentum: float,
    eps: float,
    normalize: Normalize,
    differentiable: bool,
    count: int | Tensor,
) -> None:
    """The rule as it is written; ``step`` stands for -eta, ``keep`` for 1 - eta lambda."""
    for index, param in enumerate(params):
        dtype = _working_dtype(param, buffers[index] if buffers is not None else None)
        p, step, keep = (on_device(value, param.device) for value in (p, step, keep))
        eps = visible(eps, dtype)
        round_ = _rounding(buffers, index, count, differentiable)
        theta = param.to(dtype)  # a copy where the parameter is narrower, else itself
        x = grads[index].to(dtype)
        if buffers is not None:
            m = buffers[index].to(dtype)
            m.lerp_(x, 1 - momentum)  # m_t = beta m_{t-1} + (1 - beta) g_t
            if m is not buffers[index]:
                round_(buffers[index], m, MOMENTUM)
            # autograd must find what u was made of, although m goes on to change
            x = m.clone() if differentiable else m
        # u_t = x_t / (|x_t| + eps)^rho, times a factor with which the step is in range again
        u, factor = geometry.direction_and_factor(x, p, eps, normalize)
        size = step if factor is None else step * factor
        theta.mul_(keep).add_(u * size)  # theta <- (1 - eta lambda) theta - eta u
        if theta is not param:
            round_(param, theta, PARAMETER)


def _rounding(
    buffers: list[Tensor] | None, index: int, count: int | Tensor, differentiable: bool
) -> Callable[[Tensor, Tensor, int], None]:
    """How what was computed is put into a narrower tensor: to nearest, or stochastically."""
    stochastic = buffers is not None and _rounds_stochastically(buffers[index])

    def round_(target: Tensor, value: Tensor, role: int) -> None:
        if not stochastic or differentiable or target.dtype != torch.bfloat16:
            target.copy_(value)
            return
        key = on_device(noise_key(count, index, role), target.device)
        first = 0
        for part, values in _blocks([target], [value]):
            round_into(part, values, key, first)  # type: ignore[arg-type]
            first += part.numel()

    return round_


def _kernel(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor] | None,
    *,
    p: Exponent,
    step: float | Tensor,
    keep: float | Tensor,
    momentum: float,
    eps: float,
    normalize: Normalize,
    differentiable: bool,
    count: int | Tensor,
) -> None:
    """The same rule in one pass of C code, as one operator where a graph is compiled."""
    if torch.compiler.is_compiling():
        device = params[0].device
        numbers: dict[str, Any] = {
            "p": as_tensor(p, device),
            "step": as_tensor(step, device),
            "keep": as_tensor(keep, device),
            "count": as_tensor(count, device),
        }
        run: Callable[..., None] = fused_kernel.operator_step
    else:
        numbers = {"p": as_number(p), "step": as_number(step), "keep": as_number(keep)}
        numbers["count"] = int(count)
        run = fused_kernel.kernel_step
    for some in _alike(params, grads, buffers):
        run(
            *some,
            **numbers,
            momentum=momentum,
            eps=visible(eps, torch.float32),
            normalize=normalize,
        )


def _multi_tensor(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor] | None,
    *,
    p: Exponent,
    step: float | Tensor,
    keep: float | Tensor,
    momentum: float,
    eps: float,
    normalize: Normalize,
    differentiable: bool,
    count: int | Tensor,
) -> None:
    """The same rule by foreach operations, with one temporary of the size of the parameters."""
    for some in _alike(params, grads, buffers):
        bucket = _Bucket(*some)
        p, step, keep = (on_device(value, some[0][0].device) for value in (p, step, keep))
        if bucket.low_precision_state:
            # m cannot be updated in place, which takes a second temporary: tensor by tensor
            _single_tensor(
                *some,
                p=p,
                step=step,
                keep=keep,
                momentum=momentum,
                eps=eps,
                normalize=normalize,
                differentiable=differentiable,
                count=count,
            )
            continue
        bucket.average(momentum)
        bucket.move(p, visible(eps, bucket.dtype), normalize, step, keep)


@functools.cache
def _compile() -> Callable[..., None]:
    return torch.compile(_multi_tensor)


def _compiled_multi_tensor(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor] | None,
    *,
    p: Exponent,
    step: float | Tensor,
    keep: float | Tensor,
    count: int | Tensor,
    **settings: Any,
) -> None:
    """The foreach path compiled by Inductor; numbers that change go in as tensors."""
    device = params[0].device
    p, step, keep, count = (as_tensor(value, device) for value in (p, step, keep, count))
    _compile()(params, grads, buffers, p=p, step=step, keep=keep, count=count, **settings)


def _alike(
    params: list[Tensor], grads: list[Tensor], buffers: list[Tensor] | None
) -> Iterable[tuple[list[Tensor], list[Tensor], list[Tensor] | None]]:
    """The tensors in lists of one device and one dtype for each role, as foreach wants them."""
    roles = [params, grads] if buffers is None else [params, grads, buffers]
    dtypes = [{tensor.dtype for tensor in role} for role in roles]
    on_cpu = {param.is_cpu for param in params} == {True}  # a device costs far more to ask for
    if all(len(kinds) == 1 for kinds in dtypes) and (
        on_cpu or len({param.device for param in params}) == 1
    ):
        yield params, grads, buffers  # as nearly always
        return
    indices: dict[tuple[Any, ...], list[int]] = {}
    for i, some in enumerate(zip(*roles, strict=True)):
        key = (some[0].device, *[tensor.dtype for tensor in some])
        indices.setdefault(key, []).append(i)
    for chosen in indices.values():
        yield (
            [params[i] for i in chosen],
            [grads[i] for i in chosen],
            None if buffers is None else [buffers[i] for i in chosen],
        )


class _Bucket:
    """Tensors alike in device and dtype, and the one temporary in which their step is computed."""

    def __init__(
        self, params: list[Tensor], grads: list[Tensor], buffers: list[Tensor] | None
    ) -> None:
        self.sizes = [param.numel() for param in params]
        self.shards: Shards | None = None
        if not are_plain(params):
            # of a DTensor the part that lies here: the rule is the same for each coordinate
            self.shards = Shards(params)
            grads = [local_part(g, like) for g, like in zip(grads, params, strict=True)]
            if buffers is not None:
                buffers = [local_part(m, like) for m, like in zip(buffers, params, strict=True)]
            params = [local_part(param) for param in params]
        self.params, self.grads, self.buffers = params, grads, buffers
        self.dtype = _working_dtype(params[0], buffers[0] if buffers is not None else None)
        self.low_precision_state = buffers is not None and buffers[0].dtype != self.dtype
        self._scratch: list[Tensor] | None = None

    @property
    def source(self) -> list[Tensor]:
        """x: the momentum where there is one, else the gradient."""
        return self.grads if self.buffers is None else self.buffers

    def scratch(self, content: list[Tensor]) -> list[Tensor]:
        """The temporary, holding a copy of ``content`` in the working dtype."""
        if self._scratch is None:
            self._scratch = [torch.empty_like(t, dtype=self.dtype) for t in content]
        copy_(self._scratch, content)
        return self._scratch

    def average(self, momentum: float) -> None:
        """m_t = beta m_{t-1} + (1 - beta) g_t"""
        if self.buffers is not None:
            alike = self.grads[0].dtype == self.dtype
            grads = self.grads if alike else self.scratch(self.grads)
            torch._foreach_lerp_(self.buffers, grads, 1 - momentum)

    def move(
        self,
        p: Exponent,
        eps: float,
        normalize: Normalize,
        step: float | Tensor,
        keep: float | Tensor,
    ) -> None:
        """theta <- (1 - eta lambda) theta - eta u, u = x / (|x| + eps)^rho"""
        if normalize == "rms":
            self._add(self._unit_rms(p, eps), None, step, keep)
        elif not isinstance(p, Tensor) and p == 2:  # no power is taken, and the dual factor is 1
            self._add(self.source, None, step, keep)
        elif normalize == "dual":
            first, second = self._dual_factors(p)
            # in this order: each product is in range where the step is
            u = self._product(self.source, self._scaling(p, eps))
            torch._foreach_mul_(u, first)
            torch._foreach_mul_(u, [factor * step for factor in second])
            self._add(u, None, 1.0, keep)
        else:
            scaling = self._scaling(p, eps)
            if (
                isinstance(step, Tensor)
                or abs(step) > 1
                or eps < 1e8 * torch.finfo(self.dtype).tiny
            ):
                # eta x alone may be out of range, or lose digits
                self._add(self._product(self.source, scaling), None, step, keep)
            else:
                self._add(self.source, scaling, step, keep)

    def _scaling(self, p: Exponent, eps: float) -> list[Tensor]:
        """(|x| + eps)^-rho"""
        t = self._magnitudes()
        scaling_(t, p, eps)
        return t

    def _magnitudes(self) -> list[Tensor]:
        """|x|, in the temporary"""
        if self._scratch is None and self.source[0].dtype == self.dtype:
            self._scratch = list(torch._foreach_abs(self.source))  # one pass instead of two
            return self._scratch
        t = self.scratch(self.source)
        torch._foreach_abs_(t)
        return t

    def _dual_factors(self, p: Exponent) -> tuple[list[Tensor], list[Tensor]]:
        """The two factors of ||x||_q^rho, where ||x||_q = max|x| ||x/max|x|||_q"""
        t = self._magnitudes()
        largest = divide_by_largest_(t, self.shards)
        pow_(t, geometry.dual_exponent(p))
        sums = self._over_all([x.sum() for x in t])
        factors = [
            geometry.dual_factors(top, total, p) for top, total in zip(largest, sums, strict=True)
        ]
        return [first for first, _ in factors], [second for _, second in factors]

    def _unit_rms(self, p: Exponent, eps: float) -> list[Tensor]:
        """u / max(rms(u), floor)"""
        if not isinstance(p, Tensor) and p == 2:
            u = self.scratch(self.source)
        else:
            u = self._scaling(p, eps)
            _multiply_(u, self.source)
        # squares of entries that are at most 1 cannot overflow
        largest = divide_by_largest_(u, self.shards)
        floor = geometry.rms_floor(p, eps)
        norms = list(torch._foreach_norm(u, 2))
        if self.shards is not None:
            norms = [total.sqrt() for total in self._over_all([norm.square() for norm in norms])]
        factors = [
            top / torch.clamp(top * (norm / size**0.5), min=floor)
            for top, norm, size in zip(largest, norms, self.sizes, strict=True)
        ]
        torch._foreach_mul_(u, factors)
        return u

    def _over_all(self, sums: list[Tensor]) -> list[Tensor]:
        """Sums over the tensors here made sums over whole tensors, where these are cut."""
        return sums if self.shards is None else self.shards.sum(sums)

    def _add(
        self,
        x: list[Tensor],
        scaling: list[Tensor] | None,
        step: float | Tensor,
        keep: float | Tensor,
    ) -> None:
        """theta <- keep theta + step x scaling, rounded once"""
        half = self.params[0].dtype != self.dtype
        if half or isinstance(step, Tensor):
            t = self._product(x, scaling)
            torch._foreach_mul_(t, step)
            if half:
                _add_into_half(self.params, t, keep)
                return
            x, scaling, step = t, None, 1.0
        if isinstance(keep, Tensor) or keep != 1:
            torch._foreach_mul_(self.params, keep)
        if scaling is None:
            torch._foreach_add_(self.params, x, alpha=step)
        else:
            torch._foreach_addcmul_(self.params, x, scaling, step)  # (step x) scaling

    def _product(self, x: list[Tensor], scaling: list[Tensor] | None) -> list[Tensor]:
        """x scaling, in the temporary"""
        if scaling is None:
            return x if x is self._scratch else self.scratch(x)
        _multiply_(scaling, x)
        return scaling


# Mixing dtypes in one operation makes a CPU cast the narrow operand as a whole. Blocks of this many
# elements keep that copy small.
_BLOCK = 1 << 16


def _multiply_(wide: list[Tensor], other: list[Tensor]) -> None:
    """wide <- wide other, where other may be of half precision"""
    if wide[0].dtype == other[0].dtype:
        torch._foreach_mul_(wide, other)
        return
    for a, b in _blocks(wide, other):
        a.mul_(b)


def _add_into_half(params: list[Tensor], t: list[Tensor], keep: float | Tensor) -> None:
    """params <- keep params + t, computed in t's precision and rounded once; t is used up"""
    for param, update in _blocks(params, t):
        update.add_(param.to(update.dtype) * keep)
        param.copy_(update)


def _blocks(a: list[Tensor], b: list[Tensor]) -> Iterable[tuple[Tensor, Tensor]]:
    """Matching pieces of two lists: whole tensors, or blocks of large dense ones on a CPU."""
    for x, y in zip(a, b, strict=True):
        large = x.numel() > _BLOCK and type(x) in PLAIN and not torch.compiler.is_compiling()
        if large and x.is_cpu and is_dense(x) and x.stride() == y.stride():
            pieces = (torch.split(t.as_strided((t.numel(),), (1,)), _BLOCK) for t in (x, y))
            yield from zip(*pieces, strict=True)
        else:
            yield x, y


def _working_dtype(param: Tensor, buffer: Tensor | None) -> torch.dtype:
    """The dtype of the arithmetic: at least float32, and the buffer's if that is wider."""
    dtype = working_dtype(param)
    return dtype if buffer is None else torch.promote_types(dtype, buffer.dtype)
