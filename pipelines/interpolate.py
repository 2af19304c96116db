"""`cc-prep interpolate`: pairs → sequence shards."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

from rich.console import Console

from cc_prep import images, interpolation, storage, weights
from cc_prep.errors import RejectedPair
from cc_prep.formats import sequences
from cc_prep.manifest import Manifest
from pipelines import job
from pipelines.actors import Interpolate
from pipelines.plan import ShardPlan, plan
from pipelines.shard_worker import Step

# Of the raw pixels; measured on CLEVR-like renders and on video frames at 224 px, the larger one.
STORED_SHARE = {"png": 0.75, "jpg": 0.2, "webp": 0.15}
# Peak at 224 px, benchmarks/bench_memory.py: 1.04 GB for 8, 32 and 128 pairs a shard alike.
MEMORY = "1.0 GB a worker, measured with RIFE at 224 px; the same however large the data is"


def interpolate(
    manifest: Manifest,
    out: str,
    splits: Sequence[str],
    limit: int | None,
    options: job.Options,
    console: Console,
) -> job.Summary | None:
    """Makes `OUT/sequences`. Raises UserError and JobFailed."""
    shards = plan(manifest, splits, limit)
    settings = manifest.interpolate
    digests = {}
    if settings.method == "rife":
        found = weights.locate(settings.weights)
        digests[found.name] = found.sha256
        if settings.weights not in weights.REGISTRY:  # those have a digest to be known by
            interpolation.make(settings, weights.read_tensors(found.path), "cpu")
    work = job.Work(
        format=sequences.FORMAT,
        version=sequences.VERSION,
        folder=storage.join(storage.absolute(out), sequences.FOLDER),
        shards=shards,
        make_step=partial(_make_step, placed(manifest), next(iter(digests.values()), None)),
        settings=deciding(manifest),
        weights=digests,
        threads=settings.threads,
        bytes_a_pair=_bytes_a_pair(manifest, shards),
        memory=MEMORY,
    )
    return job.run(work, options, console)


def deciding(manifest: Manifest) -> dict[str, object]:
    """The settings that decide the bytes of sequence shards, as they stand in the provenance."""
    keys = {"name", "layout", "image_size", "interpolate", "shards"}
    if manifest.layout == "video":
        keys.add("video")
    return manifest.model_dump(mode="json", include=keys)


def placed(manifest: Manifest) -> Manifest:
    """The manifest as a worker on another node finds its places, whose current folder differs."""
    settings = manifest.interpolate
    if settings.weights not in weights.REGISTRY:
        file = storage.absolute(os.path.expanduser(settings.weights))
        settings = settings.model_copy(update={"weights": file})
    root = storage.absolute(manifest.root)
    return manifest.model_copy(update={"root": root, "interpolate": settings})


def _make_step(manifest: Manifest, digest: str | None, device: str) -> Callable[[], Step]:
    return partial(Interpolate, manifest, device, digest)


def _bytes_a_pair(manifest: Manifest, shards: Sequence[ShardPlan]) -> int:
    settings, pair = manifest.interpolate, shards[0].pairs[0]
    frames = 2**settings.depth + 1
    if settings.keep_truth:
        frames += len(pair.truth)
    pixels = (manifest.image_size or 0) ** 2
    if not pixels:
        try:
            pixels = images.read(storage.resolve(manifest.root, pair.before)).size // 3
        except RejectedPair:
            pixels = 512 * 512
    return int(frames * 3 * pixels * STORED_SHARE[settings.codec])
