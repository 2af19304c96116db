"""Masks that a captioner predicts for samples of training shards, against the samples' own."""

from __future__ import annotations

from cc_prep.errors import UserError
from cc_prep.formats.tar import DamagedShard
from cc_prep.formats.training_shards import TrainingSample
from cc_prep.media.masks import fitted
from cc_train.captioner import Caption
from cc_train.data.shard_index import ADVICE, Entry, facts_of
from cc_train.evaluation.faithfulness import Judged
from cc_train.evaluation.masks.segmentation import MaskCounter, MaskScores


class SampleMasks:
    """Counts the masks of captions of samples, as far as both have one.

    judged: of rendered samples, what `faithfulness.count` takes.
    """

    def __init__(self) -> None:
        self.counter: MaskCounter | None = None
        self.judged: list[Judged] = []

    def add(self, entry: Entry, sample: TrainingSample, caption: Caption) -> None:
        """Counts a sample's masks. A prediction of another size is resized by nearest neighbour.

        sample: what was read of `entry`. Raises UserError for a damaged mask, for classes that are
        not those of the samples before it, and for a predicted class that its data does not have.
        """
        if caption.mask is None or not entry.mask_classes:
            return
        try:
            reference = sample.mask()
        except DamagedShard as error:
            raise UserError(f"{entry.shard}: {error}", ADVICE) from None
        if reference is None:
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
        facts = facts_of({**sample.meta, "key": entry.key})
        if facts is not None:
            self.judged.append(Judged(caption.text, facts, prediction, reference))

    @property
    def scores(self) -> MaskScores | None:
        """Of what was counted so far; None if nothing was."""
        return None if self.counter is None else self.counter.scores
