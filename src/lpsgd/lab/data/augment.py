"""Cropping, flipping and normalising whole batches at once."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
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
        scale, shift = self._rows(width, images.device)
        rows = images.reshape(count * height, width * channels).float()
        torch.addcmul(shift, rows, scale, out=rows)
        return rows.view(count, height, width, channels).permute(0, 3, 1, 2)

    @functools.lru_cache(maxsize=16)  # noqa: B019 - a handful of small, frozen objects
    def _rows(self, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
        # x*scale + shift for a whole row of pixels: inner loops of W*C, not of C = 3, elements
        std = torch.tensor(self.std, dtype=torch.float64)
        mean = torch.tensor(self.mean, dtype=torch.float64)
        scale, shift = 1 / (255 * std), -mean / std
        return scale.float().repeat(width).to(device), shift.float().repeat(width).to(device)


class ShiftAndFlip:
    """Random crops with zero padding and mirror images, a whole batch at a time.

    It keeps a padded batch as scratch memory, because fresh memory costs more than the work on it:
    one object serves one stream of batches.
    """

    def __init__(self, images: Tensor, *, padding: int = 4) -> None:
        """``images`` (N, H, W, C), any type, on any device."""
        self.images = images.contiguous()
        self.padding = padding
        self._scratch = images.new_zeros(0)

    def __call__(self, index: Tensor, down: Tensor, right: Tensor, flip: Tensor) -> Tensor:
        """Take ``images[index]``, mirror where ``flip``, pad, crop to the old height and width.

        ``down`` and ``right`` (from 0 to 2*padding) are the crop's corner in the padded image.
        These small tensors are on the CPU; all pixels move on the device of the images.
        """
        _, height, width, channels = self.images.shape
        count, edge = len(index), self.padding
        padded = self._padded(count)
        # Mirrored images are gathered behind the others, so that only they are reversed. (The
        # arithmetic is numpy's: on so few numbers torch would spend its time on the calls.)
        order = np.argsort(flip.numpy(), kind="stable")
        straight = count - int(np.count_nonzero(flip.numpy()))
        source = self._to_device(index.numpy()[order])
        inside = padded[:, edge : edge + height, edge : edge + width]
        inside[:straight] = self.images.index_select(0, source[:straight])
        inside[straight:] = self.images.index_select(0, source[straight:]).flip(2)

        # A row of a crop is width*channels values in one piece. Seen as overlapping rows, one for
        # each pixel where a row may start, the padded batch yields all crops in one index_select.
        _, tall, wide, _ = padded.shape
        row = width * channels
        rows = padded.as_strided((count * tall * wide - width + 1, row), (channels, 1))
        position = np.empty_like(order)
        position[order] = np.arange(count)
        corners = (position * tall + down.numpy()) * wide + right.numpy()
        starts = corners[:, None] + np.arange(height) * wide
        crops = rows.index_select(0, self._to_device(starts.ravel()))
        return crops.view(count, height, width, channels)

    def random(
        self,
        index: Tensor,
        draw: torch.Generator,
        *,
        flip: bool = True,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Take ``images[index]``, cropped and mirrored at random by ``draw``.

        With ``rows``, only those of the batch, as they are when all are made.
        """
        down, right = torch.randint(0, 2 * self.padding + 1, (2, len(index)), generator=draw)
        coin = torch.randint(0, 2, (len(index),), generator=draw, dtype=torch.bool)
        coin = coin if flip else torch.zeros_like(coin)
        if rows is not None:
            index, down, right, coin = index[rows], down[rows], right[rows], coin[rows]
        return self(index, down, right, coin)

    def _to_device(self, numbers: npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(numbers).to(self.images.device)

    def _padded(self, count: int) -> Tensor:
        # only the inside is ever written, so the border stays zero
        if len(self._scratch) < count:
            _, height, width, channels = self.images.shape
            edge = 2 * self.padding
            self._scratch = self.images.new_zeros(count, height + edge, width + edge, channels)
        return self._scratch[:count]
