"""Curvature over the course of training, for any training loop.

``curvature.jsonl`` has a line for each measurement, with all that is needed to redraw figures.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, TextIO

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lpsgd.curvature.batches import collect
from lpsgd.curvature.estimators import (
    Modules,
    diagonal_concentration,
    gradient_densities,
    layer_operators,
    overall_gradient_density,
)
from lpsgd.curvature.hessian import HessianOperator, hessian_operator
from lpsgd.curvature.lanczos import NotFiniteError
from lpsgd.curvature.progress import measure_cost, progress
from lpsgd.curvature.risk import Kind, Loss
from lpsgd.curvature.spectrum import spectral_density
from lpsgd.curvature.state import BatchNormMode
from lpsgd.curvature.summary import statistics

FILE_NAME = "curvature.jsonl"
DIAGONAL_PROBES = 8
"""Products of each measurement for the concentration on the diagonal, beside those of Lanczos."""


class CurvatureMonitor:
    """Measure the spectrum every few epochs and append a line to ``curvature.jsonl``.

    The samples are read once, so that every measurement sees the same ones. Training
    continues exactly as it would have without the monitor, bit for bit.

    Args:
        model: the network in training (``DistributedDataParallel`` and ``torch.compile`` are
            unwrapped).
        loss: ``loss(output, targets)``, one number for a batch.
        data: a pair of tensors or an iterable of pairs, such as a ``DataLoader``.
        path: the file to append to, or the folder in which it is called ``curvature.jsonl``.
        every: measure at the epochs divisible by this number; or a function ``epoch -> bool``.
        probes: Lanczos runs for each measurement.
        lanczos: steps (products) of each run.
        samples: how many samples of ``data``, in all processes together; None for all.
        batchnorm: see :func:`hessian_operator`; written into each record.
        chunk: at most this many samples at a time.
        modules: also measure the blocks of these modules (see :func:`layer_operators`).
        diagonal_probes: products for the concentration on the diagonal; 0 leaves it out.
        seed: of the probes, the same at every measurement.
        kind: ``"hessian"`` or ``"ggn"``.
        distributed: each process measures its share of the data; all must call the monitor.
        basis_device: where the Lanczos basis lives, such as ``"cpu"``.
        cache_gb: see :func:`hessian_operator`.
        stream: where the estimate and the progress go; None is silent.
        between: called after each product; what it raises ends the measurement without a record.

    Example:
        >>> import io, tempfile, torch
        >>> from lpsgd.curvature import CurvatureMonitor, read_records
        >>> model, data = torch.nn.Linear(3, 1), (torch.randn(8, 3), torch.randn(8, 1))
        >>> folder = tempfile.mkdtemp()
        >>> monitor = CurvatureMonitor(
        ...     model, torch.nn.MSELoss(), data, folder, every=2, stream=io.StringIO()
        ... )
        >>> for epoch in range(4):
        ...     _ = monitor(epoch)  # after the epoch's training
        >>> [record["epoch"] for record in read_records(monitor.path)]
        [0, 2]
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        data: Any,
        path: str | Path = FILE_NAME,
        *,
        every: int | Callable[[int], bool] = 1,
        probes: int = 2,
        lanczos: int = 64,
        samples: int | None = 2048,
        batchnorm: BatchNormMode = "eval",
        chunk: int | None = None,
        modules: Modules | None = None,
        diagonal_probes: int = DIAGONAL_PROBES,
        seed: int = 0,
        kind: Kind = "hessian",
        distributed: bool | dist.ProcessGroup = False,
        basis_device: torch.device | str | None = None,
        cache_gb: float = 2.0,
        stream: TextIO | Literal["stderr"] | None = "stderr",
        between: Callable[[], None] = lambda: None,
    ) -> None:
        if isinstance(every, int) and every < 1:
            raise ValueError(f"every must be at least 1, not {every}")
        for name, value in (("probes", probes), ("lanczos", lanczos)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if diagonal_probes < 0 or diagonal_probes == 1:
            raise ValueError(f"diagonal_probes must be 0 or at least 2, not {diagonal_probes}")
        self.model, self.loss, self.every = model, loss, every
        self.path = Path(path) if Path(path).suffix == ".jsonl" else Path(path) / FILE_NAME
        self.probes, self.lanczos, self.seed, self.modules = probes, lanczos, seed, modules
        self.diagonal_probes, self.basis_device = diagonal_probes, basis_device
        self._options: dict[str, Any] = {
            "batchnorm": batchnorm,
            "chunk": chunk,
            "kind": kind,
            "distributed": distributed,
            "cache_gb": cache_gb,
        }
        self._rank, world = _place(distributed)
        if samples is not None and samples < world:  # on all of them: the others would wait
            raise ValueError(
                f"samples must be at least {world}, not {samples}: one for each process"
            )
        rank = self._rank
        share = None if samples is None else samples // world + (rank < samples % world)
        self._batches = [(batch.inputs, batch.targets) for batch in collect(data, share)]
        shown = sys.stderr if stream == "stderr" else stream
        self._stream = shown if self._rank == 0 else None
        self._between = between
        self._announced = False

    def due(self, epoch: int) -> bool:
        """Whether the schedule asks for a measurement at ``epoch``."""
        return self.every(epoch) if callable(self.every) else epoch % self.every == 0

    def __call__(self, epoch: int, **extra: Any) -> dict[str, Any] | None:
        """Measure if the schedule asks for it; ``extra`` (a step, an exponent) joins the record.

        Where the Hessian is not finite, as after divergence, it warns and training continues.
        """
        if not self.due(epoch):
            return None
        try:
            return self.measure(epoch, **extra)
        except NotFiniteError:
            warnings.warn(
                f"curvature at epoch {epoch} was left out: the Hessian is not finite",
                RuntimeWarning,
                stacklevel=2,
            )
            return None

    def measure(self, epoch: int, **extra: Any) -> dict[str, Any]:
        """Measure now, write the record and return it."""
        start = time.perf_counter()
        operator = hessian_operator(self.model, self.loss, self._batches, **self._options)
        blocks = {} if self.modules is None else layer_operators(operator, self.modules)
        total = self._products(operator, blocks)
        self._announce(operator, blocks, total)
        with self.progress(f"curvature at epoch {epoch}", total) as shown:

            def advance() -> None:
                shown()
                self._between()

            record = {
                "epoch": epoch,
                **extra,
                "kind": operator.kind,
                "batchnorm": operator.batchnorm,
                "samples": operator.samples,
                "probes": self.probes,
                "lanczos": self.lanczos,
                "seed": self.seed,
                "gradient_density": {
                    "overall": overall_gradient_density(operator),
                    "layers": gradient_densities(operator),
                },
                **self._spectrum(_Counted(operator, advance), self.diagonal_probes),
                "layers": {
                    name: self._spectrum(_Counted(block, advance), 0)
                    for name, block in blocks.items()
                },
            }
        record["seconds"] = time.perf_counter() - start
        if self._rank == 0:
            append_record(self.path, record)
        return record

    def _spectrum(self, operator: _Counted, diagonal_probes: int) -> dict[str, Any]:
        density = spectral_density(
            operator, self.probes, self.lanczos, seed=self.seed, basis_device=self.basis_device
        )
        numbers = statistics(density).to_dict()
        if diagonal_probes:
            estimate = diagonal_concentration(operator, diagonal_probes, seed=self.seed)
            numbers["diagonal_concentration"] = estimate.value
            numbers["diagonal_concentration_error"] = estimate.standard_error
        return {**density.to_dict(), "statistics": numbers}

    def _products(self, operator: HessianOperator, blocks: Mapping[str, HessianOperator]) -> int:
        sizes = [operator.shape[0], *(block.shape[0] for block in blocks.values())]
        runs = sum(min(self.lanczos, size) for size in sizes)
        return self.probes * runs + self.diagonal_probes

    def _announce(
        self, operator: HessianOperator, blocks: Mapping[str, HessianOperator], total: int
    ) -> None:
        """Before the first measurement, say what each of them will take."""
        if self._announced:
            return
        self._announced = True
        layers = f", {len(blocks)} layers" if blocks else ""
        probes = "1 probe" if self.probes == 1 else f"{self.probes} probes"
        # before the timing, which takes as long as two products and may be minutes
        self.say(
            f"curvature: {operator.shape[0]:,} parameters, {operator.samples:,} samples, "
            f"{probes} of {self.lanczos} Lanczos steps{layers}: {total} products for each "
            "measurement; timing one"
        )
        # Timing is collective when the data is distributed: every process takes part.
        cost = measure_cost(operator, total, self.lanczos)
        self.say(f"curvature: each measurement takes {cost}")

    def say(self, text: str) -> None:
        """Print a line; override this and :meth:`progress` to show them elsewhere."""
        if self._stream is not None:
            print(text, file=self._stream, flush=True)

    def progress(self, label: str, total: int) -> AbstractContextManager[Callable[[], None]]:
        """Give a function that shows one more product as done."""
        if self._stream is None:
            return nullcontext(lambda: None)
        return progress(label, total, self._stream)


class _Counted:
    """An operator that reports each product."""

    def __init__(self, operator: HessianOperator, advance: Callable[[], None]) -> None:
        self._operator, self._advance = operator, advance
        self.shape, self.dtype, self.device = operator.shape, operator.dtype, operator.device

    def __matmul__(self, vector: Tensor) -> Tensor:
        product = self._operator @ vector
        self._advance()
        return product


def _place(distributed: bool | dist.ProcessGroup) -> tuple[int, int]:
    if distributed is False or not dist.is_initialized():
        return 0, 1
    group = None if distributed is True else distributed
    return dist.get_rank(group), dist.get_world_size(group)


def append_record(path: Path, record: Mapping[str, Any]) -> None:
    """Add one whole line and flush it to disk; numbers that are not finite become null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(_plain(record), allow_nan=False).encode() + b"\n"
    with path.open("ab+") as stream:
        # A process killed while writing leaves half a line; it must not swallow this one.
        if stream.tell() > 0:
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                line = b"\n" + line
        stream.write(line)
        stream.flush()
        os.fsync(stream.fileno())


def read_records(path: str | Path) -> list[dict[str, Any]]:
    """The records by epoch; of several for one epoch (a resumed run), the last.

    Incomplete lines are ignored; valid JSON that is not a record is a ValueError that names it.
    """
    by_epoch: dict[float, dict[str, Any]] = {}
    for place, line in enumerate(Path(path).read_bytes().split(b"\n"), 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):  # half a line, or bytes that are no text
            continue
        epoch = record.get("epoch") if isinstance(record, dict) else None
        if isinstance(epoch, bool) or not isinstance(epoch, int | float):
            raise ValueError(f"{path}, line {place}: expected a record with its epoch")
        by_epoch[epoch] = record
    return [by_epoch[epoch] for epoch in sorted(by_epoch)]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
