"""A patch discriminator: one logit for every patch of an image.

Source: Isola et al., "Image-to-Image Translation with Conditional Adversarial Networks", 2017, as
taming-transformers uses it.
"""

from __future__ import annotations

from torch import Tensor, nn

WIDEST = 8


class PatchDiscriminator(nn.Module):
    """Images [N, 3, H, W] in [−1, 1] → logits [N, 1, h, w]; high means real."""

    def __init__(self, channels: int = 64, layers: int = 3) -> None:
        super().__init__()
        parts: list[nn.Module] = [nn.Conv2d(3, channels, 4, 2, 1), nn.LeakyReLU(0.2)]
        width = channels
        for number in range(1, layers + 1):
            out = channels * min(2**number, WIDEST)
            stride = 2 if number < layers else 1
            parts += [
                nn.Conv2d(width, out, 4, stride, 1, bias=False),
                nn.BatchNorm2d(out),
                nn.LeakyReLU(0.2),
            ]
            width = out
        self.main = nn.Sequential(*parts, nn.Conv2d(width, 1, 4, 1, 1))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, 0.0, 0.02)
            elif isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.weight, 1.0, 0.02)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.main(images)
        return logits
