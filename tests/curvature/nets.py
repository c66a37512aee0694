"""Small networks in float64, and their exact Hessians by ``torch.func`` as the oracle."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian, jacrev
from torch.nn.attention import SDPBackend, sdpa_kernel

CE = nn.CrossEntropyLoss()


class Attention(nn.Module):
    """A transformer layer with dropout, which a measurement has to switch off."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(
            4, 2, 5, dropout=0.3, activation="gelu", batch_first=True
        )
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x).mean(1))


class PlainBatchNorm(nn.Module):
    """Batch norm over the batch from its formula.

    torch.func's batched second derivatives of the built-in batch norm and layer norm are not even
    symmetric (torch 2.13; finite differences show them to be wrong): the oracle avoids both.
    """

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean((0, 2, 3), keepdim=True)
        variance = (centred**2).mean((0, 2, 3), keepdim=True)
        scale = self.weight.view(1, -1, 1, 1) / (variance + self.eps).sqrt()
        return centred * scale + self.bias.view(1, -1, 1, 1)


class PlainLayerNorm(nn.Module):
    """Layer norm from its formula."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        variance = (centred**2).mean(-1, keepdim=True)
        return centred / (variance + self.eps).sqrt() * self.weight + self.bias


@dataclass
class Problem:
    model: nn.Module
    batches: list[tuple[Tensor, Tensor]]
    batchnorm: str = "eval"


def mlp() -> Problem:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    return Problem(model, _batches((4,)))


def convolution(batchnorm: str) -> Problem:
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3, bias=False),
        nn.BatchNorm2d(3),
        nn.Softplus(),
        nn.Dropout(0.4),
        nn.Conv2d(3, 4, 3, stride=2),
        nn.BatchNorm2d(4),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16, 3),
    ).double()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
                module.weight.uniform_(0.5, 2)
    return Problem(model, _batches((1, 7, 7)), batchnorm)


def attention() -> Problem:
    torch.manual_seed(3)
    return Problem(Attention().double(), _batches((5, 4)))


PROBLEMS = {
    "mlp": mlp,
    "conv_bn_eval": lambda: convolution("eval"),
    "conv_bn_batch": lambda: convolution("batch"),
    "attention": attention,
}


def _batches(shape: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
    # Unequal sizes, so that a wrong weighting of the batches shows.
    return [
        (torch.randn(n, *shape, dtype=torch.float64), torch.randint(0, 3, (n,))) for n in (7, 5)
    ]


def flat_loss(problem: Problem):
    """(θ flat, θ -> mean loss): the model as a pure function, in the mode that is asked for."""
    model = copy.deepcopy(problem.model).eval()
    for parent in list(model.modules()):
        for name, module in list(parent.named_children()):
            if isinstance(module, nn.LayerNorm):
                setattr(parent, name, PlainLayerNorm(module))
            elif isinstance(module, nn.BatchNorm2d) and problem.batchnorm == "batch":
                setattr(parent, name, PlainBatchNorm(module))
    named = dict(model.named_parameters())
    sizes = [prod(tensor.shape) for tensor in named.values()]
    total = sum(len(y) for _, y in problem.batches)

    def outputs(theta: Tensor, x: Tensor) -> Tensor:
        pieces = torch.split(theta, sizes)
        state = {
            name: piece.view(tensor.shape)
            for (name, tensor), piece in zip(named.items(), pieces, strict=True)
        }
        return functional_call(model, state, (x,))

    def value(theta: Tensor) -> Tensor:
        parts = [CE(outputs(theta, x), y) * len(y) for x, y in problem.batches]
        return sum(parts) / total

    start = torch.cat([tensor.detach().flatten() for tensor in named.values()])
    return start, value, outputs


def exact_hessian(problem: Problem) -> Tensor:
    start, value, _ = flat_loss(problem)
    with sdpa_kernel(SDPBackend.MATH):
        return hessian(value)(start).detach()


def exact_gauss_newton(problem: Problem) -> Tensor:
    """Σ_b n_b/N · Jᵀ diag-softmax-Hessian J, with the textbook Hessian of cross-entropy."""
    start, _, outputs = flat_loss(problem)
    total = sum(len(y) for _, y in problem.batches)
    result = torch.zeros(len(start), len(start), dtype=torch.float64)
    with sdpa_kernel(SDPBackend.MATH):
        for x, _ in problem.batches:
            jacobian = jacrev(outputs)(start, x).detach()
            p = outputs(start, x).detach().softmax(-1)
            inner = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
            result += torch.einsum("ncd,nce,nef->df", jacobian, inner, jacobian) / total
    return result
