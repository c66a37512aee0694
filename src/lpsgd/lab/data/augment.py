"""Cropping, flipping and normalising whole batches at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Normalization:
    """Per-channel mean and standard deviation of pixel values in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, images: Tensor) -> Tensor:
        """uint8 images (N, H, W, C) to float32 (N, C, H, W) in channels_last memory."""
        count, height, width, channels = images.shape
        std = torch.tensor(self.std, dtype=torch.float64)
        mean = torch.tensor(self.mean, dtype=torch.float64)
        # x*scale + shift over whole rows of pixels: inner loops of W*C, not of C = 3, elements
        scale = (1 / (255 * std)).float().repeat(width).to(images.device)
        shift = (-mean / std).float().repeat(width).to(images.device)
        rows = images.reshape(count * height, width * channels).float()
        normalized = torch.addcmul(shift, rows, scale)
        return normalized.view(count, height, width, channels).permute(0, 3, 1, 2)


def shift_and_flip(
    images: Tensor, index: Tensor, down: Tensor, right: Tensor, flip: Tensor, *, padding: int
) -> Tensor:
    """Take ``images[index]`` (N, H, W, C), mirror where ``flip``, pad with zeros, crop to H x W.

    ``down`` and ``right`` (from 0 to 2*padding) are the crop's corner in the padded image. The
    small index tensors are on the CPU; all pixels move on the device of ``images``.
    """
    _, height, width, channels = images.shape
    count, device = len(index), images.device
    tall, wide = height + 2 * padding, width + 2 * padding

    # Mirrored images are gathered behind the others, so that only they are reversed.
    order = torch.argsort(flip.byte(), stable=True)
    straight = count - int(flip.sum())
    source = index[order].to(device)
    padded = images.new_zeros(count, tall, wide, channels)
    inside = padded[:, padding : padding + height, padding : padding + width]
    inside[:straight] = images.index_select(0, source[:straight])
    inside[straight:] = images.index_select(0, source[straight:]).flip(2)

    # A row of a crop is width*channels bytes in one piece. Seen as overlapping rows, one for each
    # pixel where a row may start, the padded batch yields all crops in a single index_select.
    starts_in_padded = count * tall * wide - width + 1
    rows = padded.as_strided((starts_in_padded, width * channels), (channels, 1))
    position = torch.empty_like(order)
    position[order] = torch.arange(count)
    corner = (position * tall + down) * wide + right
    starts = corner[:, None] + torch.arange(height) * wide
    crops = rows.index_select(0, starts.flatten().to(device))
    return crops.view(count, height, width, channels)


def random_shift_and_flip(
    images: Tensor, index: Tensor, draw: torch.Generator, *, padding: int = 4, flip: bool = True
) -> Tensor:
    """:func:`shift_and_flip` with corners and mirrorings drawn from ``draw``."""
    count = len(index)
    down, right = torch.randint(0, 2 * padding + 1, (2, count), generator=draw)
    coin = torch.randint(0, 2, (count,), generator=draw, dtype=torch.bool)
    return shift_and_flip(
        images, index, down, right, coin if flip else torch.zeros_like(coin), padding=padding
    )
