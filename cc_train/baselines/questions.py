"""A question about a pair: two images as the shard stores them, and what is asked."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Collection, Mapping, Sequence
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
class Example:
    """A pair with its caption, which a model is shown before a question. key: of the sample."""

    key: str
    before: bytes
    after: bytes
    caption: str


@dataclass(frozen=True)
class Question:
    """before, after: images, encoded as JPEG, PNG or WebP. key: of the sample."""

    key: str
    before: bytes
    after: bytes
    wording: Wording
    examples: tuple[Example, ...] = ()

    @property
    def turns(self) -> list[Turn]:
        """The chat that puts the question, after one like it for each example.

        The text between the images is there on purpose: several servers take two images that
        follow each other for one (llama.cpp's issues 24303 and 27313), and it tells the model
        which image is which.
        """
        turns = []
        for example in self.examples:
            turns += [self._turn(example.before, example.after)]
            turns += [Turn((example.caption,), "assistant")]
        return [*turns, self._turn(self.before, self.after)]

    def _turn(self, before: bytes, after: bytes) -> Turn:
        wording = self.wording
        return Turn((wording.before, before, wording.after, after, wording.prompt))

    def digest(self, identity: Mapping[str, Any]) -> str:
        """SHA-256 of all that decides the answer: images, wording, and the model's `identity`,
        which has its name or weights and how it generates. The sample's key does not count.
        """
        content: dict[str, Any] = {
            "images": _digests(self.before, self.after),
            "wording": self.wording.to_json(),
            "model": identity,
        }
        if self.examples:
            content["examples"] = [
                [*_digests(example.before, example.after), example.caption]
                for example in self.examples
            ]
        text = json.dumps(content, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def of(
    entry: Entry, wording: Wording, examples: Sequence[Example] = (), swapped: bool = False
) -> Question:
    """The question about a sample of training shards, whose images are taken as they are stored.

    Args:
        swapped: Of the pair in the other order.

    Raises:
        UserError: Where the shard is damaged, or stores no images of before and after.
    """
    before, after = _stored_images(entry)
    if swapped:
        before, after = after, before
    return Question(entry.key, before, after, wording, tuple(examples))


def examples(
    entries: Sequence[Entry], count: int, dataset: str | None, asked: Collection[str]
) -> list[Example]:
    """Some pairs of a data set with their first captions, drawn by chance, and always the same.

    Args:
        entries: Of a training split.
        asked: Keys of the pairs that are asked about, none of which may be an example.

    Raises:
        UserError: Where there are too few of that data set, or one of them is asked about.
    """
    captioned = sorted(
        (entry for entry in entries if entry.dataset == dataset and entry.captions),
        key=lambda entry: entry.key,
    )
    if len(captioned) < count:
        raise UserError(
            f"--examples holds {len(captioned)} captioned pairs of {dataset or 'a data set'}, and "
            f"--shots is {count}",
            "Give training shards of the data set that is asked about",
        )
    chosen = random.Random(0).sample(captioned, count)
    for entry in chosen:
        if entry.key in asked:
            raise UserError(
                f"{entry.key} would be an example and is asked about",
                "Give --examples of the training split",
            )
    return [Example(entry.key, *_stored_images(entry), entry.captions[0]) for entry in chosen]


def _stored_images(entry: Entry) -> tuple[bytes, bytes]:
    """The encoded images before and after of a sample. Raises UserError."""
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
    return sample.images[ends[0]], sample.images[ends[1]]


def _digests(*encoded: bytes) -> list[str]:
    return [hashlib.sha256(image).hexdigest() for image in encoded]


def media_type(image: bytes) -> str:
    """The media type of an encoded image, by its first bytes. They are one of our formats."""
    if image.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if image.startswith(b"RIFF"):
        return "image/webp"
    assert image.startswith(b"\xff\xd8"), "the shards' images are JPEG, PNG or WebP"
    return "image/jpeg"
