"""The work of each step: weights held by the object, pairs in, encoded samples out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cc_prep import images, interpolation, storage, weights
from cc_prep.errors import Reason, RejectedPair, UserError
from cc_prep.formats import sequences
from cc_prep.manifest import Manifest
from cc_prep.records import FrameSequence, ImagePair
from pipelines.shard_worker import Members

PAIRS_PER_BATCH = {"cpu": 1, "cuda": 8}


class Interpolate:
    """Pairs → sequences.

    device: `cpu` or `cuda`. weights_digest: what the driver found, so that a node of a cluster
    that has other weights under the same name is noticed.
    """

    def __init__(self, manifest: Manifest, device: str, weights_digest: str | None) -> None:
        settings = manifest.interpolate
        self.manifest, self.device = manifest, device
        self.pairs_per_batch = settings.pairs_per_batch or PAIRS_PER_BATCH[device]
        self.about: dict[str, object] = {"method": settings.method, "depth": settings.depth}
        tensors = None
        if settings.method == "rife":
            import torch

            torch.set_num_threads(settings.threads)
            torch.use_deterministic_algorithms(True, warn_only=True)
            found = weights.locate(settings.weights)
            if found.sha256 != weights_digest:
                raise UserError(
                    f"{found.path} on this node is not the file that the driver has",
                    "Put the same weights on every node",
                )
            tensors = weights.read_tensors(found.path)
            self.about["weights"] = found.name
        self.interpolator = interpolation.make(settings, tensors, device)

    def __call__(self, pairs: Sequence[ImagePair]) -> list[Members | RejectedPair]:
        read = [self._read(pair) for pair in pairs]
        frames = self._frames({i: r for i, r in enumerate(read) if not isinstance(r, RejectedPair)})
        return [
            outcome if isinstance(outcome, RejectedPair) else self._encode(pair, frames[i])
            for i, (pair, outcome) in enumerate(zip(pairs, read, strict=True))
        ]

    def _frames(self, ends: dict[int, tuple[np.ndarray, np.ndarray]]) -> dict[int, np.ndarray]:
        """Sequences by number; only pairs of one size go through the network together."""
        frames: dict[int, np.ndarray] = {}
        for shape in {before.shape for before, _ in ends.values()}:
            same = [i for i, (before, _) in ends.items() if before.shape == shape]
            before, after = (np.stack([ends[i][end] for i in same]) for end in (0, 1))
            made = self.interpolator.sequence(before, after, self.manifest.interpolate.depth)
            frames.update(zip(same, made, strict=True))
        return frames

    def free_memory(self) -> None:
        """Gives the GPU's cached memory back."""
        if self.device == "cuda":
            import torch

            torch.cuda.empty_cache()

    def _read(self, pair: ImagePair) -> tuple[np.ndarray, np.ndarray] | RejectedPair:
        try:
            before, after = self._image(pair.before), self._image(pair.after)
        except RejectedPair as error:
            return error
        if before.shape != after.shape:
            sizes = " and ".join(f"{x.shape[1]}×{x.shape[0]}" for x in (before, after))
            return RejectedPair(Reason.SIZES_DIFFER, f"{sizes}; set image_size to resize both")
        return before, after

    def _image(self, reference: str) -> np.ndarray:
        place = storage.resolve(self.manifest.root, reference)
        return images.read(place, self.manifest.image_size)

    def _encode(self, pair: ImagePair, frames: np.ndarray) -> Members | RejectedPair:
        settings = self.manifest.interpolate
        truth, mask = {}, None
        try:
            if settings.keep_truth:
                last = len(frames) - 1
                truth = {
                    round(t * last): self._image(place)
                    for t, place in pair.truth
                    if (t * last).is_integer()
                }
                if pair.mask is not None:
                    place = storage.resolve(self.manifest.root, pair.mask)
                    mask = images.read_mask(place, self.manifest.image_size)
        except RejectedPair as error:
            return error
        sequence = FrameSequence(pair, frames, truth, mask)
        return sequences.encode(sequence, settings.codec, settings.quality, self.about)
