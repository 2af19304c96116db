"""The jobs of `cc-prep`, in one table: what each is made from, its step, its output, its settings.

A job's row says everything that is the same whatever the data is. Its function of `inputs` looks at
the data and at earlier outputs, checks both, and says what is left to make; `spec_of` joins the two
to what `job.run` runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from cc_prep import extras, storage, weights
from cc_prep.errors import UserError
from cc_prep.formats import (
    captions,
    changes,
    entities,
    procap,
    provenance,
    region_features,
    scores,
    sequences,
    training_shards,
)
from cc_prep.formats.tar import ShardFormat
from cc_prep.manifest import IMPORTED, NONE, TRUTH, Manifest
from cc_prep.records import CHANGE, NO_CHANGE, ImagePair
from cc_prep.steps import interpolate
from cc_prep.steps.base import Digests
from cc_prep.steps.build import Build
from cc_prep.steps.changes.step import FindChanges
from cc_prep.steps.entities import phrases
from cc_prep.steps.entities.step import TRAIN, Retrieve, VectorsOfRegions
from cc_prep.steps.interpolate import Interpolate
from cc_prep.steps.procap import ImportFrames, ImportScores
from cc_prep.steps.score import Score
from cc_prep.storage import outputs
from pipelines import estimates, fingerprint, job, job_weights
from pipelines.plan import plan
from pipelines.shards import PlannedShard
from pipelines.state import sources
from pipelines.stored import (
    note_what_is_missing,
    plan_from_regions,
    plan_from_sequences,
    read_findings,
    with_findings,
)


@dataclass(frozen=True)
class Inputs:
    """What a job makes, and from what.

    Attributes:
        manifest: The settings, with those of imported data taken from their folders.
        shards: The shards of the whole output.
        weights: SHA-256 by name of all weights that the step loads, or whose output it takes.
        arguments: Of the step, after the manifest and these weights.
        settings: Recorded beside those of the job's row.
        earlier_weights: SHA-256 by name of weights that only earlier jobs loaded.
        weight_files: Their files, see `provenance`.
        data: What the provenance says of the data, see `sources`.
        first_pair: A pair that will be interpolated, for estimates; None if none will be.
        has_network: Whether the workers run a network; None: if there are `weights`.
    """

    manifest: Manifest
    shards: Sequence[PlannedShard]
    weights: dict[str, str] = field(default_factory=dict)
    arguments: tuple[Any, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    earlier_weights: dict[str, str] = field(default_factory=dict)
    weight_files: dict[str, str] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    first_pair: ImagePair | None = None
    has_network: bool | None = None


@dataclass(frozen=True)
class Job:
    """A row of the table.

    Attributes:
        inputs: Plans a request; the second argument is the folder that `--from` names, or the
            captioner. Raises UserError. None: there is nothing to do.
        step: The class that a worker makes of a manifest, weights, arguments and a device.
        format: Of the output, which is in `OUT/<format.folder>`.
        settings: The manifest's keys that decide the bytes.
        networks: The manifest's sections whose `threads` the worker needs.
        bytes_a_pair: An estimate, of the manifest and of `Inputs.first_pair`.
        memory: The measured memory of a worker, in words.
        finish: Called with the inputs and the output folder once all shards are made.
    """

    inputs: Callable[[job.Request, str | None], Inputs | None]
    step: Callable[..., Any]
    format: ShardFormat
    settings: tuple[str, ...]
    networks: tuple[str, ...]
    bytes_a_pair: Callable[[Manifest, Any], int]
    memory: str
    finish: Callable[[Inputs, str], None] = lambda inputs, folder: None


def run(name: str, request: job.Request, source: str | None = None) -> job.Summary | None:
    """Runs a job of the table; None for a dry run, or if there is nothing to do.

    Args:
        name: A key of `JOBS`.
        source: The folder that `--from` names, or the captioner.

    Raises:
        UserError: For mistakes that a user can fix, before any work.
        JobFailed: If workers fail.
    """
    row = JOBS[name]
    outputs.check_folder(request.out)
    out = storage.join(storage.absolute(request.out), row.format.folder)
    if source is None:  # an import may find nothing to do in it, and then refuses nothing
        fingerprint.check_early(request.manifest, out, row.settings)
    inputs = row.inputs(request, source)
    if inputs is None:
        return None
    spec = spec_of(row, inputs, request.out)
    summary = job.run(spec, request.options, request.console)
    if summary is not None:
        row.finish(inputs, spec.folder)
    return summary


def spec_of(row: Job, inputs: Inputs, out: str) -> job.JobSpec:
    """A row of the table and its inputs, as `job.run` takes them."""
    manifest, pair = inputs.manifest, inputs.first_pair
    threads = (getattr(manifest, section).threads for section in row.networks)
    memory = estimates.interpolation_memory(manifest, pair) if pair is not None else None
    with_paths = fingerprint.with_absolute_paths(manifest)
    return job.JobSpec(
        format=row.format,
        folder=storage.join(storage.absolute(out), row.format.folder),
        shards=inputs.shards,
        make_step=partial(row.step, with_paths, inputs.weights, *inputs.arguments),
        settings={**fingerprint.recorded_settings(manifest, row.settings), **inputs.settings},
        weights={**inputs.weights, **inputs.earlier_weights},
        weight_files={
            **fingerprint.weight_files(manifest, inputs.weights),
            **inputs.weight_files,
        },
        threads=max(threads, default=1),
        bytes_a_pair=row.bytes_a_pair(manifest, pair),
        memory=memory or row.memory,
        has_network=bool(inputs.weights) if inputs.has_network is None else inputs.has_network,
        data=inputs.data,
    )


def _to_interpolate(request: job.Request, source: str | None) -> Inputs:
    """Pairs."""
    manifest = request.manifest
    shards = plan(manifest, request.splits, request.limit)
    _check_truth(manifest, shards)
    job_weights.check_files(manifest, ["interpolate"])
    return Inputs(
        manifest,
        shards,
        job_weights.of_interpolator(manifest),
        data=sources.of_pairs(manifest, shards),
        first_pair=shards[0].pairs[0],
    )


def _check_truth(manifest: Manifest, shards: Iterable[PlannedShard]) -> None:
    """Raises UserError if the method takes true frames and a pair has none."""
    if manifest.interpolate.method == TRUTH:
        for shard in shards:
            for pair in shard.pairs:
                interpolate.check_truth(pair, manifest.interpolate.depth)


def _to_score(request: job.Request, source: str | None) -> Inputs:
    """The sequences in OUT."""
    folder = storage.join(storage.absolute(request.out), sequences.FORMAT.folder)
    shards = plan_from_sequences(folder, request.splits, request.limit)
    manifest = fingerprint.continue_from(request.manifest, folder)
    _note_missing(request, shards, folder)
    fingerprint.check_keyframes(manifest)
    job_weights.check_files(manifest, ["score"])
    return Inputs(
        manifest,
        shards,
        job_weights.of_scorer(manifest),
        data=sources.of_stored(manifest, folder),
    )


def _note_missing(request: job.Request, shards: Sequence[PlannedShard], folder: str) -> None:
    note_what_is_missing(
        shards,
        folder,
        manifest=request.manifest,
        splits=request.splits,
        limit=request.limit,
        console=request.console,
    )


def _to_build(request: job.Request, source: str | None) -> Inputs:
    """Pairs, or the sequences and scores of `source` where it has some; default: OUT.

    Missing ones are computed on the way, and not written. Its `changes` and `entities` are used as
    well, and never computed here.
    """
    folder = storage.absolute(source or request.out)
    manifest, makes, shards = _plan_build(request, folder)
    planned = [shard for shard in shards if shard.pairs]
    job_weights.check_files(manifest, makes | {"tokenize", "features"})
    manifest = fingerprint.with_config_content(manifest)
    fingerprint.check_keyframes(manifest)
    findings = read_findings(manifest, folder)
    if source is not None and "interpolate" in makes and findings.changes is None:
        raise UserError(
            f"{source}: no sequences and no found changes in it",
            "Give the --out of an earlier interpolate or changes",
        )
    if "interpolate" in makes:
        _check_truth(manifest, planned)
        data = sources.of_pairs(manifest, planned)
    else:
        data = sources.of_stored(manifest, storage.join(folder, sequences.FORMAT.folder))
    digests, scorer = _weights_of_build(manifest, makes, folder, request)
    return Inputs(
        manifest,
        with_findings(shards, folder, findings),
        digests,
        arguments=(makes, scorer),
        settings=findings.settings,
        earlier_weights=findings.weights,
        data=data,
        first_pair=planned[0].pairs[0] if planned else None,
        has_network=job_weights.runs_in_build(manifest, makes),
    )


def _plan_build(
    request: job.Request, source: str
) -> tuple[Manifest, frozenset[str], Sequence[PlannedShard]]:
    """The settings, the steps before tokenising that are done here, and the shards to make."""
    manifest, splits, limit = request.manifest, request.splits, request.limit
    sequence_folder = storage.join(source, sequences.FORMAT.folder)
    score_folder = storage.join(source, scores.FORMAT.folder)
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
    _note_missing(request, shards, sequence_folder)
    return manifest, frozenset() if has_scores else scored, shards


def _weights_of_build(
    manifest: Manifest, makes: frozenset[str], source: str, request: job.Request
) -> tuple[dict[str, str], str]:
    """SHA-256, by name, of all weights on which the bytes depend, and the scorer's name.

    For stored sequences and scores it is read from their provenance, so these weights need not be
    on this machine.
    """

    def recorded(format: ShardFormat) -> dict[str, str]:
        found: dict[str, str] = (provenance.read(storage.join(source, format.folder)) or {})[
            "weights"
        ]
        return found

    if "interpolate" in makes:
        digests = dict(job_weights.of_interpolator(manifest))
    else:
        digests = dict(recorded(sequences.FORMAT))
    scorers = {}
    if "score" in makes:
        scorers = job_weights.of_scorer(manifest)
    elif manifest.score.weights != NONE:
        scorers = recorded(scores.FORMAT)
    digests |= scorers
    digests |= job_weights.of_tokenizer(manifest, request.console)
    digests |= job_weights.of_features(manifest)
    unnamed = NONE if manifest.score.weights == NONE else IMPORTED
    return digests, next(iter(scorers), unnamed)


def _to_search(request: job.Request, source: str | None) -> Inputs:
    """The sequences in OUT if they exist and are lossless, else the raw images.

    The result for a pair is the same. A pair that `interpolate` rejected, for its true mask or
    frames, has no sequence, so only the raw images give a result for it.
    """
    manifest, shards = request.manifest, _pairs_or_sequences(request)
    planned = [shard for shard in shards if shard.pairs]
    folder = storage.join(storage.absolute(request.out), sequences.FORMAT.folder)
    return Inputs(
        manifest,
        shards,
        job_weights.of_segmenter(manifest),
        data=sources.of_pairs(manifest, planned)
        if planned
        else sources.of_stored(manifest, folder),
    )


def _pairs_or_sequences(request: job.Request) -> Sequence[PlannedShard]:
    """The shards of a request, from the sequences in its OUT where these hold exactly the images.

    Prints notes on pairs that have no sequences. Raises UserError.
    """
    manifest, splits, limit = request.manifest, request.splits, request.limit
    folder = storage.join(storage.absolute(request.out), sequences.FORMAT.folder)
    record = provenance.read(folder)
    if record is None:
        return plan(manifest, splits, limit)
    codec = record["settings"].get("interpolate", {}).get("codec")
    if codec != "png":
        request.console.print(
            f"the sequences are {codec}, which changes pixels: the raw images are read",
        )
        return plan(manifest, splits, limit)
    fingerprint.continue_from(manifest, folder, fingerprint.PLAN_KEYS)
    shards = plan_from_sequences(folder, splits, limit)
    _note_missing(request, shards, folder)
    return shards


# Settings that decide the vectors of regions; the others decide what is made of them.
VECTOR_SETTINGS = ("retriever", "weights", "features", "regions", "view", "grow")


def _to_encode(request: job.Request, source: str | None) -> Inputs:
    """Pairs or sequences with the changes found in them, always those of the training split."""
    manifest, out = request.manifest, storage.absolute(request.out)
    if TRAIN not in manifest.splits:
        raise UserError(
            f"{manifest.name} has no split {TRAIN}: entities come from its captions alone",
            f"Name a split {TRAIN} in the manifest's splits",
        )
    # Entities in OUT are this job's own output, which a killed job resumes.
    findings = read_findings(manifest, out, (changes.FORMAT,))
    if findings.changes is None:
        folder = storage.join(out, changes.FORMAT.folder)
        raise UserError(f"{folder}: no found changes there", "Run: cc-prep changes")
    extras.require("spacy", "cc-prep entities")
    splits = list(dict.fromkeys((TRAIN, *request.splits)))
    shards = _pairs_or_sequences(replace(request, splits=splits))
    digests = job_weights.of_regions(manifest)
    language = weights.locate(phrases.MODEL)
    section = fingerprint.recorded_settings(manifest, ("entities",))["entities"]
    assert isinstance(section, dict)
    return Inputs(
        manifest,
        with_findings(shards, out, findings),
        digests,
        settings={
            "region_features": {name: section[name] for name in VECTOR_SETTINGS},
            "changes": findings.settings["changes"],
        },
        earlier_weights={language.name: language.sha256},
    )


def _to_name(request: job.Request, source: str | None) -> Inputs:
    """The vectors of regions in OUT."""
    manifest = request.manifest
    folder = storage.join(storage.absolute(request.out), region_features.FORMAT.folder)
    shards, training = plan_from_regions(folder, request.splits, request.limit)
    record = provenance.read(folder) or {}
    return Inputs(
        manifest,
        shards,
        job_weights.of_regions(manifest) if manifest.entities.retriever == "clip" else {},
        arguments=(training,),
        settings={"changes": record["settings"]["changes"]},
        earlier_weights=record["weights"],
        weight_files=record["weight_files"],
    )


def _write_vocabulary(inputs: Inputs, folder: str) -> None:
    """Writes how many training pairs have each noun phrase."""
    [training] = inputs.arguments
    pairs = (row.phrases for path in training for row in region_features.read(path))
    counts = phrases.vocabulary(pairs, inputs.manifest.entities.min_count)
    entities.write_vocabulary(folder, counts)


def _to_import_frames(request: job.Request, source: str | None) -> Inputs:
    """Pairs, whose frames are in ProCap's HDF5 files in `source`."""
    manifest, source = request.manifest, str(Path(source or "").absolute())
    videos = procap.Videos(source, procap.Names(manifest.name, manifest.layout))
    frames = max(videos.count(CHANGE), videos.count(NO_CHANGE))
    depth = (frames - 1).bit_length() - 1 if frames > 2 else 0
    if not frames or frames != 2**depth + 1:
        file_name = videos.names.videos(CHANGE)
        contents = f"sequences of {frames} frames" if frames else f"no {file_name} there"
        raise UserError(f"{source}: {contents}", "2^depth + 1 frames are wanted, such as 9")
    manifest = fingerprint.for_imported_sequences(manifest, depth)
    if storage.exists(storage.join(source, videos.names.scores)):
        _with_imported_scores(manifest)  # refuses now what would stop the scores afterwards
    shards = plan(manifest, request.splits, request.limit)
    videos.check_names(pair for shard in shards for pair in shard.pairs)
    masked = sum(bool(pair.masks) for shard in shards for pair in shard.pairs)
    if masked:
        request.console.print(
            f"the masks of {masked:,} {'pair' if masked == 1 else 'pairs'} are not taken in: "
            "ProCap's files hold frames alone",
        )
    data = sources.of_pairs(manifest, shards)
    return Inputs(manifest, shards, arguments=(source,), data=data)


def _imported_bytes(manifest: Manifest, pair: ImagePair | None) -> int:
    frames, pixels = 2**manifest.interpolate.depth + 1, (manifest.image_size or 224) ** 2
    return estimates.sequence_bytes(frames, pixels, "png")


def _to_import_scores(request: job.Request, source: str | None) -> Inputs | None:
    """The sequences in OUT, whose scores are in ProCap's JSON; None if there is no JSON."""
    manifest, source = request.manifest, str(Path(source or "").absolute())
    names = procap.Names(manifest.name, manifest.layout)
    try:
        procap.read_scores(source, names)
    except FileNotFoundError:
        request.console.print(f"no {names.scores} in {source}: sequences only")
        return None
    folder = storage.join(storage.absolute(request.out), sequences.FORMAT.folder)
    manifest = _with_imported_scores(fingerprint.continue_from(manifest, folder))
    shards = plan_from_sequences(folder, request.splits, request.limit)
    data = sources.of_stored(manifest, folder)
    return Inputs(manifest, shards, arguments=(source,), data=data)


def _with_imported_scores(manifest: Manifest) -> Manifest:
    """The manifest for importing scores. Raises UserError if its keyframe rule does not fit."""
    manifest = fingerprint.with_section(manifest, "score", weights=IMPORTED)
    fingerprint.check_keyframes(manifest)
    return manifest


def _to_caption(request: job.Request, source: str | None) -> Inputs:
    """Pairs, for the captioner that `source` names."""
    assert source is not None
    manifest, shards = request.manifest, plan(request.manifest, request.splits, request.limit)
    captioner = _captioning().located(source)
    return Inputs(
        manifest,
        shards,
        _captioning().checked(captioner),
        arguments=(captioner,),
        data=sources.of_pairs(manifest, shards),
    )


def _caption_pairs(manifest: Manifest, digests: Digests, captioner: str, device: str) -> Any:
    return _captioning().CaptionPairs(manifest, digests, captioner, device)


def _captioning() -> ModuleType:
    """What captions pairs: a module that the trainer brings, which no other job needs."""
    found = entry_points(group="cc_prep.steps", name="caption")
    if not found:
        raise UserError("no captioner is installed", "Install the package again, with cc_train")
    module: ModuleType = next(iter(found)).load()
    return module


def _always(count: int) -> Callable[[Manifest, ImagePair | None], int]:
    return lambda manifest, pair: count


JOBS = {
    "interpolate": Job(
        inputs=_to_interpolate,
        step=Interpolate,
        format=sequences.FORMAT,
        settings=fingerprint.SEQUENCE_KEYS,
        networks=("interpolate",),
        bytes_a_pair=estimates.interpolated_bytes,
        # Peak at 224 px, benchmarks/bench_memory.py: 1.09, 1.19, 1.11 GB for 8, 32, 128 pairs.
        memory="1.2 GB a worker, measured with RIFE at 224 px; the same however large the data is",
    ),
    "score-frames": Job(
        inputs=_to_score,
        step=Score,
        format=scores.FORMAT,
        settings=fingerprint.SCORE_KEYS,
        networks=("score",),
        bytes_a_pair=_always(estimates.SCORE_BYTES),
        memory="not measured for your weights; one sequence at a time, however large the data is",
    ),
    "build": Job(
        inputs=_to_build,
        step=Build,
        format=training_shards.FORMAT,
        settings=fingerprint.TRAINING_SHARD_KEYS,
        networks=("interpolate", "score", "tokenize", "features"),
        bytes_a_pair=estimates.training_bytes,
        # Peak at 224 px, benchmarks/bench_memory.py build: 1.18 and 1.19 GB for 8 and 32 pairs.
        memory="1.2 GB a worker, measured from pairs with the small weights at 224 px",
    ),
    "changes": Job(
        inputs=_to_search,
        step=FindChanges,
        format=changes.FORMAT,
        settings=fingerprint.CHANGE_KEYS,
        networks=("changes",),
        bytes_a_pair=_always(6_000),  # measured: 2.2 kB at 112 px, most of it the tar's padding
        # Peak of a process with the step alone: 0.26 GB.
        memory="0.4 GB a worker with fill at 224 px; with SAM not measured",
    ),
    "region-features": Job(
        inputs=_to_encode,
        step=VectorsOfRegions,
        format=region_features.FORMAT,
        settings=fingerprint.PLAN_KEYS,
        networks=("entities",),
        bytes_a_pair=_always(8_000),  # three regions in two images with 248 channels each
        memory="not measured: the network, spaCy's pipeline, and 2 kB for each training region",
    ),
    "entities": Job(
        inputs=_to_name,
        step=Retrieve,
        format=entities.FORMAT,
        settings=(*fingerprint.PLAN_KEYS, "entities"),
        networks=("entities",),
        bytes_a_pair=_always(400),  # measured: 163 bytes
        memory="not measured: the network, spaCy's pipeline, and 2 kB for each training region",
        finish=_write_vocabulary,
    ),
    "caption": Job(
        inputs=_to_caption,
        step=_caption_pairs,
        format=captions.FORMAT,
        settings=fingerprint.PLAN_KEYS,
        networks=("features",),
        bytes_a_pair=_always(400),  # of captioner-mini 230; changes and long names take more
        memory="not measured: the captioner and, on a GPU, 32 pairs of images",
    ),
    "import-frames": Job(
        inputs=_to_import_frames,
        step=ImportFrames,
        format=sequences.FORMAT,
        settings=fingerprint.SEQUENCE_KEYS,
        networks=(),
        bytes_a_pair=_imported_bytes,
        memory="a few sequences",
    ),
    "import-scores": Job(
        inputs=_to_import_scores,
        step=ImportScores,
        format=scores.FORMAT,
        settings=fingerprint.SCORE_KEYS,
        networks=(),
        bytes_a_pair=_always(estimates.SCORE_BYTES),
        memory="the JSON file, read whole",
    ),
}
