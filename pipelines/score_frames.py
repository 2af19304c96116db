"""`cc-prep score-frames`: sequence shards → scores."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from cc_prep import storage
from cc_prep.formats import scores, sequences
from cc_prep.manifest import Manifest
from cc_prep.weights import networks
from pipelines import fingerprint, job
from pipelines.actors import Score
from pipelines.plan import stored
from pipelines.shard_worker import Step

BYTES_A_SEQUENCE = 4000  # measured: 1.0 kB in a table of 20 rows, 3.0 kB in one of 2
MEMORY = "not measured for your weights; one sequence at a time, however large the data is"


def score_frames(request: job.Request) -> job.Summary | None:
    """Makes `OUT/scores` from `OUT/sequences`. Raises UserError and JobFailed."""
    out = storage.absolute(request.out)
    folder = storage.join(out, sequences.FORMAT.folder)
    shards = stored(folder, request.splits, request.limit)
    manifest = fingerprint.adopted(request.manifest, folder)
    fingerprint.check_keyframes(manifest)
    digests = find_weights(manifest)
    work = job.Work(
        format=scores.FORMAT,
        folder=storage.join(out, scores.FORMAT.folder),
        shards=shards,
        make_step=partial(_make_step, fingerprint.placed(manifest), digests),
        settings=fingerprint.deciding(manifest, fingerprint.SCORES),
        weights=digests,
        threads=manifest.score.threads,
        bytes_a_pair=BYTES_A_SEQUENCE,
        memory=MEMORY,
    )
    return job.run(work, request.options, request.console)


def find_weights(manifest: Manifest) -> dict[str, str]:
    """SHA-256 of the scorer's weights by name, read and checked. Raises UserError."""
    _, found = networks.clip4idc(manifest.score.weights, manifest.score.intra_layers)
    return {found.name: found.sha256}


def _make_step(manifest: Manifest, digests: dict[str, str], device: str) -> Callable[[], Step]:
    return partial(Score, manifest, device, digests)
