"""`cc-prep interpolate`: pairs → sequence shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from cc_prep import storage, weights
from cc_prep.errors import RejectedPair, UserError, naming
from cc_prep.formats import sequences
from cc_prep.manifest import Manifest
from cc_prep.media import images
from cc_prep.steps import interpolation
from pipelines import fingerprint, job
from pipelines.actors import Interpolate
from pipelines.plan import ShardPlan, plan
from pipelines.shard_worker import Step

# Of the raw pixels; measured on CLEVR-like renders and on video frames at 224 px, the larger one.
STORED_SHARE = {"png": 0.75, "jpg": 0.2, "webp": 0.15}
# Peak at 224 px, benchmarks/bench_memory.py: 1.09, 1.19, 1.11 GB for 8, 32, 128 pairs a shard.
MEMORY = "1.2 GB a worker, measured with RIFE at 224 px; the same however large the data is"


def interpolate(request: job.Request) -> job.Summary | None:
    """Makes `OUT/sequences`. Raises UserError and JobFailed."""
    manifest = request.manifest
    shards = plan(manifest, request.splits, request.limit)
    digests = find_weights(manifest)
    work = job.Work(
        format=sequences.FORMAT,
        folder=storage.join(storage.absolute(request.out), sequences.FORMAT.folder),
        shards=shards,
        make_step=partial(_make_step, fingerprint.placed(manifest), digests),
        settings=fingerprint.deciding(manifest, fingerprint.SEQUENCES),
        weights=digests,
        threads=manifest.interpolate.threads,
        bytes_a_pair=_bytes_a_pair(manifest, shards),
        memory=MEMORY,
    )
    return job.run(work, request.options, request.console)


def find_weights(manifest: Manifest) -> dict[str, str]:
    """SHA-256 of the interpolator's weights by name, fetched and checked. Raises UserError."""
    settings = manifest.interpolate
    if settings.method == "imported":
        raise UserError(
            "interpolate.method=imported: those sequences are not made here",
            "Run: cc-prep import procap",
        )
    if settings.method != "rife":
        return {}
    found = weights.locate(settings.weights)
    if not weights.is_known(settings.weights):  # those have a digest to be known by
        tensors = weights.read_tensors(found.path)
        with naming(found.path):
            interpolation.make(settings, tensors, "cpu")
    return {found.name: found.sha256}


def _make_step(manifest: Manifest, digests: dict[str, str], device: str) -> Callable[[], Step]:
    return partial(Interpolate, manifest, device, digests)


def _bytes_a_pair(manifest: Manifest, shards: Sequence[ShardPlan]) -> int:
    settings, pair = manifest.interpolate, shards[0].pairs[0]
    frames = 2**settings.depth + 1
    if settings.keep_truth:
        frames += len(pair.truth)
    pixels = frame_pixels(manifest, pair.before)
    return int(frames * 3 * pixels * STORED_SHARE[settings.codec])


def frame_pixels(manifest: Manifest, reference: str) -> int:
    """Pixels of a frame, read off an image where the manifest fixes no size."""
    if manifest.image_size:
        return manifest.image_size**2
    try:
        return images.read(storage.resolve(manifest.root, reference)).size // 3
    except RejectedPair:
        return 512 * 512
