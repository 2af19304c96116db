"""The work of `cc-prep changes`: pairs or stored sequences in, found changes out."""

from __future__ import annotations

from collections.abc import Sequence

from cc_prep.errors import Reason, RejectedPair
from cc_prep.formats import changes as change_shards
from cc_prep.formats.changes import FoundChange
from cc_prep.formats.sequences import StoredSequence
from cc_prep.formats.tar import DamagedShard
from cc_prep.manifest import Interpolate as InterpolateSettings
from cc_prep.manifest import Manifest
from cc_prep.numerics import use_threads
from cc_prep.records import ImagePair
from cc_prep.steps import changes
from cc_prep.steps.changes import segmenters
from cc_prep.weights.folders import identify
from pipelines.steps.base import Digests, Members, StagedStep, map_accepted
from pipelines.steps.interpolate import DecodedPair, Interpolate

Item = ImagePair | StoredSequence


class PairReader:
    """Reads before and after of pairs, as `cc-prep interpolate` does, or of stored sequences."""

    def __init__(self, manifest: Manifest) -> None:
        settings = InterpolateSettings(method="crossfade", depth=0, keep_truth=False)
        images_alone = manifest.model_copy(update={"interpolate": settings})
        self._pairs = Interpolate(images_alone, {}, "cpu", with_truth=False)

    def prefetch(self, pairs: Sequence[ImagePair]) -> None:
        """Announces pairs that will be read; see `Interpolate.prefetch`."""
        self._pairs.prefetch(pairs)

    def read(self, items: Sequence[Item]) -> list[DecodedPair | RejectedPair]:
        """Each item's two images, or why it is rejected."""
        return [self._read(item) for item in items]

    def _read(self, item: Item) -> DecodedPair | RejectedPair:
        if isinstance(item, ImagePair):
            return self._pairs.read([item])[0]
        try:
            return DecodedPair(*item.ends())
        except (DamagedShard, ValueError) as error:
            return RejectedPair(Reason.UNREADABLE_SEQUENCE, str(error))


class StepOnImages(StagedStep):
    """The base of steps that read only the two images of a pair."""

    def __init__(self, manifest: Manifest, digests: Digests, device: str) -> None:
        super().__init__(manifest, digests, device)
        self.reader = PairReader(manifest)

    def prefetch(self, pairs: Sequence[ImagePair]) -> None:
        """Announces pairs that will be read; see `Interpolate.prefetch`."""
        self.reader.prefetch(pairs)


class FindChanges(StepOnImages):
    """Pairs or sequences → masks and regions of what changed. It holds the network of SAM."""

    def __init__(self, manifest: Manifest, digests: Digests, device: str) -> None:
        super().__init__(manifest, digests, device)
        self.settings = manifest.changes
        weights = None
        if self.settings.segmenter == "sam":
            assert self.settings.weights is not None
            use_threads(self.settings.threads)
            weights = self.check(identify(self.settings.weights))
        self.segmenter = segmenters.make(self.settings, weights, device)

    def read(self, items: Sequence[Item]) -> list[DecodedPair | RejectedPair]:
        """Each item's images, or why it is rejected."""
        return self.reader.read(items)

    def compute(
        self, items: Sequence[Item], inputs: Sequence[DecodedPair | RejectedPair]
    ) -> list[FoundChange | RejectedPair]:
        """The changes found in the pairs whose images were read."""
        if self.settings.segmenter == "sam":
            use_threads(self.settings.threads)
        return map_accepted(self._change, inputs)

    def encode(
        self, items: Sequence[Item], computed: Sequence[FoundChange | RejectedPair]
    ) -> list[Members | RejectedPair]:
        """The found changes as members of a tar."""
        return map_accepted(_members, computed, items)

    def _change(self, images: DecodedPair) -> FoundChange:
        return changes.find(images.before, images.after, self.settings, self.segmenter)


def _members(change: FoundChange, item: Item) -> Members:
    names = {"key": item.key, "split": item.split, "id": item.id, "kind": item.kind}
    return change_shards.encode(names, change)
