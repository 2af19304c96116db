"""Samples of training shards → batches of ordered pairs, several of each scene.

A rendered scene has three images, before, after and a distractor, and so six ordered pairs: four
with a change and two without. A batch holds the features of each image once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
import torch

from cc_prep.errors import UserError
from cc_prep.formats.training_shards import TrainingSample
from cc_prep.records import NO_CHANGE, Facts
from cc_train.data import shard_index, supervision
from cc_train.data.collate import FeatureSource, before_after, require_backbone
from cc_train.data.supervision import SOLIDS, FactVocabulary, OrderedPair, PairMasks
from cc_train.text import TextCodec


@dataclass
class Scene:
    """The images of one scene and all its ordered pairs.

    Attributes:
        features: [C, h, w] of each image, by number, float16 or float32 as they are stored.
        objects: The attributes of the objects that an image shows, by its number.
        size: Height and width of the images in px.
    """

    size: tuple[int, int] = (0, 0)
    features: list[np.ndarray] = field(default_factory=list)
    objects: list[tuple[Any, ...]] = field(default_factory=list)
    pairs: list[OrderedPair] = field(default_factory=list)


@dataclass(frozen=True)
class OrderedPairBatches:
    """`OrderedPairBatches(…)(samples, rngs)` is a batch for PairObjective.

    Attributes:
        length: Number of ids of a caption, its marks included.
        pairs_per_scene: Number of ordered pairs drawn from each scene, one of them unchanged if the
            scene has both kinds.
        backbone: The backbone of the features; a sample with others is refused.
        grid: Rows and columns of the cells by which positions are given; None takes those of the
            features.
        masks: Whether a batch holds masks.
        vocabulary: Of the facts.
        changes: Whether a batch holds each change of a pair.
    """

    codec: TextCodec
    length: int
    pairs_per_scene: int
    backbone: FeatureSource | None
    grid: tuple[int, int] | None = None
    masks: bool = False
    vocabulary: FactVocabulary = SOLIDS
    changes: bool = False

    def __call__(
        self, samples: Sequence[TrainingSample], rngs: Sequence[np.random.Generator]
    ) -> dict[str, Any]:
        """A batch of the scenes of some samples, in order.

        features [N, C, h, w] as they are stored, float16 or float32; of P pairs: first, second
        int64 [P], ids and labels int64 [P, length], facts int64 [P, facts], places int64 [P, 2]; of
        M objects: object_image int64 [M], object_location float32 [M, 2] (u, v),
        object_attributes int64 [M, attributes]; centres float32 [N, rows, columns], has_objects
        bool [N]. With `masks` also mask uint8 [P, 3, H, W], class ids of the union, of before and
        of after, and has_mask bool [P, 3], False where one is not known, in which case it is 0; and
        changed bool [P]. With `changes` also what `changes_of` gives.

        Raises:
            UserError: For other features.
        """
        for sample in samples:
            require_backbone(sample.key, sample.features, self.backbone)
        features: list[np.ndarray] = []
        objects: list[tuple[Any, ...]] = []
        pairs: list[OrderedPair] = []
        sizes: list[tuple[int, int]] = []
        chosen_rngs: list[np.random.Generator] = []
        for scene, rng in scenes(samples, rngs, self.masks):
            offset = len(features)
            features += scene.features
            objects += scene.objects
            for number in draw(scene.pairs, self.pairs_per_scene, rng):
                pair = scene.pairs[number]
                first, second = pair.first + offset, pair.second + offset
                pairs.append(replace(pair, first=first, second=second))
                sizes.append(scene.size)
                chosen_rngs.append(rng)
        stacked = _stacked(features)
        grid = self.grid or (stacked.shape[2], stacked.shape[3])
        return {
            "features": torch.from_numpy(stacked),
            **self._captions(pairs, chosen_rngs),
            "first": torch.tensor([pair.first for pair in pairs]),
            "second": torch.tensor([pair.second for pair in pairs]),
            **facts_of(pairs, grid, self.vocabulary),
            **objects_of(objects, grid, self.vocabulary),
            **(masks_of(pairs, sizes) if self.masks else {}),
            **(changes_of(pairs, grid, self.vocabulary) if self.changes else {}),
        }

    def _captions(
        self, pairs: Sequence[OrderedPair], rngs: Sequence[np.random.Generator]
    ) -> dict[str, torch.Tensor]:
        encoded = [
            self.codec.encode(pair.captions[int(rng.integers(len(pair.captions)))], self.length)
            for pair, rng in zip(pairs, rngs, strict=True)
        ]
        ids, labels = (np.stack(part) for part in zip(*encoded, strict=True))
        return {"ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}


def _stacked(features: Sequence[np.ndarray]) -> np.ndarray:
    """[N, C, h, w], float16 or float32. Raises UserError where images differ in size."""
    shapes = sorted({array.shape for array in features})
    if len(shapes) > 1:
        raise UserError(
            f"features of the shapes {shapes[0]} and {shapes[1]} are in these shards",
            "Build the shards with one image_size",
        )
    return np.stack(features)


def draw(pairs: Sequence[OrderedPair], count: int, rng: np.random.Generator) -> list[int]:
    """Numbers of at most `count` random pairs.

    Of several, one is unchanged if there are both kinds. A count of 1 draws from all pairs.
    """
    if count == 1:
        return [int(rng.integers(len(pairs)))]
    changed = [number for number, pair in enumerate(pairs) if pair.changed]
    unchanged = [number for number, pair in enumerate(pairs) if not pair.changed]
    spare = 1 if changed and unchanged else 0
    main, others = (changed, unchanged) if changed else (unchanged, changed)
    chosen = [main[i] for i in rng.permutation(len(main))[: count - spare]]
    return chosen + [others[i] for i in rng.permutation(len(others))[:spare]]


def scenes(
    samples: Sequence[TrainingSample], rngs: Sequence[np.random.Generator], masks: bool = False
) -> Iterator[tuple[Scene, np.random.Generator]]:
    """The scenes: adjacent samples of one scene, with the random generator of the first.

    A scene that stands beside itself, in place of a damaged one or where an epoch ends and the next
    begins, is one scene here: the batch then has fewer pairs.
    """

    items = zip(samples, rngs, strict=True)
    for _, group in groupby(items, key=lambda item: shard_index.scene_of(item[0].key)):
        together = list(group)
        yield ordered_pairs([sample for sample, _ in together], masks), together[0][1]


def ordered_pairs(samples: Sequence[TrainingSample], masks: bool = False) -> Scene:
    """All ordered pairs that the samples of a scene allow.

    A pair is also reversed if there are captions for that, or if nothing changed. The view without
    a change may replace the first image, as in SCORER's training.

    Args:
        masks: Whether masks are read; for that view, which another camera took, only the mask of
            what appeared is known.
    """
    scene, numbers = Scene(), dict[str, int]()
    pairs: list[OrderedPair] = []
    for sample in samples:
        facts = Facts.of_sample({**sample.meta, "key": sample.key})
        objects = (facts.objects_before, facts.objects_after) if facts else ((), ())
        names = (sample.meta.get("before"), sample.meta.get("after"))
        features = before_after(sample, "features")
        images: list[int] = []
        for side, name in enumerate(names):
            name = name or f"{sample.key}{side}"
            images.append(_add(scene, numbers, name, features[side], objects[side]))
        changed = sample.meta.get("kind") != NO_CHANGE
        captions = tuple(str(caption) for caption in sample.meta.get("captions") or [""])
        where = None
        if masks:
            where = PairMasks(sample.mask(), sample.mask_before(), sample.mask_after())
            scene.size = int(sample.meta["height"]), int(sample.meta["width"])
        pairs.append(OrderedPair(images[0], images[1], captions, changed, facts, where))
    for pair in list(pairs):
        views = [p.second for p in pairs if not p.changed and p.first == pair.first]
        if pair.changed and views:
            facts = supervision.seen_from(pair.facts, scene.objects[views[0]])
            appeared = pair.masks and PairMasks(None, None, pair.masks.after)
            pairs.append(replace(pair, first=views[0], facts=facts, masks=appeared))
    scene.pairs = [turned for pair in pairs for turned in _both_ways(pair)]
    return scene


def _both_ways(pair: OrderedPair) -> Iterator[OrderedPair]:
    yield pair
    captions = pair.facts.reversed_captions if pair.facts is not None else ()
    if not pair.changed:
        captions = captions or pair.captions
    if captions:
        facts = pair.facts.reversed() if pair.facts is not None else None
        masks = pair.masks and pair.masks.reversed()
        yield OrderedPair(pair.second, pair.first, captions, pair.changed, facts, masks)


def _add(
    scene: Scene, numbers: dict[str, int], name: str, features: np.ndarray, objects: tuple[Any, ...]
) -> int:
    """The number of an image of the scene; the image is added if it is new."""
    if name not in numbers:
        numbers[name] = len(scene.features)
        scene.features.append(features)
        scene.objects.append(objects)
    return numbers[name]


def facts_of(
    pairs: Sequence[OrderedPair], grid: tuple[int, int], vocabulary: FactVocabulary = SOLIDS
) -> dict[str, torch.Tensor]:
    """Facts of P pairs: facts int64 [P, facts]; places int64 [P, 2], cells of the grid."""
    rows, columns = grid
    places = [
        [
            supervision.cell(attributes, (rows, columns))
            for attributes in (pair.facts.before, pair.facts.after)
        ]
        if pair.facts is not None
        else [supervision.UNKNOWN] * 2
        for pair in pairs
    ]
    classes = [vocabulary.classes(pair.facts) for pair in pairs]
    return {
        "facts": torch.tensor(classes, dtype=torch.long).view(-1, len(vocabulary.fact_classes)),
        "places": torch.tensor(places, dtype=torch.long).view(-1, 2),
    }


def changes_of(
    pairs: Sequence[OrderedPair], grid: tuple[int, int], vocabulary: FactVocabulary = SOLIDS
) -> dict[str, torch.Tensor]:
    """Each of the K changes of P pairs, of objects.

    change_pair int64 [K], the pair's number; change_type int64 [K]; change_before and change_after
    int64 [K], cells of the grid, UNKNOWN where the object is not in that image; change_location
    float32 [K, 2], (u, v) before, or of what was added after; change_attributes int64 [K,
    attributes], of the same object; change_new int64 [K], its new value, UNKNOWN for other types;
    has_changes bool [P], False where nothing is known.
    """
    listed = [
        (number, change, seen)
        for number, pair in enumerate(pairs)
        for change in (pair.facts.changes if pair.facts is not None else ())
        if (seen := change.before or change.after) is not None
    ]
    classes = [vocabulary.classes(Facts.of_changes([change])) for _, change, _ in listed]
    numbers = {
        "change_pair": [number for number, _, _ in listed],
        "change_type": [of_change[0] for of_change in classes],
        "change_before": [supervision.cell(change.before, grid) for _, change, _ in listed],
        "change_after": [supervision.cell(change.after, grid) for _, change, _ in listed],
        "change_new": [of_change[-1] for of_change in classes],
    }
    attributes = [vocabulary.classes_of_object(seen) for _, _, seen in listed]
    return {
        **{name: torch.tensor(values, dtype=torch.long) for name, values in numbers.items()},
        "change_location": torch.tensor([seen.location for _, _, seen in listed]).view(-1, 2),
        "change_attributes": torch.tensor(attributes, dtype=torch.long).view(
            -1, len(vocabulary.attributes)
        ),
        "has_changes": torch.tensor([pair.facts is not None for pair in pairs]),
    }


def masks_of(
    pairs: Sequence[OrderedPair], sizes: Sequence[tuple[int, int]]
) -> dict[str, torch.Tensor]:
    """Masks of P pairs, as `OrderedPairBatches` describes them.

    Args:
        sizes: Of their images in px.

    Raises:
        UserError: Where images differ in size.
    """
    if len(set(sizes)) > 1:
        raise UserError(
            f"images of {sizes[0]} and of other sizes are in these shards",
            "Build the shards with one image_size",
        )
    known = [pair.masks or PairMasks(None, None, None) for pair in pairs]
    empty = np.zeros(sizes[0], np.uint8)
    filled = [[empty if mask is None else mask for mask in masks] for masks in known]
    return {
        "mask": torch.from_numpy(np.array(filled, np.uint8)),
        "has_mask": torch.tensor([[mask is not None for mask in masks] for masks in known]),
        "changed": torch.tensor([pair.changed for pair in pairs]),
    }


def objects_of(
    objects: Sequence[tuple[Any, ...]],
    grid: tuple[int, int],
    vocabulary: FactVocabulary = SOLIDS,
) -> dict[str, torch.Tensor]:
    """Facts of N images, from the objects that each shows; see `OrderedPairBatches`."""
    rows, columns = grid
    listed = [(image, attributes) for image, shown in enumerate(objects) for attributes in shown]
    centres = np.zeros((len(objects), rows, columns), np.float32)
    for image, attributes in listed:
        row, column = supervision.cell_at(attributes, (rows, columns))
        centres[image, row, column] = 1
    classes = [vocabulary.classes_of_object(attributes) for _, attributes in listed]
    return {
        "object_image": torch.tensor([image for image, _ in listed], dtype=torch.long),
        "object_location": torch.tensor([attributes.location for _, attributes in listed]).view(
            -1, 2
        ),
        "object_attributes": torch.tensor(classes, dtype=torch.long).view(
            -1, len(vocabulary.attributes)
        ),
        "centres": torch.from_numpy(centres),
        "has_objects": torch.tensor([len(shown) > 0 for shown in objects]),
    }
