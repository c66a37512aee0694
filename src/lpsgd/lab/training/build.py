"""Make what a run trains: its data, the model, its average, the optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from lpsgd._dtensor import local_part
from lpsgd.lab import data as datasets
from lpsgd.lab import models
from lpsgd.lab.data import Data
from lpsgd.lab.errors import UserError
from lpsgd.lab.recipe import Recipe
from lpsgd.lab.training.checkpoint import read_checkpoint
from lpsgd.lab.training.numerics import seed_all
from lpsgd.lab.training.objective import Classification, Objective
from lpsgd.lab.training.options import RunOptions
from lpsgd.lab.training.parallel import strategies
from lpsgd.lab.training.parallel.world import World
from lpsgd.peers import factory

if TYPE_CHECKING:
    from lpsgd.lab.own.problem import Problem


def load_data(
    recipe: Recipe, options: RunOptions, device: torch.device, problem: Problem | None = None
) -> Data:
    """Load the data of a recipe, or those that the user gave."""
    if problem is not None and problem.has_data:
        from lpsgd.lab.own.loaders import own_data

        return own_data(problem, recipe, device, options.workers)
    return datasets.load(
        recipe.dataset,
        options.root,
        seed=recipe.seed,
        train_size=recipe.train_size,
        val_size=recipe.val_size,
        test_size=recipe.test_size,
        batch_size=recipe.batch_size,
        augment=recipe.augment,
        device=str(device),
        workers=options.workers,
        **recipe.data,
    )


def make_objective(recipe: Recipe, problem: Problem | None = None) -> Objective:
    """The loss and the scores of a recipe, or those that the user gave."""
    if problem is not None and problem.has_data:
        from lpsgd.lab.own.objective import OwnObjective

        return OwnObjective.of(problem, recipe.problem.metrics if recipe.problem else {})
    return Classification(recipe.label_smoothing)


def make_model(
    recipe: Recipe,
    data: Data,
    device: torch.device,
    world: World,
    *,
    sharded: bool,
    problem: Problem | None = None,
) -> nn.Module:
    """The model of a recipe with its first weights, which the seed decides and no optimizer."""
    seed_all(recipe.seed)
    if problem is not None and problem.model is not None:
        model = problem.make_model().to(device)
    else:
        model = _named_model(recipe, data, device)
    if recipe.start is not None:
        load_weights(model, Path(recipe.start))
    if data.task == "image" and not sharded:  # FSDP2 takes contiguous parameters alone
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if world.size > 1:
        model = strategies.share_batch_norms(model, device)
        strategies.share_dropouts(model)
    return model.train()


def _named_model(recipe: Recipe, data: Data, device: torch.device) -> nn.Module:
    """One of the laboratory's networks."""
    width = recipe.width
    convolutions = recipe.model.startswith(("resnet", "vgg"))
    if convolutions and width is not None and width < 8 and device.type == "cpu":
        raise UserError(
            f"width={width} is too narrow for {recipe.model} on a CPU, where torch's "
            "channels_last convolutions corrupt memory below 8 channels; use 8 or more"
        )
    return models.create(
        recipe.model, input_shape=data.input_shape, classes=data.classes, width=width
    ).to(device)


def make_network(recipe: Recipe, data: Data, problem: Problem | None = None) -> nn.Module:
    """The network of a recipe on the CPU, for weights that are loaded afterwards."""
    if problem is not None and problem.model is not None:
        return problem.make_model()
    return _named_model(recipe, data, torch.device("cpu"))


def load_weights(model: nn.Module, checkpoint: Path) -> None:
    """Give ``model`` the weights of a checkpoint, which must be of the same network."""
    state = read_checkpoint(checkpoint) if checkpoint.exists() else None
    if state is None:
        raise UserError(f"start is {checkpoint}, which is not there, or damaged")
    try:
        model.load_state_dict(state["trainer"]["model"])
    except (KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"start is {checkpoint}, which holds the weights of another network: {reason}"
        ) from error


def make_average(model: nn.Module, decay: float) -> AveragedModel | None:
    """Torch's exponential average of the weights; of sharded ones each process moves its part."""
    if not decay:
        return None
    move = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def average(averages: Any, current: Any, count: Tensor | int) -> None:
        move([local_part(t) for t in averages], [local_part(t) for t in current], count)

    return AveragedModel(model, multi_avg_fn=average, use_buffers=True)


def make_optimizer(
    recipe: Recipe, model: nn.Module, *, steps_per_epoch: int
) -> torch.optim.Optimizer:
    """The optimizer of a recipe for the parameters of ``model``."""
    try:
        optimizer = factory.build(
            recipe.optimizer,
            model,
            recipe.settings,
            total_steps=recipe.epochs * steps_per_epoch,
            steps_per_epoch=steps_per_epoch,
            total_epochs=recipe.epochs,
        )
    except ValueError as error:
        raise UserError(str(error)) from error
    if recipe.decay == "matrices":
        spare_vectors(optimizer)
    return optimizer


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
