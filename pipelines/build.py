"""`cc-prep build`: training shards, from pairs in one stream or from what is stored already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rich.console import Console

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.formats import provenance, scores, sequences, training_shards
from cc_prep.manifest import Manifest
from cc_prep.weights import networks
from pipelines import fingerprint, interpolate, job, score_frames
from pipelines.actors import Build
from pipelines.plan import AnyShard, plan, stored
from pipelines.shard_worker import Step

JPG_SHARE = 0.13  # of the raw pixels, at quality 95: 0.10 of rendered scenes, 0.12 of videos
# Peak at 224 px, benchmarks/bench_memory.py build: 1.18 and 1.19 GB for 8 and 32 pairs a shard.
MEMORY = "1.2 GB a worker, measured from pairs with the small weights at 224 px"


def build(request: job.Request, source: str | None) -> job.Summary | None:
    """Makes `OUT/shards`. Raises UserError and JobFailed.

    source: the folder whose `sequences` and `scores` are taken, where they are there; default: OUT.
        What is not there is made on the way, and not written.
    """
    out = storage.absolute(request.out)
    given, source = source, storage.absolute(source or out)
    manifest, makes, shards = _plan(request, source)
    fingerprint.check_keyframes(manifest)
    if given is not None and "interpolate" in makes:
        raise UserError(f"{given}: no sequences in it", "Give the --out of an earlier interpolate")
    digests, scorer = _find_weights(manifest, makes, source, request.console)
    work = job.Work(
        format=training_shards.FORMAT,
        folder=storage.join(out, training_shards.FORMAT.folder),
        shards=shards,
        make_step=partial(_make_step, fingerprint.placed(manifest), digests, makes, scorer),
        settings=fingerprint.deciding(manifest, fingerprint.TRAINING_SHARDS),
        weights=digests,
        threads=max(
            manifest.interpolate.threads, manifest.score.threads, manifest.tokenize.threads
        ),
        bytes_a_pair=_bytes_a_pair(manifest),
        memory=MEMORY,
    )
    return job.run(work, request.options, request.console)


def _plan(request: job.Request, source: str) -> tuple[Manifest, frozenset[str], Sequence[AnyShard]]:
    """What is gone on with, what has to be made before tokenising, and the shards to make."""
    manifest, splits, limit = request.manifest, request.splits, request.limit
    made, scored = (storage.join(source, f.folder) for f in (sequences.FORMAT, scores.FORMAT))
    if provenance.read(made) is None:
        return manifest, frozenset({"interpolate", "score"}), plan(manifest, splits, limit)
    manifest = fingerprint.adopted(manifest, made)
    if provenance.read(scored) is None:
        return manifest, frozenset({"score"}), stored(made, splits, limit)
    # Another keyframe rule needs no new scores.
    manifest = fingerprint.adopted(manifest, scored, (*fingerprint.SEQUENCES, "score"))
    return manifest, frozenset(), stored(made, splits, limit, scored)


def _find_weights(
    manifest: Manifest, makes: frozenset[str], source: str, console: Console
) -> tuple[dict[str, str], str]:
    """SHA-256 of all weights that take part in the bytes by name, and the scorer's name.

    Of what is stored already its provenance knows them: they need not be on this machine.
    """
    made, scored = (storage.join(source, f.folder) for f in (sequences.FORMAT, scores.FORMAT))
    if "interpolate" in makes:
        interpolators = interpolate.find_weights(manifest)
    else:
        interpolators = (provenance.read(made) or {})["weights"]
    if "score" in makes:
        scorers = score_frames.find_weights(manifest)
    else:
        scorers = (provenance.read(scored) or {})["weights"]
    network, tokenizer, unused = networks.vqgan(manifest.tokenize.weights, manifest.tokenize.config)
    factor = network.config.factor
    if manifest.image_size is not None and manifest.image_size % factor:
        raise UserError(
            f"image_size {manifest.image_size} is not in whole tokens of {factor} px",
            f"Set image_size={max(1, round(manifest.image_size / factor)) * factor}",
        )
    if unused:
        shown = ", ".join(unused[:3]) + (", …" if len(unused) > 3 else "")
        console.print(f"{tokenizer.name}: {len(unused)} tensors are not used ({shown})")
    digests = {**interpolators, **scorers, tokenizer.name: tokenizer.sha256}
    return digests, next(iter(scorers), fingerprint.IMPORTED)


def _make_step(
    manifest: Manifest,
    digests: dict[str, str],
    makes: frozenset[str],
    scorer: str,
    device: str,
) -> Callable[[], Step]:
    return partial(Build, manifest, device, digests, makes, scorer)


def _bytes_a_pair(manifest: Manifest) -> int:
    frames, rule = 2**manifest.interpolate.depth + 1, manifest.keyframes
    images = {"keyframes": rule.k + 2, "all": frames, "none": 0}[rule.images]
    pixels = (manifest.image_size or 512) ** 2
    tokens = 2 * frames * pixels // 256
    return int(images * 3 * pixels * JPG_SHARE) + tokens + 8000
