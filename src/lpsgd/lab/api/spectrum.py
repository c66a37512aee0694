"""`lpsgd.lab.spectrum`: the Hessian's spectrum of a run, as numbers and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lpsgd.lab.api.arguments import Own, read_problem
from lpsgd.lab.errors import UserError

if TYPE_CHECKING:
    from torch import nn

    from lpsgd.lab.api.spectrum_result import SpectrumResult
    from lpsgd.lab.api.train_result import TrainResult
    from lpsgd.lab.own.problem import Problem
    from lpsgd.lab.recipe import Recipe

Which = Literal["last", "all", "none"]


def spectrum(
    run: Path | str | TrainResult,
    *,
    model: Callable[[], nn.Module] | None = None,
    train: Any = None,
    test: Any = None,
    loss: Callable[..., Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
    step: Callable[..., Any] | None = None,
    collate: Callable[..., Any] | None = None,
    layerwise: bool = False,
    checkpoints: Which | None = None,
    curvature: str = "",
    out: Path | str | None = None,
    root: Path | str | None = None,
    allow_import: bool = False,
) -> SpectrumResult:
    """Measure the spectrum of a trained network's Hessian, or read what training has recorded.

    Args:
        run: what `train` returned, a run's folder, or one of its checkpoints.
        model: of a run on objects of your own, the objects again, unless ``run`` still holds them:
            the function that makes the network.
        train: the training data, on which the loss is measured.
        test: the test data, which are not used.
        loss: as in `train`.
        metrics: as in `train`.
        step: as in `train`.
        collate: as in `train`.
        layerwise: measure each layer's block, too.
        checkpoints: which to measure: the ``"last"``, ``"all"`` that were kept, or ``"none"``,
            which takes what training has recorded. Default: the record if there is one.
        curvature: how to measure, ``"probes=2,lanczos=50,samples=1000"``.
        out: the folder of the results; default ``spectrum`` in that of the run.
        root: the folder of the laboratory's data sets.
        allow_import: let the run's folder name import paths, which run code.

    Example:
        >>> import tempfile, torch
        >>> from lpsgd.lab import spectrum, train
        >>> x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
        >>> run = train(
        ...     "sgd:lr=0.1", model=lambda: torch.nn.Linear(3, 1), train=(x, x.sum(1)),
        ...     test=(x, x.sum(1)), epochs=1, batch_size=16, out=tempfile.mkdtemp(),
        ... )
        >>> found = spectrum(run, curvature="lanczos=4")
        >>> inputs = torch.cat([x, torch.ones(64, 1)], 1)  # the Hessian is 2 X'X / n
        >>> largest = torch.linalg.eigvalsh(2 * inputs.T @ inputs / 64)[-1].item()
        >>> abs(found.rows[0]["lambda_max"] - largest) < 1e-4
        True
    """
    from lpsgd.lab.spectra.options import parse_options
    from lpsgd.lab.store.run_folder import read_recipe, run_of

    options = parse_options(curvature)
    options = replace(options, layers=True) if layerwise else options
    own = Own(model, train, test, None, loss, metrics, step, collate)
    source = Path(run) if isinstance(run, str | Path) else run.folder
    folder = run_of(source)
    recipe = read_recipe(folder)

    from lpsgd.curvature.monitor import FILE_NAME
    from lpsgd.lab.api.spectrum_result import SpectrumResult
    from lpsgd.lab.spectra.measure import measure_checkpoints
    from lpsgd.lab.spectra.records import read_curvature

    place = folder / "spectrum" if out is None else Path(out)
    recorded = folder / FILE_NAME
    records = read_curvature(recorded) if recorded.is_file() else {}
    enough = bool(records) and (not layerwise or any(r["layers"] for r in records.values()))
    if checkpoints is None:
        wanted = enough and source == folder and not curvature
        checkpoints = "none" if wanted else "last"
    if checkpoints != "none":
        problem = _problem(run, own, recipe, allow_import)
        path = place / FILE_NAME
        path.unlink(missing_ok=True)
        measure_checkpoints(
            source,
            path,
            options,
            every_checkpoint=checkpoints == "all",
            root=None if root is None else Path(root),
            problem=problem,
        )
        measured = read_curvature(path)
        # spectra in the other mode of batch norm are of another matrix
        alike = {e: r for e, r in records.items() if r["batchnorm"] == options.batchnorm}
        records, last = alike | measured, max(measured)
    elif not records:
        raise UserError(f"--checkpoints none: {folder} has no {FILE_NAME} to draw")
    elif layerwise and not enough:
        raise UserError(f"--checkpoints none: {recorded} has no layers to draw with --layerwise")
    else:
        last = max(records)
    return SpectrumResult(place, tuple(records[e] for e in sorted(records)), records[last])


def _problem(
    run: Path | str | TrainResult, own: Own, recipe: Recipe, allow_import: bool
) -> Problem | None:
    """The objects that the run was trained on: given again, still held, or by import path."""
    from lpsgd.lab.own.examine import examine
    from lpsgd.lab.own.given import problem_of
    from lpsgd.lab.recipe import refuse_imports

    given = read_problem(own, {})
    if given is None:
        if not isinstance(run, str | Path):
            return run.problem
        named = {"model": recipe.model, "dataset": recipe.dataset}
        refuse_imports(named, str(run), allow_import=allow_import)
        return problem_of(recipe)
    if recipe.problem is None or examine(given, recipe).digest != recipe.problem.digest:
        raise UserError(
            "model or train are not those of the run: its first weights and batches differ"
        )
    return given
