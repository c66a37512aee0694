"""The step inside backward: each parameter moves as soon as its gradient is complete.

No gradient then outlives its layer, which saves as much memory as the parameters take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lpsgd._base import Group, LpOptimizer

__all__ = ["step_in_backward"]


def step_in_backward(optimizer: LpOptimizer) -> Callable[[], None]:
    """Let ``backward()`` do the steps of ``optimizer``, an optimizer of this package.

    Each parameter of its groups is moved, and its gradient freed, as soon as autograd has completed
    the gradient. ``optimizer.step()`` stays where it was in the loop: it counts the step, moves p,
    and moves whatever still has a gradient. Weights and state are those of an ordinary step (with
    momentum in bfloat16 or 8 bits but for the noise of rounding), so that checkpoints, learning
    rate schedulers and groups work as ever.

    What needs all gradients at once, or needs them later, cannot work: clipping by the total norm,
    accumulation over several backward passes, GradScaler, a closure.

    Returns:
        A function that ends it: from then on steps are taken by ``step()`` again.

    Example:
        >>> from lpsgd import LPSGDM
        >>> from lpsgd.backward import step_in_backward
        >>> model = torch.nn.Linear(10, 1)
        >>> optimizer = LPSGDM(model.parameters(), lr=1e-2, total_steps=100)
        >>> end = step_in_backward(optimizer)
        >>> model(torch.ones(4, 10)).square().mean().backward()
        >>> model.weight.grad is None
        True
        >>> optimizer.step()
    """
    if not isinstance(optimizer, LpOptimizer):
        raise TypeError(
            f"optimizer must be one of lpsgd, such as LPSGDM, got a {type(optimizer).__name__}; "
            "with others make an optimizer for each parameter"
        )
    if any(group["differentiable"] for group in optimizer.param_groups):
        raise ValueError("differentiable=True cannot step inside backward, which is not recorded")
    moved: list[Group] = []  # groups of which a parameter has moved since the last step()

    def hook_of(group: Group) -> Callable[[Tensor], None]:
        def move(param: Tensor) -> None:
            _move(optimizer, group, param)
            param.grad = None
            if not any(group is other for other in moved):
                moved.append(group)

        return move

    def count(*_: Any) -> None:
        for group in moved:
            step = optimizer._step_tensor(group)
            assert step is not None
            step.add_(1)
        moved.clear()

    handles: list[Any] = [
        param.register_post_accumulate_grad_hook(hook_of(group))
        for group in optimizer.param_groups
        for param in group["params"]
        if param.requires_grad
    ]
    handles.append(optimizer.register_step_post_hook(count))

    def end() -> None:
        count()
        for handle in handles:
            handle.remove()

    return end


@torch.no_grad()
def _move(optimizer: LpOptimizer, group: Group, param: Tensor) -> None:
    """One step of one parameter, which does not count yet."""
    shared = optimizer._step_tensor(group)
    if shared is not None:
        optimizer.state[param]["step"] = shared
    params: list[Tensor] = []
    grads: list[Tensor] = []
    steps: list[Tensor] = []
    buffers: list[list[Tensor]] = [[] for _ in optimizer._buffer_names(group)]
    optimizer._init_group({**group, "params": [param]}, params, grads, steps, *buffers)
    p = optimizer._current_p(group, steps[0]) if "p" in group else None
    optimizer._update(group, params, grads, buffers, steps[0], p)
