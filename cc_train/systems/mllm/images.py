"""Pairs of images as the input of a model, and where each token of an image lies.

Each image is resized to a square without cropping, so that a mask resized alike lies over it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cc_prep.errors import UserError
from cc_train.systems.mllm.families import Family

DEFAULT_SIZE = 448  # px, for a processor that takes any
UNITS = 16  # of rows and of columns that an image has in a model that takes any size


@dataclass(frozen=True)
class Geometry:
    """What an image of `size` × `size` px is for a model.

    places: image tokens in the prompt, for each image. patches: rows and columns of the patches
    that the vision network sees. tokens: rows and columns of the image tokens; None where they have
    no places. merge: patches of a token, by row and by column. patch: in px. slots: where each
    patch, row by row, stands in the vision network's sequence, int64 [rows · columns]. images: how
    many a prompt has.
    """

    size: int
    places: int
    patches: tuple[int, int]
    tokens: tuple[int, int] | None
    slots: Tensor
    merge: int = 1
    patch: int = 1
    images: int = 2


def geometry(family: Family, config: Any, size: int | None) -> Geometry:
    """That of a model's configuration.

    size: in px; None takes the model's own. Raises UserError for a size that it cannot take.
    """
    vision = config.vision_config
    patch, merge = _first(vision.patch_size), _merge(family, config)
    own = getattr(vision, "image_size", None) if family.pixels != "patches" else None
    side = size or (_first(own) if own is not None else UNITS * patch * merge)
    if own is not None and side != _first(own):
        raise UserError(
            f"model.image_size={side}: this model takes images of {_first(own)} px",
            "Leave model.image_size out",
        )
    if side % (patch * merge):
        raise UserError(
            f"model.image_size={side} is not in whole parts of {patch * merge} px",
            f"Set a multiple of {patch * merge}",
        )
    count = side // patch
    if family.queries:
        places, tokens = int(config.num_query_tokens), None
    else:
        places, tokens = (count // merge) ** 2, (count // merge, count // merge)
    if family.name == "smolvlm":
        _check_groups(places, patch)
    windows = getattr(vision, "window_size", None) if family.pixels == "patches" else None
    unit = None if windows is None else int(windows) // merge // patch
    order = torch.arange(count * count)
    if family.pixels == "patches":
        order = sequence(count, count, merge, unit)
    return Geometry(side, places, (count, count), tokens, order.argsort(), merge, patch)


def _check_groups(places: int, patch: int) -> None:
    """Raises UserError where this transformers cannot place SmolVLM's image tokens.

    Before 5.21 it places them in groups of as many as a patch has px on a side.
    """
    from packaging.version import Version

    installed = version("transformers")
    if places % patch and Version(installed) < Version("5.21"):
        raise UserError(
            f"transformers {installed} takes images of SmolVLM in groups of {patch} tokens, and "
            f"this model has {places} of them for each image",
            "Install transformers 5.21 or later, which needs Python 3.11",
        )


def sequence(rows: int, columns: int, merge: int, window: int | None = None) -> Tensor:
    """The patch, counted row by row, at each place of a sequence in merge order.

    The `merge` × `merge` patches of an image token come one after the other. window: tokens come by
    squares of so many rows and columns of them.
    """
    units = torch.arange(rows * columns).view(rows // merge, merge, columns // merge, merge)
    units = units.permute(0, 2, 1, 3).reshape(rows // merge, columns // merge, merge * merge)
    if window is None:
        return units.flatten()
    parts = [part for band in units.split(window, 0) for part in band.split(window, 1)]
    return torch.cat([part.flatten() for part in parts])


def normalised(before_after: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Images float32 [B, 2, 3, H, W] of images uint8 [B, 2, H, W, 3]."""
    pixels = before_after.permute(0, 1, 4, 2, 3).float() / 255
    shape = (1, 1, 3, 1, 1)
    return (pixels - pixels.new_tensor(mean).view(shape)) / pixels.new_tensor(std).view(shape)


def inputs(family: Family, shape: Geometry, pixels: Tensor, frames: int) -> dict[str, Tensor]:
    """What the model takes of images [B, 2, 3, H, W], before and after of one pair side by side.

    frames: how many equal images make a patch, where the model takes patches.
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


def patches(images: Tensor, patch: int, merge: int, frames: int) -> Tensor:
    """Patches [N, rows · columns, 3 · frames · patch²] of images [N, 3, H, W], in merge order."""
    count, channels, height, width = images.shape
    rows, columns = height // patch, width // patch
    cut = images.view(
        count, channels, rows // merge, merge, patch, columns // merge, merge, patch
    ).permute(0, 2, 5, 3, 6, 1, 4, 7)
    repeated = cut[:, :, :, :, :, :, None].expand(-1, -1, -1, -1, -1, -1, frames, -1, -1)
    return repeated.reshape(count, rows * columns, channels * frames * patch * patch)


def _merge(family: Family, config: Any) -> int:
    """Patches that an image token joins, by row and by column."""
    if family.pixels == "patches":
        return int(config.vision_config.spatial_merge_size)
    if family.pixels == "pairs":
        return int(config.scale_factor)
    ratio = getattr(config, "downsample_ratio", None)
    return 1 if ratio is None or family.queries else round(1 / ratio)


def _first(size: Any) -> int:
    """A side in px of a configuration that gives one number or two; squares alone are known.

    Raises UserError for a rectangle.
    """
    sides = list(size) if isinstance(size, (list, tuple)) else [size]
    if len(set(sides)) > 1:
        raise UserError(
            f"images of {sides} px", "Only models of square images and patches are known"
        )
    return int(sides[0])


def of_processor(processor: Any, config: Any, size: int | None) -> tuple[Geometry, int]:
    """The geometry of a model of which only its processor is known, and its image token.

    size: of the images that the processor is given, in px. Raises UserError for a processor that
    marks no places of images.
    """
    side = size or DEFAULT_SIZE
    number = getattr(config, "image_token_id", None) or getattr(processor, "image_token_id", None)
    if number is None:
        raise UserError(
            "this model's processor has no token for the places of images",
            "Take a model of a family of ours",
        )
    count = chat_tokens(processor, ("", ""), "", side).count(int(number))
    places = count // 2
    if not places or count % 2:
        raise UserError(
            f"this model's processor gives two images {count} places together",
            "Take a model whose chat template takes two images",
        )
    cells = math.isqrt(places)
    tokens = (cells, cells) if cells * cells == places else None
    return Geometry(side, places, tokens or (1, places), tokens, torch.arange(places)), int(number)


def chat_tokens(
    processor: Any, sides: tuple[str, str], question: str, size: int = DEFAULT_SIZE
) -> list[int]:
    """The tokens of a prompt about two images of `size` px, by a processor's chat template."""
    content: list[dict[str, Any]] = []
    for side in sides:
        content += [{"type": "text", "text": side}] if side else []
        content.append({"type": "image"})
    content.append({"type": "text", "text": question})
    chat = processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    blank = np.zeros((size, size, 3), np.uint8)
    ids = processor(text=[chat], images=[[blank, blank]])["input_ids"][0]
    return [int(number) for number in ids]
