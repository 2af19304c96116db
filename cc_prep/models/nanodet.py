"""NanoDet-g: a small detector of the 80 classes of COCO.

Source: https://github.com/RangiLyu/nanodet, its configuration nanodet-g. A backbone of cross-stage
partial blocks, a path aggregation network, and a head for each of three strides. The head predicts
the class scores of each place, and for each side of its box a distribution over 11 distances, as in
Li et al., "Generalized Focal Loss", NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cc_prep.errors import UserError

SIDE = 416  # px of its images, which were trained on at this size
# Of the blue, green and red channel of images in 0 … 255: it was trained on BGR.
MEAN, STD = (103.53, 116.28, 123.675), (57.375, 57.12, 58.395)
STRIDES = (8, 16, 32)
DISTANCES = 11  # of a side from the place, in strides: 0 … 10
WIDTH = 128  # channels of the path aggregation network and of the heads
SLOPE = 0.1  # of the activations below 0
MAX_OVERLAP = 0.5  # intersection over union of two detections that are kept
CLASSES = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat",
    "traffic light", "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog",
    "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe", "backpack", "umbrella",
    "handbag", "tie", "suitcase", "frisbee", "skis", "snowboard", "sports ball", "kite",
    "baseball bat", "baseball glove", "skateboard", "surfboard", "tennis racket", "bottle",
    "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich", "orange",
    "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch", "potted plant",
    "bed", "dining table", "toilet", "tv", "laptop", "mouse", "remote", "keyboard", "cell phone",
    "microwave", "oven", "toaster", "sink", "refrigerator", "book", "clock", "vase", "scissors",
    "teddy bear", "hair drier", "toothbrush",
)  # fmt: skip


class Detection(NamedTuple):
    """An object in an image.

    Attributes:
        label: One of `CLASSES`.
        score: How sure the detector is, 0 to 1.
        box: Left, top, right and bottom edge as shares of the image's width and height, 0 to 1.
    """

    label: str
    score: float
    box: tuple[float, float, float, float]


class NanoDet(nn.Module):
    """Images → class scores and boxes of places; always in evaluation mode."""

    mean: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.stem = Convolution(3, 32, stride=2)
        self.stages = nn.ModuleList(
            (
                PartialStage(32, blocks=1, stride=1),
                PartialStage(64, blocks=2, stride=2),
                PartialStage(128, blocks=2, stride=2),
                PartialStage(256, blocks=3, stride=2),
            )
        )
        self.laterals = nn.ModuleList(nn.Conv2d(channels, WIDTH, 1) for channels in (128, 256, 512))
        outputs = len(CLASSES) + 4 * DISTANCES
        self.heads = nn.ModuleList(
            nn.Sequential(Convolution(WIDTH, WIDTH), nn.Conv2d(WIDTH, outputs, 1)) for _ in STRIDES
        )
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD).view(3, 1, 1), persistent=False)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> NanoDet:
        """A frozen network with a checkpoint's tensors.

        Raises:
            UserError: The tensors are another network's.
        """
        network = cls()
        try:
            network.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
        except RuntimeError as error:
            reason = str(error).splitlines()[1].strip()
            raise UserError(
                f"these are no NanoDet weights: {reason}", "Give nanodet, which has a name here"
            ) from None
        return network.requires_grad_(False).eval()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and boxes of all places, those of the finest stride first.

        Args:
            images: Float [N, 3, H, W], RGB in [0, 1], sides multiples of 32, best of `SIDE`.

        Returns:
            Scores [N, places, 80] in [0, 1], and boxes [N, places, 4] in px: left, top, right and
            bottom, which may lie outside the image.
        """
        scores, boxes = [], []
        for outputs, stride in zip(self.outputs(images), STRIDES, strict=True):
            distances = outputs[..., len(CLASSES) :].unflatten(-1, (4, DISTANCES)).softmax(-1)
            bins = torch.arange(DISTANCES, dtype=distances.dtype, device=distances.device)
            left, top, right, bottom = (stride * (distances @ bins)).unbind(-1)
            rows, columns = (side // stride for side in images.shape[2:])
            y = stride * (torch.arange(rows, device=images.device) + 0.5).repeat_interleave(columns)
            x = stride * (torch.arange(columns, device=images.device) + 0.5).repeat(rows)
            boxes.append(torch.stack((x - left, y - top, x + right, y + bottom), dim=-1))
            scores.append(outputs[..., : len(CLASSES)].sigmoid())
        return torch.cat(scores, dim=1), torch.cat(boxes, dim=1)

    def outputs(self, images: Tensor) -> list[Tensor]:
        """What the head of each stride gives: logits [N, places, 80 + 4 · 11].

        Args:
            images: As `forward` takes them.
        """
        heads = zip(self.heads, self.levels(images), strict=True)
        return [head(level).flatten(2).transpose(1, 2) for head, level in heads]

    def levels(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the heads of the STRIDES see of images, each [N, WIDTH, H / stride, W / stride]."""
        x = F.max_pool2d(self.stem((255 * images.flip(1) - self.mean) / self.std), 3, 2, 1)
        levels = []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        fine, middle, coarse = (
            lateral(level) for lateral, level in zip(self.laterals, levels[1:], strict=True)
        )
        middle = middle + _resized(coarse, middle)
        fine = fine + _resized(middle, fine)
        middle = middle + _resized(fine, middle)
        return fine, middle, coarse + _resized(middle, coarse)

    def places(self, images: Tensor) -> Tensor:
        """What `forward` gives as one tensor, [N, places, 80 + 4]."""
        return torch.cat(self(images), dim=2)


class Convolution(nn.Conv2d):
    """A 3×3 convolution and its activation; batch normalisation is folded into its weights."""

    def __init__(self, channels: int, out: int, stride: int = 1) -> None:
        super().__init__(channels, out, 3, stride, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(super().forward(x), SLOPE)


class PartialBlock(nn.Module):
    """Two convolutions to half of the channels each, side by side: the size stays."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = Convolution(channels, channels // 2)
        self.second = Convolution(channels // 2, channels // 2)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        return torch.cat((self.second(first), first), dim=1)


class PartialStage(nn.Module):
    """A cross-stage partial stage: what went through its blocks, and what went past them."""

    def __init__(self, channels: int, blocks: int, stride: int) -> None:
        super().__init__()
        self.enter = Convolution(channels, channels, stride)
        self.blocks = nn.Sequential(*(PartialBlock(channels) for _ in range(blocks)))
        self.leave = Convolution(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        entered = self.enter(x)
        return torch.cat((self.leave(self.blocks(entered)), entered), dim=1)


def overlap(one: Tensor, others: Tensor) -> Tensor:
    """Intersection over union of a box [4] with others [M, 4], [M]."""
    corners = torch.minimum(one[2:], others[:, 2:]) - torch.maximum(one[:2], others[:, :2])
    shared = corners.clamp(min=0).prod(-1)
    areas = (others[:, 2:] - others[:, :2]).prod(-1) + (one[2:] - one[:2]).prod()
    return shared / (areas - shared).clamp(min=1e-9)


def detections(places: Tensor, size: tuple[int, int], min_score: float) -> list[list[Detection]]:
    """The objects in each image, surest first; of two that overlap, the surer one.

    Args:
        places: Of `NanoDet.places`.
        size: Height and width of the images in px.
        min_score: Of the detections that are returned.
    """
    height, width = size
    sides = torch.tensor((width, height, width, height), device=places.device)
    scores, boxes = places.split((len(CLASSES), 4), dim=2)
    return [
        _kept(of_image.cpu(), (of_box / sides).clamp(0, 1).cpu(), min_score)
        for of_image, of_box in zip(scores, boxes, strict=True)
    ]


def _resized(level: Tensor, like: Tensor) -> Tensor:
    return F.interpolate(level, size=like.shape[2:], mode="bilinear", align_corners=False)


def _kept(scores: Tensor, boxes: Tensor, min_score: float) -> list[Detection]:
    """The detections of an image. scores: [places, 80]. boxes: [places, 4], shares of its size."""
    best, labels = scores.max(1)
    rows = (best >= min_score).nonzero()[:, 0]
    rows = rows[best[rows].argsort(descending=True, stable=True)]
    kept: list[int] = []
    for row in rows.tolist():
        if not kept or overlap(boxes[row], boxes[kept]).max() <= MAX_OVERLAP:
            kept.append(row)
    return [
        Detection(CLASSES[int(labels[row])], float(best[row]), tuple(boxes[row].tolist()))
        for row in kept
    ]
