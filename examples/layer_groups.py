"""Parameter groups as timm makes them: no decay on vectors, a smaller rate for earlier layers.

    python examples/layer_groups.py

timm gives each group an ``lr_scale``, and its schedulers set ``lr = base * lr_scale``. LPSGDM keeps
unknown keys of a group as they are, and a group may have a p of its own.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from lpsgd import LPSGDM, CosineP, param_groups

STEPS, BASE_LR, LAYER_DECAY = 30, 1e-2, 0.7


def network() -> nn.Sequential:
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU()) for _ in range(3))
    return nn.Sequential(*blocks, nn.Linear(16, 1))


def layer_groups(model: nn.Sequential, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups a layer, decayed and not; the last layer has lr_scale 1, each earlier one less."""
    groups = []
    for number, layer in enumerate(model):
        scale = LAYER_DECAY ** (len(model) - 1 - number)
        groups += param_groups(layer, weight_decay, lr_scale=scale, lr=BASE_LR * scale)
    return groups


def make(model: nn.Sequential) -> LPSGDM:
    groups = layer_groups(model, weight_decay=0.05)
    groups[-1]["p"] = 2.0  # the bias of the head follows plain SGD, with averaged momentum
    return LPSGDM(groups, p=CosineP(6, total_steps=STEPS))


def train(model: nn.Sequential, optimizer: LPSGDM, first: int, stop: int) -> list[float]:
    """Steps ``first`` to ``stop`` with a cosine learning rate; their losses."""
    losses = []
    for step in range(first, stop):
        for group in optimizer.param_groups:  # what timm's schedulers do
            wave = (1 + math.cos(math.pi * step / STEPS)) / 2
            group["lr"] = BASE_LR * group["lr_scale"] * wave
        loss = loss_of(model, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def loss_of(model: nn.Module, step: int) -> Tensor:
    x = torch.randn(32, 16, generator=torch.Generator().manual_seed(step))
    return (model(x) - (x[:, :1] - x[:, 1:2]).tanh()).square().mean()


def main() -> None:
    model = network()
    optimizer = make(model)
    for group in optimizer.param_groups:
        names, decay = ", ".join(group["param_names"]), group["weight_decay"]
        print(f"lr {group['lr']:.1e}   decay {decay:.2f}   p {group['p']:.0f}   {names}")
    losses = train(model, optimizer, 0, 12)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    losses += train(model, optimizer, 12, STEPS)

    resumed = network()
    optimizer = make(resumed)
    resumed.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    again = train(resumed, optimizer, 12, STEPS)
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}; resumed alike: {again == losses[12:]}")


if __name__ == "__main__":
    main()
