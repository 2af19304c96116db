"""`cc-prep score-frames`: sequence shards → scores."""

from __future__ import annotations

from functools import partial

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.formats import scores, sequences
from cc_prep.manifest import NONE, Manifest
from cc_prep.weights import networks
from pipelines import estimates, fingerprint, job
from pipelines.actors import Score
from pipelines.state import sources
from pipelines.stored import note_what_is_missing, plan_from_sequences

MEMORY = "not measured for your weights; one sequence at a time, however large the data is"


def score_frames(request: job.Request) -> job.Summary | None:
    """Makes `OUT/scores` from `OUT/sequences`. Raises UserError and JobFailed."""
    out = storage.absolute(request.out)
    folder = storage.join(out, sequences.FORMAT.folder)
    shards = plan_from_sequences(folder, request.splits, request.limit)
    manifest = fingerprint.continue_from(request.manifest, folder)
    note_what_is_missing(
        shards,
        folder,
        manifest=request.manifest,
        splits=request.splits,
        limit=request.limit,
        console=request.console,
    )
    fingerprint.check_keyframes(manifest)
    digests = find_weights(manifest)
    spec = job.JobSpec(
        format=scores.FORMAT,
        folder=storage.join(out, scores.FORMAT.folder),
        shards=shards,
        make_step=partial(Score, fingerprint.with_absolute_paths(manifest), digests),
        settings=fingerprint.recorded_settings(manifest, fingerprint.SCORE_KEYS),
        weights=digests,
        weight_files=fingerprint.weight_files(manifest, digests),
        threads=manifest.score.threads,
        bytes_a_pair=estimates.SCORE_BYTES,
        memory=MEMORY,
        data=sources.of_stored(manifest, folder),
    )
    return job.run(spec, request.options, request.console)


def find_weights(manifest: Manifest) -> dict[str, str]:
    """SHA-256 of the scorer's weights by name, read and checked. Raises UserError."""
    if manifest.score.weights == NONE:
        raise UserError("score.weights is none: nothing is scored", "Set score.weights")
    _, file = networks.clip4idc(manifest.score.weights, manifest.score.intra_layers)
    return {file.name: file.sha256}
