"""Operations on lists of tensors (foreach), shared by the optimizers' rules.

A name that ends in an underscore changes its first argument in place, as in torch. The tensors of a
list are alike in device and dtype.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from lpsgd import geometry
from lpsgd.geometry import Exponent
from lpsgd.schedule import exponent_dtype

Tensors: TypeAlias = "tuple[Tensor, ...] | list[Tensor]"  # what foreach operations take


def real(tensor: Tensor) -> Tensor:
    """A complex tensor as pairs of reals, a real one as it is."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def scalar(value: float | Tensor, params: Tensors, untouched: bool) -> float | Tensor:
    """A step's lr or p in the form that suits how the step is run; a tensor has no dimensions.

    A number where it may be looked at: numbers are faster, and p = 2 can be seen. Not if
    ``untouched``, where a tensor stays one; and in a compiled graph a number becomes a 0-d tensor
    that the graph computes, so that its value is not built in.
    """
    if isinstance(value, Tensor):
        in_graph = untouched or torch.compiler.is_compiling()
        return value.reshape(()) if in_graph else value.item()
    if torch.compiler.is_compiling():
        device = params[0].device
        return torch.ones((), dtype=exponent_dtype(device), device=device) * value
    return value


def pow_(t: Tensors, exponent: Exponent) -> None:
    """t <- t^exponent"""
    if isinstance(exponent, Tensor):
        torch._foreach_pow_(t, [exponent] * len(t))
    elif exponent == -1:
        torch._foreach_reciprocal_(t)
    else:
        torch._foreach_pow_(t, exponent)


def scaling_(t: Tensors, p: Exponent, eps: float) -> None:
    """t <- (|t| + eps)^-rho, the factor by which the paper's equation ``eq:ut`` scales t"""
    torch._foreach_abs_(t)
    torch._foreach_add_(t, eps)
    pow_(t, -geometry.rho(p))


def divide_by_largest_(t: Tensors) -> list[Tensor]:
    """t <- t/max|t| for each tensor (zeros stay), and those maxima"""
    largest = list(torch._foreach_norm(t, float("inf")))
    torch._foreach_div_(t, [torch.where(top > 0, top, 1.0) for top in largest])
    return largest


def signed_power(x: Tensors, exponent: Exponent) -> Tensors:
    """sign(x) |x|^exponent, new tensors; 0 stays 0 for every exponent"""
    t = torch._foreach_abs(x)
    pow_(t, exponent)
    torch._foreach_mul_(t, torch._foreach_sign(x))
    return t


def lp_direction(x: Tensors, p: Exponent, eps: float) -> Tensors:
    """u = x (|x| + eps)^-rho (equation ``eq:ut``), new tensors"""
    t = [tensor.clone() for tensor in x]
    scaling_(t, p, eps)
    torch._foreach_mul_(t, x)
    return t


def add_scaled_(t: Tensors, x: Tensors, factor: float | Tensor) -> None:
    """t <- t + factor x"""
    if isinstance(factor, Tensor):
        torch._foreach_add_(t, torch._foreach_mul(x, factor))
    else:
        torch._foreach_add_(t, x, alpha=factor)
