"""`cc-prep changes`: sequences or pairs → found change masks and regions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from cc_prep import extras, storage
from cc_prep.errors import UserError
from cc_prep.formats import changes as change_shards
from cc_prep.formats import provenance, sequences
from cc_prep.manifest import Manifest
from cc_prep.weights.folders import locate_folder
from pipelines import fingerprint, job
from pipelines.plan import ShardPlan, plan
from pipelines.regions.changes_step import FindChanges
from pipelines.state import sources
from pipelines.stored import ShardFromSequences, note_what_is_missing, plan_from_sequences

BYTES_A_PAIR = 6_000  # measured: 2.2 kB at 112 px, most of it the tar's padding
# Peak of a process with the step alone: 0.26 GB.
MEMORY = "0.4 GB a worker with fill at 224 px; with SAM not measured"


def changes(request: job.Request) -> job.Summary | None:
    """Makes `OUT/changes`. Raises UserError and JobFailed.

    It reads the sequences in OUT if they exist and are lossless, else the raw images; the result
    for a pair is the same. A pair that `interpolate` rejected, for its true mask or frames, has no
    sequence, so only the raw images give a result for it.
    """
    out = storage.absolute(request.out)
    manifest = request.manifest
    shards = plan_pairs_or_sequences(request)
    planned = [shard for shard in shards if isinstance(shard, ShardPlan)]
    digests = find_weights(manifest)
    spec = job.JobSpec(
        format=change_shards.FORMAT,
        folder=storage.join(out, change_shards.FORMAT.folder),
        shards=shards,
        make_step=partial(FindChanges, fingerprint.with_absolute_paths(manifest), digests),
        settings=fingerprint.recorded_settings(manifest, fingerprint.CHANGE_KEYS),
        weights=digests,
        weight_files=fingerprint.weight_files(manifest, digests),
        threads=manifest.changes.threads,
        bytes_a_pair=BYTES_A_PAIR,
        memory=MEMORY,
        has_network=bool(digests),
        data=sources.of_pairs(manifest, planned)
        if planned
        else sources.of_stored(manifest, storage.join(out, sequences.FORMAT.folder)),
    )
    return job.run(spec, request.options, request.console)


def plan_pairs_or_sequences(request: job.Request) -> Sequence[ShardPlan | ShardFromSequences]:
    """The shards of a request, from the sequences in its OUT where these hold exactly the images.

    Prints notes on pairs that have no sequences. Raises UserError.
    """
    manifest, splits, limit = request.manifest, request.splits, request.limit
    sequence_folder = storage.join(storage.absolute(request.out), sequences.FORMAT.folder)
    record = provenance.read(sequence_folder)
    if record is None:
        return plan(manifest, splits, limit)
    codec = record["settings"].get("interpolate", {}).get("codec")
    if codec != "png":
        request.console.print(
            f"the sequences are {codec}, which changes pixels: the raw images are read",
        )
        return plan(manifest, splits, limit)
    fingerprint.continue_from(manifest, sequence_folder, fingerprint.PLAN_KEYS)
    shards = plan_from_sequences(sequence_folder, splits, limit)
    note_what_is_missing(
        shards,
        sequence_folder,
        manifest=manifest,
        splits=splits,
        limit=limit,
        console=request.console,
    )
    return shards


def find_weights(manifest: Manifest) -> dict[str, str]:
    """SHA-256 of the segmenter's weights by name; empty without SAM.

    Raises UserError, also if a package is missing that the workers need.
    """
    settings = manifest.changes
    extras.require("sklearn", "cc-prep changes")
    if settings.segmenter != "sam":
        if settings.weights is not None:
            raise UserError(
                f"changes.segmenter {settings.segmenter} takes no weights",
                "Set changes.segmenter=sam, or leave changes.weights out",
            )
        return {}
    if settings.weights is None:
        raise UserError(
            "changes.segmenter sam needs weights",
            "Set changes.weights to a local folder of SAM as transformers saves it, or "
            "changes.segmenter=fill",
        )
    extras.require("transformers", "changes.segmenter sam")
    folder = locate_folder(settings.weights, "sam")
    return {folder.name: folder.sha256}
