"""`cc-prep build`: training shards, from pairs in one stream or from stored sequences."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rich.console import Console

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.formats import provenance, scores, sequences, training_shards
from cc_prep.manifest import IMPORTED, NONE, Features, Manifest
from cc_prep.models import backbones
from cc_prep.steps import interpolation
from cc_prep.weights import networks
from pipelines import estimates, fingerprint, interpolate, job, score_frames
from pipelines.plan import ShardPlan, plan
from pipelines.regions.findings import read_findings, with_findings
from pipelines.state import sources
from pipelines.stored import ShardFromSequences, note_what_is_missing, plan_from_sequences
from pipelines.worker.build_step import Build

# Peak at 224 px, benchmarks/bench_memory.py build: 1.18 and 1.19 GB for 8 and 32 pairs a shard.
MEMORY = "1.2 GB a worker, measured from pairs with the small weights at 224 px"


def build(request: job.Request, source: str | None) -> job.Summary | None:
    """Makes `OUT/shards`. Raises UserError and JobFailed.

    source: the folder whose `sequences` and `scores` are used if they exist; default: OUT. Missing
        ones are computed on the way, and not written. Its `changes` and `entities` are used as
        well, and never computed here.
    """
    out = storage.absolute(request.out)
    source_folder = storage.absolute(source or out)
    manifest, makes, shards = _plan(request, source_folder)
    planned = [shard for shard in shards if isinstance(shard, ShardPlan)]
    manifest = fingerprint.with_config_content(manifest)
    fingerprint.check_keyframes(manifest)
    findings = read_findings(manifest, source_folder)
    if source is not None and "interpolate" in makes and findings.changes is None:
        raise UserError(
            f"{source}: no sequences and no found changes in it",
            "Give the --out of an earlier interpolate or changes",
        )
    if "interpolate" in makes:
        interpolate.check_truth(manifest, planned)
    digests, scorer = _find_weights(manifest, makes, source_folder, request.console)
    first_pair = planned[0].pairs[0] if planned else None
    spec = job.JobSpec(
        format=training_shards.FORMAT,
        folder=storage.join(out, training_shards.FORMAT.folder),
        shards=with_findings(shards, source_folder, findings),
        make_step=partial(Build, fingerprint.with_absolute_paths(manifest), digests, makes, scorer),
        settings={
            **fingerprint.recorded_settings(manifest, fingerprint.TRAINING_SHARD_KEYS),
            **findings.settings,
        },
        weights={**digests, **findings.weights},
        weight_files=fingerprint.weight_files(manifest, digests),
        threads=max(
            manifest.interpolate.threads,
            manifest.score.threads,
            manifest.tokenize.threads,
            manifest.features.threads,
        ),
        bytes_a_pair=estimates.training_bytes(manifest, first_pair),
        memory=(first_pair and estimates.interpolation_memory(manifest, first_pair)) or MEMORY,
        compute=estimates.compute(manifest, first_pair) if first_pair else None,
        has_network=_has_network(manifest, makes),
        data=sources.of_pairs(manifest, planned)
        if "interpolate" in makes
        else sources.of_stored(manifest, _input_folders(source_folder)[0]),
    )
    return job.run(spec, request.options, request.console)


def _plan(
    request: job.Request, source: str
) -> tuple[Manifest, frozenset[str], Sequence[ShardPlan | ShardFromSequences]]:
    """The settings, the steps before tokenising that are done here, and the shards to make."""
    manifest, splits, limit = request.manifest, request.splits, request.limit
    sequence_folder, score_folder = _input_folders(source)
    scored = frozenset({"score"} if manifest.score.weights != NONE else ())
    if provenance.read(sequence_folder) is None:
        return manifest, scored | {"interpolate"}, plan(manifest, splits, limit)
    manifest = fingerprint.continue_from(manifest, sequence_folder)
    has_scores = bool(scored) and provenance.read(score_folder) is not None
    if has_scores:  # another keyframe rule needs no new ones
        manifest = fingerprint.continue_from(
            manifest, score_folder, (*fingerprint.SEQUENCE_KEYS, "score")
        )
    shards = plan_from_sequences(
        sequence_folder, splits, limit, score_folder if has_scores else None
    )
    note_what_is_missing(
        shards,
        sequence_folder,
        manifest=request.manifest,
        splits=request.splits,
        limit=request.limit,
        console=request.console,
    )
    return manifest, frozenset() if has_scores else scored, shards


def _find_weights(
    manifest: Manifest, makes: frozenset[str], source: str, console: Console
) -> tuple[dict[str, str], str]:
    """SHA-256, by name, of all weights on which the bytes depend, and the scorer's name.

    For stored sequences and scores it is read from their provenance, so these weights need not be
    on this machine.
    """
    sequence_folder, score_folder = _input_folders(source)
    if "interpolate" in makes:
        interpolators = interpolate.find_weights(manifest)
    else:
        interpolators = (provenance.read(sequence_folder) or {})["weights"]
    scorers = {}
    if "score" in makes:
        scorers = score_frames.find_weights(manifest)
    elif manifest.score.weights != NONE:
        scorers = (provenance.read(score_folder) or {})["weights"]
    digests = {**interpolators, **scorers}
    digests |= _tokenizer_weights(manifest, console) | _feature_weights(manifest)
    unnamed = NONE if manifest.score.weights == NONE else IMPORTED
    return digests, next(iter(scorers), unnamed)


def _has_network(manifest: Manifest, makes: frozenset[str]) -> bool:
    """Whether a network runs, for the steps that are done here, the tokens or the features."""
    features = manifest.features
    return (
        "score" in makes
        or ("interpolate" in makes and interpolation.has_weights(manifest.interpolate))
        or manifest.tokenize.weights != NONE
        or (features.backbone != NONE and features.folder is None)
    )


def _tokenizer_weights(manifest: Manifest, console: Console) -> dict[str, str]:
    """SHA-256 of the tokenizer's weights by name; empty if no tokens are made."""
    if manifest.tokenize.weights == NONE:
        return {}
    network, tokenizer, unused = networks.vqgan(manifest.tokenize.weights, manifest.tokenize.config)
    factor = network.config.factor
    if manifest.image_size is not None and manifest.image_size % factor:
        raise UserError(
            f"image_size ({manifest.image_size}) is not divisible by the token size ({factor} px)",
            f"Set image_size={max(1, round(manifest.image_size / factor)) * factor}",
        )
    if unused:
        examples = ", ".join(unused[:3]) + (", …" if len(unused) > 3 else "")
        console.print(f"{tokenizer.name}: {len(unused)} tensors are not used ({examples})")
    return {tokenizer.name: tokenizer.sha256}


def _feature_weights(manifest: Manifest) -> dict[str, str]:
    """SHA-256 of the backbone's weights by name; empty if no features are made."""
    settings = manifest.features
    if settings.backbone == NONE:
        if settings.folder is not None:
            raise UserError(
                "features.folder is set, but not what network the features are of",
                "Set features.backbone, such as resnet101",
            )
        return {}
    if settings.folder is not None:
        return _imported_features(settings)
    network, file = networks.features_backbone(settings)
    multiple = backbones.multiple(settings.backbone, network)
    if manifest.image_size is not None and manifest.image_size % multiple:
        raise UserError(
            f"image_size ({manifest.image_size}) is not divisible by {multiple} px, as "
            f"{settings.backbone} needs it",
            f"Set image_size={max(1, round(manifest.image_size / multiple)) * multiple}",
        )
    return {file.name: file.sha256}


def _imported_features(settings: Features) -> dict[str, str]:
    """SHA-256, by name, of the weights that made imported features, if they are known."""
    assert settings.folder is not None
    if settings.frames != "ends":
        raise UserError(
            f"features.folder has features of before and after, not of {settings.frames}",
            "Set features.frames=ends, or leave features.folder out",
        )
    if settings.mirrored:
        raise UserError(
            "features.folder has no features of mirrored images",
            "Set features.mirrored=false, or leave features.folder out",
        )
    if not storage.is_folder(settings.folder):
        raise UserError(f"features.folder {settings.folder}: no such folder", "Check the path")
    if settings.weights is None:
        return {}
    file = networks.backbone(settings.backbone, settings.weights)[1]
    return {file.name: file.sha256}


def _input_folders(source: str) -> tuple[str, str]:
    """Folders of sequences and scores in `source`; neither need exist."""
    return (
        storage.join(source, sequences.FORMAT.folder),
        storage.join(source, scores.FORMAT.folder),
    )
