"""CBR: reconstructs the after image from before and the sentence, and matches it with the real one.

Only training needs it. Names are those of the golden vectors, since the public code never stores
its weights.
Source: Tu et al., ICCV 2023, and its code.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cc_train.systems.scorer.encoder import MAX_SCALE


class Contrast(nn.Module):
    """Queries of reconstructions, keys of real images, and the temperature of their matching."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.logit_scale = nn.Parameter(torch.ones(()))
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)


class Reconstruction(nn.Module):
    """Projected features of before and a sentence → those of after, as it should look."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2 * width, width, 1)
        self.mh_att = nn.MultiheadAttention(width, heads, bias=False, batch_first=True)
        self.conv2 = nn.Sequential(nn.Conv2d(width, width, 1))
        self.contra = Contrast(width)

    def forward(self, before: Tensor, sentence: Tensor) -> Tensor:
        """Reconstructed after image [B, N, width] of before [B, N, width], sentence [B, width]."""
        joined = torch.cat((before, sentence[:, None].expand_as(before)), dim=2)
        x = _pointwise(self.conv1, joined)
        x = self.mh_att(x, x, x, need_weights=False)[0]
        return _pointwise(self.conv2[0], x)

    def queries(self, made_up: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        """Queries of the reconstruction and keys of the real image, [B, N, width] each."""
        return self.contra.query(made_up), self.contra.key(after)

    @property
    def scale(self) -> Tensor:
        """The factor on a matching."""
        return self.contra.logit_scale.exp()

    def clamp_scale(self) -> None:
        """Bounds the temperature, as in the encoder."""
        self.contra.logit_scale.data.clamp_(max=MAX_SCALE)


def sentence_of(hidden: Tensor, is_word: Tensor, over_slots: bool) -> Tensor:
    """A sentence in one vector [B, width]: the mean of its words' states [B, L, width].

    Args:
        is_word: [B, L], 1 at the words and at both marks.
        over_slots: The sum is divided by L, as in the public code, and not by the number of words.
    """
    weights = is_word.to(hidden.dtype)
    count = hidden.shape[1] if over_slots else weights.sum(1, keepdim=True).clamp(min=1)
    return (hidden * weights[:, :, None]).sum(1) / count


def _pointwise(conv: nn.Module, x: Tensor) -> Tensor:
    """A convolution of 1 × 1 on [B, N, channels]."""
    assert isinstance(conv, nn.Conv2d)
    return nn.functional.linear(x, conv.weight.flatten(1), conv.bias)
