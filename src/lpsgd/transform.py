r"""l_p-scaled gradients for any optimizer.

The paper notes that its scheme extends to other first-order methods. :class:`LpGradient` does that
to every optimizer: before each step the gradient g of a tensor gives way to the direction
:math:`u = g / (|g| + \varepsilon)^{\rho(p)}`, and afterwards it is put back.
"""

from __future__ import annotations

import copy
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from lpsgd import _checks as checks
from lpsgd._base import Group, LpOptimizer, plain_group, require_dense
from lpsgd._origin import refuse_foreign_state
from lpsgd.geometry import NORMALIZATIONS, Exponent, Normalize
from lpsgd.optimizer import lp_descent
from lpsgd.schedule import PFunction, exponent_at

__all__ = ["LpGradient"]

_COUNT = "lp_step"


class LpGradient(LpOptimizer):
    r"""Wraps an optimizer so that it sees l_p-scaled gradients.

    .. math::
        u_t = \frac{g_t}{(|g_t| + \varepsilon)^{\rho}}, \quad \rho = \frac{p-2}{p-1}, \qquad
        \theta_{t+1} = \mathrm{optimizer}(\theta_t, u_t)

    Around ``torch.optim.SGD`` without momentum it is :class:`~lpsgd.LPSGD`; p = 2 changes nothing.
    With momentum inside it differs from :class:`~lpsgd.LPSGDM`, which averages before it scales.

    It is an optimizer in its own right and shares ``param_groups`` and ``state`` with the one that
    it wraps, so that learning-rate schedulers, ``GradScaler``, hooks, closures (``LBFGS``) and
    checkpoints work on it. After a step, and after one that failed, ``.grad`` holds what it held
    before, the same tensors to the last bit. p advances by one for each call of ``step``, however
    often the optimizer evaluates the closure.

    Each group has the settings ``p``, ``p_schedule``, ``lp_eps``, ``lp_normalize`` and the count
    ``lp_step`` in addition to the optimizer's own; a schedule is described in the state dict and
    stays as constructed on load, as in :class:`~lpsgd.LPSGDM`.

    Args:
        optimizer: the optimizer to wrap; its groups must not have a ``p`` of their own.
        p: the norm exponent: a number from 2 to inf, a 0-d tensor, or a schedule ``step -> p``.
        eps: the constant epsilon > 0 that keeps the scaling finite at zero.
        normalize: sets the length of each tensor's direction, as in :class:`~lpsgd.LPSGDM`.

    Example:
        >>> from lpsgd import CosineP
        >>> from lpsgd.transform import LpGradient
        >>> model = torch.nn.Linear(10, 1)
        >>> adam = torch.optim.Adam(model.parameters(), lr=1e-3)
        >>> optimizer = LpGradient(adam, p=CosineP(6, total_steps=100))
        >>> scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
        >>> model(torch.ones(4, 10)).square().mean().backward()
        >>> optimizer.step()
        >>> scheduler.step()
    """

    optimizer: Optimizer
    _own_defaults: dict[str, Any]

    _checks: ClassVar[Mapping[str, checks.Check]] = {
        "p": checks.exponent_or_schedule,
        "lp_eps": checks.positive,
        "lp_normalize": checks.one_of(*NORMALIZATIONS),
    }

    def __init__(
        self,
        optimizer: Optimizer,
        p: float | Tensor | PFunction = 6.0,
        *,
        eps: float = 1e-8,
        normalize: Normalize = None,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {optimizer!r}")
        if any("p" in group for group in optimizer.param_groups):
            raise ValueError(
                f"optimizer={type(optimizer).__name__} has a p of its own; allowed is an optimizer "
                "without one, because l_p scaling is not to be applied twice"
            )
        checks.positive("eps", eps)
        checks.one_of(*NORMALIZATIONS)("normalize", normalize)
        given = {"p": p, "p_schedule": None, "lp_eps": eps, "lp_normalize": normalize}
        own = {name: checks.plain(value) for name, value in given.items()}
        checks.check_each(self._checks, own)
        if callable(p):
            exponent_at(p, 0)  # now: an optimizer that was not wrapped must be left as it was
        # Not torch's __init__, which would make groups and state of its own, but the part of it
        # that revives a pickle: the hooks.
        self.__setstate__({"optimizer": optimizer, "_own_defaults": own})
        for group in self.param_groups:
            self._adopt(group)

    # --- what is shared with the wrapped optimizer --------------------------------------------
    # Properties, because the wrapped optimizer makes new objects when it loads.

    @property
    def param_groups(self) -> list[Group]:
        """The wrapped optimizer's groups."""
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[Group]) -> None:
        self.optimizer.param_groups = groups

    @property
    def state(self) -> defaultdict[Tensor, Any]:
        """The wrapped optimizer's state."""
        return self.optimizer.state

    @state.setter
    def state(self, state: defaultdict[Tensor, Any]) -> None:
        self.optimizer.state = state

    @property
    def defaults(self) -> dict[str, Any]:
        """The wrapped optimizer's defaults and those of the scaling."""
        return {**self.optimizer.defaults, **self._own_defaults}

    @defaults.setter
    def defaults(self, defaults: dict[str, Any]) -> None:
        self.optimizer.defaults = defaults

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients, as the wrapped optimizer does it."""
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: Group) -> None:
        """Add a group to both; it starts at the present count."""
        self._check_new_group(param_group)
        self.optimizer.add_param_group(param_group)
        try:
            self._adopt(self.param_groups[-1])
        except Exception:
            self.param_groups.pop()
            raise

    def _adopt(self, group: Group) -> None:
        """Give a group of the wrapped optimizer the settings of the scaling."""
        for name, default in self._own_defaults.items():
            group.setdefault(name, default)
        group.setdefault(_COUNT, self._new_count(group, self._count()))
        self._adopt_p(group)

    def _new_count(self, group: Group, count: int) -> Tensor:
        device = group["params"][0].device if group.get("capturable") else "cpu"
        return torch.tensor(count, dtype=torch.int64, device=device)

    def _step_tensor(self, group: Group) -> Tensor | None:
        return group.get(_COUNT)

    # --- the step -----------------------------------------------------------------------------

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Let the wrapped optimizer take one step with the scaled gradients.

        Args:
            closure: reevaluates the model and returns the loss; it sees the true gradients.
        """
        for group in self.param_groups:
            if _COUNT not in group:  # it was added to the wrapped optimizer directly
                self._adopt(group)
        exponents = [self._current_p(group, group[_COUNT]) for group in self.param_groups]
        counts = closure is not None or not self._is_probe()
        swap = _Swap(self.param_groups, exponents, type(self).__name__)

        def scaled_closure() -> float:
            assert closure is not None
            swap.restore()
            loss = closure()
            swap.put()
            return loss

        try:
            swap.put()
            if closure is None:
                self.optimizer.step()
                loss = None
            else:
                loss = self.optimizer.step(scaled_closure)
        finally:
            swap.restore(all_of_them=True)
        if counts:
            for group in self.param_groups:
                group[_COUNT].add_(1)
        return loss

    # --- saving and loading -------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's state dict; its groups hold the settings of the scaling too."""
        for pre_hook in self._optimizer_state_dict_pre_hooks.values():
            pre_hook(self)
        saved: dict[str, Any] = self.optimizer.state_dict()
        saved = {**saved, "param_groups": [plain_group(group) for group in saved["param_groups"]]}
        for post_hook in self._optimizer_state_dict_post_hooks.values():
            changed = post_hook(self, saved)
            saved = saved if changed is None else changed
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load both parts; the schedule stays as constructed.

        A state dict of the bare optimizer is accepted: the scaling then goes on from where it is.
        One of another optimizer is refused by a ValueError, and nothing is changed.
        """
        for pre_hook in self._optimizer_load_state_dict_pre_hooks.values():
            changed = pre_hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        self._refuse_foreign(state_dict)
        names = (*self._own_defaults, _COUNT)
        kept = [{name: group[name] for name in names} for group in self.param_groups]
        self.optimizer.load_state_dict(state_dict)
        differences: list[str] = []
        for group, saved, own in zip(
            self.param_groups, state_dict["param_groups"], kept, strict=True
        ):
            for name in names:
                group.setdefault(name, own[name])
            group[_COUNT] = self._new_count(group, int(group[_COUNT]))
            p_of_file = group["p"]
            group.update(p=own["p"], p_schedule=own["p_schedule"])
            differences.extend(self._settle_p(group, p_of_file, saved))
        for post_hook in self._optimizer_load_state_dict_post_hooks.values():
            post_hook(self)
        for difference in dict.fromkeys(differences):  # once, also where all groups have it
            warnings.warn(difference, stacklevel=2)

    def _refuse_foreign(self, file: dict[str, Any]) -> None:
        settings = {*self.optimizer.defaults}
        groups = self.param_groups
        if any(_COUNT in saved for saved in file.get("param_groups", ())):
            settings |= self._own_defaults.keys()
        else:  # one of the bare optimizer, which has no p
            bare = {*self._own_defaults, _COUNT}
            groups = [{k: v for k, v in group.items() if k not in bare} for group in groups]
        refuse_foreign_state(self, file, settings, groups)

    def __getstate__(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer, "_own_defaults": self._own_defaults}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Optimizer.__setstate__(self, state)

    def __deepcopy__(self, memo: dict[int, Any]) -> LpGradient:
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return twin

    def __repr__(self) -> str:
        return super().__repr__().replace(" (", f" of {type(self.optimizer).__name__} (", 1)


class _Swap:
    """Puts scaled gradients in the place of the true ones, and the true ones back."""

    def __init__(self, groups: list[Group], exponents: list[Exponent], name: str) -> None:
        self.groups, self.exponents, self.name = groups, exponents, name
        self.swapped: list[tuple[Tensor, Tensor | None, Tensor | None]] = []

    def put(self) -> None:
        """Scale the present gradients, and remember them."""
        swapped = []
        for group, p in zip(self.groups, self.exponents, strict=True):
            scaled = self._scale(group, p)
            swapped += [(param, param.grad, scaled.get(param)) for param in group["params"]]
        self.swapped = swapped
        for param, _, u in swapped:
            param.grad = u

    def _scale(self, group: Group, p: Exponent) -> dict[Tensor, Tensor]:
        grads = {param: param.grad for param in group["params"] if param.grad is not None}
        for grad in grads.values():
            require_dense(self.name, grad)
        differentiable = bool(group.get("differentiable"))
        with torch.set_grad_enabled(differentiable and torch.is_grad_enabled()):
            # A step of l_p ascent from zero ends at u, on the paths that LPSGD has.
            u = [torch.zeros_like(grad) for grad in grads.values()]
            lp_descent(
                u,
                list(grads.values()),
                None,
                p=p,
                lr=1.0,
                eps=group["lp_eps"],
                normalize=group["lp_normalize"],
                maximize=True,
                capturable=bool(group.get("capturable")),
                differentiable=differentiable,
            )
        return dict(zip(grads, u, strict=True))

    def restore(self, *, all_of_them: bool = False) -> None:
        """Put the true gradients back.

        Before the closure, one that the optimizer has itself removed or replaced stays so: SAM
        clears the gradient there, to which the next must not be added.
        """
        for param, grad, u in self.swapped:
            if all_of_them or param.grad is u:
                param.grad = grad
        self.swapped = []
