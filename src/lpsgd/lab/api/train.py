"""`lpsgd.lab.train`: one network, one optimizer, exactly resumable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpsgd.lab.api.arguments import Optimizer, Own, read_folder, read_optimizer, read_training

if TYPE_CHECKING:
    from torch import nn

    from lpsgd.lab.api.train_result import TrainResult


def train(
    optimizer: Optimizer | None = None,
    *,
    model: Callable[[], nn.Module] | str | None = None,
    train: Any = None,
    test: Any = None,
    val: Any = None,
    loss: Callable[..., Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
    step: Callable[..., Any] | None = None,
    collate: Callable[..., Any] | None = None,
    seed: int = 0,
    out: Path | str | None = None,
    root: Path | str | None = None,
    workers: int = 0,
    save_seconds: float = 60.0,
    log: str | Sequence[str] = (),
    curvature: str | None = None,
    **recipe: Any,
) -> TrainResult:
    """Train one network in this process. After a stop, the same call resumes, bit for bit.

    Args:
        optimizer: a name with settings (``"lpsgdm:lr=1e-2,p=6"``), a class, a
            ``functools.partial`` of one, or a function that makes one for a model.
        model: a function that returns a new network, or the name of one of the laboratory's.
        train: the training data, as `compare` takes them.
        test: what is scored after each epoch.
        val: held-out data that are scored, too.
        loss: ``loss(output, target)``.
        metrics: by name ``metric(output, target)``.
        step: ``step(model, batch)`` instead of a loss.
        collate: makes a batch of examples.
        seed: of weights, batches and augmentation.
        out: the run's folder.
        root: the folder of the laboratory's data sets.
        workers: processes that read examples.
        save_seconds: time between checkpoints.
        log: where else the metrics go: ``"tensorboard"``, ``"mlflow"``, ``"wandb"``, or several.
        curvature: measure the Hessian's spectrum, ``"every=5"``.
        recipe: what else decides the training, by the names of the command's options.

    Example:
        >>> import tempfile, torch
        >>> from lpsgd.lab import train
        >>> x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
        >>> data = (x, x.sum(1))
        >>> run = train(
        ...     "adamw:lr=0.1", model=lambda: torch.nn.Linear(3, 1), train=data, test=data,
        ...     epochs=30, batch_size=16, out=tempfile.mkdtemp(),
        ... )
        >>> run.state, run.history[-1]["test_loss"] < 0.01
        ('complete', True)
    """
    from lpsgd.lab.api.train_result import TrainResult
    from lpsgd.lab.execution.live_run import RunDisplay
    from lpsgd.lab.execution.signals import stop_on_signals
    from lpsgd.lab.log import check_loggers, logger_names
    from lpsgd.lab.own.given import problem_of
    from lpsgd.lab.plan import default_folder, resolve
    from lpsgd.lab.training.loop import train as run_training
    from lpsgd.lab.training.options import RunOptions

    loggers = logger_names(log)
    text = None if optimizer is None else read_optimizer(optimizer)
    own = Own(model, train, test, val, loss, metrics, step, collate)
    training = read_training(own, recipe, seed)
    complete = resolve({**training.values, "seed": seed}, text)
    options = RunOptions(read_folder(root), workers, save_seconds, loggers, curvature)
    check_loggers(loggers)
    folder = read_folder(out) or default_folder(complete)
    problem = training.problem or problem_of(complete)
    with stop_on_signals() as stop, RunDisplay(complete.epochs) as listen:
        result = run_training(
            complete, folder, options=options, stop=stop, listen=listen, problem=problem
        )
    return TrainResult(folder, complete, result, options, problem)
