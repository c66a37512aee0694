"""A ResNet on a folder of images, one folder inside it for each class.

    python examples/image_folder.py FOLDER [--epochs 10] [--size 32] [--width 16]

With the schedule of the paper: p is constant within an epoch and falls from 6 to 2 over the run.
Needs pillow.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, random_split

from lpsgd import LPSGDM, CosineP, param_groups

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class ImageFolder(Dataset):
    """(image of 3 x size x size in [-1, 1], number of its class)"""

    def __init__(self, folder: Path, size: int) -> None:
        self.size = size
        self.classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
        self.files = [
            (path, number)
            for number, name in enumerate(self.classes)
            for path in sorted((folder / name).iterdir())
        ]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, number = self.files[index]
        with Image.open(path) as image:
            small = image.convert("RGB").resize((self.size, self.size))
            pixels = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8)
        return pixels.view(self.size, self.size, 3).permute(2, 0, 1) / 127.5 - 1, number


class Residual(nn.Module):
    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.skip = nn.Conv2d(width_in, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.skip(x))


def resnet(classes: int, width: int) -> nn.Module:
    """Four stages of one block each; more blocks in a stage make ResNet-18."""
    widths = [width, width, 2 * width, 4 * width, 8 * width]
    blocks = [Residual(widths[i], widths[i + 1], stride=2 if i else 1) for i in range(4)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes)]
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), *blocks, *head)


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    hits = [(model(x.to(DEVICE)).argmax(1) == y.to(DEVICE)).float() for x, y in loader]
    return torch.cat(hits).mean().item()


def train(folder: Path, epochs: int, size: int, width: int, batch: int = 16) -> float:
    """Train on nine tenths of the images; the accuracy on the others."""
    torch.manual_seed(0)
    data = ImageFolder(folder, size)
    training, held_out = random_split(data, [0.9, 0.1])
    loader = DataLoader(training, batch, shuffle=True, drop_last=len(training) > batch)
    model = resnet(len(data.classes), width).to(DEVICE)
    schedule = CosineP(6, total_epochs=epochs, steps_per_epoch=len(loader))
    groups = param_groups(model, weight_decay=0.01)  # none on norms and biases
    optimizer = LPSGDM(groups, lr=1e-2, p=schedule)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1e-2, total_steps=epochs * len(loader), cycle_momentum=False
    )
    for epoch in range(epochs):
        model.train()
        for x, y in loader:
            loss = F.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        score = accuracy(model, DataLoader(held_out, batch))
        p = optimizer.param_groups[0]["p"]
        print(f"epoch {epoch + 1:3}   p {p:.2f}   loss {loss.item():.3f}   accuracy {score:.1%}")
    return score


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description="a ResNet on a folder of images")
    parser.add_argument("folder", type=Path, help="holds a folder of images for each class")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--size", type=int, default=32, help="images are scaled to this")
    parser.add_argument("--width", type=int, default=16, help="channels of the first stage")
    options = parser.parse_args(arguments)
    return train(options.folder, options.epochs, options.size, options.width)


if __name__ == "__main__":
    main()
