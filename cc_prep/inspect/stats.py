"""Figures over a folder of sequences: `cc-prep stats`."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from typing import Any

import numpy as np

from cc_prep import storage
from cc_prep.formats import captions as caption_rows
from cc_prep.formats import provenance, rejects, scores, sequences, training_shards
from cc_prep.inspect import quality
from cc_prep.progress import Progress, no_progress

MOTION_EDGES_PX = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


def sequence_figures(
    folder: str,
    most: int | None = None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Counts, sizes, motion, and quality against the true frames where there are any.

    Raises UserError without provenance, DamagedShard for a damaged shard.

    Args:
        most: Look at about so many sequences only, in shards spread over the folder.
    """
    record = provenance.read(folder) or {}
    counts: dict[str, Counter[str]] = {k: Counter() for k in ("split", "kind", "change_type")}
    sizes: Counter[str] = Counter()
    captions, motions, sample_count = 0, [], 0
    against: dict[str, list[float]] = defaultdict(list)
    shard_records: dict[str, dict[str, Any]] = record.get("shards", {})
    sequence_count = sum(facts["samples"] for facts in shard_records.values())
    shards = spread(shard_records, most)
    for done, name in enumerate(shards, 1):
        for sample in sequences.read(storage.join(folder, sequences.FORMAT.file(name))):
            sample_count += 1
            for field, counter in counts.items():
                counter[str(sample.meta.get(field))] += 1
            captions += len(sample.meta.get("captions", ()))
            sizes[f"{sample.meta['width']}×{sample.meta['height']}"] += 1
            motions.append(quality.motion(*sample.ends()))
            truth = sample.truth()
            if truth:  # the frames between are decoded for this alone
                for measure, values in against_truth(sample.frames(), truth).items():
                    against[measure] += values.values()
        progress(done, len(shards))
    return {
        "sequences": sequence_count,
        "frames": sequence_count * (2 ** record["settings"]["interpolate"]["depth"] + 1),
        "bytes": sum(facts["bytes"] for facts in shard_records.values()),
        "shards": len(shard_records),
        "looked at": sample_count,
        **{f"by {field}": dict(sorted(counter.items())) for field, counter in counts.items()},
        "image sizes": dict(sizes.most_common()),
        "captions": captions,
        "rejects by reason": dict(Counter(r.reason for r in rejects.read(folder)).most_common()),
        "motion in px": motion_histogram(motions),
        "against true frames": {
            measure: {"mean": round(float(np.mean(values)), 4), "frames": len(values)}
            for measure, values in against.items()
        },
    }


def spread(shard_records: dict[str, dict[str, Any]], most: int | None) -> list[str]:
    """Shards, evenly spread, that hold at least `most` samples; all by default."""
    names = sorted(shard_records)
    for step in range(len(names), 1, -1):
        chosen = names[::step]
        if most is not None and sum(shard_records[name]["samples"] for name in chosen) >= most:
            return chosen
    return names


def against_truth(frames: np.ndarray, truth: dict[int, np.ndarray]) -> dict[str, dict[int, float]]:
    """PSNR in dB and SSIM of interpolated frames against the true ones, by frame number.

    Args:
        frames: uint8 [F, H, W, 3].
    """
    if not truth:
        return {}
    return {
        "PSNR": {i: quality.psnr(frames[i], true) for i, true in sorted(truth.items())},
        "SSIM": {i: quality.ssim(frames[i], true) for i, true in sorted(truth.items())},
    }


def motion_histogram(values: list[float]) -> dict[str, int]:
    """How many pairs move how far, by ranges in px."""
    counts, _ = np.histogram(values, (*MOTION_EDGES_PX, np.inf))
    names = [f"{a:g}–{b:g}" for a, b in itertools.pairwise(MOTION_EDGES_PX)]
    names.append(f"over {MOTION_EDGES_PX[-1]:g}")
    return {name: int(count) for name, count in zip(names, counts, strict=True)}


def score_figures(
    folder: str,
    most: int | None = None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Mean penalty by frame, and how often each frame is a keyframe of the deterministic rule.

    Raises DamagedShard.
    """
    record = provenance.read(folder) or {}
    shard_records: dict[str, dict[str, Any]] = record.get("shards", {})
    penalties: list[list[float]] = []
    chosen: Counter[int] = Counter()
    captions = uncaptioned = 0
    shards = spread(shard_records, most)
    for done, name in enumerate(shards, 1):
        for _, row in scores.read_shard(storage.join(folder, scores.FORMAT.file(name))):
            penalties.append(row["penalty"])
            chosen.update(row["keyframes"][1:-1])
            captions += len(row["captions"])
            uncaptioned += not row["captions"]
        progress(done, len(shards))
    mean = np.mean(penalties, axis=0) if penalties else np.zeros(0)
    return {
        "scored": sum(facts["samples"] for facts in shard_records.values()),
        "scores looked at": len(penalties),
        "scored captions": captions,
        "scored by images alone": uncaptioned,
        "mean penalty by frame": {str(i): round(float(v), 4) for i, v in enumerate(mean)},
        "keyframes by frame": {str(i): chosen[i] for i in range(1, len(mean) - 1)},
    }


def token_figures(
    folder: str,
    most: int | None = None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """How the codebook is used, or without tokens only how many samples there are.

    perplexity: 2 to the entropy of the codes' frequencies.

    Raises DamagedShard.
    """
    record = provenance.read(folder) or {}
    shard_records: dict[str, dict[str, Any]] = record.get("shards", {})
    counts = np.zeros(0, np.int64)
    sample_count, grid, codes = 0, "", 0
    shards = spread(shard_records, most)
    for done, name in enumerate(shards, 1):
        path = storage.join(folder, training_shards.FORMAT.file(name))
        for sample in training_shards.read(path):
            sample_count += 1
            codes = int(sample.meta.get("codes", 0))
            grid = "×".join(str(side) for side in sample.tokens.shape)
            sample_counts = np.bincount(sample.tokens.ravel(), minlength=max(codes, len(counts)))
            counts = np.pad(counts, (0, len(sample_counts) - len(counts))) + sample_counts
        progress(done, len(shards))
    samples = sum(facts["samples"] for facts in shard_records.values())
    if not codes:  # built without a tokenizer
        return {"training samples": samples, "samples looked at": sample_count}
    shares = counts[counts > 0] / max(int(counts.sum()), 1)
    return {
        "training samples": sum(facts["samples"] for facts in shard_records.values()),
        "samples looked at": sample_count,
        "tokens a sample": grid,
        "codes": codes,
        "codes used": int((counts > 0).sum()),
        "perplexity": round(float(2 ** -(shares * np.log2(shares)).sum()), 1)
        if sample_count
        else 0.0,
    }


def caption_figures(
    folder: str, most: int | None = None, progress: Progress = no_progress
) -> dict[str, Any]:
    """How many pairs have captions, and which are the most frequent. Raises DamagedShard."""
    record = provenance.read(folder) or {}
    shards = spread(record.get("shards", {}), most)
    sentences: Counter[str] = Counter()
    for done, name in enumerate(shards, 1):
        rows = caption_rows.read_shard(storage.join(folder, caption_rows.FORMAT.file(name)))
        sentences.update(row["caption"] for _, row in rows)
        progress(done, len(shards))
    return {
        "captioned pairs": sentences.total(),
        "different captions": len(sentences),
        "most frequent captions": dict(sentences.most_common(5)),
    }
