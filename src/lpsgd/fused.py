r"""The fused update: one pass over parameter, gradient and momentum, for all tensors of a group.

It is a small C library, compiled from ``fused.c`` when the package is installed::

    m     <- m + (1 - momentum) (g - m)
    theta <- (1 - lr weight_decay) theta - lr factor m / (|m| + eps)^rho

with m = g for LPSGD. ``factor`` is 1, or with ``normalize`` one number for each tensor, found by a
pass of its own before. The arithmetic is float32, the number of threads is torch's.

:func:`unavailable` says whether the library is there, :func:`refusal` whether it takes given
tensors.
"""

from __future__ import annotations

import ctypes
import os
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from lpsgd.geometry import Normalize

__all__ = ["kernel_step", "opaque_step", "refusal", "unavailable"]

Kernel: TypeAlias = Callable[..., int]

# What the numbers mean to fused.c.
_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_NORMALIZE: dict[Normalize, int] = {None: 0, "rms": 1, "dual": 2}


def load(path: Path) -> Kernel:
    """The kernel in the library at ``path``; OSError if it cannot be loaded."""
    step = ctypes.CDLL(os.fspath(path)).lpsgd_step
    count, address, real, flag = ctypes.c_int64, ctypes.c_void_p, ctypes.c_double, ctypes.c_int
    step.argtypes = [count, *[address] * 4, *[flag] * 3, *[real] * 5, *[flag] * 3]
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
    if _kernel is None:
        return _why_not
    # Few different combinations among many tensors: one set is faster than many questions.
    contiguous = True
    for kind, on_cpu, dtype, plain in {
        (type(t), t.is_cpu, t.dtype, t.is_contiguous()) for t in (*params, *grads, *buffers)
    }:
        if kind is not torch.nn.Parameter and kind is not Tensor:
            return f"the kernel takes plain tensors, not a {kind.__name__}"
        if not on_cpu:
            return "the kernel runs on a CPU, and a tensor lies elsewhere"
        if dtype not in _TYPES:
            return f"the kernel takes float32, bfloat16 and float16, not {dtype}"
        contiguous = contiguous and plain
    return None if contiguous else _layout_refusal(params, buffers)


def _layout_refusal(params: Sequence[Tensor], buffers: Sequence[Tensor]) -> str | None:
    """The kernel walks straight through memory. (A gradient laid out otherwise is copied.)"""
    for param in params:
        if not _is_dense(param):
            return f"the kernel takes tensors without gaps, not strides {param.stride()}"
    for param, buffer in zip(params, buffers, strict=len(buffers) > 0):
        if not _same_order(param, buffer):
            return (
                "the kernel takes momentum laid out like its parameter, not strides "
                f"{buffer.stride()} for {param.stride()}"
            )
    return None


def _is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill one stretch of memory, in whatever order of the dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _same_order(a: Tensor, b: Tensor) -> bool:
    return (a.is_contiguous() and b.is_contiguous()) or a.stride() == b.stride()


def kernel_step(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    buffers: Sequence[Tensor] | None,
    *,
    lr: float,
    momentum: float,
    p: float,
    weight_decay: float,
    eps: float,
    normalize: Normalize,
    maximize: bool,
    kernel: Kernel | None = None,
) -> None:
    """One step on tensors that :func:`refusal` accepts, alike in dtype within each list.

    ``kernel`` stands in for the installed one.
    """
    step = kernel if kernel is not None else _kernel
    if step is None:
        raise RuntimeError(_why_not)
    grads = [
        grad if _same_order(param, grad) else torch.empty_like(param, dtype=grad.dtype).copy_(grad)
        for param, grad in zip(params, grads, strict=True)
    ]
    lists = (params, grads, buffers or ())
    addresses = [array("Q", [tensor.data_ptr() for tensor in tensors]) for tensors in lists]
    sizes = array("q", [param.numel() for param in params])
    types = [_TYPES[tensors[0].dtype] if tensors else 0 for tensors in lists]
    failed = step(
        len(params),
        *[block.buffer_info()[0] if block else None for block in addresses],
        sizes.buffer_info()[0],
        *types,
        lr,
        momentum,
        p,
        weight_decay,
        eps,
        _NORMALIZE[normalize],
        maximize,
        torch.get_num_threads(),
    )
    if failed:
        raise MemoryError("no memory for the bookkeeping of the fused step")
    # Written behind torch's back: autograd must learn that what it saved of these is stale.
    torch.autograd.graph.increment_version([*params, *(buffers or ())])


@torch.library.custom_op("lpsgd::step", mutates_args=("params", "buffers"), device_types="cpu")
def _step_op(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    buffers: Sequence[Tensor],
    lr: Tensor,
    p: Tensor,
    momentum: float,
    weight_decay: float,
    eps: float,
    normalize: str,
    maximize: bool,
) -> None:
    kernel_step(
        params,
        grads,
        buffers,
        lr=lr.item(),
        momentum=momentum,
        p=p.item(),
        weight_decay=weight_decay,
        eps=eps,
        normalize=normalize or None,  # type: ignore[arg-type]
        maximize=maximize,
    )


def opaque_step(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    buffers: Sequence[Tensor] | None,
    *,
    lr: Tensor,
    momentum: float,
    p: Tensor,
    weight_decay: float,
    eps: float,
    normalize: Normalize,
    maximize: bool,
) -> None:
    """The same as one operator that a compiler does not look into; lr and p are 0-d tensors."""
    _step_op(
        params,
        grads,
        buffers or [],
        lr,
        p,
        momentum,
        weight_decay,
        eps,
        normalize or "",
        maximize,
    )
