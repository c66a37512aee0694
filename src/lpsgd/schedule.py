r"""The norm exponent p as a function of the step.

A schedule is a pure function ``step -> p`` of the optimizer's step count, which starts at 0. Given
an int it returns a float; given a 0-d tensor or JAX array it returns one too, without branching on
its value, so that a compiled or captured step never has to look at the count.

Each schedule spans either ``total_steps`` steps, smoothly, or ``total_epochs`` epochs of
``steps_per_epoch`` optimizer steps, constant within an epoch as in the paper. Past its end a
schedule stays at its last value.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import torch
from torch import Tensor

from lpsgd._checks import check_at_least, check_exponent, check_positive_int, plain, power

if TYPE_CHECKING:
    from torch.optim import Optimizer

PFunction: TypeAlias = "Callable[[Any], float | Tensor]"


def exponent_dtype(device: torch.device) -> torch.dtype:
    """The dtype of a p that is a tensor: float64, so that a compiled step follows the eager one.

    A 0-d tensor does not widen the tensors that it meets.
    """
    return torch.float32 if device.type == "mps" else torch.float64


class Schedule(ABC):
    """A pure function of the step with a plain description. Subclasses are frozen dataclasses."""

    @abstractmethod
    def _value(self, step: Any, ops: _Ops) -> Any:
        """p at ``step``, written once with operations that serve numbers and tensors alike."""

    @property
    def end(self) -> int | None:
        """The number of steps that the schedule was made for, or None if it has no end."""
        return None

    @overload
    def __call__(self, step: int) -> float: ...
    @overload
    def __call__(self, step: Tensor) -> Tensor: ...
    def __call__(self, step: int | Tensor) -> float | Tensor:
        if isinstance(step, Tensor):
            value: Tensor = self._value(step.to(exponent_dtype(step.device)), _TENSORS)
            return value
        jax = sys.modules.get("jax")  # a JAX array exists only where JAX is loaded
        if jax is not None and isinstance(step, jax.Array):
            # JAX's widest float: float64 where that is enabled, for an int32 count too
            return self._value(step.astype(float), _jax_operations())  # type: ignore[no-any-return]
        return float(self._value(step, _NUMBERS))

    def describe(self) -> dict[str, Any]:
        """Name and numbers, plain values only: what a state dict keeps of a schedule."""
        declared = fields(self)  # type: ignore[arg-type]
        in_call_order = sorted(declared, key=lambda f: f.kw_only is True)
        numbers = {f.name: getattr(self, f.name) for f in in_call_order}
        return {"name": type(self).__name__} | {k: v for k, v in numbers.items() if v is not None}

    def __repr__(self) -> str:
        return describe_text(self.describe())


def _make_floats(schedule: Schedule, *names: str) -> None:
    """Store these fields as floats, so that ``CosineP(6)`` and ``CosineP(6.0)`` describe alike."""
    for name in names:
        object.__setattr__(schedule, name, float(getattr(schedule, name)))


@dataclass(frozen=True)
class _Ops:
    """The few functions in which numbers and tensors differ."""

    cos: Callable[[Any], Any]
    clamp: Callable[[Any, float], Any]
    reciprocal: Callable[[Any], Any]


_NUMBERS = _Ops(
    cos=math.cos,
    clamp=min,
    reciprocal=lambda x: 1 / x if x else math.inf,
)
_TENSORS = _Ops(
    cos=torch.cos,
    clamp=lambda x, most: torch.clamp(x, max=most),
    reciprocal=torch.reciprocal,
)


def _jax_operations() -> _Ops:
    # a user's type checker may read this file where jax is not installed
    import jax.numpy as jnp  # type: ignore[import-not-found, unused-ignore]

    return _Ops(cos=jnp.cos, clamp=jnp.minimum, reciprocal=jnp.reciprocal)


@dataclass(frozen=True, repr=False)
class ConstantP(Schedule):
    """p_t = p at every step (sign descent for ``p=float("inf")``).

    >>> ConstantP(4)(100)
    4.0
    """

    p: float

    def __post_init__(self) -> None:
        check_exponent("p", self.p)
        _make_floats(self, "p")

    def _value(self, step: Any, ops: _Ops) -> Any:
        return step * 0 + self.p if isinstance(step, Tensor) else self.p


@dataclass(frozen=True, repr=False, kw_only=True)
class _Span(Schedule):
    """A schedule with an end: total_steps smooth steps, or total_epochs epochs of equal p."""

    total_steps: int | None = None
    total_epochs: int | None = None
    steps_per_epoch: int | None = None

    def __post_init__(self) -> None:
        name = type(self).__name__
        if (self.total_steps is None) == (self.total_epochs is None):
            raise ValueError(
                f"{name} needs either total_steps or total_epochs with steps_per_epoch, got "
                f"total_steps={self.total_steps!r}, total_epochs={self.total_epochs!r}"
            )
        if (self.total_epochs is None) != (self.steps_per_epoch is None):
            raise ValueError(
                f"{name}: total_epochs and steps_per_epoch go together, got "
                f"total_epochs={self.total_epochs!r}, steps_per_epoch={self.steps_per_epoch!r}"
            )
        for length in ("total_steps", "total_epochs", "steps_per_epoch"):
            if (value := getattr(self, length)) is not None:
                check_positive_int(length, value)
                object.__setattr__(self, length, int(value))

    @property
    def end(self) -> int:
        if self.total_steps is not None:
            return self.total_steps
        assert self.total_epochs is not None
        assert self.steps_per_epoch is not None
        return self.total_epochs * self.steps_per_epoch

    def _stage(self, step: Any) -> tuple[Any, int]:
        """(s-1, S): the stage that ``step`` is in, from 0, and the number of stages."""
        if self.total_steps is not None:
            return step, self.total_steps
        assert self.total_epochs is not None
        assert self.steps_per_epoch is not None
        return step // self.steps_per_epoch, self.total_epochs

    def _progress(self, step: Any, ops: _Ops) -> Any:
        """(s-1)/(S-1), which is 0 in the first stage and 1 in the last; 0 where S = 1."""
        stage, stages = self._stage(step)
        return ops.clamp(stage, stages - 1) / max(stages - 1, 1)


@dataclass(frozen=True, repr=False)
class _Annealed(_Span):
    """A span over which p falls from p_max to p_min."""

    p_max: float = 6.0
    p_min: float = field(default=2.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_exponent("p_max", self.p_max)
        check_exponent("p_min", self.p_min)
        if math.isinf(self.p_max):
            raise ValueError(
                f"{type(self).__name__}: p_max=inf cannot be annealed, because every mean of "
                "infinity and 2 is infinite; LinearAlpha moves from sign descent to p = 2"
            )
        check_at_least("p_max", self.p_max, self.p_min, bound_name="p_min")
        _make_floats(self, "p_max", "p_min")


@dataclass(frozen=True, repr=False)
class CosineP(_Annealed):
    r"""The paper's schedule (its equation ``eq:p_schedule``), from p_max down to p_min = 2:

    .. math::
        p_s = p_{\min} + (p_{\max} - p_{\min})
              \frac{1 + \cos\bigl(\pi \frac{s-1}{S-1}\bigr)}{2}, \qquad s = 1, \dots, S.

    With ``total_epochs`` and ``steps_per_epoch`` s is the epoch (the paper); with ``total_steps``
    it is the step. p_1 = p_max, p_S = p_min exactly, and S = 1 gives p_max.

    >>> p = CosineP(6, total_epochs=3, steps_per_epoch=10)
    >>> [p(step) for step in (0, 9, 10, 20, 29, 1000)]
    [6.0, 6.0, 4.0, 2.0, 2.0, 2.0]
    >>> CosineP(6, total_steps=3)(torch.tensor(1))
    tensor(4., dtype=torch.float64)
    """

    def _value(self, step: Any, ops: _Ops) -> Any:
        wave = (1 + ops.cos(math.pi * self._progress(step, ops))) / 2
        return self.p_min + (self.p_max - self.p_min) * wave


@dataclass(frozen=True, repr=False)
class LinearP(_Annealed):
    r"""p falls in equal steps from p_max to p_min:
    :math:`p_s = p_{\max} - (p_{\max} - p_{\min}) \frac{s-1}{S-1}`.

    >>> p = LinearP(6, total_steps=5)
    >>> [p(step) for step in range(6)]
    [6.0, 5.0, 4.0, 3.0, 2.0, 2.0]
    """

    def _value(self, step: Any, ops: _Ops) -> Any:
        return self.p_min + (self.p_max - self.p_min) * (1 - self._progress(step, ops))


@dataclass(frozen=True, repr=False, kw_only=True)
class LinearAlpha(_Span):
    r"""alpha = 1/(p-1) moves in equal steps, by default from 0 (sign) to 1 (gradient descent):
    :math:`\alpha_t = \alpha_0 + (\alpha_1 - \alpha_0) \min(t/T, 1)` at step t = 0, 1, ... of T, so
    :math:`p_t = 1 + 1/\alpha_t`.

    The default is the schedule of the gradual method (GSGD) in the paper's Remark 1, whose
    iterations count from 1 (:math:`(t-1)/T` there). A negative alpha is an exponent past infinity,
    p < 0, which :class:`~lpsgd.LPMuon` takes.

    >>> p = LinearAlpha(total_steps=4)
    >>> [p(step) for step in (0, 1, 2, 4, 9)]
    [inf, 5.0, 3.0, 2.0, 2.0]
    >>> [LinearAlpha(-0.5, 0.5, total_steps=2)(step) for step in range(3)]
    [-1.0, inf, 3.0]
    """

    alpha_start: float = field(default=0.0, kw_only=False)
    alpha_end: float = field(default=1.0, kw_only=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        power("alpha_start", self.alpha_start)
        power("alpha_end", self.alpha_end)
        _make_floats(self, "alpha_start", "alpha_end")

    def _value(self, step: Any, ops: _Ops) -> Any:
        stage, stages = self._stage(step)
        progress = ops.clamp(stage / stages, 1.0)
        return 1 + ops.reciprocal(self.alpha_start + (self.alpha_end - self.alpha_start) * progress)

    def describe(self) -> dict[str, Any]:
        """Name and numbers; without the two that files of version 0.1 do not have, if default."""
        found = super().describe()
        if (self.alpha_start, self.alpha_end) == (0.0, 1.0):
            del found["alpha_start"], found["alpha_end"]
        return found


def describe_schedule(schedule: PFunction | None) -> dict[str, Any] | None:
    """The plain description of any schedule; a callable that is not ours has only its name."""
    if schedule is None:
        return None
    if isinstance(schedule, Schedule):
        return schedule.describe()
    return {"name": getattr(schedule, "__qualname__", type(schedule).__qualname__)}


def describe_text(description: dict[str, Any]) -> str:
    """A description as a call, such as ``CosineP(p_max=6.0, total_steps=100)``."""
    settings = ", ".join(f"{k}={v!r}" for k, v in description.items() if k != "name")
    return f"{description['name']}({settings})"


def exponent_at(
    schedule: PFunction, count: int, check: Callable[[str, object], None] = check_exponent
) -> float:
    """The schedule's value at ``count``; if ``check`` refuses it, say who gave it."""
    p = plain(schedule(count))
    if isinstance(p, Tensor) and p.numel() == 1:
        p = p.item()
    try:
        check("p", p)
    except ValueError as error:
        text = describe_schedule(schedule)
        raise ValueError(f"the p schedule {text} gave p={p!r} at step {count}; {error}") from None
    return float(p)


class PScheduler:
    """Sets ``group["p"] = schedule(last_epoch)`` for every group, as an LR scheduler sets the rate.

    For loops that call ``scheduler.step()`` instead of giving the optimizer a schedule. The
    unit is the call: one call an epoch with ``CosineP(6, total_steps=epochs)`` is the paper's
    schedule. Learning-rate schedulers may be used on the same optimizer, in any order.

    Args:
        optimizer: an optimizer whose groups have a ``p`` and no schedule of their own.
        schedule: a schedule or any callable ``count -> p``, or a list of one for each group.
        last_epoch: the last count that was used, so that p starts at the next; -1 starts from the
            beginning.

    >>> from lpsgd import LPSGDM
    >>> optimizer = LPSGDM([torch.zeros(3, requires_grad=True)], p=6.0)
    >>> scheduler = PScheduler(optimizer, CosineP(6, total_steps=3))
    >>> scheduler.step()
    >>> scheduler.get_last_p()
    [4.0]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedule: PFunction | Sequence[PFunction],
        last_epoch: int = -1,
    ) -> None:
        self.optimizer = optimizer
        several = isinstance(schedule, Sequence) and not isinstance(schedule, str)
        self.schedules: list[PFunction] | None = list(schedule) if several else None  # type: ignore[arg-type]
        self.schedule: PFunction | None = None if several else schedule  # type: ignore[assignment]
        if self.schedules is not None and len(self.schedules) != len(optimizer.param_groups):
            raise ValueError(
                f"schedule is a list of {len(self.schedules)} for "
                f"{len(optimizer.param_groups)} parameter groups; give one for each group"
            )
        for given in self.schedules if self.schedules is not None else [self.schedule]:
            if not callable(given):
                raise ValueError(f"schedule must be a callable count -> p, got {given!r}")
        self.last_epoch = last_epoch
        self._last_p: list[float] = []
        self.step()

    def step(self) -> None:
        """Advance the count by one and set p in every group."""
        for index, group in enumerate(self.optimizer.param_groups):
            if "p" not in group:
                raise ValueError(
                    f"parameter group {index} of {type(self.optimizer).__name__} has no p to set"
                )
            if group.get("p_schedule") is not None:
                raise ValueError(
                    f"parameter group {index} has its own p schedule {group['p_schedule']!r}, "
                    "which would overwrite what PScheduler sets; use one or the other"
                )
        count = self.last_epoch + 1
        # all values before any is set, so that an error leaves everything as it was
        indices = range(len(self.optimizer.param_groups))
        self._last_p = [exponent_at(self._schedule_of(index), count) for index in indices]
        self.last_epoch = count
        self._set_p()

    def _set_p(self) -> None:
        """Write the last values; a file may have fewer than there are groups by now."""
        for group, p in zip(self.optimizer.param_groups, self._last_p, strict=False):
            if isinstance(group["p"], Tensor):
                group["p"].fill_(p)  # the same tensor, so that a captured graph sees the change
            else:
                group["p"] = p

    def _schedule_of(self, index: int) -> PFunction:
        if self.schedules is None:
            assert self.schedule is not None
            return self.schedule
        # a group added later follows the last schedule
        return self.schedules[min(index, len(self.schedules) - 1)]

    def get_last_p(self) -> list[float]:
        """The p that the last call set, for each group."""
        return list(self._last_p)

    def state_dict(self) -> dict[str, Any]:
        """The count and the last values; the schedule itself stays as constructed."""
        return {"last_epoch": self.last_epoch, "_last_p": list(self._last_p)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved count, and set p to the saved values.

        The optimizer's state dict holds them too, but if that was loaded first, this object has
        set p to the schedule's beginning since.
        """
        self.last_epoch = state_dict["last_epoch"]
        self._last_p = list(state_dict["_last_p"])
        self._set_p()
