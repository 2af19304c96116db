"""`cc-prep export procap` and `cc-prep import procap`: to and from ProCap's HDF5 and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from cc_prep import storage
from cc_prep.errors import Reason, RejectedPair, UserError
from cc_prep.formats import procap, provenance, scores, sequences
from cc_prep.formats.procap import Names
from cc_prep.formats.sequences import StoredSequence
from cc_prep.inspect import verification
from cc_prep.manifest import IMPORTED, Manifest
from cc_prep.media.images import resize
from cc_prep.progress import Progress, no_progress
from cc_prep.records import CHANGE, NO_CHANGE, FrameSequence, ImagePair
from cc_prep.steps import confidence
from pipelines import estimates, fingerprint, job
from pipelines.plan import plan
from pipelines.state import sources
from pipelines.step import Members
from pipelines.stored import check_scores, finished_shards, plan_from_sequences


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


def import_frames(request: job.Request, source: str) -> job.Summary | None:
    """Makes `OUT/sequences` of a data set from ProCap's HDF5 files. Raises UserError, JobFailed."""
    manifest, source = request.manifest, str(Path(source).absolute())
    videos = procap.Videos(source, Names(manifest.name, manifest.layout))
    frames = max(videos.count(CHANGE), videos.count(NO_CHANGE))
    depth = (frames - 1).bit_length() - 1 if frames > 2 else 0
    if not frames or frames != 2**depth + 1:
        file_name = videos.names.videos(CHANGE)
        contents = f"sequences of {frames} frames" if frames else f"no {file_name} there"
        raise UserError(f"{source}: {contents}", "2^depth + 1 frames are wanted, such as 9")
    manifest = fingerprint.for_imported_sequences(manifest, depth)
    if storage.exists(storage.join(source, videos.names.scores)):
        _with_imported_scores(manifest)  # refuses what would stop `import_scores` afterwards
    shards = plan(manifest, request.splits, request.limit)
    videos.check_names(pair for shard in shards for pair in shard.pairs)
    masked = sum(bool(pair.masks) for shard in shards for pair in shard.pairs)
    if masked:
        request.console.print(
            f"the masks of {masked:,} {'pair' if masked == 1 else 'pairs'} are not taken in: "
            "ProCap's files hold frames alone",
        )
    spec = job.JobSpec(
        format=sequences.FORMAT,
        folder=storage.join(storage.absolute(request.out), sequences.FORMAT.folder),
        shards=shards,
        make_step=partial(ImportFrames, fingerprint.with_absolute_paths(manifest), source),
        settings=fingerprint.recorded_settings(manifest, fingerprint.SEQUENCE_KEYS),
        weights={},
        threads=1,
        bytes_a_pair=estimates.sequence_bytes(frames, (manifest.image_size or 224) ** 2, "png"),
        memory="a few sequences",
        data=sources.of_pairs(manifest, shards),
        has_network=False,
    )
    return job.run(spec, request.options, request.console)


def import_scores(request: job.Request, source: str) -> job.Summary | None:
    """Makes `OUT/scores` of `OUT/sequences` from ProCap's JSON; None if there is no JSON."""
    manifest, out = request.manifest, storage.absolute(request.out)
    source = str(Path(source).absolute())
    names = Names(manifest.name, manifest.layout)
    try:
        procap.read_scores(source, names)
    except FileNotFoundError:
        request.console.print(f"no {names.scores} in {source}: sequences only")
        return None
    folder = storage.join(out, sequences.FORMAT.folder)
    manifest = fingerprint.continue_from(manifest, folder)
    manifest = _with_imported_scores(manifest)
    spec = job.JobSpec(
        format=scores.FORMAT,
        folder=storage.join(out, scores.FORMAT.folder),
        shards=plan_from_sequences(folder, request.splits, request.limit),
        make_step=partial(ImportScores, manifest, source),
        settings=fingerprint.recorded_settings(manifest, fingerprint.SCORE_KEYS),
        weights={},
        threads=1,
        bytes_a_pair=estimates.SCORE_BYTES,
        memory="the JSON file, read whole",
        data=sources.of_stored(manifest, folder),
        has_network=False,
    )
    return job.run(spec, request.options, request.console)


def _with_imported_scores(manifest: Manifest) -> Manifest:
    """The manifest for importing scores. Raises UserError if its keyframe rule does not fit."""
    manifest = fingerprint.with_section(manifest, "score", weights=IMPORTED)
    fingerprint.check_keyframes(manifest)
    return manifest


class ImportFrames:
    """Pairs → sequences out of HDF5 files. No network runs, so the device does not matter."""

    pairs_per_batch = 1

    def __init__(self, manifest: Manifest, source: str, device: str) -> None:
        self.manifest = manifest
        self.videos = procap.Videos(source, Names(manifest.name, manifest.layout))

    def __call__(self, pairs: Sequence[ImagePair]) -> list[Members | RejectedPair]:
        return [self._members(pair) for pair in pairs]

    def free_memory(self) -> None:
        pass

    def check_device(self) -> None:
        pass

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


class ImportScores:
    """Sequences → scores out of a JSON file. No network runs, so the device does not matter."""

    pairs_per_batch = 1

    def __init__(self, manifest: Manifest, source: str, device: str) -> None:
        self.rule = manifest.keyframes
        self.names = Names(manifest.name, manifest.layout)
        self.by_id = procap.read_scores(source, self.names)

    def __call__(self, stored: Sequence[StoredSequence]) -> list[scores.Row | RejectedPair]:
        return [self._row(sequence) for sequence in stored]

    def free_memory(self) -> None:
        pass

    def check_device(self) -> None:
        pass

    def _row(self, stored: StoredSequence) -> scores.Row | RejectedPair:
        pair, frames = stored.pair(), int(stored.meta["frames"])
        try:
            frame_scores = procap.scores_of(self.by_id, self.names, pair, pair.captions, frames)
        except RejectedPair as error:
            return error
        penalty = confidence.penalties(frame_scores.bef_inter_sim, frame_scores.inter_aft_sim)
        keyframes = confidence.fixed_keyframes(penalty, self.rule.k, self.rule.strategy)
        return scores.encode(frame_scores, penalty, keyframes, IMPORTED, "")
