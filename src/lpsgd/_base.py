"""What every optimizer of this package shares: settings, counts, p, saving and loading.

A subclass names its settings and their checks, the buffers that it keeps for a parameter, and its
rule (``_update``). Everything that makes an optimizer pleasant to use lives here, once.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeAlias, overload

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import _use_grad_for_differentiable

from lpsgd import _checks as checks
from lpsgd._compat import check_graph_capture
from lpsgd._dtensor import are_plain
from lpsgd._foreach import real
from lpsgd._origin import refuse_foreign_state
from lpsgd.geometry import Exponent
from lpsgd.schedule import (
    PFunction,
    Schedule,
    describe_schedule,
    describe_text,
    exponent_at,
    exponent_dtype,
)

Group: TypeAlias = dict[str, Any]

# The p that nobody gave: `p is DEFAULT_P` holds for this object and for no 6.0 of a user's, in a
# group too, until a p or a schedule is set there. (A class of its own would show in state dicts.)
DEFAULT_P = float("6")

# What stays as constructed on load: how a step is run, and the schedule (see _settle_p).
_AS_CONSTRUCTED = ("foreach", "fused", "capturable", "differentiable", "p", "p_schedule")

COMMON_CHECKS: Mapping[str, checks.Check] = {
    "lr": checks.rate,
    "weight_decay": checks.non_negative,
    "maximize": checks.flag,
    "foreach": checks.optional_flag,
    "fused": checks.optional_flag,
    "capturable": checks.flag,
    "differentiable": checks.flag,
}


def state_dtype_of(param: Tensor, wanted: torch.dtype | None) -> torch.dtype:
    """A buffer's dtype: as wanted, else float32 for half precision, else the parameter's."""
    if wanted is not None:
        return wanted
    return working_dtype(torch.view_as_real(param) if param.is_complex() else param)


def working_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype in which a real tensor's update is computed: at least float32.

    In float16 an eps of 1e-8 is zero, so that a zero gradient would give 0/0.
    """
    return torch.float32 if tensor.dtype.itemsize < 4 else tensor.dtype


def require_dense(optimizer: str, grad: Tensor) -> None:
    """Refuse a sparse gradient, and say what to do about it."""
    if grad.layout != torch.strided:
        raise RuntimeError(
            f"{optimizer} does not take sparse gradients (layout {grad.layout}): every coordinate "
            "of its momentum and step is dense. Use nn.Embedding(sparse=False), call .to_dense() "
            "on the gradient, or give these parameters to torch.optim.SparseAdam"
        )


class LpOptimizer(Optimizer):
    """Base of the optimizers here: ``torch.optim.Optimizer`` plus a step count, and p schedules.

    Every stepped parameter has ``state[p]["step"]``, one 0-d integer tensor shared within a group.
    """

    _checks: ClassVar[Mapping[str, checks.Check]] = COMMON_CHECKS

    # --- what a subclass provides -------------------------------------------------------------

    def _buffer_names(self, group: Group) -> tuple[str, ...]:
        """The names of the tensors kept for each parameter of ``group``."""
        return ()

    def _new_buffer(self, name: str, param: Tensor, group: Group) -> Tensor:
        """A new buffer for ``param``: zeros of its shape; a complex one is a pair of reals."""
        real = torch.view_as_real(param) if param.is_complex() else param
        return torch.zeros_like(real, dtype=state_dtype_of(param, group.get("state_dtype")))

    def _update(
        self,
        group: Group,
        params: list[Tensor],
        grads: list[Tensor],
        buffers: list[list[Tensor]],
        step: Tensor,
        p: Exponent | None,
    ) -> None:
        """Move ``params`` and ``buffers`` by one step; ``step`` counts the steps before it."""
        raise TypeError(f"{type(self).__name__} has no update rule")

    def _exponent_at(self, schedule: PFunction, count: int) -> float:
        """The value that a schedule gives, checked to be a p of this rule."""
        return exponent_at(schedule, count)

    # --- settings -----------------------------------------------------------------------------

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        defaults = {name: checks.plain(value) for name, value in defaults.items()}
        checks.check_each(self._checks, defaults)
        if "p" in defaults:
            defaults.setdefault("p_schedule", None)
        super().__init__(params, defaults)

    def _check_group(self, group: Group) -> None:
        """Check a whole group: each setting by itself, then those that exclude each other."""
        checks.check_each(self._checks, group)
        if group.get("foreach") and group.get("fused"):
            raise ValueError("foreach=True and fused=True exclude each other; give at most one")
        if group.get("differentiable") and (group.get("foreach") or group.get("fused")):
            name = "foreach" if group.get("foreach") else "fused"
            raise ValueError(
                f"differentiable=True and {name}=True exclude each other: only the plain loop "
                "can be differentiated"
            )

    def add_param_group(self, param_group: Group) -> None:
        """Add a group, during training too; it starts at the optimizer's current count."""
        self._check_new_group(param_group)
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if "p" in group:
            try:
                self._adopt_p(group)
            except Exception:
                self.param_groups.pop()
                raise

    def _check_new_group(self, param_group: Group) -> None:
        """Before torch adds it: a group that is refused must not be left half added."""
        if isinstance(param_group, dict):  # torch says so where it is not
            own = {k: checks.plain(v) for k, v in param_group.items() if k != "params"}
            param_group.update(own)
            self._check_group({**self.defaults, **own})
            checks.schedule_or_none("p_schedule", own.get("p_schedule"))

    def _adopt_p(self, group: Group) -> None:
        """Keep a schedule given as p in ``p_schedule`` and put its present value into p."""
        if isinstance(group["p"], Tensor):
            shared = any(group["p"] is other["p"] for other in self.param_groups[:-1])
            if shared or not group["p"].is_floating_point():
                # each group's own, in which any p can be written
                group["p"] = group["p"].to(exponent_dtype(group["p"].device), copy=True)
        elif callable(group["p"]):
            group["p_schedule"] = group["p"]
        self._refresh_p(group)

    def _refresh_p(self, group: Group) -> None:
        """Set p to the value that the next step will use."""
        schedule = group["p_schedule"]
        if schedule is not None:
            group["p"] = self._exponent_at(schedule, self._count_of(group))
        if group.get("capturable") and not isinstance(group["p"], Tensor):
            device = group["params"][0].device if group["params"] else torch.device("cpu")
            if device.type != "meta":  # where the number would be lost; until the first step
                group["p"] = _p_tensor(group["p"], device)

    # --- the count ----------------------------------------------------------------------------

    def _step_tensor(self, group: Group) -> Tensor | None:
        """The count that the parameters of ``group`` share, or None before its first step."""
        for param in group["params"]:
            if param in self.state and "step" in self.state[param]:
                step: Tensor = self.state[param]["step"]
                return step
        return None

    def _count(self) -> int:
        """The optimizer's count: the largest of its groups'."""
        steps = [self._step_tensor(group) for group in self.param_groups]
        return max((_value_of(step) for step in steps if step is not None), default=0)

    def _count_of(self, group: Group) -> int:
        step = self._step_tensor(group)
        return self._count() if step is None else _value_of(step)

    # --- the step -----------------------------------------------------------------------------

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @_use_grad_for_differentiable
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Perform one optimization step.

        Args:
            closure: reevaluates the model and returns the loss.
        """
        check_graph_capture(self)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()

        probe = closure is None and not torch.compiler.is_compiling() and self._is_probe()
        # Look at every group before moving any, so that an error leaves all as it was.
        work = []
        for group in self.param_groups:
            params: list[Tensor] = []
            grads: list[Tensor] = []
            steps: list[Tensor] = []
            buffers: list[list[Tensor]] = [[] for _ in self._buffer_names(group)]
            self._init_group(group, params, grads, steps, *buffers)
            if steps:
                p = self._current_p(group, steps[0]) if "p" in group else None
                work.append((group, params, grads, buffers, steps[0], p))

        if not any(params for _, params, *_ in work):
            return loss  # no gradient anywhere: no step, as with torch's own
        for group, params, grads, buffers, step, p in work:
            if params:
                self._update(group, params, grads, buffers, step, p)
            if not probe:
                step.add_(1)
        return loss

    def _is_probe(self) -> bool:
        """Whether this is the step by which torch.distributed.checkpoint makes missing state.

        It sets lr and all gradients to zero, and must not move p.
        """
        if self.state or any(group.get("capturable") for group in self.param_groups):
            return False
        rates = [group.get("lr", 1) for group in self.param_groups]
        # its zero lies on the host; for one on a device the host would wait
        if any((isinstance(lr, Tensor) and not lr.is_cpu) or lr != 0 for lr in rates):
            return False
        params = [param for group in self.param_groups for param in group["params"]]
        grads = [param.grad for param in params if param.grad is not None]
        return bool(grads) and not any(bool(grad.any()) for grad in grads)

    def _init_group(
        self,
        group: Group,
        params: list[Tensor],
        grads: list[Tensor],
        steps: list[Tensor],
        *buffers: list[Tensor],
    ) -> None:
        """Fill the lists with the parameters that have a gradient, and with the group's count.

        Its name and form are torch's: ``torch.compile`` runs it once, outside of the graph.
        """
        # Many tensors: short loops, each with one question, are faster than a long one.
        params.extend([param for param in group["params"] if param.grad is not None])
        grads.extend([param.grad for param in params])  # type: ignore[misc]
        if {grad.layout for grad in grads} - {torch.strided}:
            for grad in grads:
                require_dense(type(self).__name__, grad)
        step = self._step_tensor(group)
        if step is None and params:
            device = params[0].device if group["capturable"] else "cpu"
            step = torch.tensor(self._count(), dtype=torch.int64, device=device)
            if group["capturable"] and not isinstance(group.get("p"), Tensor | None):
                # when the optimizer was made, the parameters lay on the meta device
                group["p"] = _p_tensor(group["p"], params[0].device)
        if step is not None:
            steps.append(step)
        states = [self.state[param] for param in params]
        for state in states:
            state["step"] = step  # one object for the group, also where a tool has split it
        for name, held in zip(self._buffer_names(group), buffers, strict=True):
            for param, state in zip(params, states, strict=True):
                if state.get(name) is None:
                    state[name] = self._new_buffer(name, param, group)
            held.extend([state[name] for state in states])

    def _current_p(self, group: Group, step: Tensor) -> Exponent:
        """The p of this step, also written to the group where a schedule gives it."""
        if group["p_schedule"] is None and callable(group["p"]):
            self._adopt_p(group)  # a schedule that was set by hand
        schedule: PFunction | None = group["p_schedule"]
        checks.schedule_or_none("p_schedule", schedule)
        if group.get("capturable") or torch.compiler.is_compiling():
            return self._current_p_tensor(group, schedule, step)
        if schedule is None:
            p: Exponent = group["p"]
            # an optimizer that LpGradient wraps meets a p that is no setting of its own
            self._checks.get("p", checks.exponent_or_schedule)("p", p)
            if p is DEFAULT_P:
                self._warn_constant()
            return p
        count = int(step)
        group["p"] = self._exponent_at(schedule, count)
        self._warn_past_end(schedule, count)
        return float(group["p"])

    def _current_p_tensor(self, group: Group, schedule: PFunction | None, step: Tensor) -> Exponent:
        """As above, without looking at a value that lies on a device or in a graph."""
        p: Exponent = group["p"]
        if schedule is None:
            return p
        value = schedule(step.to(exponent_dtype(step.device)))
        if isinstance(p, Tensor):
            # In place, because a captured graph writes where it is read; and what copy_ returns is
            # used, because dynamo may drop a call whose result is not.
            return p.copy_(value) if isinstance(value, Tensor) else p.fill_(value)
        group["p"] = value
        return value

    def _warn_constant(self) -> None:
        if getattr(self, "_warned_constant", False):
            return
        self._warned_constant = True
        warnings.warn(
            f"{type(self).__name__} was given neither p nor total_steps, so that p stays at 6: the "
            "paper's method lowers it to 2. Give total_steps=N, the number of optimizer steps in "
            "the whole run, or p=6.0 if it is to stay (LPSGDM ended better so in docs/study.md)",
            stacklevel=_stacklevel_of_user(),
        )

    def _warn_past_end(self, schedule: PFunction, count: int) -> None:
        end = schedule.end if isinstance(schedule, Schedule) else None
        if end is None or count <= 1.05 * end or getattr(self, "_warned_past_end", False):
            return
        self._warned_past_end = True
        warnings.warn(
            f"step {count} is more than 5 % past the end of {schedule!r}, which was made for "
            f"{end} optimizer steps; p stays at its last value. Check that steps_per_epoch counts "
            "optimizer steps, not batches, when gradients are accumulated",
            stacklevel=_stacklevel_of_user(),
        )

    # --- saving and loading -------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values only: of a schedule, its name and numbers."""

        def make_plain(_: Optimizer, saved: dict[str, Any]) -> None:
            saved["param_groups"] = [plain_group(group) for group in saved["param_groups"]]

        # as a hook it comes before the user's own, which may make anything of it
        handle = self.register_state_dict_post_hook(make_plain, prepend=True)
        try:
            return super().state_dict()
        finally:
            handle.remove()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load count, buffers and settings; the schedule and the way to run stay as constructed.

        Buffers keep the dtype that they were saved with, and are copied, so that two optimizers
        never share one. The state of another optimizer is refused by a ValueError, and nothing is
        changed.
        """
        kept = [
            {name: value for name, value in group.items() if name != "params"}
            for group in self.param_groups
        ]
        files: list[dict[str, Any]] = []
        differences: list[str] = []

        def see(_: Optimizer, file: dict[str, Any]) -> None:
            self._refuse_foreign(file)
            files.append(file)

        def finish(_: Optimizer) -> None:
            differences.extend(self._finish_load(files[0], kept))

        # As hooks they see what the user's own pre hooks made of the file, and come before the
        # user's post hooks.
        handles = [
            self.register_load_state_dict_pre_hook(see),
            self.register_load_state_dict_post_hook(finish, prepend=True),
        ]
        try:
            super().load_state_dict(state_dict)
        finally:
            for handle in handles:
                handle.remove()
        for difference in dict.fromkeys(differences):  # once, also where all groups have it
            warnings.warn(difference, stacklevel=2)

    def _refuse_foreign(self, file: dict[str, Any]) -> None:
        """Raise ValueError where the file is another optimizer's."""
        groups = zip(self.param_groups, file.get("param_groups", ()), strict=False)
        buffers = [self._buffer_names({**own, **saved}) for own, saved in groups]
        refuse_foreign_state(self, file, self.defaults, self.param_groups, buffers)

    def _finish_load(self, file: dict[str, Any], kept: list[dict[str, Any]]) -> Iterator[str]:
        """Repair what torch has loaded; yield what the user should know."""
        for group, saved_group, own in zip(
            self.param_groups, file["param_groups"], kept, strict=True
        ):
            for name, default in self.defaults.items():  # an older file has fewer settings
                if name not in saved_group:
                    group[name] = own.get(name, default)
            self._restore_buffers(group, saved_group, file["state"])
            self._share_step(group, own.get("capturable", False))
            p_of_file = group.get("p")
            group.update({name: own[name] for name in _AS_CONSTRUCTED if name in own})
            if "p" in group:
                yield from self._settle_p(group, p_of_file, saved_group)

    def _restore_buffers(self, group: Group, saved: Group, states: dict[Any, Any]) -> None:
        """Put back each buffer in its own dtype: torch has cast them to the parameter's."""
        for param, key in zip(group["params"], saved["params"], strict=True):
            for name, value in states.get(key, {}).items():
                if isinstance(value, Tensor) and name != "step":
                    self.state[param][name] = _laid_out_like(param, value.detach())

    def _share_step(self, group: Group, capturable: bool) -> None:
        """One count for the group again, as an object of its own."""
        states = [self.state[param] for param in group["params"] if self.state.get(param)]
        if not states:
            return
        count = max(int(state.get("step", 0)) for state in states)
        device = group["params"][0].device if capturable else "cpu"
        step = torch.tensor(count, dtype=torch.int64, device=device)
        for state in states:
            state["step"] = step

    def _settle_p(self, group: Group, p_of_file: Any, saved: Group) -> Iterator[str]:
        """Keep the schedule as constructed, and say so where the file had another."""
        present, former = describe_schedule(group["p_schedule"]), saved.get("p_schedule")
        if present == former:
            if present is None and p_of_file is not None:
                group["p"] = p_of_file  # a constant p is a setting like lr: the file's holds
        elif "p_schedule" in saved:
            yield (
                f"the state was saved with p={_p_text(former, saved.get('p'))}; the optimizer "
                f"continues with p={_p_text(present, group['p'])}, as it was constructed"
            )
        self._refresh_p(group)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # a pickle of an older version has fewer settings
            for name, default in self.defaults.items():
                if name != "p":
                    group.setdefault(name, default)

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for index, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {index}")
            for key in sorted(group.keys() - {"params", "param_names", "p_schedule"}):
                value = group[key]
                if key == "p":
                    value = _p_text(describe_schedule(group["p_schedule"]), value)
                lines.append(f"    {key}={value}")
        return "\n".join([*lines, ")"])


def plain_group(group: Group) -> Group:
    """What a state dict keeps of a group's settings, those that were set by hand too."""
    plain = {name: checks.plain(value) for name, value in group.items()}
    if "p_schedule" in plain:
        plain["p_schedule"] = describe_schedule(plain["p_schedule"])
    return plain


def _laid_out_like(param: Tensor, value: Tensor) -> Tensor:
    """A copy for the state of ``param``: on its device and, where of its shape, in its order.

    The file may come from a model in another memory format, whose order the kernel would refuse.
    """
    like = real(param.detach())
    if not are_plain([param, value]) or value.shape != like.shape:
        return value.clone().to(param.device)
    return torch.empty_like(like, dtype=value.dtype).copy_(value)


def _p_tensor(p: float, device: torch.device) -> Tensor:
    return torch.tensor(p, dtype=exponent_dtype(device), device=device)


def _value_of(step: Tensor) -> int:
    """A count as a number; a meta tensor has none, and counts as the beginning."""
    return 0 if step.is_meta else int(step)


def _stacklevel_of_user() -> int:
    """For a warning: how far up the first caller is that is neither torch nor this package.

    torch wraps ``step`` once or twice, and an LR scheduler wraps it again.
    """
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package not in ("torch", "lpsgd", "contextlib", "functools"):
            break
        frame, level = frame.f_back, level + 1
    return level


def _p_text(description: dict[str, Any] | None, p: Any) -> str:
    if description is not None:
        return describe_text(description)
    if p is None or (isinstance(p, Tensor) and p.is_meta):
        return "unknown (constant)"
    return f"{float(p)} (constant)"
