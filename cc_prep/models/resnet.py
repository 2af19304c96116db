"""ResNet-101 up to its third stage, whose output most change captioners take as their features.

It is torchvision's network without its last stage and classifier. Source: He et al., "Deep Residual
Learning for Image Recognition", CVPR 2016, with the stride in the 3×3 convolution.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torchvision.models.resnet import Bottleneck, ResNet

from cc_prep.errors import UserError

# Of ImageNet's images in [0, 1], RGB.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CHANNELS = 1024
UNUSED = ("layer4.", "fc.")


class ResNet101(ResNet):
    """Images [N, 3, H, W] in [0, 1] → [N, 1024, H / 16, W / 16]; always in evaluation mode."""

    mean: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__(Bottleneck, [3, 4, 23, 3])
        del self.layer4, self.avgpool, self.fc
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD).view(3, 1, 1), persistent=False)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> ResNet101:
        """A frozen network with a checkpoint's tensors.

        Raises:
            UserError: For another network's.
        """
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
        x = self.relu(self.bn1(self.conv1((images - self.mean) / self.std)))
        stages: Tensor = self.layer3(self.layer2(self.layer1(self.maxpool(x))))
        return stages
