"""Lanczos with full re-orthogonalisation, and the extreme eigenvalues that it finds.

Without re-orthogonalisation rounding lets converged eigenvectors creep back into the basis, and
each then appears several times ("ghosts"). Here every new vector is made orthogonal to all before
it, twice, which costs 4·d operations for each basis vector: little beside a product.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import eigh
from torch import Tensor

Array = NDArray[np.float64]
Which = Literal["LA", "SA", "LM", "BE"]

# Products spent after the Krylov space has closed, looking for further copies of an eigenvalue.
_LOOK_AROUND = 10


class NotFiniteError(ValueError):
    """A product held infinities or nan, as after training has diverged."""


class SymmetricOperator(Protocol):
    """What the estimators need; a :class:`HessianOperator` or a symmetric square tensor."""

    @property
    def shape(self) -> Any:
        """(d, d)."""

    @property
    def dtype(self) -> Any:
        """The type of the vectors."""

    @property
    def device(self) -> Any:
        """Where products are computed."""

    def __matmul__(self, vector: Tensor, /) -> Tensor: ...


def dimension(operator: SymmetricOperator) -> int:
    """d, after checking that the operator is square."""
    rows, columns = operator.shape
    if rows != columns or rows == 0:
        raise ValueError(f"operator must be square and not empty, not of shape {(rows, columns)}")
    return int(rows)


def probe_generator(seed: int) -> torch.Generator:
    """Probes are drawn on the CPU, so that every device and process gets the same ones."""
    return torch.Generator("cpu").manual_seed(seed)


def sphere_probe(operator: SymmetricOperator, generator: torch.Generator) -> Tensor:
    """A vector drawn evenly from the unit sphere."""
    vector = torch.randn(dimension(operator), generator=generator, dtype=torch.float64)
    unit: Tensor = vector / vector.norm()
    return unit.to(operator.device, operator.dtype)


class Krylov:
    """An orthonormal basis Q (as rows) and T = Q A Qᵀ, grown by one product at a time.

    ``coupling`` is the norm of the part of A Qᵀ outside the basis: A Qᵀ = Qᵀ T + next ⊗ coupling.
    It is 0 once the basis is invariant; then the next vector is a new random one.
    Everything stays orthogonal to the rows of ``locked``, as if the operator ended there.
    """

    def __init__(
        self,
        operator: SymmetricOperator,
        capacity: int,
        generator: torch.Generator,
        basis_device: torch.device | str | None = None,
        locked: Tensor | None = None,
    ) -> None:
        self.operator, self.generator, self.locked = operator, generator, locked
        entries = dimension(operator)
        self.dimension = entries - (0 if locked is None else len(locked))
        self.device = torch.device(basis_device or operator.device)
        self.capacity = min(capacity, self.dimension)
        self.basis = torch.empty(self.capacity, entries, dtype=operator.dtype, device=self.device)
        self.projected: Array = np.zeros((self.capacity, self.capacity))
        self.size, self.products, self.coupling, self.scale = 0, 0, 0.0, 0.0
        self.next = sphere_probe(operator, generator).to(self.device)
        if locked is not None:
            self._orthogonalise(self.next)
            self.next.div_(self.next.norm())

    def extend(self) -> None:
        """Take ``next`` into the basis: one product."""
        position = self.size
        self.basis[position] = self.next
        self.size += 1
        image = (self.operator @ self.next.to(self.operator.device)).to(self.device)
        self.products += 1
        length = float(image.norm())
        if not np.isfinite(length):
            raise NotFiniteError("the operator returned a vector that is not finite")
        self.scale = max(self.scale, length)
        overlaps = self._orthogonalise(image).double().cpu().numpy()
        self.projected[position, : self.size] = overlaps
        self.projected[: self.size, position] = overlaps
        self._choose_next(image)

    def ritz(self) -> tuple[Array, Array, Array]:
        """Ritz values (ascending), their vectors in the basis, and their residual norms."""
        values, vectors = eigh(self.projected[: self.size, : self.size])
        return values, vectors, np.abs(self.coupling * vectors[-1])

    def compress(self, vectors: Array, values: Array) -> None:
        """Keep only these Ritz vectors (thick restart); ``next`` and ``coupling`` stay valid."""
        kept = len(values)
        rotation = torch.as_tensor(vectors.T.copy(), dtype=self.basis.dtype, device=self.device)
        self.basis[:kept] = rotation @ self.basis[: self.size]
        self.projected[:] = 0
        self.projected[range(kept), range(kept)] = values
        self.size = kept

    def _orthogonalise(self, vector: Tensor) -> Tensor:
        """Remove the basis from ``vector`` in place, twice; return what was removed."""
        basis = self.basis[: self.size]
        removed = torch.zeros(self.size, dtype=vector.dtype, device=vector.device)
        for _ in range(2):
            if self.locked is not None:
                vector.sub_((self.locked @ vector) @ self.locked)
            overlaps = basis @ vector
            vector.sub_(overlaps @ basis)
            removed += overlaps
        return removed

    def _choose_next(self, image: Tensor) -> None:
        epsilon = torch.finfo(image.dtype).eps
        length = float(image.norm())
        if length <= 100 * epsilon * self.scale:  # what is left is rounding: the basis is invariant
            self.coupling = 0.0
            if self.size == self.dimension:
                return
            image = sphere_probe(self.operator, self.generator).to(self.device)
            self._orthogonalise(image)
            length = float(image.norm())
        else:
            self.coupling = length
        self.next = image.div_(length)
        # Dividing a short vector by its length magnifies what overlap rounding has left in it.
        self._orthogonalise(self.next)
        self.next.div_(self.next.norm())


@dataclass(frozen=True)
class Eigenpairs:
    """Eigenvalues in descending order, unit eigenvectors as columns, and ‖A v - λ v‖ for each.

    ``residuals`` bound the error: an eigenvalue lies within that distance of each value.
    ``converged`` says whether the tolerance was reached within ``products``.
    """

    values: Array
    vectors: Tensor
    residuals: Array
    products: int
    converged: bool


def top_eigenvalues(
    operator: SymmetricOperator,
    k: int = 1,
    which: Which = "LA",
    *,
    tol: float = 1e-6,
    basis: int | None = None,
    max_products: int | None = None,
    seed: int = 0,
    basis_device: torch.device | str | None = None,
) -> Eigenpairs:
    r"""The ``k`` extreme eigenvalues with their vectors, by thick-restart Lanczos.

    A value :math:`\theta` with residual :math:`r` has an error of at most
    :math:`\min(r, r^2/\text{gap})`; the search ends when that is below
    ``tol`` times the largest eigenvalue in magnitude, for each of the ``k``.

    A Krylov space holds one vector for each distinct eigenvalue, however often it occurs. For
    ``k`` above 1 the search is therefore repeated orthogonally to what was found, with as many
    products, until it finds nothing that belongs among the ``k``.

    Args:
        operator: an operator or a symmetric tensor.
        k: how many; all of them if ``k`` is the dimension or more.
        which: ``"LA"`` largest, ``"SA"`` smallest, ``"LM"`` largest in magnitude, ``"BE"`` half
            from each end.
        tol: relative error allowed in the eigenvalues.
        basis: vectors held at once (memory: ``basis`` times the parameters); default 2k + 30.
        max_products: give up after this many, with a RuntimeWarning; default 50 times ``basis``.
        seed: of the first vector.
        basis_device: where the basis lives, such as ``"cpu"`` to save a device's memory.

    Example:
        >>> import torch
        >>> pairs = top_eigenvalues(torch.diag(torch.tensor([3.0, -5.0, 1.0])), k=2)
        >>> pairs.values.round(4)
        array([3., 1.])
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    if which not in get_args(Which):
        raise ValueError(f"which must be one of {get_args(Which)}, not {which!r}")
    d = dimension(operator)
    k = min(k, d)
    basis = 2 * k + 30 if basis is None else basis
    if basis < k + 2 and basis < d:
        raise ValueError(f"basis must be at least k + 2 = {k + 2}, not {basis}")
    limit = max_products if max_products is not None else 50 * basis
    generator = probe_generator(seed)
    space = Krylov(operator, basis, generator, basis_device)
    found = _search(space, k, which, tol, limit)
    products, complete = space.products, space.size == d
    scale = float(np.abs(found.values).max())

    def grown(more: _Found) -> _Found:
        return _joined(found, more, k, which)

    def gains(more: _Found) -> bool:
        change = np.abs(grown(more).values - found.values)
        return bool(np.any(change > 2 * tol * scale))

    patience = products
    while 1 < k < d and found.settled and not complete and products < limit:
        space = Krylov(operator, basis, generator, basis_device, locked=found.rows)
        ends = min(2 if which == "BE" else 1, space.dimension)
        more = _search(
            space, ends, which, tol, limit - products, scale=scale, patience=patience, gains=gains
        )
        products += space.products
        if not gains(more):
            break
        found = grown(more)
    if not found.settled:
        warnings.warn(
            f"top_eigenvalues: {k} eigenvalues did not reach tol={tol} in {limit} products; "
            f"residuals {found.residuals}",
            RuntimeWarning,
            stacklevel=2,
        )
    return Eigenpairs(found.values, found.rows.T, found.residuals, products, found.settled)


@dataclass(frozen=True)
class _Found:
    """Ritz pairs, the largest value first, the vectors as rows."""

    values: Array
    rows: Tensor
    residuals: Array
    settled: bool


def _search(
    space: Krylov,
    k: int,
    which: Which,
    tol: float,
    limit: int,
    *,
    scale: float = 0.0,
    patience: int | None = None,
    gains: Callable[[_Found], bool] = lambda found: True,
) -> _Found:
    """Grow ``space`` until ``k`` values are settled, to ``tol`` times the largest or ``scale``.

    After ``patience`` products it gives up unless ``gains`` says that there is something in it.
    """
    looked = 0
    while True:
        space.extend()
        looked += bool(looked or space.coupling == 0.0)
        values, vectors, residuals = space.ritz()
        chosen = _choose(values, k, which)
        allowed = tol * max(float(np.abs(values).max()), scale)
        settled = space.size == space.dimension or (
            (looked == 0 or looked > _LOOK_AROUND)
            and len(chosen) == k
            and bool(np.all(_error_bounds(values, residuals)[chosen] <= allowed))
        )
        tired = patience is not None and space.products >= patience
        if settled or tired or space.products >= limit:
            rotation = torch.as_tensor(vectors[:, chosen].T.copy()).to(space.basis)
            rows = rotation @ space.basis[: space.size]
            found = _Found(values[chosen], rows, residuals[chosen], settled)
            if settled or space.products >= limit or not gains(found):
                return found
        if space.size == space.capacity:
            keep = _choose(values, k + (space.capacity - k) // 2, which)
            space.compress(vectors[:, keep], values[keep])


def _joined(found: _Found, more: _Found, k: int, which: Which) -> _Found:
    """The ``k`` wanted among two sets, of which the second was sought beside the first."""
    values = np.concatenate([found.values, more.values])
    # beside pairs that are not exact, A x also has a part along them
    further = np.hypot(more.residuals, np.linalg.norm(found.residuals))
    residuals = np.concatenate([found.residuals, further])
    order = np.argsort(values, kind="stable")
    chosen = order[_choose(values[order], k, which)]
    rows = torch.cat([found.rows, more.rows])[torch.as_tensor(chosen, device=found.rows.device)]
    return _Found(values[chosen], rows, residuals[chosen], found.settled and more.settled)


def _choose(values: Array, k: int, which: Which) -> NDArray[np.intp]:
    """Indices of the wanted among ascending ``values``, largest value first."""
    k = min(k, len(values))
    order = np.arange(len(values))[::-1]
    if which == "LA":
        return order[:k]
    if which == "SA":
        return order[len(order) - k :]
    if which == "LM":
        largest = np.argsort(-np.abs(values), kind="stable")[:k]
        return np.sort(largest)[::-1]
    low = k // 2
    return np.concatenate([order[: k - low], order[len(order) - low :]])


def _error_bounds(values: Array, residuals: Array) -> Array:
    """min(r, r²/gap), the gap being to the interval in which the nearest other eigenvalue lies."""
    if len(values) == 1:
        return residuals
    distances = np.abs(values[:, None] - values[None, :]) - residuals[None, :]
    np.fill_diagonal(distances, np.inf)
    gaps = np.maximum(distances.min(axis=1), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        quadratic = np.where(gaps > 0, residuals**2 / gaps, np.inf)
    return np.minimum(residuals, quadratic)
