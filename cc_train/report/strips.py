"""What a captioner imagines between two images, as a strip of pictures: `cc-train imagine`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import torch

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.media import images
from cc_prep.storage import outputs
from cc_train import loading, systems
from cc_train.captioner import CaptionModel
from cc_train.data import image_pairs
from cc_train.data.image_pairs import Image
from cc_train.data.shard_index import Entry
from cc_train.pretrained import Captioner
from cc_train.report import pictures
from cc_train.report.pictures import CODECS
from cc_train.runs import stored_run
from cc_train.sharing import hub

GAP = 4  # px between pictures
SIDE = 160  # px that each picture is high at least


def write(
    run: str,
    before: str,
    after: str,
    out: str,
    stage1: str | None,
    device: str,
    truth: Sequence[str] = (),
) -> str:
    """Writes the strip of a pair and returns the captioner's sentence.

    Args:
        stage1: A run whose frames are drawn below the captioner's.
        truth: Images that are drawn in the last row, below the imagined frames.

    Raises:
        UserError: For a file that cannot be read or written, and a captioner that imagines nothing.
    """
    codec = CODECS.get(Path(out).suffix.lower())
    if codec is None:
        raise UserError(f"--out {out}: no picture", f"Give one of {', '.join(CODECS)}")
    outputs.check_file(out)
    loaded = Captioner.from_pretrained(run, device=device)
    before_after = image_pairs.stack([(before, after)], loaded.inputs.size)
    rows = [imagined(loaded.model, before_after)]
    if rows[0] is None:
        raise UserError(
            f"{run}: imagines no frames", "Give a captioner of stage 2 that a stage 1 was before"
        )
    true = _true(truth, before, before_after[0], len(rows[0]) - 2) if truth else None
    text = loaded(before, after).text
    if stage1 is not None:
        rows.append(_by_encoder(stage1, (before, after), text))
    rows.append(true)
    picture = strip(before_after[0], [row for row in rows if row is not None])
    storage.write_bytes(storage.named(out), images.encode_image(picture, codec, 90))
    return text


def imagined(model: CaptionModel, before_after: np.ndarray) -> np.ndarray | None:
    """The frames that a captioner imagines for one pair, uint8 [T, H, W, 3], both ends included.

    Args:
        before_after: uint8 [1, 2, H, W, 3]. None for captioners that imagine none.
    """
    imagine = getattr(model, "imagine", None)  # an `EncoderDecoder` has it, others may
    if imagine is None:
        return None
    frames = imagine(torch.from_numpy(before_after).to(model.device))
    return None if frames is None else frames[0].cpu().numpy()


def of_samples(run: str, entries: Sequence[Entry]) -> dict[str, list[bytes]]:
    """The frames, as JPEG, that a run's captioner imagines for samples, by their keys.

    Samples without images of before and after are left out, and all are for a captioner that
    imagines none.

    Raises:
        UserError: For a run that is no captioner.
    """
    model = loading.load(run)
    drawn = {}
    for entry in entries:
        pair = pictures.ends(entry.read())
        if pair is None:
            continue
        frames = imagined(model, image_pairs.stack([pair], model.inputs.size))
        if frames is not None:
            drawn[entry.key] = [images.encode_image(frame, "jpg", 85) for frame in frames]
    return drawn


def _true(paths: Sequence[str], before: str, ends: np.ndarray, count: int) -> np.ndarray:
    """A row of true frames between both ends uint8 [2, H, W, 3]."""
    if len(paths) != count:
        raise UserError(
            f"--truth: given {len(paths)} times, and the captioner imagines {count} frames",
            "Give it once for each imagined frame",
        )
    frames = image_pairs.stack([(before, path) for path in paths], ends.shape[1:3])[:, 1]
    return np.stack([ends[0], *frames, ends[1]])


def _by_encoder(path: str, pair: tuple[Image, Image], caption: str) -> np.ndarray:
    folder = hub.locate(path)
    name = stored_run.read(folder).system
    recipe = systems.recipe(name)
    if not hasattr(recipe, "imagine"):
        raise UserError(f"--stage1 {path}: a run of {name}", "Give a run of stage 1")
    frames: np.ndarray = recipe.imagine(folder, pair, caption)
    return frames


def strip(before_after: np.ndarray, rows: Sequence[np.ndarray]) -> np.ndarray:
    """A picture uint8 [H', W', 3]: each row of frames [T, H, W, 3] between the images [2, H, W, 3].

    Rows are scaled to the images' size, and small ones enlarged by a whole number.
    """
    before, after = before_after
    height, width = before.shape[:2]
    scaled = [[before, *(_resized(frame, (height, width)) for frame in row), after] for row in rows]
    picture = _joined([_joined(row, 1) for row in scaled], 0)
    factor = max(1, -(-SIDE // height))
    return picture.repeat(factor, axis=0).repeat(factor, axis=1)


def _resized(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    if image.shape[:2] == size:
        return image
    return cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA)


def _joined(parts: Sequence[np.ndarray], axis: int) -> np.ndarray:
    """Pictures side by side (1) or below each other (0), with white gaps; shorter ones padded."""
    longest = max(part.shape[1 - axis] for part in parts)
    spaced = []
    for part in parts:
        missing = longest - part.shape[1 - axis]
        padding = [(0, 0)] * 3
        padding[1 - axis], padding[axis] = (0, missing), (0, GAP)
        spaced.append(np.pad(part, padding, constant_values=255))
    joined = np.concatenate(spaced, axis)
    return joined[:, :-GAP] if axis else joined[:-GAP]
