"""Operations on lists of tensors (foreach), shared by the optimizers' rules.

A name that ends in an underscore changes its first argument in place, as in torch. The tensors of a
list are alike in device and dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from lpsgd import geometry
from lpsgd._dtensor import PLAIN, Shards, are_plain, largest_entry
from lpsgd.geometry import Exponent
from lpsgd.schedule import exponent_dtype

Tensors: TypeAlias = "tuple[Tensor, ...] | list[Tensor]"  # what foreach operations take


def real(tensor: Tensor) -> Tensor:
    """A complex tensor as pairs of reals in the same memory, a real one as it is."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def as_number(value: float | Tensor) -> float:
    """A number, or the value of a tensor of one element."""
    return value.item() if isinstance(value, Tensor) else value


def as_tensor(value: float | Tensor, device: torch.device) -> Tensor:
    """A number as a 0-d tensor that a compiled graph computes: its value is not built in."""
    if isinstance(value, Tensor):
        return value
    return torch.ones((), dtype=exponent_dtype(device), device=device) * value


def on_device(value: float | Tensor, device: torch.device) -> float | Tensor:
    """A tensor moved to ``device``, where a group spans several; a number as it is."""
    return value.to(device) if isinstance(value, Tensor) else value


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill one stretch of memory, in whatever order of the dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


# Below any address that a system gives out for tensors, and above any offset into freed memory.
LOWEST_ADDRESS = 1 << 40


def addresses(name: str, tensors: Sequence[Tensor]) -> list[int]:
    """Where the tensors lie; RuntimeError, in which they are called ``name``, if one was freed.

    A storage that was resized to 0 starts at address 0, and torch would follow the pointer.
    """
    found = [tensor.data_ptr() for tensor in tensors]
    if found and min(found) < LOWEST_ADDRESS:  # perhaps; a look at every storage costs far more
        for tensor in tensors:
            if tensor.numel() and not tensor.is_meta and not tensor.untyped_storage().nbytes():
                raise RuntimeError(
                    f"a {name} of shape {tuple(tensor.shape)} has no memory: its storage was "
                    "resized to 0, as FSDP and offloaders do between uses. Step where gradients, "
                    "parameters and state are in memory, or set the gradient to None"
                )
    return found


def require_memory(
    params: Sequence[Tensor], grads: Sequence[Tensor], buffers: Sequence[Tensor] = ()
) -> None:
    """RuntimeError if a tensor's memory was freed, which torch's operations do not look at."""
    if torch.compiler.is_compiling():
        return
    for name, tensors in zip(
        ("parameter", "gradient", "momentum"), (params, grads, buffers), strict=True
    ):
        if are_plain(tensors):
            addresses(name, tensors)


def any_negative(tensors: Sequence[Tensor]) -> bool:
    """Whether one is a view whose memory holds the negatives; in a graph torch itself asks."""
    if torch.compiler.is_compiling():
        return False
    return True in {tensor.is_neg() for tensor in tensors}


def copy_(t: Tensors, x: Tensors) -> None:
    """t <- x, in t's dtype"""
    if type(t[0]) in PLAIN:
        torch._foreach_copy_(t, x)
    else:  # DTensor has no foreach copy
        for a, b in zip(t, x, strict=True):
            a.copy_(b)


def scalar(value: float | Tensor, params: Tensors, untouched: bool) -> float | Tensor:
    """A step's lr or p in the form that suits how the step is run; a tensor has no dimensions.

    A number where it may be looked at: numbers are faster, and p = 2 can be seen. Not if
    ``untouched``, where a tensor stays one, nor in a compiled graph, where a number becomes one.
    """
    if isinstance(value, Tensor):
        value = value.reshape(())
    if torch.compiler.is_compiling():
        return as_tensor(value, params[0].device)
    return value if untouched else as_number(value)


_LOG2_E = 1.4426950408889634


def pow_(t: Tensors, exponent: Exponent) -> None:
    """t <- t^exponent for t >= 0; log and exp2 cost less on a CPU than pow, or log and exp"""
    if not isinstance(exponent, Tensor) and exponent < -0.98:
        # the result may be a denormal number, which a CPU's exp does not give
        if exponent == -1:
            torch._foreach_reciprocal_(t)
        else:
            pow_(t, exponent / 2)
            torch._foreach_mul_(t, t)
        return
    if (t[0].is_cpu or torch.compiler.is_compiling()) and type(t[0]) in PLAIN:
        # exp2 takes less than half of exp's time, but has no foreach form; log has none in Inductor
        for x in t:
            x.log_().mul_(exponent * _LOG2_E).exp2_()
        return
    torch._foreach_log_(t)
    torch._foreach_mul_(t, exponent)
    torch._foreach_exp_(t)


def visible(eps: float, dtype: torch.dtype) -> float:
    """An eps that this dtype can tell from 0; with 0 a zero gradient would give 0/0."""
    return max(eps, torch.finfo(dtype).tiny)


def scaling_(t: Tensors, p: Exponent, eps: float) -> None:
    """t <- (t + eps)^-rho for t = |x|, the factor by which the paper's ``eq:ut`` scales x"""
    torch._foreach_add_(t, eps)
    pow_(t, -geometry.rho(p))


def largest_entries(t: Tensors, shards: Shards | None = None) -> list[Tensor]:
    """max|t| of each tensor; with ``shards``, of each tensor of which t has this process's part"""
    if shards is not None:
        found = iter(largest_entries([x for x in t if x.numel()]))  # a part may be empty
        return shards.max([next(found) if x.numel() else x.new_zeros(()) for x in t])
    if not t:
        return []
    if type(t[0]) not in PLAIN:
        return [largest_entry(x) for x in t]
    # On a CPU the maximum norm is far slower; below torch 2.6 aminmax has no derivative.
    if t[0].is_cpu and not torch.is_grad_enabled():
        return [torch.maximum(high, -low) for low, high in map(torch.aminmax, t)]
    return list(torch._foreach_norm(t, float("inf")))


def one_for_zero(largest: list[Tensor]) -> list[Tensor]:
    """The largest entries, but 1 for a tensor of zeros, by which it can be divided"""
    return [torch.where(top > 0, top, 1.0) for top in largest]


def divide_by_largest_(t: Tensors, shards: Shards | None = None) -> list[Tensor]:
    """t <- t/max|t| for each tensor (zeros stay), and those maxima"""
    largest = largest_entries(t, shards)
    torch._foreach_div_(t, one_for_zero(largest))
    return largest


def reusing_mul(t: Tensors, x: Tensors) -> Tensors:
    """t x, in t's memory, whose touching anew costs more than the product; autograd needs t"""
    if torch.is_grad_enabled():
        return torch._foreach_mul(t, x)
    torch._foreach_mul_(t, x)
    return t


def reusing_div(t: Tensors, x: Tensors) -> Tensors:
    """t / x, in the memory of t; autograd needs t"""
    if torch.is_grad_enabled():
        return torch._foreach_div(t, x)
    torch._foreach_div_(t, x)
    return t


def signed_power(x: Tensors, exponent: Exponent) -> Tensors:
    """sign(x) |x|^exponent = x |x|^(exponent-1), new tensors; 0 stays 0 for every exponent"""
    if not isinstance(exponent, Tensor):
        if exponent == 0:
            return torch._foreach_sign(x)
        if exponent == 1:
            return torch._foreach_mul(x, 1)
    t = torch._foreach_abs(x)
    # 0 times a power of 0 would not be a number
    torch._foreach_clamp_min_(t, torch.finfo(t[0].dtype).tiny)
    pow_(t, exponent - 1)
    return reusing_mul(t, x)


def lp_direction(x: Tensors, p: Exponent, eps: float) -> Tensors:
    """u = x (|x| + eps)^-rho (equation ``eq:ut``), new tensors"""
    t = torch._foreach_abs(x)
    scaling_(t, p, visible(eps, t[0].dtype))
    return reusing_mul(t, x)


def add_scaled_(t: Tensors, x: Tensors, factor: float | Tensor) -> None:
    """t <- t + factor x"""
    if isinstance(factor, Tensor):
        torch._foreach_add_(t, torch._foreach_mul(x, factor))
    else:
        torch._foreach_add_(t, x, alpha=factor)
