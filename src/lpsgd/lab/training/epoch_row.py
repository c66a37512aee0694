"""What is measured after an epoch: its row of metrics.jsonl."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lpsgd.lab.store.metrics_file import MetricsRow
from lpsgd.lab.training.objective import Classification
from lpsgd.lab.training.trainer import Trainer


def epoch_row(
    trainer: Trainer, epoch: int, *, score_test: bool, between: Callable[[], None]
) -> MetricsRow:
    """Score ``trainer`` after ``epoch``, which changes none of its state."""
    sums = trainer.sums
    scores = {
        f"{split}_{name}": value
        for split, found in _scores(trainer, epoch, score_test, between).items()
        for name, value in found.items()
    }
    return MetricsRow.of(
        scores,
        epoch=epoch,
        step=trainer.step,
        lr=sums.lr,
        p=sums.p,
        update_rms=sums.update_rms,
        grad_density=sums.grad_density,
        grad_norm=sums.grad_norm.item() / sums.steps,
        steps=sums.steps,
        images_per_second=sums.images / max(sums.seconds, 1e-9),
        seconds=sums.seconds,
        optimizer_seconds=sums.optimizer_seconds,
    )


def _scores(
    trainer: Trainer, epoch: int, score_test: bool, between: Callable[[], None]
) -> dict[str, dict[str, float]]:
    """The scores of each split that has any."""
    recipe, data, world = trainer.recipe, trainer.data, trainer.world
    rows = None if world.size == 1 else lambda n: world.mine(torch.arange(n))
    found = {"train": _train_scores(trainer)}
    every, loss = recipe.train_eval_every, trainer.objective.loss_name
    if every > 0 and (epoch % every == 0 or epoch == recipe.epochs):
        found["train"][f"{loss}_eval"] = trainer.evaluate(data.train.plain(rows), between)[loss]
    if data.val is not None:
        found["val"] = trainer.evaluate(data.val.epoch(0, rows=rows), between)
    if score_test:
        found["test"] = trainer.evaluate(data.test.epoch(0, rows=rows), between)
    return found


def _train_scores(trainer: Trainer) -> dict[str, float]:
    """The means over the epoch's steps."""
    sums, objective = trainer.sums, trainer.objective
    found = {objective.loss_name: sums.nll.item() / sums.examples}
    if isinstance(objective, Classification):
        found["top1"] = 100 * sums.correct.item() / sums.examples
    return found
