"""What walks through the pipeline: plain frozen records."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field

from cc_prep.errors import UserError
from cc_prep.redaction import without_credentials

CHANGE = "change"
NO_CHANGE = "no_change"
EMPTY_MASK = "#empty"  # in place of a mask image: nothing changed anywhere
CHANGE_CLASS = ("change",)  # the classes of masks that say where and no more
FACT_TYPES = ("none", "color", "material", "add", "drop", "move")
SEVERAL = "several"  # the type of facts with more than one change
GRAMMARS = ("synth", "composites")
# The types of change of composed pairs, and their reverse.
REVERSED = {
    "none": "none",
    "add": "drop",
    "drop": "add",
    "move": "move",
    "replace": "replace",
    "color": "color",
    "text_added": "text_removed",
    "text_removed": "text_added",
    "brighter": "darker",
    "darker": "brighter",
    "blurred": "sharper",
    "sharper": "blurred",
    "black_and_white": "colored",
    "colored": "black_and_white",
    "cropped": "uncropped",
    "uncropped": "cropped",
}
MAX_SCORE = 1e18  # of a logit; CLIP's are below 100
MAX_CAPTION_LENGTH = 10_000  # characters; the longest of the field's data sets has under 1,000
MAX_NAME_BYTES = 100  # bytes of a member's name in plain tar
MAX_EXTENSION_LENGTH = len(".mask_before.png")
MAX_KEY_PART_LENGTH = 25  # of a key
CUT_ID = 22  # where the key of three longest parts and `no_change` would be too long otherwise
DIGEST_DIGITS = 16
# What `ImagePair.digest` covers, by name: a field that is added to the record does not change it.
DIGEST_VERSION = 2
DIGEST_FIELDS = (
    "dataset",
    "split",
    "id",
    "kind",
    "before",
    "after",
    "captions",
    "change_type",
    "mask",
    "mask_before",
    "mask_after",
    "mask_values",
    "mask_classes",
    "land_cover",
    "truth",
    "image_id",
    "facts",
)
DIGEST_IF_THERE = ("georeference",)  # covered only in pairs that have it


# Of `Preprocessing`.
Side = Annotated[int, Field(ge=1, le=8192)]
Statistic = Annotated[float, Field(allow_inf_nan=False)]
Spread = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class ObjectAttributes:
    """An object in one image: what it is, in words, and where its centre is.

    Attributes:
        values: By the names of the attributes, which a data set chooses: color, shape, material and
            size of rendered solids, class and color of what is pasted into photographs. An empty
            word is one that is not known.
        location: (u, v); u runs from 0 at the left edge to 1 at the right, v from 0 at the top to
            1 at the bottom.
    """

    values: Mapping[str, str]
    location: tuple[float, float]

    def __getitem__(self, name: str) -> str:
        """The value of an attribute; empty where it is not known."""
        return self.values.get(name, "")

    def to_json(self) -> dict[str, Any]:
        return {**self.values, "location": self.location}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ObjectAttributes:
        """Raises ValueError where a value is missing or of another type."""
        if not isinstance(value, dict) or len(value) < 2 or "location" not in value:
            raise ValueError("attributes are words by name, and a location [u, v]")
        values = {str(name): word for name, word in value.items() if name != "location"}
        location = value["location"]
        numbers = isinstance(location, list | tuple) and all(
            type(x) in (int, float) for x in location
        )
        words = all(isinstance(word, str) for word in values.values())
        if not numbers or len(location) != 2 or not words:
            raise ValueError("attributes are words by name, and a location [u, v]")
        u, v = (float(x) for x in location)
        if not (math.isfinite(u) and math.isfinite(v)):
            raise ValueError("a location is two finite numbers")
        return cls(values, (u, v))


@dataclass(frozen=True)
class ObjectChange:
    """One change of one object.

    Attributes:
        type: One of FACT_TYPES of rendered pairs, of REVERSED of composed ones.
        before, after: The attributes of the object; None where it is not in that image, and for a
            change of the picture as a whole.
    """

    type: str
    before: ObjectAttributes | None = None
    after: ObjectAttributes | None = None

    def reversed(self) -> ObjectChange:
        """The change from after to before."""
        return ObjectChange(REVERSED.get(self.type, self.type), self.after, self.before)

    def to_json(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "before": self.before and self.before.to_json(),
            "after": self.after and self.after.to_json(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], types: Collection[str]) -> ObjectChange:
        """Raises ValueError where a value is missing, surplus or of another type."""
        if not isinstance(value, dict) or value.keys() != {"type", "before", "after"}:
            raise ValueError("a change is type, before, after")
        if value["type"] not in types:
            raise ValueError(f"{value['type']!r} is no type of change")
        before, after = (
            None if value[end] is None else ObjectAttributes.from_json(value[end])
            for end in ("before", "after")
        )
        return cls(value["type"], before, after)


@dataclass(frozen=True)
class Facts:
    """What truly changed in a pair that was made, and what its two images show.

    Attributes:
        type: `none`, or the type of change: one of FACT_TYPES of rendered pairs, of REVERSED of
            composed ones; `several` for more than one.
        before, after: The attributes of the object that changed; None where it is not in that
            image, for `none` and `several`, and for a change of the picture as a whole.
        objects_before, objects_after: The attributes of everything in the two images.
        reversed_captions: Sentences about the pair (after, before).
        grammar: How captions state facts: `synth` (`cc_prep.synth.parsing`) or `composites`
            (`cc_prep.composites.reading`).
        several: The changes, where there is more than one; `changes` has them in any case.
    """

    type: str
    before: ObjectAttributes | None = None
    after: ObjectAttributes | None = None
    objects_before: tuple[ObjectAttributes, ...] = ()
    objects_after: tuple[ObjectAttributes, ...] = ()
    reversed_captions: tuple[str, ...] = ()
    grammar: str = "synth"
    several: tuple[ObjectChange, ...] = ()

    @classmethod
    def of_changes(
        cls,
        changes: Sequence[ObjectChange],
        objects_before: tuple[ObjectAttributes, ...] = (),
        objects_after: tuple[ObjectAttributes, ...] = (),
        reversed_captions: tuple[str, ...] = (),
        grammar: str = "synth",
    ) -> Facts:
        """The facts of any number of changes."""
        shown = (objects_before, objects_after, reversed_captions, grammar)
        if len(changes) > 1:
            return cls(SEVERAL, None, None, *shown, tuple(changes))
        one = changes[0] if changes else ObjectChange(FACT_TYPES[0])
        return cls(one.type, one.before, one.after, *shown)

    @property
    def changes(self) -> tuple[ObjectChange, ...]:
        """All changes: none for `none`."""
        if self.type == FACT_TYPES[0]:
            return ()
        return self.several or (ObjectChange(self.type, self.before, self.after),)

    def reversed(self) -> Facts:
        """The facts of (after, before), without sentences."""
        return Facts.of_changes(
            [one.reversed() for one in self.changes],
            self.objects_after,
            self.objects_before,
            grammar=self.grammar,
        )

    @classmethod
    def of_sample(cls, meta: Mapping[str, Any]) -> Facts | None:
        """The facts in a sample's JSON, if there are any.

        Raises:
            UserError: For another form.
        """
        try:
            return None if meta.get("facts") is None else cls.from_json(meta["facts"])
        except ValueError as error:
            raise UserError(f"{meta.get('key')}: {error}", "Rebuild these shards") from None

    def to_json(self) -> dict[str, Any]:
        """All fields; the grammar only where it is not that of rendered pairs, and the changes only
        where they are several.
        """
        value: dict[str, Any] = {
            "type": self.type,
            "before": self.before and self.before.to_json(),
            "after": self.after and self.after.to_json(),
            "objects_before": tuple(one.to_json() for one in self.objects_before),
            "objects_after": tuple(one.to_json() for one in self.objects_after),
            "reversed_captions": self.reversed_captions,
        }
        if self.grammar != "synth":
            value["grammar"] = self.grammar
        if self.several:
            value["several"] = tuple(one.to_json() for one in self.several)
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Facts:
        """Raises ValueError where a value is missing, surplus or of another type."""
        names = [one.name for one in fields(cls)]
        optional = {"grammar": "synth", "several": ()}
        if not isinstance(value, dict) or {**optional, **value}.keys() != set(names):
            raise ValueError(f"facts are {', '.join(names)}")
        value = {**optional, **value}
        grammar = value["grammar"]
        if grammar not in GRAMMARS:
            raise ValueError(f"{grammar!r} is no grammar of captions")
        types = FACT_TYPES if grammar == "synth" else tuple(REVERSED)
        several = [ObjectChange.from_json(one, types) for one in _listed(value["several"])]
        if (value["type"] == SEVERAL) != (len(several) > 1) or len(several) == 1:
            raise ValueError(f"the type {SEVERAL!r} and a list of more than one change go together")
        if several and (value["before"], value["after"]) != (None, None):
            raise ValueError("before and after are those of one change alone")
        if any(one.type == FACT_TYPES[0] for one in several):
            raise ValueError(f"{FACT_TYPES[0]!r} is none of several changes")
        ends = {name: value[name] for name in ("type", "before", "after")}
        changes = several or [ObjectChange.from_json(ends, types)]
        objects_before, objects_after = (
            tuple(ObjectAttributes.from_json(attributes) for attributes in _listed(value[name]))
            for name in ("objects_before", "objects_after")
        )
        captions = tuple(_listed(value["reversed_captions"]))
        if not all(isinstance(caption, str) for caption in captions):
            raise ValueError("reversed_captions are sentences")
        return cls.of_changes(changes, objects_before, objects_after, captions, grammar)


@dataclass(frozen=True)
class ImagePair:
    """One before and one after image, and what is known of the change between them.

    Attributes:
        before, after: An image, as a path below the data set's root, an absolute path or a URL;
            `video.mp4#frame=12` is a frame of a video. The masks and truth name images likewise.
        kind: `change`, or `no_change` for a distractor (only viewpoint or light differs).
        mask: An image of where something changed, where the data set has one.
        mask_before: Of what vanished, where it is in the before image.
        mask_after: Of what appeared, where it is in the after image. EMPTY_MASK means one that is
            zero everywhere.
        mask_values: (a mask's pixel, class id), where a pixel is the value of its first channel or
            a colour of three; without them each value but 0 is class 1.
        mask_classes: The names of the classes 1 … K of the masks.
        land_cover: mask_before and mask_after are maps of what covers the ground: where both have
            the same class, nothing changed.
        truth: True frames in between, as (time in (0, 1), image), where the data set has them.
        image_id: The pair's id in the data set's official reference file, where there is one.
            facts: What truly changed, where the pair was made by a program.
            georeference: Where a tile of a raster lies, see `cc_prep.media.scenes.Grid`.
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
    mask_before: str | None = None
    mask_after: str | None = None
    mask_values: tuple[tuple[tuple[int, ...], int], ...] = ()
    mask_classes: tuple[str, ...] = CHANGE_CLASS
    land_cover: bool = False
    truth: tuple[tuple[float, str], ...] = ()
    image_id: str | None = None
    facts: Facts | None = None
    georeference: dict[str, Any] | None = None

    @property
    def key(self) -> str:
        """`<dataset>-<split>-<id>-<kind>` in letters, digits, `_` and `-`: a tar member's stem.

        WebDataset ends a key at its first dot, so other characters in a part are replaced, parts
        longer than MAX_KEY_PART_LENGTH are cut, and a digest of the true part is appended to such
        a part. Where the name of a member would not fit into plain tar, the id is cut to CUT_ID.
        """
        dataset, split = _plain(self.dataset), _plain(self.split)
        key = f"{dataset}-{split}-{_plain(self.id)}-{self.kind}"
        if len(key) + MAX_EXTENSION_LENGTH <= MAX_NAME_BYTES:
            return key
        return f"{dataset}-{split}-{_plain(self.id, CUT_ID)}-{self.kind}"

    @property
    def name(self) -> str:
        """The pair in messages, see `pair_name`."""
        return pair_name(self.id, self.split, self.kind)

    @property
    def masks(self) -> tuple[str, ...]:
        """The mask images that are there: EMPTY_MASK names none."""
        references = (self.mask, self.mask_before, self.mask_after)
        return tuple(one for one in references if one is not None and one != EMPTY_MASK)

    def to_json(self) -> dict[str, Any]:
        shallow = {one.name: getattr(self, one.name) for one in fields(self)}
        return {**shallow, "facts": self.facts and self.facts.to_json()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ImagePair:
        truth = tuple((float(time), image) for time, image in value["truth"])
        facts = value["facts"]
        return cls(
            **{
                **value,
                "captions": tuple(value["captions"]),
                "truth": truth,
                "mask_values": tuple((tuple(pixel), i) for pixel, i in value["mask_values"]),
                "mask_classes": tuple(value["mask_classes"]),
                "facts": None if facts is None else Facts.from_json(facts),
            }
        )

    def digest(self) -> str:
        """SHA-256 of DIGEST_VERSION and the fields, to notice that a data set changed.

        It covers the names of images and not their content. URLs count without credentials: those
        that are signed are signed anew each day.
        """
        record = self.to_json()
        there = (name for name in DIGEST_IF_THERE if record[name] is not None)
        values = {name: record[name] for name in (*DIGEST_FIELDS, *there)}
        text = json.dumps({"version": DIGEST_VERSION, **values}, sort_keys=True)
        text = without_credentials(text)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def pair_name(id: str, split: str, kind: str) -> str:
    """A pair in messages: its id and split as the user wrote them, `7 (test)`.

    Some data sets have an id twice, once for the pair without a change: `7 (test, no_change)`.
    """
    return f"{id} ({split})" if kind == CHANGE else f"{id} ({split}, {kind})"


@dataclass(frozen=True)
class FrameSequence:
    """A pair's procedure: before, the frames in between, after.

    Attributes:
        frames: uint8 [F, H, W, 3], RGB; F = 2**depth + 1.
        truth: The true frame at the same time, uint8 [H, W, 3], by frame number, where known.
        mask, mask_before, mask_after: Class ids uint8 [H, W], 0 unchanged and 1 … K the classes of
            `pair.mask_classes`: the union, what vanished (as in before), what appeared (as in
            after). None if not known; without the union the sides are None too.
        registration: By which motion the image after was laid on the one before, as
            `cc_prep.media.registration.Registration.to_json` says it.
    """

    pair: ImagePair
    frames: np.ndarray
    truth: dict[int, np.ndarray] = field(default_factory=dict)
    mask: np.ndarray | None = None
    mask_before: np.ndarray | None = None
    mask_after: np.ndarray | None = None
    registration: dict[str, Any] | None = None


@dataclass(frozen=True)
class FrameScores:
    """How well (before, frame) and (frame, after) fit each caption, for every frame of a sequence.

    Attributes:
        bef_inter_sim, inter_aft_sim: Logits, float32 [captions, F]; no rows where there are none.
        bef_inter_visual, inter_aft_visual: Similarity of the images alone, logits, float32 [F], or
            [0] where others made the scores.
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


class Preprocessing(BaseModel, frozen=True, extra="forbid"):
    """What an image goes through before a backbone of a library, and which layers are read.

    Attributes:
        layers: Numbers of the layers whose features are joined, as the library counts them;
            negative ones from the last.
        input_size: Height and width to which images are resized, in px; None leaves them as they
            are.
        mean: Of the values of images in [0, 1], R, G and B.
        std: Likewise.
    """

    layers: Annotated[tuple[int, ...], Field(min_length=1)]
    input_size: tuple[Side, Side] | None
    mean: tuple[Statistic, Statistic, Statistic]
    std: tuple[Spread, Spread, Spread]

    def digest(self, sha256: str) -> str:
        """What tells a backbone from others: SHA-256, in hex, of this and its weights' own."""
        identity = {"weights": sha256, **self.model_dump(mode="json")}
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def are_scores(values: np.ndarray) -> bool:
    """Whether all values are finite, and their squares as float32 too, as penalties need."""
    return bool((np.abs(values) <= MAX_SCORE).all())


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{str(value)[:40]!r} is no list")
    return list(value)


def _plain(text: str, longest: int = MAX_KEY_PART_LENGTH) -> str:
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", text)
    if plain == text and 0 < len(text) <= longest:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_DIGITS]
    return f"{plain[: longest - DIGEST_DIGITS - 1]}_{digest}"
