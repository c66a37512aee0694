"""Training speed: each part prints a ratio against a named peer, both measured in this run.

python benchmarks/training.py [augmentation] [epoch] [step] [allocator]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn.functional import cross_entropy

from lpsgd.lab.data import load
from lpsgd.lab.data.augment import Normalization, ShiftAndFlip
from lpsgd.lab.errors import UserError
from lpsgd.lab.execution.local import KEEP_FREED
from lpsgd.lab.plan import resolve
from lpsgd.lab.training.trainer import Trainer

BATCH = 128
PADDING = 4


def turns(
    functions: Sequence[Callable[[], object]], *, rounds: int, calls: int = 1
) -> list[list[float]]:
    """Seconds per call in each turn of each function; a turn is ``calls`` calls in a row. They
    take turns, so that whatever else the machine does hits all of them alike; and it is the time of
    the processor, so that waiting for other programs does not count (all run on one thread)."""
    seconds: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, times in zip(functions, seconds, strict=True):
            began = time.process_time()
            for _ in range(calls):
                function()
            times.append((time.process_time() - began) / calls)
    return seconds


def paired(
    ours: Callable[[], object], theirs: Callable[[], object], *, rounds: int
) -> tuple[float, float, float]:
    """The median of our seconds, of theirs, and of the ratios of neighbouring turns.

    The ratio is not that of the medians or of the best turns: a machine that is fast for one of
    them and slow for the other moved those by 10 %.
    """
    a, b = turns([ours, theirs], rounds=rounds)
    return median(a), median(b), median(x / y for x, y in zip(a, b, strict=True))


def pillow_image(
    image: Image.Image, down: int, right: int, flip: bool, mean: Tensor, std: Tensor
) -> Tensor:
    """The steps of torchvision's transforms on one image: pad, crop, flip, to a float tensor in
    [0, 1], normalise."""
    width, height = image.size
    padded = ImageOps.expand(image, PADDING)
    crop = padded.crop((right, down, right + width, down + height))
    if flip:
        crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = torch.from_numpy(np.array(crop)).permute(2, 0, 1).contiguous()
    return pixels.float().div_(255).sub_(mean).div_(std)


def augmentation(rounds: int = 40) -> float:
    """How many times as fast as Pillow, image by image, a batch is cropped, flipped, normalised."""
    draw = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (10_000, 32, 32, 3), dtype=torch.uint8, generator=draw)
    index = torch.randint(0, len(pixels), (BATCH,), generator=draw)
    pictures = [Image.fromarray(image) for image in pixels[index].numpy()]
    normalize = Normalization(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))
    mean = torch.tensor(normalize.mean)[:, None, None]
    std = torch.tensor(normalize.std)[:, None, None]
    crop = ShiftAndFlip(pixels, padding=PADDING)

    def ours() -> Tensor:
        return normalize(crop.random(index, draw))

    def pillow() -> Tensor:
        batch = []
        for picture in pictures:
            down = int(torch.randint(0, 2 * PADDING + 1, (1,), generator=draw))
            right = int(torch.randint(0, 2 * PADDING + 1, (1,), generator=draw))
            flip = bool(torch.rand(1, generator=draw) < 0.5)
            batch.append(pillow_image(picture, down, right, flip, mean, std))
        return torch.stack(batch)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # Pillow has one, too
    try:
        our_time, their_time = map(min, turns([ours, pillow], rounds=rounds, calls=5))
    finally:
        torch.set_num_threads(threads)
    ratio = their_time / our_time
    print(
        f"augmentation of {BATCH} images: whole batch {our_time * 1e3:.2f} ms,"
        f" image by image with Pillow {their_time * 1e3:.2f} ms: {ratio:.1f} times as fast"
    )
    return ratio


def make_trainer(optimizer: str, batches: int = 8) -> Trainer:
    """ResNet-18 of width 16 on so many batches of CIFAR-10 (or, without it, of its shape)."""
    values: dict[str, object] = {"model": "resnet18", "width": 16, "batch_size": BATCH}
    sizes = {"train_size": batches * BATCH, "batch_size": BATCH}
    try:
        data = load("cifar10", **sizes)
    except UserError:
        data = load("synthetic", **sizes)
    return Trainer(resolve(values, optimizer), data, torch.device("cpu"))


def epoch(rounds: int = 16) -> float:
    """How long an epoch in the trainer takes, compared with a bare loop over ready tensors.

    Short epochs in many turns: single turns differ by 5 %.
    """
    torch.set_num_threads(1)
    trainer, plain = make_trainer("sgd:lr=0.01", batches=4), make_trainer("sgd:lr=0.01", batches=4)
    ready = list(plain.data.train.epoch(0))
    model, optimizer = plain.model, plain.optimizer

    def ours() -> None:
        last = len(ready) - 1
        for number, (images, labels) in enumerate(trainer.data.train.epoch(0)):
            trainer.train_step((images, labels), measure=number == last)
        trainer.settle()
        trainer.start_epoch()

    def bare() -> None:
        for images, labels in ready:
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()

    our_time, their_time, ratio = paired(ours, bare, rounds=rounds)
    print(
        f"an epoch of {len(ready)} batches, ResNet-18 of width 16: trainer {our_time * 1e3:.0f} ms,"
        f" bare loop over augmented tensors {their_time * 1e3:.0f} ms: {ratio:.3f} times as long"
    )
    return ratio


def step(rounds: int = 32) -> float:
    """How long a training step with LPSGDM takes, compared with one with SGD."""
    torch.set_num_threads(1)
    ours, theirs = make_trainer("lpsgdm:lr=1e-3,p_schedule=constant"), make_trainer("sgd:lr=0.01")
    images, labels = next(iter(theirs.data.train.epoch(0)))
    our_time, their_time, ratio = paired(
        lambda: ours.train_step((images, labels)),
        lambda: theirs.train_step((images, labels)),
        rounds=rounds,
    )
    print(
        f"a training step, ResNet-18 of width 16: LPSGDM (p=6) {our_time * 1e3:.1f} ms,"
        f" SGD {their_time * 1e3:.1f} ms: {ratio:.3f} times as long"
    )
    return ratio


STEPS = """
import sys, time, torch
from lpsgd.lab import models
torch.set_num_threads(1)
model = models.create(sys.argv[1], input_shape=(3, 16, 16), classes=10, width=16)
model = model.to(memory_format=torch.channels_last)
images = torch.randn(128, 3, 16, 16).to(memory_format=torch.channels_last)
def step():
    model.zero_grad()
    model(images).square().mean().backward()
for _ in range(5):
    step()
began = time.process_time()
for _ in range(20):
    step()
print((time.process_time() - began) / 20)
"""


def allocator(rounds: int = 7) -> float:
    """How long a step takes in a process that keeps freed memory, compared with glibc's default.

    The last ratio is returned; each is of two processes that ran one after the other.
    """
    plain = {name: value for name, value in os.environ.items() if name not in KEEP_FREED}
    for model in ("convnet", "resnet18"):
        pairs = []
        for _ in range(rounds):
            ours, theirs = (
                float(subprocess.check_output([sys.executable, "-c", STEPS, model], env=given))
                for given in ({**plain, **KEEP_FREED}, plain)
            )
            pairs.append((ours, theirs))
        ratio = median(ours / theirs for ours, theirs in pairs)
        print(
            f"forward and backward of {model} on 128 images of 16 x 16: in a worker process"
            f" {median(a for a, _ in pairs) * 1e3:.1f} ms, with glibc's default"
            f" {median(b for _, b in pairs) * 1e3:.1f} ms: {ratio:.3f} times as long"
        )
    return ratio


PARTS = {"augmentation": augmentation, "epoch": epoch, "step": step, "allocator": allocator}


def main(arguments: list[str] | None = None) -> None:
    """Run the parts that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"{', '.join(PARTS)}; default: all")
    parts = parser.parse_args(arguments).parts or list(PARTS)
    if missing := sorted(set(parts) - set(PARTS)):
        parser.error(f"unknown part {missing[0]!r}: choose from {', '.join(PARTS)}")
    for part in parts:
        PARTS[part]()


if __name__ == "__main__":
    main()
