"""The step of `cc-prep caption`: pairs → rows of captions.

Jobs find it by the entry point `caption` of the group `cc_prep.steps` (pyproject.toml), so that
`pipelines` imports no trainer; it runs in their workers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cc_prep import devices, storage
from cc_prep.errors import Reason, RejectedPair, StoreRefused, UserError
from cc_prep.formats.captions import Row
from cc_prep.manifest import Manifest
from cc_prep.records import ImagePair
from cc_prep.steps.base import Digests, StagedStep, map_accepted
from cc_train import caption_rows, loading
from cc_train.data import image_pairs
from cc_train.data.image_pairs import Reading, Sized
from cc_train.pretrained import Captioner
from cc_train.runs import stored_run
from cc_train.sharing import hub

BATCH = 32  # on a GPU


def located(captioner: str) -> str:
    """A captioner as workers with another current folder find it."""
    return os.path.abspath(captioner) if Path(captioner).is_dir() else captioner


def checked(captioner: str) -> dict[str, str]:
    """`digest_of` a captioner that can be loaded. Raises UserError."""
    loading.load(captioner)
    return digest_of(captioner)


def digest_of(captioner: str) -> dict[str, str]:
    """SHA-256 of a captioner's weights and settings by its name. Raises UserError."""
    return {hub.name_of(captioner): stored_run.read(hub.locate(captioner)).sha256}


class CaptionPairs(StagedStep):
    """Pairs → captions.

    On a CPU each pair goes through the captioner alone, so its row depends on that pair only.

    Args:
        captioner: As `located` names it.
    """

    def __init__(self, manifest: Manifest, digests: Digests, captioner: str, device: str) -> None:
        super().__init__(manifest, digests, device)
        devices.use(manifest.features, self.device)
        if digest_of(captioner) != digests:
            raise UserError(
                f"{captioner} on this node is not the captioner that the driver has",
                "Put the same captioner on every node",
            )
        self.captioner = Captioner.from_pretrained(captioner, device=device)
        self.reading = Reading(manifest.image, manifest.pairs)
        self.pairs_per_batch = 1 if device == "cpu" else BATCH

    def read(self, pairs: Sequence[ImagePair]) -> list[Sized | RejectedPair]:
        """Both images of each pair, or why it is rejected."""
        return [self._read(pair) for pair in pairs]

    def compute(
        self, pairs: Sequence[ImagePair], inputs: Sequence[Sized | RejectedPair]
    ) -> list[Any]:
        """Each pair's caption."""
        sized = [one for one in inputs if not isinstance(one, RejectedPair)]
        captions = iter(self.captioner.of_sized(sized))
        return map_accepted(lambda _: next(captions), inputs)

    def encode(self, pairs: Sequence[ImagePair], computed: Sequence[Any]) -> list[Any]:
        """The rows without their keys."""
        classes = self.captioner.inputs.mask_classes

        def row(caption: Any, pair: ImagePair) -> Row:
            images = {"before": pair.before, "after": pair.after}
            named = {"id": pair.id, "split": pair.split, "kind": pair.kind, **images}
            return {**named, **caption_rows.row(caption, classes)}

        return map_accepted(row, computed, pairs)

    def _read(self, pair: ImagePair) -> Sized | RejectedPair:
        root = self.manifest.root
        images = (storage.resolve(root, pair.before), storage.resolve(root, pair.after))
        try:
            return image_pairs.sized(*images, self.captioner.inputs.size, self.reading)
        except StoreRefused:
            raise  # the store's, and of no single pair
        except UserError as error:
            cause = error.__context__  # of two sizes there is none
            if isinstance(cause, RejectedPair):
                return cause
            return RejectedPair(Reason.SIZES_DIFFER, error.what, error.remedy)
