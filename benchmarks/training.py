"""Training speed: each part prints a ratio against a named peer, both measured in this run.

python benchmarks/training.py [augmentation]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from lpsgd.lab.data.augment import Normalization, ShiftAndFlip

BATCH = 128
PADDING = 4


def best_times(
    functions: Sequence[Callable[[], object]], *, rounds: int, calls: int = 1
) -> list[float]:
    """Seconds per call in the best turn of each function; a turn is ``calls`` calls in a row. They
    take turns, so that whatever else the machine does hits all of them alike."""
    best = [float("inf")] * len(functions)
    for _ in range(rounds):
        for number, function in enumerate(functions):
            began = time.perf_counter()
            for _ in range(calls):
                function()
            best[number] = min(best[number], (time.perf_counter() - began) / calls)
    return best


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
        our_time, their_time = best_times([ours, pillow], rounds=rounds, calls=5)
    finally:
        torch.set_num_threads(threads)
    ratio = their_time / our_time
    print(
        f"augmentation of {BATCH} images: whole batch {our_time * 1e3:.2f} ms,"
        f" image by image with Pillow {their_time * 1e3:.2f} ms: {ratio:.1f} times as fast"
    )
    return ratio


PARTS = {"augmentation": augmentation}


def main() -> None:
    """Run the parts that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=list(PARTS), help="default: all")
    for part in parser.parse_args().parts or PARTS:
        PARTS[part]()


if __name__ == "__main__":
    main()
