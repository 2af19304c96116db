"""Pairs of images as the input of a model, and the position of each image token.

Each image is resized without cropping, so that a mask resized alike fits it: to a square, or, if
both are pasted side by side into one picture, to half of a square.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from cc_prep.errors import UserError
from cc_prep.weights import folders
from cc_train.systems.mllm.families import Family

DEFAULT_SIZE = 448  # px, for a processor that takes any
UNITS = 16  # of rows and of columns that an image has in a model that takes any size
# How the images of a pair enter: as two, or as one picture with before on the left, after on the
# right, each at half of its width.
ImageLayout = Literal["two", "pasted"]


@dataclass(frozen=True)
class Geometry:
    """The patches and tokens of a picture of `size` × `size` px: one image, or a pasted pair.

    Attributes:
        places: Number of image tokens in the prompt, for each image.
        patches: Rows and columns of the patches that the vision network sees.
        tokens: Rows and columns of the image tokens; None if they have no place in the image.
        merge: Patches of a token, by row and by column.
        patch: Side in px.
        slots: Position of each patch, row by row, in the vision network's sequence, int64 [rows ·
            columns].
        images: Number of pictures of a prompt.
        pasted: Whether that is one picture with both images side by side.
    """

    size: int
    places: int
    patches: tuple[int, int]
    tokens: tuple[int, int] | None
    slots: Tensor
    merge: int = 1
    patch: int = 1
    images: int = 2
    pasted: bool = False

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of each image in px."""
        return self.size, self.size // 2 if self.pasted else self.size


def geometry(
    family: Family, config: Any, size: int | None, layout: ImageLayout = "two"
) -> Geometry:
    """The geometry of a model's configuration.

    Args:
        size: Of a picture in px; None takes the model's own.

    Raises:
        UserError: For a size that it cannot take.
    """
    vision = config.vision_config
    patch, merge = side_of(vision.patch_size), merge_of(config)
    own = getattr(vision, "image_size", None) if family.pixels != "patches" else None
    side = size or (side_of(own) if own is not None else UNITS * patch * merge)
    if own is not None and side != side_of(own):
        raise UserError(
            f"model.image_size={side}: this model takes images of {side_of(own)} px",
            "Leave model.image_size out",
        )
    if side % (patch * merge):
        raise UserError(
            f"model.image_size ({side}) is not divisible by the size of an image token "
            f"({patch * merge} px)",
            f"Set a multiple of {patch * merge}",
        )
    count = side // patch
    if family.queries:
        places, tokens = int(config.num_query_tokens), None
    else:
        places, tokens = (count // merge) ** 2, (count // merge, count // merge)
    if family.name == "smolvlm":
        folders.check_image_groups(places, patch)
    windows = getattr(vision, "window_size", None) if family.pixels == "patches" else None
    unit = None if windows is None else int(windows) // merge // patch
    order = torch.arange(count * count)
    if family.pixels == "patches":
        order = sequence(count, count, merge, unit)
    shape = Geometry(
        size=side,
        places=places,
        patches=(count, count),
        tokens=tokens,
        slots=order.argsort(),
        merge=merge,
        patch=patch,
    )
    return _laid_out(shape, layout)


def _laid_out(shape: Geometry, layout: ImageLayout) -> Geometry:
    """The geometry of a prompt with two pictures, or with one of both images.

    Raises:
        UserError: For a picture that has no two halves.
    """
    if layout == "two":
        return shape
    if shape.size % 2:
        raise UserError(
            f"model.images=pasted: a picture of {shape.size} px has no two halves",
            "Set an even model.image_size, or model.images=two",
        )
    return replace(shape, images=1, pasted=True)


def require_pictures(family: Family, size: int | None, layout: ImageLayout) -> None:
    """Raises UserError for settings of images with a family that sees none."""
    if family.pixels != "features":
        return
    if layout == "pasted":
        raise UserError(
            f"model.images=pasted: family {family.name} sees features of each image",
            "Set model.images=two",
        )
    if size is not None:
        raise UserError(
            f"model.image_size={size}: family {family.name} sees the features in the shards",
            "Leave it out, and build the shards with that image_size",
        )


def side_by_side(before_after: Tensor) -> Tensor:
    """Pictures uint8 [B, 1, H, 2 · W, 3] of images uint8 [B, 2, H, W, 3], before on the left."""
    return torch.cat((before_after[:, :1], before_after[:, 1:]), dim=3)


def maps_of_sides(maps: Tensor) -> Tensor:
    """Maps [N, rows, columns] over pasted pictures, as the sum of the maps over both images.

    A middle column, if their number is odd, covers both images, so every column is split in two.
    """
    if maps.shape[-1] % 2:
        maps = maps.repeat_interleave(2, dim=-1) / 2
    before, after = maps.chunk(2, dim=-1)
    return before + after


def sequence(rows: int, columns: int, merge: int, window: int | None = None) -> Tensor:
    """The patch, counted row by row, at each place of a sequence in merge order.

    The `merge` × `merge` patches of an image token are consecutive.

    Args:
        window: Tokens are grouped by squares of so many rows and columns.
    """
    units = torch.arange(rows * columns).view(rows // merge, merge, columns // merge, merge)
    units = units.permute(0, 2, 1, 3).reshape(rows // merge, columns // merge, merge * merge)
    if window is None:
        return units.flatten()
    parts = [part for band in units.split(window, 0) for part in band.split(window, 1)]
    return torch.cat([part.flatten() for part in parts])


def normalised(before_after: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Pictures float32 [B, N, 3, H, W] of pictures uint8 [B, N, H, W, 3]."""
    pixels = before_after.permute(0, 1, 4, 2, 3).float() / 255
    shape = (1, 1, 3, 1, 1)
    return (pixels - pixels.new_tensor(mean).view(shape)) / pixels.new_tensor(std).view(shape)


def inputs(family: Family, shape: Geometry, pixels: Tensor, frames: int) -> dict[str, Tensor]:
    """The model's arguments for pictures [B, 2, 3, H, W] (before and after), or pasted ones [B, 1,
    3, H, W].

    Args:
        frames: Number of equal images in a patch, if the model takes patches.
    """
    if family.pixels == "pairs":
        return {"pixel_values": pixels}
    flat = pixels.flatten(0, 1)
    if family.pixels != "patches":
        return {"pixel_values": flat}
    rows, columns = shape.patches
    grid = torch.tensor([[1, rows, columns]], device=pixels.device).expand(len(flat), -1)
    values = patches(flat, shape.patch, shape.merge, frames)
    return {"pixel_values": values.flatten(0, 1), "image_grid_thw": grid}


@contextmanager
def encode_once(encoder: nn.Module, count: int) -> Iterator[None]:
    """Within the block, a vision network computes one of `count` equal parts of its input, and
    repeats the result: for a batch that holds the same images `count` times."""
    forward = encoder.forward

    def once(*arguments: Any, **options: Any) -> Any:
        first = [_first_part(value, count) for value in arguments]
        named = {name: _first_part(value, count) for name, value in options.items()}
        return _repeated(forward(*first, **named), count)

    encoder.forward = once
    try:
        yield
    finally:
        del encoder.forward  # its class's own is seen again


def _first_part(value: Any, count: int) -> Any:
    if not isinstance(value, Tensor):
        return value
    assert len(value) % count == 0, "not the same images each time"
    return value[: len(value) // count]


def _repeated(output: Any, count: int) -> Any:
    """The output of a network, tensors in any structure, repeated `count` times along the batch."""
    if isinstance(output, Tensor):
        return torch.cat([output] * count)
    if isinstance(output, Mapping):  # of transformers
        return type(output)(**{name: _repeated(part, count) for name, part in output.items()})
    if isinstance(output, (list, tuple)):
        return type(output)(_repeated(part, count) for part in output)
    return output


def patches(images: Tensor, patch: int, merge: int, frames: int) -> Tensor:
    """Patches [N, rows · columns, 3 · frames · patch²] of images [N, 3, H, W], in merge order."""
    count, channels, height, width = images.shape
    rows, columns = height // patch, width // patch
    cut = images.view(
        count, channels, rows // merge, merge, patch, columns // merge, merge, patch
    ).permute(0, 2, 5, 3, 6, 1, 4, 7)
    repeated = cut[:, :, :, :, :, :, None].expand(-1, -1, -1, -1, -1, -1, frames, -1, -1)
    return repeated.reshape(count, rows * columns, channels * frames * patch * patch)


def merge_of(config: Any) -> int:
    """Patches that an image token joins, by row and by column, from the configurations of Qwen-VL,
    SmolVLM and InternVL; 1 if the configuration does not say."""
    vision = getattr(config, "vision_config", config)
    side = getattr(vision, "spatial_merge_size", None) or getattr(config, "scale_factor", None)
    return int(side) if side else round(1 / (getattr(config, "downsample_ratio", None) or 1))


def side_of(size: Any) -> int:
    """The side in px from a configuration's number or pair of numbers; only squares are allowed.

    Raises:
        UserError: For a rectangle.
    """
    sides = list(size) if isinstance(size, (list, tuple)) else [size]
    if len(set(sides)) > 1:
        raise UserError(
            f"images of {sides} px", "Only models of square images and patches are known"
        )
    return int(sides[0])


def of_processor(
    processor: Any, config: Any, size: int | None, layout: ImageLayout = "two"
) -> tuple[Geometry, int]:
    """The geometry of a model of which only the processor is known, and the id of its image token.

    Args:
        size: Of the pictures that the processor is given, in px.

    Raises:
        UserError: For a processor that marks no image tokens.
    """
    side = size or DEFAULT_SIZE
    number = getattr(config, "image_token_id", None) or getattr(processor, "image_token_id", None)
    if number is None:
        raise UserError(
            "this model's processor has no token for the places of images",
            "Take a model of a family of ours",
        )
    several = 1 if layout == "pasted" else 2
    count = chat_tokens(processor, ("",) * several, "", side).count(int(number))
    places = count // several
    if not places or count % several:
        raise UserError(
            f"this model's processor gives {several} images {count} places together",
            "Take a model whose chat template takes two images, or set model.images=pasted",
        )
    cells = math.isqrt(places)
    tokens = (cells, cells) if cells * cells == places else None
    shape = Geometry(
        size=side,
        places=places,
        patches=tokens or (1, places),
        tokens=tokens,
        slots=torch.arange(places),
    )
    return _laid_out(shape, layout), int(number)


def chat_tokens(
    processor: Any, sides: tuple[str, ...], question: str, size: int = DEFAULT_SIZE
) -> list[int]:
    """The tokens of a prompt, by a processor's chat template.

    Args:
        sides: The words before each picture, one entry per picture.
        size: Of the pictures, in px.
    """
    content: list[dict[str, Any]] = []
    for side in sides:
        content += [{"type": "text", "text": side}] if side else []
        content.append({"type": "image"})
    content.append({"type": "text", "text": question})
    chat = processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    blank = np.zeros((size, size, 3), np.uint8)
    ids = processor(text=[chat], images=[[blank] * len(sides)])["input_ids"][0]
    return [int(number) for number in ids]
