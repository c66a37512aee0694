"""One step of LPSGD or LPSGDM on lists of tensors, and the paths that it can take.

``_single_tensor`` is the rule as it is written, ``_multi_tensor`` the same by foreach operations,
``_kernel`` by one pass of C code, ``_triton`` by one of a GPU, ``_compiled_multi_tensor`` by what
Inductor makes of foreach.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

from lpsgd import fused as fused_kernel
from lpsgd import geometry
from lpsgd._bucket import Bucket, blocks, update_dtype
from lpsgd._compat import TRITON
from lpsgd._dtensor import are_plain
from lpsgd._eight_bits import decoded, encode_into, table
from lpsgd._foreach import (
    any_negative,
    as_number,
    as_tensor,
    on_device,
    real,
    require_memory,
    scalar,
    visible,
)
from lpsgd._rounding import MOMENTUM, PARAMETER, noise_key, round_into
from lpsgd.geometry import Exponent, Normalize

__all__ = ["lp_descent"]


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

    def settled(value: float | Tensor) -> float | Tensor:
        # fused takes what lies on a device as it is: the host would wait to look at it
        on_device = fused and isinstance(value, Tensor) and not value.is_cpu
        return scalar(value, params, untouched or bool(on_device))

    lr, p = settled(lr), settled(p)
    numbers: dict[str, Any] = {
        "p": p,
        "step": lr if maximize else -lr,
        "keep": 1 - lr * weight_decay if weight_decay != 0 else 1.0,
        "momentum": momentum,
        "normalize": normalize,
    }
    if fused is not False and foreach is None and not untouched:
        lists = fused_kernel.known(params, grads, momentum_buffers)
        if lists is not None:
            numbers |= {"eps": visible(eps, torch.float32), "count": int(count), "lists": lists}
            fused_kernel.kernel_step(params, grads, momentum_buffers, **numbers)
            return
    if torch.bfloat16 in {buffer.dtype for buffer in momentum_buffers or ()}:
        count = settled(count)  # type: ignore[assignment]
    else:
        count = 0
    tensors = _real_tensors(params, grads, momentum_buffers)
    if not tensors[0]:
        return
    rule = _rule(*tensors, foreach, fused, capturable, differentiable)
    rule(*tensors, **numbers, eps=eps, differentiable=differentiable, count=count)


def coded_descent(
    params: list[Tensor],
    grads: list[Tensor],
    codes: list[Tensor],
    scales: list[Tensor],
    *,
    count: Tensor,
    **settings: Any,
) -> None:
    """:func:`lp_descent` with momentum in 8 bits: decoded, stepped and coded tensor by tensor.

    What has no scales is too small to be coded, and stepped together as ever.
    """
    small = [index for index, scale in enumerate(scales) if not len(scale)]
    if small:
        lists = ([tensors[index] for index in small] for tensors in (params, grads, codes))
        lp_descent(*lists, count=count, **settings)
    look = not (settings["capturable"] or torch.compiler.is_compiling())
    for index, scale in enumerate(scales):
        if len(scale):
            key = noise_key(int(count) if look else count, index, MOMENTUM)
            entries = table(scale.device)
            m = decoded(codes[index], scale, entries)
            lp_descent([params[index]], [grads[index]], [m], count=count, **settings)
            encode_into(codes[index], scale, m, key, entries)


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
        way = demand_fused(params, grads, buffers or ())
        if way == "kernel":
            return _kernel  # which looks for the memory itself
        if way == "triton" and not torch.compiler.is_compiling():
            return _multi_tensor if _capturing() else _triton
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


def demand_fused(
    params: Sequence[Tensor], grads: Sequence[Tensor] = (), buffers: Sequence[Tensor] = ()
) -> str:
    """How fused=True runs: by our kernel on a CPU, on a GPU by Triton's, or by what Inductor makes
    where there is no triton or it does not take the tensors; raises if not at all."""
    reason: str | None
    if params and are_plain(params) and not any(param.is_cpu for param in params):
        devices = _get_fused_kernels_supported_devices()
        odd = {p for p in params if p.device.type not in devices or not p.is_floating_point()}
        if not odd:
            return "triton" if _suits_triton(params, grads, buffers) else "compiled"
        kinds = ", ".join(sorted({f"{param.dtype} on {param.device}" for param in odd}))
        reason = f"it takes floating-point tensors on {', '.join(devices)}, not {kinds}"
    else:
        reason = fused_kernel.refusal(params, grads, buffers)
    if reason is not None:
        raise RuntimeError(f"fused=True cannot run here: {reason}")
    return "kernel"


@functools.cache
def _has_triton() -> bool:
    return TRITON and importlib.util.find_spec("triton") is not None


def _capturing() -> bool:
    """Whether a CUDA graph is recorded: replayed, it would copy Triton's table from host memory
    that has since been used for something else."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _suits_triton(*roles: Sequence[Tensor]) -> bool:
    """Whether the Triton kernels take these: on a CUDA or ROCm device, of 32 bits or fewer, and
    momentum laid out like its parameter, without gaps."""
    if not _has_triton() or {tensor.device.type for tensor in roles[0]} != {"cuda"}:
        return False
    dtypes = {tensor.dtype for role in roles for tensor in role}
    return dtypes <= fused_kernel.TYPES.keys() and fused_kernel.walks_straight(roles[0], roles[2])


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
        dtype = update_dtype(param, buffers[index] if buffers is not None else None)
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
        for part, values in blocks([target], [value]):
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


def _triton(
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
    """The same rule by Triton's kernels, in one pass over many tensors."""
    from lpsgd._triton import triton_step

    for some, own_grads, own_buffers in _alike(params, grads, buffers):
        device = some[0].device
        own_p, own_step, own_keep, own_count = (
            on_device(value, device) for value in (p, step, keep, count)
        )
        triton_step(
            some,
            fused_kernel.ordered_like(some, own_grads),
            own_buffers,
            p=own_p,
            step=own_step,
            keep=own_keep,
            momentum=momentum,
            eps=visible(eps, torch.float32),
            normalize=normalize,
            count=own_count,  # type: ignore[arg-type]
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
        bucket = Bucket(*some)
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
