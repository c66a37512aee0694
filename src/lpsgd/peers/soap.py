"""SOAP: Adam in the eigenbasis of the running Gram matrices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from lpsgd import _checks as checks
from lpsgd._base import Group, working_dtype
from lpsgd._dtensor import local_part, part_of, unsharded
from lpsgd._foreach import Tensors
from lpsgd.peers._peer import MOMENTUM, Peer, descend_


class SOAP(Peer):
    r"""Adam in slowly turning coordinates, the eigenvectors of Shampoo (Vyas et al., 2024).

    .. math::
        L_t &= \beta_2 L_{t-1} + (1-\beta_2)\, G_t G_t^T, \qquad
        R_t = \beta_2 R_{t-1} + (1-\beta_2)\, G_t^T G_t \\
        M_t &= \beta_1 M_{t-1} + (1-\beta_1)\, G_t, \qquad
        V_t = \beta_2 V_{t-1} + (1-\beta_2)\, (Q_L^T G_t Q_R)^2 \\
        U_t &= Q_L\, \frac{Q_L^T M_t Q_R / (1-\beta_1^t)}
        {\sqrt{V_t / (1-\beta_2^t)} + \varepsilon}\, Q_R^T, \qquad
        \theta_{t+1} = (1 - \eta\lambda)\,\theta_t - \eta\, U_t

    for a matrix; a kernel has a Gram matrix for each of its dimensions. Q_L and Q_R are the
    eigenvectors of L and R at the first gradient, which only measures and moves nothing; every
    ``every`` steps one round of power iteration, Q <- qr(L Q), turns them. Vectors, and dimensions
    longer than ``longest``, keep their own coordinates: a vector is moved by Adam.

    Args:
        params: parameters, named parameters, or dicts that define parameter groups.
        lr: the learning rate eta, a number or a tensor of one element.
        betas: the coefficients (beta_1, beta_2) of the averages, in [0, 1).
        eps: the number epsilon that is added to the root.
        weight_decay: the decoupled decay lambda.
        every: steps between two turns of the eigenvectors.
        longest: the length up to which a dimension is turned.
        state_dtype: the dtype of M and V; None means float32 for half-precision parameters, else
            the parameter's own.
        maximize: maximize the objective instead of minimizing it.

    Example:
        >>> theta = torch.zeros(2, 2, requires_grad=True)
        >>> optimizer = SOAP([theta], lr=1.0)
        >>> for _ in range(2):  # in its eigenbasis the gradient has the entries 3 and 1
        ...     theta.grad = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
        ...     optimizer.step()
        >>> torch.allclose(theta, -torch.eye(2), atol=1e-6)  # there, 1 and 1
        True
    """

    _checks: ClassVar = {
        **Peer._checks,
        "betas": checks.fraction_pair,
        "eps": checks.positive,
        "every": checks.check_positive_int,
        "longest": checks.check_positive_int,
    }

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 3e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        every: int = 10,
        longest: int = 10_000,
        state_dtype: torch.dtype | None = None,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "every": every,
                "longest": longest,
                "state_dtype": state_dtype,
                "maximize": maximize,
                "foreach": False,
                "capturable": False,
                "differentiable": False,
            },
        )

    def _buffer_names(self, group: Group) -> tuple[str, ...]:
        return (MOMENTUM, "second_moment", "grams", "bases")

    def add_param_group(self, param_group: Group) -> None:
        """Add a group, during training too."""
        super().add_param_group(param_group)
        for param in self.param_groups[-1]["params"]:
            if param.is_complex():
                self.param_groups.pop()
                raise ValueError(f"SOAP does not take complex parameters, got one of {param.dtype}")

    def _new_buffer(self, name: str, param: Tensor, group: Group) -> Tensor:
        """Averages like the parameter; the square matrices of its dimensions, one after another."""
        if name in (MOMENTUM, "second_moment"):
            return super()._new_buffer(name, param, group)
        size = sum(length**2 for length in _turned(param, group["longest"]))
        return torch.zeros(size, dtype=working_dtype(param), device=param.device)

    def _rule(
        self, theta: Tensors, g: Tensors, buffers: list[list[Tensor]], settings: Mapping[str, Any]
    ) -> None:
        for place, gradient in enumerate(g):
            *averages, grams_held, bases_held = (buffer[place] for buffer in buffers)
            # a sharded tensor is gathered: each process computes the same, and moves its own part
            x, m, v = (unsharded(tensor) for tensor in (gradient, *averages))
            lengths = _turned(x, settings["longest"])
            grams, bases = (_squares(held, lengths) for held in (grams_held, bases_held))
            if settings["t"] > 1:
                u = self._direction(x, m, v, bases, settings).contiguous()
                descend_([local_part(theta[place])], [part_of(u, theta[place])], settings)
            for k, gram in enumerate(grams):
                if gram.numel() > 0:
                    rows = x.movedim(k, 0).flatten(1)
                    gram.lerp_(rows @ rows.mT, 1 - settings["betas"][1])
            if settings["t"] == 1:
                for gram, basis in zip(grams, bases, strict=True):
                    # in double precision: of singular matrices LAPACK gives NaN in single, or none
                    basis.copy_(torch.linalg.eigh(gram.double()).eigenvectors.flip(1))
            elif (settings["t"] - 1) % settings["every"] == 0:
                _turn(bases, grams, v)
            for average, moved in zip(averages, (m, v), strict=True):
                if moved is not average:
                    local_part(average).copy_(part_of(moved, average))

    def _direction(
        self, g: Tensor, m: Tensor, v: Tensor, bases: list[Tensor], settings: Mapping[str, Any]
    ) -> Tensor:
        """Adam's step in the coordinates of the bases, in the old coordinates."""
        beta1, beta2 = settings["betas"]
        t = settings["t"] - 1  # the first gradient was none of these averages
        m.lerp_(g, 1 - beta1)
        v.lerp_(into(g, bases).square(), 1 - beta2)
        mean, square = into(m, bases) / (1 - beta1**t), v / (1 - beta2**t)
        return out_of(self._step(mean, square, settings["eps"]), bases)

    def _step(self, mean: Tensor, square: Tensor, eps: float) -> Tensor:
        """Adam's step from its averages without their bias, in the coordinates of the bases."""
        return mean / (square.sqrt() + eps)


def _turned(x: Tensor, longest: int) -> list[int]:
    """The length of each dimension, 0 for those that keep their coordinates."""
    return [length if x.ndim > 1 and length <= longest else 0 for length in x.shape]


def _squares(held: Tensor, lengths: list[int]) -> list[Tensor]:
    """Views of the square matrices that ``held`` has one after another."""
    parts = torch.split(held, [length**2 for length in lengths])
    return [part.view(length, length) for part, length in zip(parts, lengths, strict=True)]


def into(x: Tensor, bases: list[Tensor]) -> Tensor:
    """Q_L^T x Q_R, and so in every dimension; one without a basis stays as it is."""
    for basis in bases:  # each turn moves the first dimension behind the others
        x = torch.tensordot(x, basis, ([0], [0])) if basis.numel() > 0 else x.movedim(0, -1)
    return x


def out_of(x: Tensor, bases: list[Tensor]) -> Tensor:
    """Q_L x Q_R^T, back from `into`."""
    return into(x, [basis.mT for basis in bases])


def _turn(bases: list[Tensor], grams: list[Tensor], v: Tensor) -> None:
    """One round of power iteration, by falling eigenvalue; ``v`` follows the order of its axes."""
    for k, (basis, gram) in enumerate(zip(bases, grams, strict=True)):
        if basis.numel() == 0:
            continue
        image = gram @ basis
        order = (basis * image).sum(0).argsort(descending=True)
        v.copy_(v.index_select(k, order))
        basis.copy_(torch.linalg.qr(image[:, order]).Q)
