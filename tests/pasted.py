"""Small photographs and cut-outs, of which `cc-prep composites` makes pairs."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

CLASSES = ("car", "orange", "traffic light")


def photograph(seed: int, side: int = 160) -> np.ndarray:
    rng = np.random.default_rng(seed)
    coarse = rng.uniform(40, 200, (6, 7, 3)).astype(np.float32)
    fine = rng.normal(0, 25, (side // 2, side // 2, 3)).astype(np.float32)
    parts = [
        cv2.resize(x, (side + 32, side), interpolation=cv2.INTER_CUBIC) for x in (coarse, fine)
    ]
    return (parts[0] + parts[1]).clip(0, 255).astype(np.uint8)


def cutout(seed: int, side: int = 64) -> np.ndarray:
    """A blob with stripes in front of nothing, uint8 [side, side, 4] RGBA."""
    rng = np.random.default_rng(seed)
    pixels = np.zeros((side, side, 4), np.uint8)
    points = np.stack([rng.uniform(4, side - 4, 12), rng.uniform(4, side - 4, 12)], axis=1)
    hull = cv2.convexHull(points.astype(np.float32)).astype(np.int32)
    shape = cv2.fillPoly(np.zeros((side, side), np.uint8), [hull], 255)
    pixels[...] = rng.integers(0, 256, 4)
    pixels[:: rng.integers(2, 9)] = rng.integers(0, 256, 4)
    pixels[..., 3] = shape
    return pixels


def write_sources(folder: Path) -> tuple[str, str]:
    """A folder of six backgrounds, two of them alike, and one of cut-outs, three of each class."""
    pictures, objects = folder / "photos", folder / "objects"
    (pictures / "more").mkdir(parents=True)
    for i in range(5):
        assert cv2.imwrite(str(pictures / f"{i}.png"), photograph(i))
    assert cv2.imwrite(str(pictures / "more" / "0.jpg"), photograph(0))
    for i, name in enumerate(CLASSES):
        (objects / name.replace(" ", "_")).mkdir(parents=True)
        for j in range(3):
            path = objects / name.replace(" ", "_") / f"{j}.png"
            assert cv2.imwrite(str(path), cutout(10 * i + j)[..., [2, 1, 0, 3]])
    return str(pictures), str(objects)
