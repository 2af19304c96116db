"""`cc-prep interpolate`: pairs → sequence shards."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from cc_prep import storage, weights
from cc_prep.errors import UserError, prefix_error_with
from cc_prep.formats import sequences
from cc_prep.manifest import Manifest
from cc_prep.steps import interpolation
from pipelines import estimates, fingerprint, job
from pipelines.actors import Interpolate
from pipelines.plan import ShardPlan, plan
from pipelines.state import sources

# Peak at 224 px, benchmarks/bench_memory.py: 1.09, 1.19, 1.11 GB for 8, 32, 128 pairs a shard.
MEMORY = "1.2 GB a worker, measured with RIFE at 224 px; the same however large the data is"


def interpolate(request: job.Request) -> job.Summary | None:
    """Makes `OUT/sequences`. Raises UserError and JobFailed."""
    manifest = request.manifest
    shards = plan(manifest, request.splits, request.limit)
    first_pair = shards[0].pairs[0]
    check_truth(manifest, shards)
    digests = find_weights(manifest)
    spec = job.JobSpec(
        format=sequences.FORMAT,
        folder=storage.join(storage.absolute(request.out), sequences.FORMAT.folder),
        shards=shards,
        make_step=partial(Interpolate, fingerprint.with_absolute_paths(manifest), digests),
        settings=fingerprint.recorded_settings(manifest, fingerprint.SEQUENCE_KEYS),
        weights=digests,
        weight_files=fingerprint.weight_files(manifest, digests),
        threads=manifest.interpolate.threads,
        bytes_a_pair=estimates.interpolated_bytes(manifest, first_pair),
        memory=estimates.interpolation_memory(manifest, first_pair) or MEMORY,
        compute=estimates.compute(manifest, first_pair),
        has_network=interpolation.has_weights(manifest.interpolate),
        data=sources.of_pairs(manifest, shards),
    )
    return job.run(spec, request.options, request.console)


def check_truth(manifest: Manifest, shards: Iterable[ShardPlan]) -> None:
    """Raises UserError if the method takes true frames and a pair has none."""
    if manifest.interpolate.method == interpolation.TRUTH:
        for shard in shards:
            for pair in shard.pairs:
                interpolation.check_truth(pair, manifest.interpolate.depth)


def find_weights(manifest: Manifest) -> dict[str, str]:
    """SHA-256 of the interpolator's weights by name, fetched and checked. Raises UserError."""
    settings = manifest.interpolate
    if settings.method == "imported":
        raise UserError(
            "interpolate.method=imported: those sequences are not made here",
            "Run: cc-prep import procap",
        )
    if not interpolation.has_weights(settings):
        return {}
    is_named = weights.is_known(settings.weights)
    if is_named and settings.weights not in interpolation.NAMED_WEIGHTS.get(settings.method, ()):
        raise UserError(
            f"interpolate.method={settings.method} takes no weights named {settings.weights}",
            "Set interpolate.weights to a local file of its tensors (docs/interpolation.md)",
        )
    file = weights.locate(settings.weights)
    if not is_named:  # those have a digest to be known by
        tensors = weights.read_tensors(file.path)
        with prefix_error_with(file.path):
            interpolation.make(settings, tensors, "cpu")
    return {file.name: file.sha256}
