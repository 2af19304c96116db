"""What `cc-prep inspect` calls sound is not rejected by a job for what it could have seen."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cc_prep import manifest
from cc_prep.formats import rejects
from cc_prep.inspect.inspection import inspect
from tests.conftest import Command

PAIRS = 32
# Of 30×45 px no side is a multiple of a token, of 16,400 px none is held by WebP.
SIZES = ((32, 32), (32, 48), (30, 45), (12, 40), (16, 16_400))


def noise(rng: np.random.Generator, size: tuple[int, int]) -> Image.Image:
    coarse = Image.fromarray(rng.integers(0, 256, (6, 6, 3), np.uint8))
    return coarse.resize(size[::-1], Image.Resampling.BICUBIC)


def encoded(image: Image.Image, form: str) -> bytes:
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


def damaged_jpeg(image: Image.Image) -> bytes:
    data = bytearray(encoded(image, "JPEG"))
    middle = len(data) * 3 // 4
    return bytes(data[:middle]) + b"\xff\xd9"


# What may lie in the place of an image.
FILES: tuple[Callable[[Image.Image], bytes], ...] = (
    lambda image: encoded(image, "JPEG"),
    damaged_jpeg,
    lambda image: encoded(image, "PNG")[:-40],
    lambda image: b"",
    lambda image: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
    lambda image: encoded(image.convert("RGBA").resize((8, 8)), "TIFF"),
)


def odd_data_set(root: Path, seed: int) -> None:
    """Pairs in folders, half of which have one fault or several."""
    rng = np.random.default_rng(seed)
    for folder in ("before", "after", "captions", "masks"):
        (root / folder).mkdir(parents=True)
    for number in range(PAIRS):
        is_odd = rng.random() < 0.6
        size = SIZES[rng.integers(len(SIZES))] if is_odd and rng.random() < 0.4 else SIZES[0]
        for side in ("before", "after"):
            own = SIZES[rng.integers(len(SIZES))] if is_odd and rng.random() < 0.1 else size
            image, path = noise(rng, own), root / side / f"{number}.png"
            if is_odd and rng.random() < 0.1:
                continue
            if is_odd and rng.random() < 0.1:
                path.mkdir()
            else:
                kind = rng.integers(len(FILES)) if is_odd and rng.random() < 0.2 else None
                path.write_bytes(encoded(image, "PNG") if kind is None else FILES[kind](image))
        caption = "a house" * (2_000 if is_odd and rng.random() < 0.15 else 1)
        (root / f"captions/{number}.txt").write_text(caption)
        mask = np.zeros(size, np.uint8)
        mask[4:9, 4:9] = 255
        stored = Image.fromarray(mask)
        match rng.integers(8) if is_odd else 0:
            case 1:
                stored = stored.resize((24, 12))
            case 2:
                stored = stored.convert("RGBA")
                stored.putalpha(Image.fromarray(255 - mask))
            case 3:
                stored = Image.fromarray(mask // 2)
            case 4:
                continue
        path = root / f"masks/{number}.png"
        stored.save(path)
        if is_odd and rng.random() < 0.1:
            path.write_bytes(path.read_bytes()[:-30])


@pytest.mark.parametrize(
    ("seed", "settings"),
    [
        (0, ("image_size=32",)),
        (1, ("image_size=null", "tokenize.weights=vqgan-mini", "interpolate.codec=webp")),
        (
            2,
            ("image_size=null", "features.backbone=efficientnet-lite0-x2", "masks.classes.a=255"),
        ),
        (3, ("image_size=null", "interpolate.keep_truth=false", "interpolate.method=dis")),
    ],
)
def test_what_is_sound_is_not_rejected(
    tmp_path: Path, prepare: Command, seed: int, settings: tuple[str, ...]
) -> None:
    """Keeps away: "no fault" of data all of whose pairs a job then rejects, as it was with long
    captions and with sides that are no multiple of a token."""
    root = tmp_path / "data"
    odd_data_set(root, seed)
    overrides = [
        "layout=folders", "splits=[train]", "interpolate.method=crossfade", "interpolate.depth=1",
        "score.weights=none", "tokenize.weights=none", "keyframes.k=0", *settings,
    ]  # fmt: skip
    inspection = inspect(manifest.load("own", overrides, str(root)), ["train"])
    flags = [part for one in overrides for part in ("--set", one)]
    arguments = ("own", "--root", root, "--max-rejects", 1, "--workers", 1, *flags)
    made = prepare("build", *arguments, "--out", tmp_path / "out")
    assert made.returncode == 0, made.stderr
    unmade = [row.id for row in rejects.read(str(tmp_path / "out/shards"))]
    assert 5 < len(unmade) < PAIRS
    sound = {f"{number} (train)" for number in range(PAIRS)} - {*inspection.rejected}
    assert not sound & {f"{id} (train)" for id in unmade}
    # And of what a job takes, `inspect` says no other, but where a job does not look.
    if "interpolate.keep_truth=false" not in settings:
        assert {f"{id} (train)" for id in unmade} == {*inspection.rejected}
    assert sum(inspection.rejects.values()) == len(inspection.rejected)
