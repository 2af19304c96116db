"""A question about a pair: two images as the shard stores them, and what is asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cc_prep.errors import UserError
from cc_prep.formats.tar import DamagedShard
from cc_prep.media import images
from cc_train.baselines.prompts import Wording
from cc_train.data.collate import NO_STORED_FRAMES
from cc_train.data.shard_index import ADVICE, Entry


@dataclass(frozen=True)
class Turn:
    """One turn of a chat, in no server's form.

    Attributes:
        parts: Texts, and images encoded as JPEG, PNG or WebP, in the order in which they are read.
    """

    parts: tuple[str | bytes, ...]
    role: Literal["user", "assistant"] = "user"


@dataclass(frozen=True)
class Question:
    """before, after: images, encoded as JPEG, PNG or WebP. key: of the sample."""

    key: str
    before: bytes
    after: bytes
    wording: Wording

    @property
    def turns(self) -> list[Turn]:
        """The chat that puts the question.

        The text between the images is there on purpose: several servers take two images that
        follow each other for one (llama.cpp's issues 24303 and 27313), and it tells the model
        which image is which.
        """
        wording = self.wording
        parts = (wording.before, self.before, wording.after, self.after, wording.prompt)
        return [Turn(parts)]

    def digest(self, identity: Mapping[str, Any]) -> str:
        """SHA-256 of all that decides the answer: images, wording, and the model's `identity`,
        which has its name or weights and how it generates. The sample's key does not count.
        """
        content = {
            "images": [hashlib.sha256(image).hexdigest() for image in (self.before, self.after)],
            "wording": self.wording.to_json(),
            "model": identity,
        }
        text = json.dumps(content, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def of(entry: Entry, wording: Wording) -> Question:
    """The question about a sample of training shards, whose images are taken as they are stored.

    Raises:
        UserError: Where the shard is damaged, or stores no images of before and after.
    """
    try:
        sample = entry.read()
    except (DamagedShard, FileNotFoundError) as error:
        raise UserError(f"{entry.shard}: {error}", ADVICE) from None
    ends = (0, len(sample.tokens) - 1)
    for frame in ends:
        if frame not in sample.images:
            raise UserError(f"{entry.key}: no image of frame {frame} stored", NO_STORED_FRAMES)
        if images.decode_stored(sample.images[frame]) is None:
            raise UserError(f"{entry.shard}: {entry.key}: frame {frame} is no image", ADVICE)
    before, after = (sample.images[frame] for frame in ends)
    return Question(entry.key, before, after, wording)


def media_type(image: bytes) -> str:
    """The media type of an encoded image, by its first bytes. They are one of our formats."""
    if image.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if image[:4] == b"RIFF" and image[8:12] == b"WEBP":
        return "image/webp"
    assert image.startswith(b"\xff\xd8"), "the shards' images are JPEG, PNG or WebP"
    return "image/jpeg"
