"""`cc-prep export procap` and `cc-prep import procap`: to and from ProCap's HDF5 and JSON."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cc_prep import storage
from cc_prep.errors import Reason, RejectedPair
from cc_prep.formats import procap, provenance, scores, sequences
from cc_prep.formats.procap import Names
from cc_prep.formats.sequences import StoredSequence
from cc_prep.inspect import verification
from cc_prep.manifest import IMPORTED, Manifest
from cc_prep.media.images import resize
from cc_prep.progress import Progress, no_progress
from cc_prep.records import FrameSequence, ImagePair
from cc_prep.steps import confidence
from pipelines.actors import Digests, StepBase
from pipelines.state import sources
from pipelines.step import Members
from pipelines.stored import check_scores, finished_shards


def export(out: str, target: str, progress: Progress = no_progress) -> dict[str, int]:
    """Writes OUT/sequences and OUT/scores as ProCap's files; returns the counts of each.

    Raises UserError, also if one of these jobs has not ended or the scores are of other sequences,
    and DamagedShard.
    """
    target = storage.local_folder(target)
    folder = verification.find_one(out, sequences.FORMAT)
    record = provenance.read(folder)
    assert record is not None
    shards = finished_shards(folder, sequences.FORMAT, sources.maker(record).partition(" ")[2])
    names = Names(record["settings"]["name"], record["settings"]["layout"])
    score_folder = storage.join(out, scores.FORMAT.folder)
    with_scores = provenance.read(score_folder) is not None
    if with_scores:
        scored = finished_shards(score_folder, scores.FORMAT, "score-frames")
        for name, one in shards.items():
            if one["samples"]:
                check_scores(name, one, scored, score_folder)
    else:  # said before hours of work
        procap.refuse_others(target, [names.scores])
    count = {"sequences": 0, "scores": 0}
    with procap.exporting(target, names) as exporter:
        for done, shard in enumerate(sorted(shards), 1):
            table = storage.join(score_folder, scores.FORMAT.file(shard))
            has_rows = with_scores and shards[shard]["samples"]
            rows = dict(scores.read_shard(table)) if has_rows else {}
            for sample in sequences.read(storage.join(folder, sequences.FORMAT.file(shard))):
                exporter.add_frames(sample, sample.frames())
                count["sequences"] += 1
                if sample.key in rows:
                    row = {"key": sample.key, **rows[sample.key]}
                    exporter.add_scores(sample, scores.decode(row))
                    count["scores"] += 1
            progress(done, len(shards))
    return count


class ImportFrames(StepBase):
    """Pairs → sequences out of HDF5 files. No network runs, so the device does not matter."""

    def __init__(self, manifest: Manifest, digests: Digests, source: str, device: str) -> None:
        super().__init__(manifest, digests, device)
        self.videos = procap.Videos(source, Names(manifest.name, manifest.layout))

    def __call__(self, pairs: Sequence[ImagePair]) -> list[Members | RejectedPair]:
        return [self._members(pair) for pair in pairs]

    def _members(self, pair: ImagePair) -> Members | RejectedPair:
        settings = self.manifest.interpolate
        try:
            frames = self.videos.frames(pair)
        except RejectedPair as error:
            return error
        if len(frames) != 2**settings.depth + 1:
            return RejectedPair(
                Reason.UNREADABLE_SEQUENCE,
                f"{len(frames)} frames, not {2**settings.depth + 1} as the first sequence has",
            )
        frames = np.stack([resize(frame, self.manifest.image_size) for frame in frames])
        interpolator = {"method": IMPORTED, "depth": settings.depth}
        sequence = FrameSequence(pair, frames)
        return sequences.encode(sequence, settings.codec, settings.quality, interpolator)


class ImportScores(StepBase):
    """Sequences → scores out of a JSON file. No network runs, so the device does not matter."""

    def __init__(self, manifest: Manifest, digests: Digests, source: str, device: str) -> None:
        super().__init__(manifest, digests, device)
        self.rule = manifest.keyframes
        self.names = Names(manifest.name, manifest.layout)
        self.by_id = procap.read_scores(source, self.names)

    def __call__(self, stored: Sequence[StoredSequence]) -> list[scores.Row | RejectedPair]:
        return [self._row(sequence) for sequence in stored]

    def _row(self, stored: StoredSequence) -> scores.Row | RejectedPair:
        pair, frames = stored.pair(), int(stored.meta["frames"])
        try:
            frame_scores = procap.scores_of(self.by_id, self.names, pair, pair.captions, frames)
        except RejectedPair as error:
            return error
        penalty = confidence.penalties(frame_scores.bef_inter_sim, frame_scores.inter_aft_sim)
        keyframes = confidence.fixed_keyframes(penalty, self.rule.k, self.rule.strategy)
        return scores.encode(frame_scores, penalty, keyframes, IMPORTED, "")
