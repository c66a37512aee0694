"""A tiny GPT (Radford et al. 2019) for text, to show that it is not only vision."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lpsgd.lab.errors import UserError

LAYERS = 4
HEADS = 4


class CausalAttention(nn.Module):
    """Each position attends to itself and to those before it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, width) to (N, T, width)."""
        count, length, width = x.shape
        query, key, value = (
            part.view(count, length, HEADS, width // HEADS).transpose(1, 2)
            for part in self.project_in(x).chunk(3, dim=-1)
        )
        # written out, because torch's fused attention has no second derivative on the CPU and the
        # curvature tools need one
        scores = query @ key.transpose(-2, -1) * (width // HEADS) ** -0.5
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(future, float("-inf")).softmax(dim=-1) @ value
        out: Tensor = self.project_out(mixed.transpose(1, 2).reshape(count, length, width))
        return out


class Block(nn.Module):
    """Attention and a two-layer perceptron, each behind a layer norm and around a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = CausalAttention(width)
        self.norm2 = nn.LayerNorm(width)
        self.perceptron = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, width) to (N, T, width)."""
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.perceptron(self.norm2(x))
        return out


class GPT(nn.Module):
    """Four blocks of four heads; the token embedding is also the output layer."""

    def __init__(self, context: int, vocabulary: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(width)
        self._initialize()

    def _initialize(self) -> None:
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                # layers that add to the shortcut start smaller, so that the sum does not grow
                adds = name.endswith(("project_out.weight", "perceptron.2.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * LAYERS) ** 0.5 if adds else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, text: Tensor) -> Tensor:
        """Logits (N*T, vocabulary) of the next character at each position of text (N, T)."""
        places = torch.arange(text.shape[1], device=text.device)
        hidden = self.norm(self.blocks(self.tokens(text) + self.positions(places)))
        return F.linear(hidden.flatten(0, 1), self.tokens.weight)


def gpt(input_shape: tuple[int, ...], classes: int, width: int) -> GPT:
    """A GPT with ``width`` features for each position."""
    if width % HEADS:
        raise UserError(f"width is {width}; gpt needs a multiple of {HEADS}, its number of heads")
    return GPT(input_shape[0], classes, width)
