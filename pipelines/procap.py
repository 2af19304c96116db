"""`cc-prep export procap` and `cc-prep import procap`: to and from ProCap's HDF5 and JSON."""

from __future__ import annotations

from cc_prep import storage
from cc_prep.formats import procap, provenance, scores, sequences
from cc_prep.formats.procap import Names
from cc_prep.inspect import verification
from cc_prep.progress import Progress, no_progress
from pipelines.state import sources
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
