"""What walks through the pipeline: plain frozen records."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

CHANGE = "change"
NO_CHANGE = "no_change"
LONGEST_CAPTION = 10_000  # characters; the longest of the field's data sets has under 1,000
LONGEST_PART = 28  # of a key, so that a member's name stays under the 100 bytes of plain tar


@dataclass(frozen=True)
class ImagePair:
    """One before and one after image, and what is known of the change between them.

    before, after: an image, as a path below the data set's root, an absolute path or a URL;
        `video.mp4#frame=12` is a frame of a video. mask and truth name images likewise.
    kind: `change`, or `no_change` for a distractor (only viewpoint or light differs).
    mask: an image that is non-zero where something changed, where the data set has one.
    truth: true frames in between, as (time in (0, 1), image), where the data set has them.
    image_id: the pair's id in the data set's official reference file, where there is one.
    """

    dataset: str
    split: str
    id: str
    kind: str
    before: str
    after: str
    captions: tuple[str, ...] = ()
    change_type: str | None = None
    mask: str | None = None
    truth: tuple[tuple[float, str], ...] = ()
    image_id: str | None = None

    @property
    def key(self) -> str:
        """`<dataset>-<split>-<id>-<kind>` in letters, digits, `_` and `-`: a tar member's stem.

        WebDataset ends a key at its first dot, so other characters in an id are replaced, long
        ids cut, and a digest of the true id appended to stay unique.
        """
        return "-".join((_plain(self.dataset), self.split, _plain(self.id), self.kind))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ImagePair:
        truth = tuple((float(time), image) for time, image in value["truth"])
        return cls(**{**value, "captions": tuple(value["captions"]), "truth": truth})

    def digest(self) -> str:
        """SHA-256 of the record, to notice that a data set changed between two runs."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class FrameSequence:
    """A pair's procedure: before, the frames in between, after.

    frames: uint8 [F, H, W, 3], RGB; F = 2**depth + 1.
    truth: the true frame at the same time, uint8 [H, W, 3], by frame number, where known.
    mask: uint8 [H, W], 255 where something changed, where known.
    """

    pair: ImagePair
    frames: np.ndarray
    truth: dict[int, np.ndarray] = field(default_factory=dict)
    mask: np.ndarray | None = None


@dataclass(frozen=True)
class FrameScores:
    """How well (before, frame) and (frame, after) fit each caption, for every frame of a sequence.

    bef_inter_sim, inter_aft_sim: logits, float32 [captions, F]; no rows where there are none.
    bef_inter_visual, inter_aft_visual: similarity of the images alone, logits, float32 [F], or [0]
        where others made the scores.
    """

    captions: tuple[str, ...]
    bef_inter_sim: np.ndarray
    inter_aft_sim: np.ndarray
    bef_inter_visual: np.ndarray
    inter_aft_visual: np.ndarray

    def similarities(self, visual: bool = False) -> np.ndarray:
        """What keyframes are drawn from, float32 [2, captions, F].

        The one visual row instead where `visual` asks for it, or where there are no captions.
        """
        if visual or not self.captions:
            return np.stack((self.bef_inter_visual[None], self.inter_aft_visual[None]))
        return np.stack((self.bef_inter_sim, self.inter_aft_sim))


def _plain(text: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", text)[:LONGEST_PART]
    if plain == text and text:
        return text
    return f"{plain}_{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
