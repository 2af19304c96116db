"""Masks that a captioner predicts for samples of training shards, against the samples' own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from cc_prep.errors import UserError
from cc_prep.formats.tar import DamagedShard
from cc_prep.formats.training_shards import TrainingSample
from cc_prep.media.images import encode_image
from cc_prep.media.masks import fitted
from cc_prep.records import Facts
from cc_train.captioner import Caption
from cc_train.data.shard_index import ADVICE, Entry
from cc_train.evaluation.evaluation_files import MaskScores
from cc_train.evaluation.masks.segmentation import MaskCounter
from cc_train.evaluation.rendered.faithfulness import Judged


class SampleMasks:
    """Counts the masks of captions of samples, as far as both have one.

    Args:
        known: Names of the classes that the captioner was trained on; masks of samples with other
            classes are left out, since equal ids would mean different things. Empty for a captioner
            that names none.
        judged: The rendered samples, for `faithfulness.count`.
        left_out: Number of masks left out, by classes.
        pngs: With `keep`, by key, the predicted mask, and the true one if it was counted.
    """

    def __init__(self, known: tuple[str, ...] = (), keep: bool = False) -> None:
        self.known, self.keep = known, keep
        self.counter: MaskCounter | None = None
        self.judged: list[Judged] = []
        self.left_out: Counter[tuple[str, ...]] = Counter()
        self.pngs: dict[str, tuple[bytes, bytes | None]] = {}

    def add(self, entry: Entry, sample: TrainingSample, caption: Caption) -> None:
        """Counts a sample's masks. A prediction of another size is resized by nearest neighbour.

        Args:
            sample: The sample of `entry`.

        Raises:
            UserError: For a damaged mask, for other classes than those of earlier samples, and for
                a predicted class that its data does not have.
        """
        if caption.mask is not None and self.keep:
            self.pngs[entry.key] = encode_image(caption.mask, "png", 0), None
        if caption.mask is None or not entry.mask_classes:
            return
        try:
            reference = sample.mask()
        except DamagedShard as error:
            raise UserError(f"{entry.shard}: {error}", ADVICE) from None
        if reference is None:
            return
        if self.known and entry.mask_classes != self.known:
            self.left_out[entry.mask_classes] += 1
            return
        if self.counter is None:
            self.counter = MaskCounter(entry.mask_classes)
        if self.counter.classes != entry.mask_classes:
            classes = " and ".join(", ".join(c) for c in (self.counter.classes, entry.mask_classes))
            raise UserError(
                f"{entry.key}: masks of other classes ({classes})", "Score each data set by itself"
            )
        prediction = fitted(caption.mask, *reference.shape)
        if prediction.max() > len(entry.mask_classes):
            raise UserError(
                f"{entry.key}: class {prediction.max()} is predicted, of {len(entry.mask_classes)}",
                "Score the captioner on data with the classes that it was trained on",
            )
        self.counter.add(reference, prediction)
        if self.keep:
            predicted, true = (encode_image(mask, "png", 0) for mask in (prediction, reference))
            self.pngs[entry.key] = predicted, true
        facts = Facts.of_sample({**sample.meta, "key": entry.key})
        if facts is not None:
            self.judged.append(Judged(caption.text, facts, prediction, reference))

    def notes(self) -> Iterator[str]:
        """A note for each list of classes whose masks were left out."""
        for classes, count in self.left_out.items():
            listed, known = ", ".join(classes), ", ".join(self.known)
            yield f"masks of {listed} ({count:,}) are not scored: the captioner masks {known}"

    @property
    def scores(self) -> MaskScores | None:
        """Scores of the masks counted so far; None if there are none."""
        return None if self.counter is None else self.counter.scores
