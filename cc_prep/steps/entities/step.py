"""The work of `cc-prep entities`: regions → vectors → phrases."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from cc_prep import weights
from cc_prep.devices import use_threads
from cc_prep.errors import Reason, RejectedPair
from cc_prep.formats import entities as entity_tables
from cc_prep.formats import region_features
from cc_prep.formats.region_features import RegionRow
from cc_prep.formats.sequences import StoredSequence
from cc_prep.formats.tar import DamagedShard, require_as_written
from cc_prep.manifest import Manifest
from cc_prep.records import ImagePair
from cc_prep.steps.base import Digests, Sample, StepBase, WithFindings, map_accepted
from cc_prep.steps.changes.step import StepOnImages
from cc_prep.steps.entities import phrases, regions, texts
from cc_prep.steps.entities.retrieval import ByNeighbours, ByText, RegionVectors, Retriever
from cc_prep.steps.interpolate import DecodedPair
from cc_prep.weights.folders import identify

TRAIN = "train"  # the split whose captions and regions may be looked at


class VectorsOfRegions(StepOnImages):
    """Found changes with their images → rows of vectors; training rows also have phrases."""

    def __init__(self, manifest: Manifest, digests: Digests, device: str) -> None:
        super().__init__(manifest, digests, device)
        self.settings = manifest.entities
        use_threads(self.settings.threads)
        file = None
        if self.settings.retriever == "clip":
            assert self.settings.weights is not None
            file = self.check(identify(self.settings.weights))
        elif self.settings.features != "lab":
            file = self.check(weights.locate(self.settings.features))
        self.encoder = regions.make(self.settings, file, device)
        self.nouns = phrases.NounPhrases()

    def read(self, items: Sequence[WithFindings]) -> list[DecodedPair | RejectedPair]:
        """Each item's images, or why it is rejected."""
        return self.reader.read([item.item for item in items])

    def compute(
        self, items: Sequence[WithFindings], inputs: Sequence[DecodedPair | RejectedPair]
    ) -> list[RegionRow | RejectedPair]:
        """The rows of the pairs whose images were read."""
        use_threads(self.settings.threads)
        return map_accepted(self._row, inputs, items)

    def encode(
        self, items: Sequence[WithFindings], computed: Sequence[RegionRow | RejectedPair]
    ) -> list[Sample | RejectedPair]:
        """The rows without their keys."""
        return map_accepted(RegionRow.encode, computed)

    def _row(self, images: DecodedPair, item: WithFindings) -> RegionRow | RejectedPair:
        if item.change is None:
            return RejectedPair(Reason.UNREADABLE_SEQUENCE, "no found change of this pair")
        try:
            captions = _captions(item.item) if item.split == TRAIN else ()
        except DamagedShard as error:
            return RejectedPair(Reason.UNREADABLE_SEQUENCE, str(error))
        names = dict.fromkeys(itertools.chain.from_iterable(self.nouns(captions)))
        vectors = regions.vectors(
            self.encoder,
            images.before,
            images.after,
            item.change.change,
            self.settings.regions,
        )
        return RegionRow(item.key, item.id, item.split, item.kind, tuple(names), *vectors)


class Retrieve(StepBase):
    """Rows of vectors → the phrases that fit them.

    Args:
        training: Files with the rows of the training split, whose phrases are the vocabulary and
            whose regions vote, and the recorded SHA-256 of each.

    Raises:
        DamagedShard: For one that changed.
    """

    def __init__(
        self, manifest: Manifest, digests: Digests, training: Mapping[str, str], device: str
    ) -> None:
        super().__init__(manifest, digests, device)
        require_as_written(training)
        settings = manifest.entities
        known = [row for path in training for row in region_features.read(path)]
        counts = phrases.vocabulary((row.phrases for row in known), settings.min_count)
        self.retriever: Retriever
        if settings.retriever == "clip":
            assert settings.weights is not None
            use_threads(settings.threads)
            folder = self.check(identify(settings.weights))
            names = sorted(counts)
            vectors = texts.encode(names, folder, settings.template, device)
            self.retriever = ByText(names, vectors, settings.k)
            self.source = folder.name
        else:
            self.retriever = ByNeighbours(
                map(vectors_of, known),
                counts,
                settings.k,
                settings.neighbours,
                settings.temperature,
            )
            self.source = f"neighbours by {settings.features}"

    def __call__(self, items: Sequence[RegionRow]) -> list[Sample | RejectedPair]:
        return [
            entity_tables.encode(self.retriever(one), self.source) for one in map(vectors_of, items)
        ]


def vectors_of(row: RegionRow) -> RegionVectors:
    """A stored row as input of the retrieval; only training pairs have a scene and phrases."""
    scene = row.id if row.split == TRAIN else None
    return RegionVectors(row.key, scene, row.phrases, row.before, row.after)


def _captions(item: ImagePair | StoredSequence) -> Iterable[str]:
    return item.captions if isinstance(item, ImagePair) else item.pair().captions
