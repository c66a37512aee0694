"""Tensors alike in device and dtype, stepped together by foreach operations."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from lpsgd import geometry
from lpsgd._base import working_dtype
from lpsgd._dtensor import PLAIN, Shards, are_plain, is_sharded, local_part
from lpsgd._foreach import (
    copy_,
    divide_by_largest_,
    is_dense,
    pow_,
    scaling_,
)
from lpsgd.geometry import Exponent, Normalize


class Bucket:
    """Tensors alike in device and dtype, and the one temporary in which their step is computed."""

    def __init__(
        self, params: list[Tensor], grads: list[Tensor], buffers: list[Tensor] | None
    ) -> None:
        self.sizes = [param.numel() for param in params]
        self.shards: Shards | None = None
        if any(map(is_sharded, params)):
            # of a DTensor the part that lies here: the rule is the same for each coordinate
            self.shards = Shards(params)
            grads = [local_part(g, like) for g, like in zip(grads, params, strict=True)]
            if buffers is not None:
                buffers = [local_part(m, like) for m, like in zip(buffers, params, strict=True)]
            params = [local_part(param) for param in params]
        self.params, self.grads, self.buffers = params, grads, buffers
        self.dtype = update_dtype(params[0], buffers[0] if buffers is not None else None)
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
        """Sums over the shards here made sums over the whole tensors."""
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
    for a, b in blocks(wide, other):
        a.mul_(b)


def _add_into_half(params: list[Tensor], t: list[Tensor], keep: float | Tensor) -> None:
    """params <- keep params + t, computed in t's precision and rounded once; t is used up"""
    for param, update in blocks(params, t):
        update.add_(param.to(update.dtype) * keep)
        param.copy_(update)


# What `parts_in_cache` steps at a time. Each operation on a part begins and ends together on all
# threads, which costs microseconds; its temporary is two megabytes. (On two threads 2^16
# is clearly slower, and 2^20 hardly faster.)
_PART = 1 << 19


def parts_in_cache(
    params: list[Tensor], grads: list[Tensor], buffers: list[Tensor] | None
) -> Iterable[tuple[list[Tensor], list[Tensor], list[Tensor] | None]]:
    """The lists in parts of `_PART` elements, for a rule that treats each element by itself.

    On a CPU the temporary of a part stays in the cache through all operations on it, and its memory
    is used again by the next part; a large one is given back to the system and zeroed anew at each
    step, which costs more than the arithmetic.
    """
    if not (are_plain(params) and params[0].is_cpu) or torch.compiler.is_compiling():
        yield params, grads, buffers
        return
    part: list[tuple[Tensor, ...]] = []
    elements = 0
    roles = (params, grads) if buffers is None else (params, grads, buffers)
    for tensors in zip(*roles, strict=True):
        for piece in _pieces(tensors):
            if part and elements + piece[0].numel() > _PART:
                yield _as_lists(part)
                part, elements = [], 0
            part.append(piece)
            elements += piece[0].numel()
    yield _as_lists(part)


def _pieces(tensors: tuple[Tensor, ...]) -> Iterable[tuple[Tensor, ...]]:
    """Parts of tensors that lie alike in memory; others whole."""
    first = tensors[0]
    alike = all(tensor.stride() == first.stride() for tensor in tensors)
    if first.numel() <= _PART or not alike or not is_dense(first):
        return [tensors]
    flat = [tensor.as_strided((tensor.numel(),), (1,)) for tensor in tensors]
    return zip(*[torch.split(tensor, _PART) for tensor in flat], strict=True)


def _as_lists(
    part: list[tuple[Tensor, ...]],
) -> tuple[list[Tensor], list[Tensor], list[Tensor] | None]:
    params, grads, *buffers = (list(role) for role in zip(*part, strict=True))
    return params, grads, buffers[0] if buffers else None


def blocks(a: list[Tensor], b: list[Tensor]) -> Iterable[tuple[Tensor, Tensor]]:
    """Matching pieces of two lists: whole tensors, or blocks of large dense ones on a CPU."""
    for x, y in zip(a, b, strict=True):
        large = x.numel() > _BLOCK and type(x) in PLAIN and not torch.compiler.is_compiling()
        if large and x.is_cpu and is_dense(x) and x.stride() == y.stride():
            pieces = (torch.split(t.as_strided((t.numel(),), (1,)), _BLOCK) for t in (x, y))
            yield from zip(*pieces, strict=True)
        else:
            yield x, y


def update_dtype(param: Tensor, buffer: Tensor | None) -> torch.dtype:
    """The dtype of the arithmetic: at least float32, and the buffer's if that is wider."""
    dtype = working_dtype(param)
    return dtype if buffer is None else torch.promote_types(dtype, buffer.dtype)
