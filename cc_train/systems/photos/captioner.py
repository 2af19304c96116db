"""The captioner of photographs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from cc_prep.media import images
from cc_prep.models.cpu import image_by_image
from cc_prep.models.nanodet import SIDE, Detection, NanoDet, detections
from cc_prep.records import CHANGE_CLASS
from cc_train import doubt
from cc_train.captioner import Caption, Change, Inputs
from cc_train.layers.with_frozen import WithFrozen
from cc_train.systems.pair_trunk import PairTrunk
from cc_train.systems.photos import objects, pictures, sentences
from cc_train.systems.photos.objects import Box, Verdict
from cc_train.systems.photos.pictures import BLURS, CROPS, Pictures

LOWEST = 0.06  # score of the detections that are looked at
MIN_ALIKE = 0.35  # below it, the two images seem to show different views
MAX_LOGIT = 10.0  # of the chance that the comparison gives
EVIDENCE = 4  # numbers


class PhotoCaptioner(WithFrozen):
    """Two images → what happened, to what, and where.

    The comparison and the detector are frozen, and the package has them by name. What is learned
    here is what the evidence for a sentence is worth: a logistic regression.

    Args:
        comparison: Sees whether and how a pair changed, and roughly where.
        detector: Names objects and places them.
    """

    def __init__(self, comparison: PairTrunk, detector: NanoDet) -> None:
        super().__init__()
        self.inputs = Inputs((SIDE, SIDE), mask_classes=CHANGE_CLASS)
        self.comparison: PairTrunk
        self.detector: NanoDet
        for name, network in (("comparison", comparison), ("detector", detector)):
            object.__setattr__(self, name, network)  # a plain assignment makes a submodule
        self.use_frozen("frozen", nn.ModuleList((comparison, detector)))
        self.confidence = nn.Linear(EVIDENCE, 1)

    @property
    def device(self) -> torch.device:
        """The device that holds the parameters."""
        return self.confidence.weight.device

    def caption(self, before_after: Tensor, beams: int = 1) -> list[Caption]:
        """Captions of B pairs, uint8 [B, 2, H, W, 3]. There are no beams to search."""
        return [self._judged(one, evidence) for one, evidence in self.unjudged(before_after)]

    @torch.inference_mode()
    def unjudged(self, before_after: Tensor) -> list[tuple[Caption, list[float]]]:
        """Captions of B pairs without a confidence, and the evidence for each, [EVIDENCE]."""
        pixels = before_after.cpu().numpy()
        seen = [pictures.compare(before, after) for before, after in pixels]
        pairs = [
            pictures.without_change(before, after, one)
            for (before, after), one in zip(pixels, seen, strict=True)
        ]
        known = zip(pixels, seen, self._verdicts(pairs), self._detected(pairs), strict=True)
        return [_caption(*one) for one in known]

    def _judged(self, caption: Caption, evidence: Sequence[float]) -> Caption:
        """The caption with its confidence; one that says that it is not sure if that is low."""
        if caption.text == doubt.EQUAL:
            return replace(caption, confidence=1.0)
        with torch.inference_mode():
            inputs = torch.tensor(evidence, device=self.device)
            confidence = float(self.confidence(inputs).sigmoid())
        caption = replace(caption, confidence=confidence)
        if confidence >= doubt.MIN_CONFIDENCE:
            return caption
        why = sentences.UNLIKE if evidence[-1] < MIN_ALIKE else sentences.UNCLEAR
        empty = np.zeros(self.inputs.size, np.uint8)
        return replace(doubt.unsure(caption, why), changes=(), mask=empty)

    def _verdicts(self, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[Verdict]:
        """What the comparison says of pairs of images, uint8 [H, W, 3]."""
        size = self.comparison.inputs.size
        small = np.stack([[images.resize(image, size) for image in pair] for pair in pairs])
        changes = self.comparison.changes(torch.from_numpy(small).to(self.device))
        types = self.comparison.encoder.vocabulary.types
        chances = changes.facts[:, : len(types)].softmax(1).cpu().numpy()
        _, rows, _ = self.comparison.backbone.spec.grid
        before, after = (
            logits.float().softmax(1).unflatten(1, (rows, -1)).cpu().numpy()
            for logits in (changes.before, changes.after)
        )
        return [Verdict.of(types, *one) for one in zip(chances, before, after, strict=True)]

    def _detected(
        self, pairs: Sequence[tuple[np.ndarray, np.ndarray]]
    ) -> list[tuple[list[Detection], list[Detection]]]:
        """What the detector finds in both images of pairs, uint8 [H, W, 3]."""
        flat = torch.from_numpy(np.stack([image for pair in pairs for image in pair]))
        batch = flat.to(self.device).permute(0, 3, 1, 2).float() / 255
        places = image_by_image(self.detector.places, batch)
        height, width = batch.shape[2:]
        found = detections(places, (height, width), LOWEST)
        return list(zip(found[::2], found[1::2], strict=True))


def _caption(
    pair: np.ndarray,
    seen: Pictures,
    verdict: Verdict,
    detected: tuple[list[Detection], list[Detection]],
) -> tuple[Caption, list[float]]:
    """The caption of a pair, uint8 [2, H, W, 3], and the evidence for it."""
    changes: list[Change] = []
    if np.array_equal(pair[0], pair[1]):
        text = doubt.EQUAL
    else:
        if seen.change not in (*BLURS, *CROPS):  # which leave nothing as it was
            changes = objects.find(verdict, *detected, seen.difference, seen.new_color)
        if seen.change:  # where it is too bright, no correction is exact: only names count
            changes = [change for change in changes if change.label]
        text = sentences.text(seen.change, changes)
    boxes = [box for change in changes for box in (change.before, change.after) if box is not None]
    caption = Caption(text, mask=_mask(boxes, seen, pair.shape[1:3]), changes=tuple(changes))
    chance = torch.tensor(verdict.chance, dtype=torch.float64)
    certainty = float(torch.logit(chance, 1e-12).clamp(-MAX_LOGIT, MAX_LOGIT)) / MAX_LOGIT
    score = min((change.score for change in changes), default=0.0)
    return caption, [certainty, score, float(not changes), seen.alike]


def _mask(boxes: Sequence[Box], seen: Pictures, size: tuple[int, int]) -> np.ndarray:
    """Where something changed, uint8 [H, W]: what differs within the boxes."""
    mask = np.zeros(size, np.uint8)
    differs = images.resize(seen.differs.astype(np.uint8)[..., None].repeat(3, 2) * 255, size)
    for left, top, right, bottom in boxes:
        rows = slice(round(size[0] * top), round(size[0] * bottom))
        columns = slice(round(size[1] * left), round(size[1] * right))
        mask[rows, columns] |= differs[rows, columns, 0] > 127
    return mask
