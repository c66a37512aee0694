r"""The fused update: one pass over parameter, gradient and momentum, for all tensors of a group.

It is a small C library, compiled from ``fused.c`` when the package is installed::

    m     <- m + (1 - momentum) (g - m)
    theta <- keep theta + step factor m / (|m| + eps)^rho

with keep = 1 - lr weight_decay and step = -lr; for LPSGD m is g. ``factor`` is 1, or with
``normalize`` one number for each tensor, found by a pass of its own before. The arithmetic is
float32, the number of threads is torch's.

:func:`unavailable` says whether the library is there, :func:`refusal` whether it takes given
tensors.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from lpsgd._compat import increment_version
from lpsgd._dtensor import PLAIN, are_plain
from lpsgd._foreach import LOWEST_ADDRESS, addresses, any_negative, is_dense
from lpsgd.geometry import Normalize

__all__ = ["kernel_step", "operator_step", "refusal", "unavailable"]

Kernel: TypeAlias = Callable[..., int]

# What the numbers mean to fused.c, and which version of its arguments this file speaks.
_VERSION = 1
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_NORMALIZE: dict[Normalize, int] = {None: 0, "rms": 1, "dual": 2}
_PLAIN = set(PLAIN)


def load(path: Path) -> Kernel:
    """The kernel in the library at ``path``; OSError if it cannot be loaded or is out of date."""
    library = ctypes.CDLL(os.fspath(path))
    version = library.lpsgd_version() if hasattr(library, "lpsgd_version") else 0
    if version != _VERSION:
        raise OSError(
            f"{path} has version {version} of the kernel, where {_VERSION} is needed; "
            "install lpsgd again"
        )
    step = library.lpsgd_step
    count, address, real, flag = ctypes.c_int64, ctypes.c_void_p, ctypes.c_double, ctypes.c_int
    step.argtypes = [count, *[address] * 4, *[flag] * 3, *[real] * 5, *[flag] * 2, count]
    step.restype = flag
    return step


def _load_installed() -> tuple[Kernel | None, str]:
    """The installed kernel, or None and the reason why there is none."""
    folder = Path(__file__).parent
    for name in ("_fused.so", "_fused.dll"):
        if (folder / name).exists():
            try:
                return load(folder / name), ""
            except (OSError, AttributeError) as error:
                return None, f"the kernel of lpsgd cannot be loaded: {error}"
    return None, (
        "the kernel of lpsgd was not built when lpsgd was installed, because no C compiler was "
        "found or it failed; install gcc or clang, then lpsgd again"
    )


# When the module is imported, not at the first step: a process that forks in between then knows
# in the child that the threads of the parent are gone.
_kernel, _why_not = _load_installed()


def unavailable() -> str | None:
    """Why the kernel cannot be used at all, or None if it can."""
    return None if _kernel is not None else _why_not


def refusal(
    params: Sequence[Tensor], grads: Sequence[Tensor] = (), buffers: Sequence[Tensor] = ()
) -> str | None:
    """Why the kernel cannot step these tensors, or None if it can."""
    if not are_plain(params):
        return f"it takes plain tensors, and a parameter is a {_odd_class(params)}"
    if _kernel is None:
        return _why_not
    # Many tensors, few answers: sets are faster than a question to each. The kernel follows bare
    # pointers, so that nothing may be taken on trust that torch would have found out.
    roles = {"a parameter": params, "a gradient": grads, "a momentum": buffers}
    sizes = [param.numel() for param in params]
    for name, role in roles.items():
        if role is not params:
            if not are_plain(role):
                return f"it takes plain tensors, and {name} is a {_odd_class(role)}"
            if role and [tensor.numel() for tensor in role] != sizes:
                return f"{name} has another number of elements than its parameter"
        if False in {tensor.is_cpu for tensor in role}:
            return f"the kernel runs on a CPU, and {name} is {_kinds(role)}"
        if not {tensor.dtype for tensor in role} <= TYPES.keys():
            return f"the kernel takes float32, bfloat16 and float16, not {_kinds(role)}"
        if role is not grads and any_negative(role):
            return f"{name} is a negative view, whose memory holds other signs; use resolve_neg()"
    return None if _contiguous(*roles.values()) else _layout_refusal(params, buffers)


def _kinds(tensors: Sequence[Tensor]) -> str:
    """The dtypes and devices that the kernel does not take, in words."""
    odd = [t for t in tensors if not t.is_cpu] or [t for t in tensors if t.dtype not in TYPES]
    return ", ".join(sorted({f"{tensor.dtype} on {tensor.device}" for tensor in odd}))


def _odd_class(tensors: Sequence[Tensor]) -> str:
    return next(type(tensor).__name__ for tensor in tensors if type(tensor) not in PLAIN)


def _contiguous(*roles: Sequence[Tensor]) -> bool:
    return all(map(Tensor.is_contiguous, itertools.chain(*roles)))


def _layout_refusal(params: Sequence[Tensor], buffers: Sequence[Tensor]) -> str | None:
    """The kernel walks straight through memory. (A gradient laid out otherwise is copied.)"""
    for param in params:
        if not is_dense(param):
            return f"the kernel takes tensors without gaps, not strides {param.stride()}"
    for param, buffer in zip(params, buffers, strict=len(buffers) > 0):
        if not _same_order(param, buffer):
            return (
                "the kernel takes momentum laid out like its parameter, not strides "
                f"{buffer.stride()} for {param.stride()}"
            )
    return None


def _same_order(a: Tensor, b: Tensor) -> bool:
    return (a.is_contiguous() and b.is_contiguous()) or a.stride() == b.stride()


def _ordered_like(param: Tensor, grad: Tensor) -> Tensor:
    """The gradient, or a copy of it laid out like its parameter and with its signs in memory."""
    if _same_order(param, grad) and not grad.is_neg():
        return grad
    return torch.empty_like(param, dtype=grad.dtype).copy_(grad)


def lie_alike(params: Sequence[Tensor], grads: Sequence[Tensor]) -> bool:
    """Whether all are contiguous, and no gradient the negative of what its memory holds."""
    # such a gradient comes through conj()
    return _contiguous(params, grads) and not any_negative(grads)


def ordered_like(params: Sequence[Tensor], grads: Sequence[Tensor]) -> Sequence[Tensor]:
    """The gradients, with copies of those that lie otherwise in memory than their parameters."""
    if lie_alike(params, grads):
        return grads
    return [_ordered_like(param, grad) for param, grad in zip(params, grads, strict=True)]


def walks_straight(params: Sequence[Tensor], buffers: Sequence[Tensor]) -> bool:
    """Whether parameters and momenta can be walked straight through, element by element."""
    if any_negative([*params, *buffers]):
        return False
    return _contiguous(params, buffers) or _layout_refusal(params, buffers) is None


class Lists(NamedTuple):
    """Lists of tensors as the kernel takes them: where they lie, their sizes and dtypes."""

    addresses: tuple[list[int], list[int], list[int]]  # of parameters, gradients and momenta
    sizes: list[int]
    dtypes: tuple[torch.dtype | None, ...]  # one for each role; None: no momenta

    @property
    def key(self) -> tuple[int, int, int]:
        """Their number, and the first parameter's and momentum's addresses: one optimizer's own."""
        where, _, momenta = self.addresses
        return len(where), where[0], momenta[0] if momenta else 0


# What was stepped before. Numbers only: no tensor is kept alive.
_stepped: dict[tuple[int, int, int], Lists] = {}
_MOST_STEPPED = 64


def known(
    params: Sequence[Tensor], grads: Sequence[Tensor], buffers: Sequence[Tensor] | None
) -> Lists | None:
    """The lists, if parameters and momenta are where they were at an earlier step; else None.

    :func:`refusal` has looked at every property of them then, and what need not be looked at again
    is what a tensor of the same class, size and dtype at the same address cannot have otherwise.
    Gradients are new at each step, and looked at as ever.
    """
    if _kernel is None or not params or torch.compiler.is_compiling():
        return None
    roles = (params, grads, buffers or ())
    if not set(map(type, itertools.chain(*roles))) <= _PLAIN:
        return None
    first_momentum = buffers[0].data_ptr() if buffers else 0
    before = _stepped.get((len(params), params[0].data_ptr(), first_momentum))
    if before is None:
        return None
    # map() asks many tensors one question in the least time
    where, grads_lie, momenta_lie = (list(map(Tensor.data_ptr, role)) for role in roles)
    dtypes = [{tensor.dtype for tensor in role} for role in roles]
    sizes = [list(map(Tensor.numel, role)) for role in roles if role]
    pairs = zip(dtypes, before.dtypes, strict=True)
    if (
        where != before.addresses[0]
        or momenta_lie != before.addresses[2]
        or any(found != before.sizes for found in sizes)
        or any(found and found != {expected} for found, expected in pairs)
        or min(grads_lie) < LOWEST_ADDRESS
        or False in {grad.is_cpu for grad in grads}
        or not _contiguous(params, grads)
        # also of parameters and momenta: a negative view may lie where another tensor was
        or True in set(map(Tensor.is_neg, itertools.chain(*roles)))
    ):
        return None
    return before._replace(addresses=(where, grads_lie, momenta_lie))


def kernel_step(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    buffers: Sequence[Tensor] | None,
    *,
    lists: Lists | None = None,
    **numbers: Any,
) -> None:
    """One step on tensors that :func:`refusal` accepts, alike in dtype within each list.

    ``lists`` is what :func:`known` knows of them, ``numbers`` what :func:`_run` takes.
    """
    if lists is None:
        alike = lie_alike(params, grads) and _contiguous(buffers or ())
        grads = ordered_like(params, grads)
        roles = {"parameter": params, "gradient": grads, "momentum": buffers or ()}
        theta, g, m = (addresses(name, role) for name, role in roles.items())
        lists = Lists(
            (theta, g, m),
            [param.numel() for param in params],
            tuple(role[0].dtype if role else None for role in roles.values()),
        )
        if alike and 0 not in lists.sizes:
            if len(_stepped) >= _MOST_STEPPED:
                _stepped.clear()
            _stepped[lists.key] = lists
    _run(lists, **numbers)
    # Written behind torch's back: autograd must learn that what it saved of these is stale.
    increment_version([*params, *(buffers or ())])


def _run(
    lists: Lists,
    *,
    p: float,
    step: float,
    keep: float,
    momentum: float,
    eps: float,
    normalize: Normalize,
    count: int = 0,
    kernel: Kernel | None = None,
) -> None:
    """Call the kernel, or the one that stands in for the installed one."""
    kernel = kernel if kernel is not None else _kernel
    if kernel is None:
        raise RuntimeError(_why_not)
    pointers = [array("Q", found) for found in lists.addresses]
    sizes = array("q", lists.sizes)
    failed = kernel(
        len(sizes),
        *[block.buffer_info()[0] if block else None for block in pointers],
        sizes.buffer_info()[0],
        *[TYPES[dtype] if dtype is not None else 0 for dtype in lists.dtypes],
        p,
        step,
        keep,
        momentum,
        eps,
        _NORMALIZE[normalize],
        torch.get_num_threads(),
        count,
    )
    if failed:
        raise MemoryError("no memory for the bookkeeping of the fused step")


@torch.library.custom_op(
    "lpsgd::step",
    mutates_args=("params", "buffers"),
    device_types="cpu",
    # written out: torch before 2.5 cannot read it from annotations that are strings
    schema="(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] buffers, Tensor p, Tensor step, "
    "Tensor keep, float momentum, float eps, str normalize, Tensor count) -> ()",
)
def _step_operator(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    buffers: Sequence[Tensor],
    p: Tensor,
    step: Tensor,
    keep: Tensor,
    momentum: float,
    eps: float,
    normalize: str,
    count: Tensor,
) -> None:
    kernel_step(
        params,
        grads,
        buffers,
        p=p.item(),
        step=step.item(),
        keep=keep.item(),
        momentum=momentum,
        eps=eps,
        normalize=normalize or None,
        count=int(count),
    )


def operator_step(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    buffers: Sequence[Tensor] | None,
    *,
    p: Tensor,
    step: Tensor,
    keep: Tensor,
    momentum: float,
    eps: float,
    normalize: Normalize,
    count: Tensor,
) -> None:
    """:func:`kernel_step` as one operator that ``torch.compile`` does not look into."""
    mode = normalize or ""
    _step_operator(params, grads, buffers or [], p, step, keep, momentum, eps, mode, count)
