"""The pairs of a data set with their images, for programs: `datasets.open` gives them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from cc_prep import storage
from cc_prep.manifest import ImageValues, Pairs
from cc_prep.records import ImagePair

VALUES, PAIRS = ImageValues(), Pairs()


@dataclass(frozen=True)
class LoadedPair:
    """A pair with its images.

    Attributes:
        record: What the data set says of it: id, captions, type of change and more.
        before, after: uint8 [H, W, 3] RGB.
        mask, mask_before, mask_after: Class ids uint8 [H, W], 0 unchanged and 1 … K the classes of
            `record.mask_classes`: the union and what vanished, in the size of before, and what
            appeared, in that of after. None if the data set has no masks. All arrays may be
            changed.
    """

    record: ImagePair
    before: np.ndarray
    after: np.ndarray
    mask: np.ndarray | None = None
    mask_before: np.ndarray | None = None
    mask_after: np.ndarray | None = None

    @property
    def captions(self) -> tuple[str, ...]:
        """The reference captions."""
        return self.record.captions


class LoadedPairs(Sequence[LoadedPair]):
    """The pairs of a split, whose images are read when a pair is asked for.

    It has a length and indices, as a data set of PyTorch does.

    Indexing raises `cc_prep.errors.RejectedPair` for an image that is missing or damaged.

    Args:
        records: All pairs without their images.
        size: Images are resized to size × size px; None leaves them as they are.
        values: Which bands are read, and what is black and white.
        pairs: How images that do not lie on each other are treated.
    """

    def __init__(
        self,
        root: str,
        records: Sequence[ImagePair],
        size: int | None,
        values: ImageValues = VALUES,
        pairs: Pairs = PAIRS,
    ) -> None:
        self.root, self.records, self.size = root, list(records), size
        self.values, self.pairs = values, pairs

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> LoadedPair: ...

    @overload
    def __getitem__(self, index: slice) -> LoadedPairs: ...

    def __getitem__(self, index: int | slice) -> LoadedPair | LoadedPairs:
        if isinstance(index, slice):
            return LoadedPairs(self.root, self.records[index], self.size, self.values, self.pairs)
        return self._load(self.records[index])

    def __iter__(self) -> Iterator[LoadedPair]:
        return (self._load(record) for record in self.records)

    def _load(self, record: ImagePair) -> LoadedPair:
        # Imported here because those who only list pairs do without OpenCV.
        from cc_prep.media import images, masks, registration

        paths = [storage.resolve(self.root, path) for path in (record.before, record.after)]
        stored = images.read_together(paths, None, self.values)
        sizes = masks.ImageSizes(*(pixels.shape[:2] for pixels in stored))
        *both, found = registration.on_one_grid(stored[0], stored[1], self.pairs)
        before, after = (
            _writable(images.resize(pixels, self.size, self.values.filter)) for pixels in both
        )
        height, width = before.shape[:2]
        known_masks = masks.of_pair(
            self.root, record, height, width, sizes=sizes, registration=found
        )
        if after.shape != before.shape:
            height, width = after.shape[:2]
            of_after = masks.of_pair(self.root, record, height, width, sizes=sizes)
            known_masks = known_masks._replace(after=of_after.after)
        return LoadedPair(
            record, before, after, *(None if m is None else _writable(m) for m in known_masks)
        )


def _writable(array: np.ndarray) -> np.ndarray:
    return np.require(array, requirements=("C", "W"))  # a copy only where it must be
