"""One network in training: model, optimizer, schedules, precision, averages; no files.

`lpsgd.lab.training.loop` runs it through its epochs and keeps its folder. Everything here is a
function of the recipe and of what `Trainer.state_dict` holds, so that a run can resume exactly.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from lpsgd._dtensor import local_part
from lpsgd.geometry import gradient_density
from lpsgd.lab.errors import UserError
from lpsgd.lab.recipe import Recipe
from lpsgd.lab.training import strategies
from lpsgd.lab.training.distributed import ALONE, World
from lpsgd.lab.training.lr import lr_factor
from lpsgd.lab.training.metrics import (
    Scores,
    Stopwatch,
    evaluate,
    gradient_norm,
    gradients,
    update_rms,
)
from lpsgd.lab.training.precision import autocast, make_scaler
from lpsgd.lab.training.strategies import cut_like, share_batch_norms, share_dropouts, whole
from lpsgd.peers import factory, grammar

if TYPE_CHECKING:
    from lpsgd.lab.data import Data

# A GPU is asked for its losses only every so often, because asking makes it wait.
_LOSSES_PER_CHECK = {"cpu": 1}
_GPU_LOSSES_PER_CHECK = 25


class Diverged(Exception):
    """The loss became NaN or infinite; ``facts`` say where."""

    def __init__(self, what: str, facts: dict[str, Any]) -> None:
        shown = ", ".join(f"{name}={value}" for name, value in facts.items() if value is not None)
        super().__init__(f"{what} at {shown}")
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


@dataclass
class Pending:
    """Losses that have not been looked at yet, with what a message about them needs."""

    losses: list[Tensor] = field(default_factory=list)
    facts: list[dict[str, Any]] = field(default_factory=list)


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
    ) -> None:
        self.recipe = recipe
        self.data = data
        self.device = device
        self.world = world
        self.cut = world.together and strategy == "fsdp2"
        self._check_world()
        self.steps_per_epoch = len(data.train)
        self.total_steps = recipe.epochs * self.steps_per_epoch
        self.warmup_steps = round(recipe.warmup_epochs * self.steps_per_epoch)

        self.model = self._make_model()
        self.ema = (
            AveragedModel(
                self.model,
                multi_avg_fn=_average(recipe.ema),
                use_buffers=True,
            )
            if recipe.ema
            else None
        )
        spread = self._spread()
        self.network: Callable[[Tensor], Tensor] = (
            torch.compile(spread) if recipe.compile else spread
        )
        self._averaging = partial(strategies.averaging, spread)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = self._make_optimizer()
        self.base_lrs = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.autocast = partial(autocast, recipe.precision, device)
        self.scaler = make_scaler(recipe.precision, device)
        self.step = 0
        self._zero = torch.zeros((), dtype=torch.float64, device=device)
        self.sums = self._new_sums()
        self._watch = Stopwatch(device)
        self._pending = Pending()
        self._losses_per_check = _LOSSES_PER_CHECK.get(device.type, _GPU_LOSSES_PER_CHECK)
        # from here on draws belong to training: what making the model drew does not matter
        seed_all(recipe.seed + 1_000_003)

    # ------------------------------------------------------------------ one step

    def train_step(self, inputs: Tensor, targets: Tensor, *, measure: bool = False) -> None:
        """Take one optimizer step; ``measure`` adds its size and the gradient's density."""
        for group, base in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = base * self.lr_factor(self.step)
        loss, nll, correct = self._backward(inputs, targets)
        self.scaler.unscale_(self.optimizer)
        norm = self._clip()
        if measure:
            density = gradient_density(gradients(self.parameters))
            self.sums.grad_density = float(whole(density))
            before = [p.detach().clone() for p in self.parameters]
        self._optimizer_step(inputs, targets)
        if measure:
            self.sums.update_rms = update_rms(before, self.parameters)
        if self.ema is not None:
            self.ema.update_parameters(self.model)
        self.step += 1
        images = self._images(inputs)
        self._add(loss, nll, correct, norm, images, images * (len(targets) // len(inputs)))

    def lr_factor(self, step: int) -> float:
        """Return the learning rate of ``step`` divided by its peak."""
        return lr_factor(
            step,
            total_steps=self.total_steps,
            warmup_steps=self.warmup_steps,
            schedule=self.recipe.lr_schedule,
            end=self.recipe.lr_end,
        )

    def _backward(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Fill the gradients of the mean loss over a batch, in ``accumulate`` parts."""
        self.optimizer.zero_grad(set_to_none=True)
        smoothing, examples = self.recipe.label_smoothing, len(targets) // len(inputs)
        images, pieces = self._images(inputs), self._pieces(inputs, targets)
        total_loss = total_nll = total_correct = self._zero
        for number, (part, goal) in enumerate(pieces, 1):
            with self._averaging(wanted=number == len(pieces)):
                with self.autocast():
                    logits = self.network(part)
                    loss = cross_entropy(logits, goal, label_smoothing=smoothing)
                share = len(goal) / (images * examples)
                # the processes' gradients will be averaged, where their shares should be added
                weight = share * self.world.size
                self._fill_gradients(loss if weight == 1 else loss * weight)
            with torch.no_grad():
                nll = cross_entropy(logits.float(), goal) if smoothing else loss
                total_loss = total_loss + loss.detach() * share
                total_nll = total_nll + nll.detach() * len(goal)
                total_correct = total_correct + (logits.argmax(1) == goal).sum()
        total_loss, total_nll, total_correct = self.world.sum(total_loss, total_nll, total_correct)
        return total_loss, total_nll, total_correct

    def rows_here(self, count: int) -> list[Tensor]:
        """The rows of a batch of ``count`` that this process computes, for each part of it.

        Each part is shared by all processes, so that a part is the same rows however many they are.
        """
        parts = torch.arange(count).tensor_split(self.recipe.accumulate)
        return [self.world.mine(part) for part in parts]

    def _images(self, inputs: Tensor) -> int:
        """How many rows the batch has of which these are the rows here."""
        return len(inputs) if self.world.size == 1 else self.recipe.batch_size

    def _pieces(self, inputs: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The parts of a batch, of each the rows that are here."""
        if self.recipe.accumulate == 1:
            return [(inputs, targets)]
        # text has several targets for one input row, so targets are cut where inputs are
        examples = len(targets) // len(inputs)
        sizes = [len(rows) for rows in self.rows_here(self._images(inputs))]
        parts = torch.split(inputs, sizes)
        goals = torch.split(targets, [size * examples for size in sizes])
        return list(zip(parts, goals, strict=True))

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
        return whole(nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip_norm))

    def _optimizer_step(self, inputs: Tensor, targets: Tensor) -> None:
        def closure() -> Tensor:
            loss = self._backward(inputs, targets)[0]
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
        """Say what is wrong with an optimizer that does something no cut parameter can do."""
        try:
            yield
        except (RuntimeError, NotImplementedError) as error:
            if not self.cut or "dtensor" not in str(error).lower():
                raise
            raise UserError(
                f"{self.recipe.optimizer} cannot step parameters that are cut over processes; use "
                f"--strategy ddp, which copies them ({str(error).splitlines()[0]})"
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
        self._pending.losses.append(loss)
        self._pending.facts.append(
            {"step": self.step, "lr": sums.lr, "p": sums.p, "gradient norm": norm}
        )
        if len(self._pending.losses) >= self._losses_per_check:
            self.check_losses()

    def check_losses(self) -> None:
        """Raise Diverged for the first loss since the last check that is NaN or infinite."""
        pending, self._pending = self._pending, Pending()
        for loss, facts in zip(pending.losses, pending.facts, strict=True):
            value = loss.item()
            if value - value != 0:  # NaN or infinite
                facts["gradient norm"] = facts["gradient norm"].item()
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

    def evaluate(self, batches: Any, between: Callable[[], None] = lambda: None) -> Scores:
        """Score the averaged weights if there are any, else the trained ones.

        ``batches`` are the rows here; the scores are those of all processes together.
        """
        model: nn.Module = self.model if self.ema is None else self.ema.module
        try:
            return evaluate(model, batches, self.autocast, between, self.world.sum)
        finally:
            if self.cut:
                strategies.let_go(model)

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
        _load_model(self.model, state["model"])
        self.optimizer.load_state_dict(self._optimizer_state_here(state["optimizer"]))
        if self.ema is not None:
            _load_model(self.ema, state["ema"])
        self.scaler.load_state_dict(state["scaler"])
        set_rng_state(state["rng"])
        for name, value in state["sums"].items():
            setattr(self.sums, name, value.to(self.device) if isinstance(value, Tensor) else value)

    def _optimizer_state_here(self, state: dict[str, Any]) -> dict[str, Any]:
        """An optimizer's state with what belongs to each coordinate cut as the parameters are."""
        if not self.cut:
            return state
        numbers = [i for group in state["param_groups"] for i in group["params"]]
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        own = {
            number: {key: cut_like(value, p) for key, value in state["state"][number].items()}
            for number, p in zip(numbers, parameters, strict=True)
            if number in state["state"]
        }
        return {**state, "state": own}

    def _new_sums(self) -> EpochSums:
        zero = self._zero.clone
        return EpochSums(nll=zero(), correct=zero(), grad_norm=zero())

    def _make_model(self) -> nn.Module:
        from lpsgd.lab import models

        width = self.recipe.width
        convolutions = self.recipe.model.startswith(("resnet", "vgg"))
        if convolutions and width is not None and width < 8 and self.device.type == "cpu":
            raise UserError(
                f"width={width} is too narrow for {self.recipe.model} on a CPU, where torch's "
                "channels_last convolutions corrupt memory below 8 channels; use 8 or more"
            )
        # the same seed gives the same weights whatever the optimizer
        seed_all(self.recipe.seed)
        model = models.create(
            self.recipe.model,
            input_shape=self.data.input_shape,
            classes=self.data.classes,
            width=self.recipe.width,
        ).to(self.device)
        if self.data.task == "image" and not self.cut:  # FSDP2 takes contiguous parameters alone
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if self.world.size > 1:
            model = share_batch_norms(model, self.device)
            share_dropouts(model)
        return model.train()

    def _check_world(self) -> None:
        """Refuse what several processes cannot do together."""
        recipe, size = self.recipe, self.world.size
        if recipe.batch_size // recipe.accumulate < size:
            parts = f" in accumulate={recipe.accumulate} parts" if recipe.accumulate > 1 else ""
            raise UserError(
                f"batch_size={recipe.batch_size}{parts} has no row for each of {size} processes: "
                "it is the size of the whole batch, of which each takes its share"
            )
        if self.world.together and recipe.create_graph:
            raise UserError(
                f"{recipe.optimizer} needs second derivatives (create_graph), which torch's DDP "
                "and FSDP2 do not give; train in one process, without torchrun"
            )
        if self.cut and recipe.precision == "fp16":
            raise UserError(
                "precision=fp16 does not work with --strategy fsdp2: its loss scaler looks at the "
                "part of a gradient that lies here alone; use bf16, or --strategy ddp"
            )

    def _spread(self) -> nn.Module:
        """The network over all processes; in one process, the model itself."""
        if not self.world.together:
            return self.model
        if self.cut:
            strategies.cut(self.model, self.device)
            if self.ema is not None:
                strategies.cut(self.ema.module, self.device)
            return self.model
        kind = torch.float32 if self.data.task == "image" else torch.int64
        example = torch.zeros(2, *self.data.input_shape, dtype=kind, device=self.device)
        return strategies.copied(self.model, self.device, example)

    def _make_optimizer(self) -> torch.optim.Optimizer:
        try:
            optimizer = factory.build(
                self.recipe.optimizer,
                self.model,
                self.recipe.settings,
                total_steps=self.total_steps,
                steps_per_epoch=self.steps_per_epoch,
                total_epochs=self.recipe.epochs,
            )
        except ValueError as error:
            raise UserError(str(error)) from error
        if self.recipe.decay == "matrices":
            spare_vectors(optimizer)
        return optimizer


def _average(decay: float) -> Callable[..., None]:
    """Torch's exponential average; of parameters that are cut, each process moves its part."""
    move = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def average(averages: list[Tensor], current: list[Tensor], count: Tensor) -> None:
        move([local_part(t) for t in averages], [local_part(t) for t in current], count)

    return average


def _load_model(model: nn.Module, state: dict[str, Any]) -> None:
    own = model.state_dict()
    model.load_state_dict({name: cut_like(value, own.get(name)) for name, value in state.items()})


def spare_vectors(optimizer: torch.optim.Optimizer) -> None:
    """Move norms and biases into groups of their own without weight decay."""
    for group in list(optimizer.param_groups):
        vectors = [p for p in group["params"] if p.ndim < 2]
        matrices = [p for p in group["params"] if p.ndim >= 2]
        if vectors and matrices:
            group["params"] = matrices
            spared: dict[str, Any] = {
                key: 0.0 for key in ("weight_decay", "decoupled_decay") if key in group
            }
            optimizer.add_param_group({**group, **spared, "params": vectors})


def seed_all(seed: int) -> None:
    """Seed every global generator that a model or an optimizer may draw from."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def rng_state() -> dict[str, Any]:
    """Return the state of the global generators as tensors and plain values."""
    kind, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(np.asarray(keys).copy()), position, has_gauss, cached),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Put the global generators back to what `rng_state` returned."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy(), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])


@contextmanager
def numerics(recipe: Recipe) -> Iterator[torch.device]:
    """Choose device, threads and deterministic kernels for a run, and put them back afterwards."""
    device = choose_device(recipe.device)
    threads, deterministic = torch.get_num_threads(), torch.backends.cudnn.deterministic
    torch.set_num_threads(recipe.threads)
    torch.backends.cudnn.deterministic = True
    try:
        yield device
    finally:
        torch.set_num_threads(threads)
        torch.backends.cudnn.deterministic = deterministic


def choose_device(name: str) -> torch.device:
    """Return the device of a recipe; ``auto`` takes a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type == "meta":  # shapes without numbers: nothing to train
            raise RuntimeError
    except RuntimeError:
        raise UserError(f"device={name!r} is not a device: write cpu, cuda or cuda:N") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device={name!r}: this machine has no GPU that torch can use")
    return device
