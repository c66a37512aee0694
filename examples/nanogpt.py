"""A nanoGPT-style training script in one file: LPSGDM on a small GPT of characters.

    python examples/nanogpt.py [--text FILE] [--steps 300] [--optimizer lpsgdm|lpmuon|adamw]

Warm-up and cosine learning rate, accumulation, clipping, decay on matrices alone, a sample at the
end. Without --text it reads Python's own license.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lpsgd import LPSGDM, LPMuon, param_groups

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, characters: int, context: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(characters, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        x = self.tokens(text) + self.places(torch.arange(text.shape[1], device=text.device))
        return self.head(self.norm(self.blocks(x)))


def optimizer_for(name: str, model: nn.Module, steps: int) -> torch.optim.Optimizer:
    if name == "lpmuon":  # singular values of the matrices inside, AdamW's rule for the rest
        return LPMuon(param_groups(model, weight_decay=0.05, muon=True), lr=2e-2)
    groups = param_groups(model, weight_decay=0.1)
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=3e-3)
    return LPSGDM(groups, lr=1e-2, total_steps=steps)  # p falls from 6 to 2 over the run


def train(options: argparse.Namespace) -> list[float]:
    """Train; the loss of each step, in nats for a character."""
    torch.manual_seed(0)
    text = options.text.read_text()
    alphabet = sorted(set(text))
    data = torch.tensor([alphabet.index(character) for character in text], device=DEVICE)
    model = GPT(len(alphabet), options.context, options.width, options.layers, heads=2).to(DEVICE)
    optimizer = optimizer_for(options.optimizer, model, options.steps)
    warm_up = max(1, options.steps // 20)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda t: min(1.0, (t + 1) / warm_up) * (1 + math.cos(math.pi * t / options.steps)) / 2,
    )
    losses = []
    for step in range(options.steps):
        mean = 0.0
        for _ in range(options.accumulate):  # an optimizer step counts once, however many batches
            starts = torch.randint(len(data) - options.context, (options.batch, 1), device=DEVICE)
            chunk = data[starts + torch.arange(options.context + 1, device=DEVICE)]
            loss = F.cross_entropy(model(chunk[:, :-1]).flatten(0, 1), chunk[:, 1:].flatten())
            (loss / options.accumulate).backward()
            mean += loss.item() / options.accumulate
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        losses.append(mean)
        if step % max(1, options.steps // 10) == 0:
            print(f"step {step:5}   loss {mean:.3f}", flush=True)
    print("".join(alphabet[i] for i in sample(model, data[:1], options.context)))
    return losses


@torch.no_grad()
def sample(model: nn.Module, start: Tensor, context: int, length: int = 80) -> list[int]:
    text = start[None]
    for _ in range(length):
        chances = model(text[:, -context:])[:, -1].softmax(-1)
        text = torch.cat([text, torch.multinomial(chances, 1)], dim=1)
    return text[0].tolist()


def main(arguments: list[str] | None = None) -> list[float]:
    parser = argparse.ArgumentParser(description="a nanoGPT-style training script")
    license_ = Path(argparse.__file__).with_name("LICENSE.txt")
    parser.add_argument("--text", type=Path, default=license_, help="a file of plain text")
    parser.add_argument("--optimizer", choices=["lpsgdm", "lpmuon", "adamw"], default="lpsgdm")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    return train(parser.parse_args(arguments))


if __name__ == "__main__":
    main()
