"""Products with the Hessian (or generalised Gauss-Newton matrix) of a loss over fixed data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from math import prod
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from lpsgd.curvature.batches import Batch, collect
from lpsgd.curvature.risk import Kind, Loss, Point, Risk
from lpsgd.curvature.state import BatchNormMode, plain_modes

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

Params = str | Sequence[str] | Iterable[Tensor] | None


def hessian_operator(
    model: nn.Module,
    loss: Loss,
    data: Any,
    params: Params = None,
    batchnorm: BatchNormMode = "eval",
    chunk: int | None = None,
    *,
    kind: Kind = "hessian",
    reduction: Literal["mean", "sum"] | None = None,
    dtype: torch.dtype | None = None,
    distributed: bool | dist.ProcessGroup = False,
    cache_gb: float = 2.0,
) -> HessianOperator:
    r"""The Hessian of :math:`L(\theta) = \sum_b w_b\, \ell(f_\theta(x_b), y_b)` as an operator.

    The batches :math:`(x_b, y_b)` are read once and always added in the same order. For a loss
    that takes the mean over its batch, :math:`w_b = n_b / \sum n_b` makes :math:`L` the mean over
    all samples; for one that sums, :math:`w_b = 1`. The operator keeps a copy of the weights:
    it is the Hessian at the point where it was made, however training continues.

    Args:
        model: the network; its weights, buffers, flags and gradients are left as they are.
        loss: ``loss(output, targets)``, one number for a batch.
        data: a pair of tensors, or an iterable of pairs such as a ``DataLoader``. The inputs are a
            tensor, a tuple (``model(*inputs)``) or a mapping (``model(**inputs)``).
        params: which parameters: None for those with ``requires_grad``, name patterns such as
            ``"layer1.*"``, or the parameters themselves.
        batchnorm: ``"eval"`` uses running statistics; ``"batch"`` those of each batch of ``data``,
            as in training, without changing the running ones. Dropout is always off.
        chunk: at most this many samples at a time, to bound memory. With ``batchnorm="batch"`` a
            chunk below the batch size is an error, because it would change the statistics; so it
            is for a loss whose mean is not over all samples (class weights, ignored targets).
        kind: ``"hessian"``, or ``"ggn"`` for the generalised Gauss-Newton matrix
            :math:`\sum_b w_b J_b^\top (\nabla_f^2 \ell) J_b`.
        reduction: how ``loss`` treats its batch; None reads ``loss.reduction``, else ``"mean"``.
        dtype: compute in this type; None keeps the parameters' type (float32 for half precision).
        distributed: True or a process group: each process gives its own share of the data, and
            every process receives the product over all of it.
        cache_gb: keep the graphs of as many chunks as fit into so many gigabytes, so that a
            product is one backward pass; the others are computed anew for each product.

    Example:
        >>> import torch
        >>> from lpsgd.curvature import hessian_operator
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 1)
        >>> operator = hessian_operator(model, torch.nn.MSELoss(), (x, y))
        >>> operator @ torch.ones(2)  # the Hessian of the mean square is 2 XᵀX / n = diag(1, 4)
        tensor([1., 4.])
    """
    if kind not in get_args(Kind):
        raise ValueError(f"kind must be 'hessian' or 'ggn', not {kind!r}")
    if batchnorm not in get_args(BatchNormMode):
        raise ValueError(f"batchnorm must be 'eval' or 'batch', not {batchnorm!r}")
    if reduction is None:
        reduction = getattr(loss, "reduction", "mean")
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction of the loss must be 'mean' or 'sum', not {reduction!r}")
    if cache_gb < 0:
        raise ValueError(f"cache_gb must not be negative, not {cache_gb}")
    model = _unwrapped(model)
    batches = collect(data)
    _check_chunk(model, batches, batchnorm, chunk)
    if chunk is not None and reduction == "mean":
        _check_mean(loss, batches, chunk)
    point = Point(model, _chosen_names(model, params), dtype)
    group = _process_group(distributed)
    risk = Risk(point, model, loss, batches, batchnorm, chunk, kind, reduction, group, cache_gb)
    return HessianOperator(risk, range(len(point.names)))


class HessianOperator:
    """A symmetric operator on flat vectors: the named parameters, flattened and joined in order.

    ``operator @ vector`` multiplies; a matrix is multiplied column by column.
    """

    def __init__(self, risk: Risk, chosen: Sequence[int]) -> None:
        self._risk, self._chosen = risk, tuple(chosen)
        self.names = tuple(risk.point.names[index] for index in self._chosen)
        self.shapes = tuple(risk.point.leaves[index].shape for index in self._chosen)
        self._sizes = [prod(shape) for shape in self.shapes]
        self.shape = (sum(self._sizes), sum(self._sizes))
        self.dtype, self.device = risk.point.dtype, risk.point.device
        self.samples, self.batchnorm, self.kind = risk.samples, risk.batchnorm, risk.kind

    def __matmul__(self, vector: Tensor) -> Tensor:
        if vector.ndim == 2:
            return torch.stack([self @ column for column in vector.unbind(1)], dim=1)
        if vector.shape != (self.shape[0],):
            raise ValueError(
                f"vector must have {self.shape[0]} entries (or that many rows), "
                f"not shape {tuple(vector.shape)}"
            )
        with plain_modes(self.device):
            vector = vector.detach().to(self.device, self.dtype)
            return self._risk.product(self._chosen, self._parts(vector))

    def gradient(self) -> Tensor:
        """The gradient of the loss, flat, in the order of :attr:`names`."""
        parts = self._risk.gradient()
        return torch.cat([parts[index].flatten() for index in self._chosen])

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """A flat vector as tensors of the parameters' shapes, by name."""
        return dict(zip(self.names, self._parts(vector), strict=True))

    def restrict(self, names: Iterable[str]) -> HessianOperator:
        """The diagonal block of the parameters ``names``; it shares graphs with this operator."""
        wanted = list(names)
        unknown = sorted(set(wanted) - set(self.names))
        if unknown or not wanted:
            raise ValueError(f"names must be among {list(self.names)}, not {unknown or wanted}")
        chosen = [
            index
            for index, name in zip(self._chosen, self.names, strict=True)
            if name in set(wanted)
        ]
        return HessianOperator(self._risk, chosen)

    def to_scipy(self) -> LinearOperator:
        """This operator for ``scipy.sparse.linalg``, on numpy vectors."""
        from scipy.sparse.linalg import LinearOperator

        def multiply(array: Any) -> Any:
            return (self @ torch.as_tensor(array, dtype=self.dtype)).cpu().numpy()

        kind = torch.empty(0, dtype=self.dtype).numpy().dtype
        return LinearOperator(
            self.shape, matvec=multiply, rmatvec=multiply, matmat=multiply, dtype=kind
        )

    @property
    def graph_bytes(self) -> int:
        """Bytes of the graphs kept so far (none before the first product)."""
        return self._risk.kept_bytes

    def _parts(self, vector: Tensor) -> list[Tensor]:
        pieces = torch.split(vector, self._sizes)
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def __repr__(self) -> str:
        return (
            f"HessianOperator(kind={self.kind!r}, parameters={self.shape[0]}, "
            f"samples={self.samples}, batchnorm={self.batchnorm!r}, dtype={self.dtype})"
        )


def _unwrapped(model: nn.Module) -> nn.Module:
    """The module inside wrappers that synchronise buffers or cannot be differentiated twice."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner  # of torch.compile
        else:
            return model


def _chosen_names(model: nn.Module, params: Params) -> list[str]:
    named = dict(model.named_parameters())
    if params is None:
        names = [name for name, tensor in named.items() if tensor.requires_grad]
    else:
        wanted = [params] if isinstance(params, str) else list(params)
        patterns = [item for item in wanted if isinstance(item, str)]
        tensors = {id(item) for item in wanted if isinstance(item, Tensor)}
        names = [
            name
            for name, tensor in named.items()
            if id(tensor) in tensors or any(fnmatchcase(name, pattern) for pattern in patterns)
        ]
        foreign = tensors - {id(tensor) for tensor in named.values()}
        if foreign:
            raise ValueError(f"params holds {len(foreign)} tensors that are not in the model")
    if not names:
        raise ValueError(f"params={params!r} chooses no parameter; the model has {list(named)}")
    return names


def _check_chunk(
    model: nn.Module, batches: list[Batch], batchnorm: BatchNormMode, chunk: int | None
) -> None:
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if batchnorm == "batch" and any(isinstance(norm, nn.SyncBatchNorm) for norm in norms):
        raise ValueError("batchnorm='batch' cannot differentiate SyncBatchNorm twice; use 'eval'")
    if chunk is None:
        return
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, not {chunk}")
    largest = max((batch.samples for batch in batches), default=0)
    by_batch = batchnorm == "batch" or any(norm.running_mean is None for norm in norms)
    if by_batch and chunk < largest:
        raise ValueError(
            f"chunk={chunk} is below the batch size {largest}, and batch norm uses the batch's "
            f"statistics (batchnorm={batchnorm!r}), which smaller chunks would change; "
            "give data in smaller batches instead"
        )


def _check_mean(loss: Loss, batches: list[Batch], chunk: int) -> None:
    """Refuse to cut a batch whose mean loss is not the mean of the means of its parts."""
    if not isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss):
        return
    for batch in batches:
        targets = batch.targets
        labels = isinstance(targets, Tensor) and not targets.is_floating_point()
        ignored = labels and bool((targets == loss.ignore_index).any())
        if batch.samples > chunk and (loss.weight is not None or ignored):
            raise ValueError(
                f"chunk={chunk} is below the batch size {batch.samples}, and the loss has "
                f"{'ignored targets' if ignored else 'class weights'}: its mean over a batch is "
                "not that of the means of chunks; take reduction='sum'"
            )


def _process_group(distributed: bool | dist.ProcessGroup) -> dist.ProcessGroup | None:
    if distributed is False:
        return None
    if not dist.is_initialized():
        raise ValueError("distributed needs torch.distributed.init_process_group (torchrun)")
    return dist.group.WORLD if distributed is True else distributed
