"""One network in training: model, optimizer, schedules, precision, averages; no files.

`lpsgd.lab.training.loop` runs it through its epochs and keeps its folder. Everything here is a
function of the recipe and of what `Trainer.state_dict` holds, so that a run can resume exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lpsgd.geometry import gradient_density
from lpsgd.lab.errors import UserError
from lpsgd.lab.recipe import Recipe
from lpsgd.lab.training.build import make_average, make_model, make_objective, make_optimizer
from lpsgd.lab.training.lr import lr_factor
from lpsgd.lab.training.metrics import (
    Stopwatch,
    evaluate,
    gradient_norm,
    gradients,
    update_rms,
)
from lpsgd.lab.training.numerics import rng_state, seed_all, set_rng_state
from lpsgd.lab.training.parallel import strategies
from lpsgd.lab.training.parallel.strategies import unshard
from lpsgd.lab.training.parallel.world import ALONE, World
from lpsgd.lab.training.precision import autocast, make_scaler
from lpsgd.peers import grammar

if TYPE_CHECKING:
    from lpsgd.lab.data import Data
    from lpsgd.lab.own.problem import Problem

_LOSSES_PER_CHECK = {"cpu": 1}  # of other devices 25: asking makes a GPU wait


class Diverged(Exception):
    """The loss became NaN or infinite; ``facts`` say where."""

    def __init__(self, what: str, facts: dict[str, Any]) -> None:
        shown = ", ".join(f"{name}={value}" for name, value in facts.items() if value is not None)
        super().__init__(f"{what} at {shown.replace('grad_norm', 'gradient norm')}")
        self.facts = facts


@dataclass
class EpochSums:
    """What one epoch adds up; part of a checkpoint, because a run can stop inside an epoch."""

    nll: Tensor
    correct: Tensor
    grad_norm: Tensor
    examples: int = 0
    images: int = 0
    steps: int = 0
    lr: float = 0.0
    p: float | None = None
    update_rms: float = 0.0
    grad_density: float = 0.0
    seconds: float = 0.0
    optimizer_seconds: float = 0.0


class Trainer:
    """Trains one model on one device. ``train_step`` is all that happens between two batches.

    With a ``world`` of several processes each has a Trainer and gives it its rows of every batch
    (`rows_here`); everything that is measured is of the whole batch and the whole network.
    """

    def __init__(
        self,
        recipe: Recipe,
        data: Data,
        device: torch.device,
        world: World = ALONE,
        strategy: str = "ddp",
        problem: Problem | None = None,
    ) -> None:
        self.recipe = recipe
        self.data = data
        self.objective = make_objective(recipe, problem)
        self.device = device
        self.world = world
        self.sharded = world.together and strategy == "fsdp2"
        self.steps_per_epoch = len(data.train)
        self.total_steps = recipe.epochs * self.steps_per_epoch
        self.lr_factor = partial(
            lr_factor,
            total_steps=self.total_steps,
            warmup_steps=round(recipe.warmup_epochs * self.steps_per_epoch),
            schedule=recipe.lr_schedule,
            end=recipe.lr_end,
        )

        self.model = make_model(recipe, data, device, world, sharded=self.sharded, problem=problem)
        self.ema = make_average(self.model, recipe.ema)
        spread = self._spread()
        self.network: Callable[..., Any] = torch.compile(spread) if recipe.compile else spread
        self._averaging = partial(strategies.averaging, spread)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(recipe, self.model, steps_per_epoch=self.steps_per_epoch)
        self.base_lrs = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.autocast = partial(autocast, recipe.precision, device)
        self.scaler = make_scaler(recipe.precision, device)
        self.step = 0
        self._zero = torch.zeros((), dtype=torch.float64, device=device)
        self.sums = self._new_sums()
        self._watch = Stopwatch(device)
        # losses that have not been looked at yet, with what a message about them needs
        self._pending: list[tuple[Tensor, dict[str, Any]]] = []
        self._losses_per_check = _LOSSES_PER_CHECK.get(device.type, 25)
        # from here on draws belong to training: what making the model drew does not matter
        seed_all(recipe.seed + 1_000_003)

    # ------------------------------------------------------------------ one step

    def train_step(self, batch: Any, *, measure: bool = False) -> None:
        """Take one optimizer step; ``measure`` adds its size and the gradient's density."""
        for group, base in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = base * self.lr_factor(self.step)
        found = self._backward(batch)
        self.scaler.unscale_(self.optimizer)
        norm = self._clip()
        if measure:
            density = gradient_density(gradients(self.parameters))
            self.sums.grad_density = float(unshard(density))
            before = [p.detach().clone() for p in self.parameters]
        self._optimizer_step(batch)
        if measure:
            self.sums.update_rms = update_rms(before, self.parameters)
        if self.ema is not None:
            self.ema.update_parameters(self.model)
        self.step += 1
        rows = self._rows(batch)
        self._add(*found, norm, rows, rows * self.objective.examples_per_row(batch))

    def _backward(self, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Fill the gradients of the mean loss over a batch, in ``accumulate`` parts.

        Returns that mean, and of all examples the summed loss and how many were predicted right.
        """
        self.optimizer.zero_grad(set_to_none=True)
        objective, rows, parts = self.objective, self._rows(batch), self._parts(batch)
        mean = total = correct = self._zero
        for number, part in enumerate(parts, 1):
            with self._averaging(wanted=number == len(parts)):
                with self.autocast():
                    found = objective.train(self.network, part)
                share = objective.rows(part) / rows
                # the processes' gradients will be averaged, where their shares should be added
                weight = share * self.world.size
                self._fill_gradients(found.loss if weight == 1 else found.loss * weight)
            mean = mean + found.loss.detach() * share
            total = total + found.total
            correct = correct if found.correct is None else correct + found.correct
        mean, total, correct = self.world.sum(mean, total, correct)
        return mean, total, correct

    def rows_here(self, count: int) -> list[Tensor]:
        """The rows of a batch of ``count`` that this process computes, for each part of it.

        Each part is shared by all processes, so that a part is the same rows however many they are.
        """
        parts = torch.arange(count).tensor_split(self.recipe.accumulate)
        return [self.world.mine(part) for part in parts]

    def _rows(self, batch: Any) -> int:
        """How many rows the batch has of which these are the rows here."""
        return self.objective.rows(batch) if self.world.size == 1 else self.recipe.batch_size

    def _parts(self, batch: Any) -> list[Any]:
        """The parts of a batch, of each the rows that are here."""
        if self.recipe.accumulate == 1:
            return [batch]
        sizes = [len(rows) for rows in self.rows_here(self._rows(batch))]
        return self.objective.split(batch, sizes)

    def _fill_gradients(self, loss: Tensor) -> None:
        if not self.recipe.create_graph:
            torch.autograd.backward(self.scaler.scale(loss))
            return
        # not backward(create_graph=True), which leaves a reference cycle and warns about it
        found = torch.autograd.grad(loss, self.parameters, create_graph=True, allow_unused=True)
        for parameter, gradient in zip(self.parameters, found, strict=True):
            if gradient is not None:
                known = parameter.grad
                parameter.grad = gradient if known is None else known + gradient

    def _clip(self) -> Tensor:
        """Clip the gradient if the recipe asks for it; return the norm that it had."""
        if self.recipe.clip_norm is None:
            return gradient_norm(self.parameters)
        return unshard(nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip_norm))

    def _optimizer_step(self, batch: Any) -> None:
        def closure() -> Tensor:
            loss = self._backward(batch)[0]
            if self.recipe.clip_norm is not None:
                self._clip()  # the step is taken along this gradient
            return loss

        with self._watch, self._explained():
            if self.recipe.closure:
                self.optimizer.step(closure)  # type: ignore[arg-type]
            else:
                self.scaler.step(self.optimizer)
        self.scaler.update()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say what is wrong with an optimizer that does something no sharded parameter can do."""
        try:
            yield
        except (RuntimeError, NotImplementedError) as error:
            if not self.sharded or "dtensor" not in str(error).lower():
                raise
            raise UserError(
                f"{self.recipe.optimizer} cannot step parameters that are sharded over processes; "
                f"use --strategy ddp, which copies them ({str(error).splitlines()[0]})"
            ) from error

    def _add(
        self, loss: Tensor, nll: Tensor, correct: Tensor, norm: Tensor, images: int, examples: int
    ) -> None:
        sums = self.sums
        sums.nll += nll
        sums.correct += correct
        # a step that the scaler skipped, because its gradient overflowed, has no norm
        sums.grad_norm += norm.nan_to_num(0, 0, 0) if self.scaler.is_enabled() else norm
        sums.images += images
        sums.examples += examples
        sums.steps += 1
        sums.lr = float(self.optimizer.param_groups[0]["lr"])
        sums.p = self.current_p()
        facts = {"step": self.step, "lr": sums.lr, "p": sums.p, "grad_norm": norm}
        self._pending.append((loss, facts))
        if len(self._pending) >= self._losses_per_check:
            self.check_losses()

    def check_losses(self) -> None:
        """Raise Diverged for the first loss since the last check that is NaN or infinite."""
        pending, self._pending = self._pending, []
        for loss, facts in pending:
            value = loss.item()
            if not math.isfinite(value):
                facts["grad_norm"] = facts["grad_norm"].item()
                raise Diverged(f"the training loss became {value}", facts)

    def current_p(self) -> float | None:
        """Return the norm exponent in use; None for optimizers without one."""
        group = self.optimizer.param_groups[0]
        # classes from elsewhere may mean something else by "p" (Sophia clips at it)
        if "p" not in group or grammar.is_import_path(self.recipe.optimizer):
            return None
        return float(group["p"])

    # ------------------------------------------------------------------ epochs

    def start_epoch(self) -> None:
        """Forget the sums of the epoch before."""
        self.sums = self._new_sums()
        self._watch.take()

    def settle(self) -> None:
        """Bring losses and times up to date, before a checkpoint or at the end of an epoch."""
        self.check_losses()
        self.sums.optimizer_seconds += self._watch.take()

    def evaluate(
        self, batches: Any, between: Callable[[], None] = lambda: None
    ) -> dict[str, float]:
        """Score the averaged weights if there are any, else the trained ones.

        ``batches`` are the rows here; the scores are those of all processes together.
        """
        model: Any = self.model if self.ema is None else self.ema.module
        try:
            return evaluate(model, self.objective, batches, self.autocast, between, self.world.sum)
        finally:
            if self.sharded:  # free what FSDP2 keeps for a backward pass that never comes
                model.reshard()

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the coming steps depend on, as tensors and plain values."""
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "ema": self.ema.state_dict() if self.ema is not None else None,
            "scaler": self.scaler.state_dict(),
            "rng": rng_state(),
            "sums": asdict(self.sums),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` returned."""
        self.step = state["step"]
        strategies.load_model(self.model, state["model"])
        strategies.load_optimizer(self.optimizer, state["optimizer"])
        if self.ema is not None:
            strategies.load_model(self.ema, state["ema"])
        self.scaler.load_state_dict(state["scaler"])
        set_rng_state(state["rng"])
        for name, value in state["sums"].items():
            kind = Tensor if isinstance(getattr(self.sums, name), Tensor) else float | int | None
            if not isinstance(value, kind):
                raise TypeError(f"sums.{name} is a {type(value).__name__}")
            setattr(self.sums, name, value.to(self.device) if isinstance(value, Tensor) else value)

    def _new_sums(self) -> EpochSums:
        zero = self._zero.clone
        return EpochSums(nll=zero(), correct=zero(), grad_norm=zero())

    def _spread(self) -> nn.Module:
        """The network over all processes; in one process, the model itself."""
        if not self.world.together:
            return self.model
        if self.sharded:
            for model in (self.model, self.ema and self.ema.module):
                if model is not None:
                    strategies.shard(model, self.device)
            return self.model
        kind = torch.float32 if self.data.task == "image" else torch.int64
        example = torch.zeros(2, *self.data.input_shape, dtype=kind, device=self.device)
        return strategies.replicate(self.model, self.device, example)
