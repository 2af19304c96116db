"""Frames → codebook indices of a VQGAN."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from cc_prep.errors import UserError
from cc_prep.models.cpu import image_by_image, use_kernels
from cc_prep.models.vqgan import VQGAN
from cc_prep.steps.base import Multiple, check_divisible

MAX_CODES = 2**15  # indices are stored as int16


class Tokenizer:
    """Runs a VQGAN on sequences: on a GPU a sequence's frames together, on a CPU one at a time.

    Float sums depend on the batch size, so it is always the same.
    """

    def __init__(self, network: VQGAN, device: str = "cpu") -> None:
        if network.config.codes > MAX_CODES:
            raise UserError(
                f"a codebook of {network.config.codes} entries",
                f"At most {MAX_CODES} can be stored",
            )
        self.network, self.device = use_kernels(network.to(device).eval()), device
        self.multiple = Multiple.of_tokens(network.config.factor)

    def __call__(self, frames: np.ndarray) -> np.ndarray:
        """Indices int16 [F, h, w] of frames uint8 [F, H, W, 3].

        Raises:
            RejectedPair: If a side is not divisible by the network's factor.
        """
        check_divisible(frames.shape[1:3], self.multiple)
        pixels = torch.tensor(frames, device=self.device).permute(0, 3, 1, 2).float() / 255
        with torch.inference_mode():
            indices = indices_of(self.network, pixels)
        codes: np.ndarray = indices.to(torch.int16).cpu().numpy()
        return codes

    def reconstruct(self, tokens: np.ndarray) -> np.ndarray:
        """Frames uint8 [F, H, W, 3] of indices [F, h, w]."""
        indices = torch.tensor(tokens.astype(np.int64), device=self.device)
        with torch.inference_mode():
            pixels = images_of(self.network, indices).permute(0, 2, 3, 1)
            images: np.ndarray = (pixels * 255).round().to(torch.uint8).cpu().numpy()
        return images


def indices_of(network: VQGAN, images: Tensor) -> Tensor:
    """Codebook indices int64 [N, h, w] of images [N, 3, H, W] in [0, 1], without gradients."""
    return network.indices(image_by_image(network.features, images))


def images_of(network: VQGAN, indices: Tensor) -> Tensor:
    """Images [N, 3, H, W] in [0, 1] of codebook indices [N, h, w], without gradients."""
    return image_by_image(network.decode, network.vectors(indices), network.config.factor)
