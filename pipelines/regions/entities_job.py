"""`cc-prep entities`: found changes → vectors of their regions → noun phrases that fit them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from cc_prep import extras, storage, weights
from cc_prep.errors import UserError
from cc_prep.formats import changes as change_shards
from cc_prep.formats import entities as entity_tables
from cc_prep.formats import provenance, region_features
from cc_prep.manifest import Manifest
from cc_prep.steps.entities import phrases
from cc_prep.weights.folders import locate_folder
from pipelines import fingerprint, job
from pipelines.regions.changes_job import plan_pairs_or_sequences
from pipelines.regions.entities_step import Retrieve, VectorsOfRegions
from pipelines.regions.findings import read_findings, with_findings
from pipelines.regions.shards import TRAIN, plan_from_regions

# Settings that decide the vectors; the others decide what is made of them.
VECTOR_SETTINGS = ("retriever", "weights", "features", "regions", "view", "grow")
# Of a pair: three regions in two images with 248 channels each; measured 163 bytes of entities.
VECTOR_BYTES, ENTITY_BYTES = 8_000, 400
MEMORY = "not measured: the network, spaCy's pipeline, and 2 kB for each training region"


def find_vectors(request: job.Request) -> job.Summary | None:
    """Makes `OUT/region_features`, always with the training split. Raises UserError, JobFailed."""
    manifest, out = request.manifest, storage.absolute(request.out)
    if TRAIN not in manifest.splits:
        raise UserError(
            f"{manifest.name} has no split {TRAIN}: entities come from its captions alone",
            f"Name a split {TRAIN} in the manifest's splits",
        )
    # Entities in OUT are this job's own output, which a killed job resumes.
    findings = read_findings(manifest, out, (change_shards.FORMAT,))
    if findings.changes is None:
        folder = storage.join(out, change_shards.FORMAT.folder)
        raise UserError(f"{folder}: no found changes there", "Run: cc-prep changes")
    extras.require("spacy", "cc-prep entities")
    splits = list(dict.fromkeys((TRAIN, *request.splits)))
    shards = plan_pairs_or_sequences(replace(request, splits=splits))
    digests = find_weights(manifest)
    language = weights.locate(phrases.MODEL)
    settings = fingerprint.recorded_settings(manifest, (*fingerprint.PLAN_KEYS, "entities"))
    section = settings.pop("entities")
    assert isinstance(section, dict)
    settings["region_features"] = {name: section[name] for name in VECTOR_SETTINGS}
    settings["changes"] = findings.settings["changes"]
    spec = job.JobSpec(
        format=region_features.FORMAT,
        folder=storage.join(out, region_features.FORMAT.folder),
        shards=with_findings(shards, out, findings),
        make_step=partial(VectorsOfRegions, fingerprint.with_absolute_paths(manifest), digests),
        settings=settings,
        weights={**digests, language.name: language.sha256},
        weight_files=fingerprint.weight_files(manifest, digests),
        threads=manifest.entities.threads,
        bytes_a_pair=VECTOR_BYTES,
        memory=MEMORY,
        has_network=bool(digests),
    )
    return job.run(spec, request.options, request.console)


def find_entities(request: job.Request) -> job.Summary | None:
    """Makes `OUT/entities` from `OUT/region_features`. Raises UserError and JobFailed."""
    manifest, out = request.manifest, storage.absolute(request.out)
    folder = storage.join(out, entity_tables.FORMAT.folder)
    source = storage.join(out, region_features.FORMAT.folder)
    shards, training = plan_from_regions(source, request.splits, request.limit)
    digests = find_weights(manifest) if manifest.entities.retriever == "clip" else {}
    record = provenance.read(source) or {}
    settings = fingerprint.recorded_settings(manifest, (*fingerprint.PLAN_KEYS, "entities"))
    settings["changes"] = record["settings"]["changes"]
    spec = job.JobSpec(
        format=entity_tables.FORMAT,
        folder=folder,
        shards=shards,
        make_step=partial(Retrieve, fingerprint.with_absolute_paths(manifest), digests, training),
        settings=settings,
        weights=record["weights"],
        weight_files=record["weight_files"],
        threads=manifest.entities.threads,
        bytes_a_pair=ENTITY_BYTES,
        memory=MEMORY,
        has_network=bool(digests),
    )
    summary = job.run(spec, request.options, request.console)
    if summary is not None:
        counts = training_vocabulary(training, manifest.entities.min_count)
        entity_tables.write_vocabulary(folder, counts)
    return summary


def training_vocabulary(paths: Iterable[str], min_count: int) -> dict[str, int]:
    """Noun phrases, and how many training pairs have each, from shards of region vectors."""
    of_pairs = (row.phrases for path in paths for row in region_features.read(path))
    return phrases.vocabulary(of_pairs, min_count)


def find_weights(manifest: Manifest) -> dict[str, str]:
    """SHA-256, by name, of the network that encodes regions; empty with `lab`.

    Raises UserError, also if a package is missing that the network needs.
    """
    settings = manifest.entities
    if settings.retriever == "clip":
        if settings.weights is None:
            raise UserError(
                "entities.retriever clip needs weights",
                "Set entities.weights to a local folder of CLIP as transformers saves it, or "
                "entities.retriever=neighbours",
            )
        extras.require("transformers", "entities.retriever clip")
        folder = locate_folder(settings.weights, "clip")
        return {folder.name: folder.sha256}
    if settings.weights is not None:
        raise UserError(
            "entities.retriever neighbours takes no weights",
            "Set entities.retriever=clip, or leave entities.weights out",
        )
    if settings.features == "lab":
        return {}
    file = weights.locate(settings.features)
    return {file.name: file.sha256}
