"""Training a VQGAN: L1, perceptual distance, codebook, and a patch discriminator.

Source: Esser et al., 2021, section 3.1, and taming-transformers: the adversarial weight adapts to
the ratio of gradients at the decoder's last layer; the codebook loss has β at the term that moves
the codes ("legacy"), which keeps training compatible with published checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from cc_prep.models.cpu import use_kernels
from cc_prep.models.vqgan import VQGAN, Config
from cc_prep.settings import Section
from cc_prep.steps.tokenization import images_of, indices_of
from cc_train.runs.checkpoints import Criterion
from cc_train.systems.vqgan.discriminator import PatchDiscriminator
from cc_train.systems.vqgan.perceptual import Backbone, make
from cc_train.training import optim
from cc_train.training.objective import Objective

MAX_ADVERSARIAL = 1e4
SHOWN = 8


class Weights(Section):
    """Weights of the losses, and the schedule of the discriminator and of dead codes."""

    pixel: float = Field(1.0, ge=0)
    """Of the absolute error of pixels in [−1, 1]."""
    squared: float = Field(0.0, ge=0)
    """Of their squared error, in which a small object of a wrong color weighs far more; not in the
    reference."""
    perceptual: float = Field(0.25, ge=0)
    """Of the perceptual distance."""
    backbone: Backbone = "efficientnet-lite0"
    """The network of the perceptual distance; `efficientnet-lite0-x2` tells shapes of small objects
    apart and takes longer; `lpips` needs that package."""
    codebook: float = Field(1.0, ge=0)
    """Of the codebook's loss."""
    beta: float = Field(0.25, ge=0)
    """Of the term of it that moves the codes."""
    legacy: bool = True
    """Whether `beta` is on that term, as in the code of taming-transformers, or on the other."""
    adversarial: float = Field(0.8, ge=0)
    """Of the discriminator, which is balanced with the rest at the decoder's last layer."""
    discriminator_start: int = Field(1000, ge=0)
    """Step from which the discriminator takes part; before, it does not run."""
    discriminator_channels: int = Field(32, ge=1)
    """Channels of its first layer."""
    discriminator_layers: int = Field(2, ge=1)
    """Its layers."""
    revive_every: int = Field(100, ge=0)
    """Every so many steps, codes that were not used since the last time are moved onto features of
    the batch; 0 is never."""
    revive_until: int = Field(2000, ge=0)
    """The last step at which this happens."""


class VqganObjective(Objective):
    """The `Objective` of generator and discriminator, which are its two phases.

    Args:
        held_out: Batches of images [N, 3, H, W] in [0, 1] for validation.
        weight_decay: Of filters; norms, biases and codes never decay.
    """

    network: VQGAN
    criterion = Criterion("psnr", higher_is_better=True)
    phases: tuple[str, ...] = ("generator", "discriminator")
    over = "batch"

    def __init__(
        self,
        network: Config,
        weights: Weights,
        held_out: Iterable[Tensor],
        device: str,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(use_kernels(VQGAN(network).to(device)))
        self.weight_decay = weight_decay
        self.weights, self.held_out, self.device = weights, held_out, device
        self.discriminator = PatchDiscriminator(
            weights.discriminator_channels, weights.discriminator_layers
        ).to(device)
        self.others = {"discriminator": self.discriminator}
        self.usage = torch.zeros(network.codes, dtype=torch.int64, device=device)
        self.buffers = {"usage": self.usage}
        self.distance = make(weights.backbone) if weights.perceptual else None
        if self.distance is not None:
            self.distance.to(device)
        if not weights.adversarial:
            self.phases = ("generator",)
        self.rebuilt: Tensor | None = None
        self.vectors: Tensor | None = None

    def groups(self, phase: str) -> list[dict[str, Any]]:
        module = self.network if phase == "generator" else self.discriminator
        return optim.param_groups([module], self.weight_decay)

    def losses(
        self, phase: str, batch: Tensor, step: int, denominators: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        if phase == "generator":
            return self._generator(batch, step)
        assert self.rebuilt is not None
        if step < self.weights.discriminator_start:  # no gradients, so it does not even decay
            return {"total": torch.zeros((), device=batch.device, requires_grad=True)}
        real = self.discriminator(2 * batch - 1).float()
        fake = self.discriminator(self.rebuilt).float()
        return {"total": (F.relu(1 - real).mean() + F.relu(1 + fake).mean()) / 2}

    def _generator(self, images: Tensor, step: int) -> dict[str, Tensor]:
        network, weigh = self.network, self.weights
        vectors = network.quant_conv(network.features(images)).float()
        if step == 0 and weigh.revive_every:
            self._revive(vectors)  # the first codes are features, not noise
        indices = network.quantize.nearest(vectors.detach())
        self.usage += torch.bincount(indices.flatten(), minlength=len(self.usage))
        self.vectors = vectors.detach()
        codes = network.quantize.embedding(indices).permute(0, 3, 1, 2).float()
        pull, push = F.mse_loss(codes, vectors.detach()), F.mse_loss(vectors, codes.detach())
        codebook = push + weigh.beta * pull if weigh.legacy else pull + weigh.beta * push
        # The gradient passes the codebook as if it were not there.
        through = vectors + (codes - vectors).detach()
        rebuilt = network.decoder(network.post_quant_conv(through))
        self.rebuilt = rebuilt.detach()
        pixel = F.l1_loss(rebuilt.float(), 2 * images - 1)
        losses = {"pixel": pixel, "codebook": codebook}
        reconstruction = weigh.pixel * pixel
        if weigh.squared:
            losses["squared"] = F.mse_loss(rebuilt.float(), 2 * images - 1)
            reconstruction = reconstruction + weigh.squared * losses["squared"]
        if self.distance is not None:
            # A frozen network: in float32, so that training and validation measure the same.
            with torch.autocast(images.device.type, enabled=False):
                losses["perceptual"] = self.distance((rebuilt.float() + 1) / 2, images)
            reconstruction = reconstruction + weigh.perceptual * losses["perceptual"]
        total = reconstruction + weigh.codebook * codebook
        if weigh.adversarial and step >= weigh.discriminator_start:
            fooled = -self.discriminator(rebuilt).float().mean()
            adaptive = self._adaptive(reconstruction, fooled)
            losses |= {"adversarial": fooled, "adaptive": adaptive}
            total = total + weigh.adversarial * adaptive * fooled
        return {"total": total, **losses}

    def _adaptive(self, rebuilt: Tensor, fooled: Tensor) -> Tensor:
        """The weight with which both gradients have the same norm at the last layer."""
        last = self.network.decoder.conv_out.weight
        one = torch.autograd.grad(rebuilt, last, retain_graph=True)[0].norm()
        other = torch.autograd.grad(fooled, last, retain_graph=True)[0].norm()
        return (one / (other + 1e-4)).clamp(0, MAX_ADVERSARIAL).detach()

    def after_step(self, step: int) -> None:
        every = self.weights.revive_every
        if every and 0 < step < self.weights.revive_until and step % every == 0:
            assert self.vectors is not None
            self._revive(self.vectors)

    def _revive(self, vectors: Tensor) -> None:
        """Moves codes that were not used since the last time onto features [N, C, h, w]."""
        flat = vectors.detach().permute(0, 2, 3, 1).flatten(0, 2)
        dead = torch.nonzero(self.usage == 0).flatten()[: len(flat)]
        chosen = torch.randperm(len(flat), device="cpu")[: len(dead)].to(flat.device)
        self.network.quantize.embedding.weight.data[dead] = flat[chosen]
        self.usage.zero_()

    def validate(self, network: nn.Module) -> tuple[dict[str, float], np.ndarray | None]:
        assert isinstance(network, VQGAN)
        metrics, picture = measure(network, self.held_out, self.device)
        return metrics, picture


def measure(
    network: VQGAN, batches: Iterable[Tensor], device: str
) -> tuple[dict[str, float], np.ndarray | None]:
    """PSNR in dB, mean absolute error, and use of the codebook; and a picture of some images.

    perplexity: 2 to the entropy of the codes' frequencies; used: share of codes that occur.
    """
    counts = torch.zeros(network.config.codes, dtype=torch.int64)
    errors: list[float] = []
    absolute: list[float] = []
    examples: list[tuple[Tensor, Tensor]] = []
    for images in batches:
        images = images.to(device)
        indices = indices_of(network, images)
        rebuilt = images_of(network, indices)
        counts += torch.bincount(indices.flatten().cpu(), minlength=len(counts))
        errors += (rebuilt - images).square().mean(dim=(1, 2, 3)).tolist()
        absolute += (rebuilt - images).abs().mean(dim=(1, 2, 3)).tolist()
        fits = not examples or examples[0][0].shape[2:] == images.shape[2:]
        if len(examples) < SHOWN and fits:
            examples.append((images[:1], rebuilt[:1]))
    shares = counts[counts > 0] / counts.sum()
    metrics = {
        "psnr": float(np.mean([10 * np.log10(1 / max(e, 1e-10)) for e in errors])),
        "absolute": float(np.mean(absolute)),
        "used": float((counts > 0).float().mean()),
        "perplexity": float(2 ** -(shares * shares.log2()).sum()),
    }
    sides = [torch.cat(side) for side in zip(*examples, strict=True)]
    return metrics, grid(*sides) if examples else None


def grid(images: Tensor, rebuilt: Tensor) -> np.ndarray:
    """Images above their reconstructions, uint8 [2·H, N·W, 3]."""
    rows = [torch.cat(list(row), dim=2) for row in (images, rebuilt)]
    pixels = torch.cat(rows, dim=1).permute(1, 2, 0) * 255
    picture: np.ndarray = pixels.round().clamp(0, 255).to(torch.uint8).cpu().numpy()
    return picture
