"""`lpsgd.lab.suggest`: a first learning rate, by a short range test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpsgd.lab.api.arguments import Optimizer, Own, read_folder, read_optimizer, read_training
from lpsgd.lab.errors import UserError

if TYPE_CHECKING:
    from torch import nn

    from lpsgd.lab.api.suggest_result import SuggestResult


def suggest(
    optimizer: Optimizer = "lpsgdm",
    *,
    model: Callable[[], nn.Module] | str | None = None,
    train: Any = None,
    test: Any = None,
    loss: Callable[..., Any] | None = None,
    step: Callable[..., Any] | None = None,
    collate: Callable[..., Any] | None = None,
    steps: int = 100,
    low: float | None = None,
    high: float | None = None,
    seed: int = 0,
    out: Path | str | None = None,
    root: Path | str | None = None,
    workers: int = 0,
    **recipe: Any,
) -> SuggestResult:
    """Suggest a learning rate: train some steps at rising rates, and see where the loss falls.

    The rate rises by the same factor at every step, until the loss does, too. Suggested is a rate
    between where the smoothed loss has fallen half of its way and where it is lowest: a third of
    the way, on a logarithmic axis. It takes ``steps`` steps and leaves no trace: no generator is
    moved, and nothing is written unless ``out`` is given.

    It is a place to begin a search, no result of one. It sees the first steps of a training and
    not its end: not the schedule, the annealing of p, the number of epochs, or overfitting. The
    weight decay is not measured: it is the one given, or the optimizer's default.

    Args:
        optimizer: a name with settings, a class, a ``functools.partial`` of one, or a function
            that makes one for a model.
        model: a function that returns a new network, or the name of one of the laboratory's.
        train: the training data, as `compare` takes them.
        test: not used, except for a first look at the data; may be left out.
        loss: ``loss(output, target)``.
        step: ``step(model, batch)`` instead of a loss.
        collate: makes a batch of examples.
        steps: of the test, at least 20. More see finer, and learn more on the way.
        low: the first rate; default: a thousandth of the optimizer's own.
        high: the last rate; default: a thousand times the optimizer's own.
        seed: of weights and batches.
        out: a folder for the plot, ``suggest.svg`` and ``suggest.png``.
        root: the folder of the laboratory's data sets.
        workers: processes that read examples.
        recipe: what else decides the training, by the names of the command's options, such as
            ``batch_size``.

    Example:
        >>> import torch
        >>> from lpsgd.lab import suggest
        >>> x = torch.randn(256, 3, generator=torch.Generator().manual_seed(0))
        >>> found = suggest(
        ...     "sgd:momentum=0.5", model=lambda: torch.nn.Linear(3, 1), train=(x, x.sum(1)),
        ...     batch_size=32,
        ... )
        >>> 0.01 < found.lr < 1, found.text.startswith("sgd:momentum=0.5,lr=")
        (True, True)
    """
    from lpsgd.lab.plan import resolve

    text = read_optimizer(optimizer)
    _check_range(steps, low, high)
    own = Own(model, train, _test(train, test), None, loss, None, step, collate)
    training = read_training(own, recipe, seed)
    complete = resolve({**training.values, "seed": seed}, text)

    # what takes seconds to load, when every name has been checked
    from lpsgd.lab.api.suggest_result import SuggestResult
    from lpsgd.lab.own.given import problem_of
    from lpsgd.lab.training.options import RunOptions
    from lpsgd.lab.training.range_test import range_test, read_test

    options = RunOptions(read_folder(root), workers)
    problem = training.problem or problem_of(complete)
    tested = range_test(complete, steps=steps, low=low, high=high, options=options, problem=problem)
    result = SuggestResult(complete, text, tested, read_test(tested))
    if (folder := read_folder(out)) is not None:
        result.write(folder)
    return result


def _check_range(steps: int, low: float | None, high: float | None) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 20:
        raise UserError(f"steps={steps!r}; allowed: 20 or more")
    for name, value in (("low", low), ("high", high)):
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"{name}={value!r}; allowed: a learning rate above 0")
    if low is not None and high is not None and not low < high:
        raise UserError(f"low={low!r} is not below high={high!r}")


def _test(train: Any, test: Any) -> Any:
    """The test data, which `read_training` looks at; those of training where there are none."""
    if test is not None or train is None:
        return test
    from lpsgd.lab.own.sources import is_function

    return None if is_function(train) else train
