"""ResNet-101 up to its third stage, whose output most change captioners take as their features.

Module names follow torchvision's checkpoint; its last stage and classifier are not used. Source:
He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, with the stride in the 3×3
convolution, as torchvision has it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cc_prep.errors import UserError

# Of ImageNet's images in [0, 1], RGB.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Blocks of each stage, and the channels inside a block.
STAGES = ((3, 64), (4, 128), (23, 256))
EXPANSION = 4
CHANNELS = STAGES[-1][1] * EXPANSION
UNUSED = ("layer4.", "fc.")


class ResNet101(nn.Module):
    """Images [N, 3, H, W] in [0, 1] → [N, 1024, H / 16, W / 16]; always in evaluation mode."""

    mean: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        channels = 64
        for number, (blocks, width) in enumerate(STAGES, 1):
            stage = nn.Sequential()
            for index in range(blocks):
                stride = 2 if number > 1 and index == 0 else 1
                stage.append(Bottleneck(channels, width, stride))
                channels = width * EXPANSION
            self.add_module(f"layer{number}", stage)
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD).view(3, 1, 1), persistent=False)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> ResNet101:
        """A frozen network with a checkpoint's tensors. Raises UserError for another network's."""
        network = cls()
        own = {name: t.float() for name, t in tensors.items() if not name.startswith(UNUSED)}
        try:
            network.load_state_dict(own)
        except RuntimeError as error:
            reason = str(error).splitlines()[1].strip()
            raise UserError(
                f"these are no ResNet-101 weights: {reason}",
                "Give torchvision's checkpoint of ResNet-101 (IMAGENET1K_V1)",
            ) from None
        return network.requires_grad_(False).eval()

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1((images - self.mean) / self.std)))
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        for number in range(1, len(STAGES) + 1):
            x = self.get_submodule(f"layer{number}")(x)
        return x


class Bottleneck(nn.Module):
    """Narrow, filter, widen; added to the input, which a convolution fits to another shape."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        wide = width * EXPANSION
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.downsample: nn.Module = nn.Identity()
        if stride > 1 or channels != wide:
            shortcut = nn.Conv2d(channels, wide, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(wide))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        return F.relu(self.bn3(self.conv3(out)) + self.downsample(x))
