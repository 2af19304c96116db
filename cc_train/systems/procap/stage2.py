"""`cc-train stage2`: training shards, and stage 1's encoder → a captioner."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from rich.console import Console

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.records import NO_CHANGE
from cc_prep.settings import Section
from cc_train.captioner import Speaker, predict
from cc_train.data import shard_index
from cc_train.data.shard_index import Entry
from cc_train.data.stream import Stream, StreamSettings
from cc_train.evaluation.captions import scorer
from cc_train.layers import caption_decoder
from cc_train.systems.procap import runs
from cc_train.systems.procap.batches import CaptionBatches
from cc_train.systems.procap.captioner import Captioner, Queries
from cc_train.systems.procap.frame_features import FrameFeatures, Kind
from cc_train.systems.procap.procedure_encoder import ProcedureEncoder, resized_times
from cc_train.systems.procap.stage1 import Network
from cc_train.systems.procap.stage2_objective import Stage2Objective
from cc_train.text import Vocabulary
from cc_train.training.distributed import joined
from cc_train.training.loop import Loop, fit, pick_device

MEASURES = ("CIDEr", "BLEU-4")


class QuerySettings(Section):
    """k: procedure queries, in frames; 0 leaves them out. kind: see `Captioner`."""

    k: int = Field(2, ge=0)
    kind: Queries = "shared"


class Decoder(Section):
    """Sizes of the caption decoder. length: words of a caption and two marks."""

    width: int = Field(512, ge=8)
    heads: int = Field(8, ge=1)
    hidden: int = Field(2048, ge=1)
    layers: int = Field(2, ge=1)
    length: int = Field(24, ge=3)
    dropout: float = Field(0.1, ge=0, lt=1)


class Settings(Section):
    """All settings of `cc-train stage2`.

    network and frames: only without --init; with it they are stage 1's. cache_mb: see
    `FrameFeatures`. encoder_rate: the encoder's
    share of the learning rate. freeze: the encoder learns nothing. vocabulary: a file to use in
    place of the words of the training captions. least_count: rarer words become [UNK].
    reference_decay: weight decay falls on norms too, as in the reference.
    """

    frames: Kind | None = None
    cache_mb: int = Field(500, ge=0)
    vqgan: str | None = None
    network: Network | None = None
    queries: QuerySettings = QuerySettings()
    decoder: Decoder = Decoder()
    smoothing: float = Field(0.1, ge=0, lt=1)
    encoder_rate: float = Field(0.4, gt=0)
    freeze: bool = False
    reference_decay: bool = False
    vocabulary: str | None = None
    least_count: int = Field(1, ge=1)
    hold_out: runs.HoldOut = runs.HoldOut()
    stream: StreamSettings = StreamSettings(together=True)
    loop: Loop = Loop(
        epochs=40,
        batch_size=16,
        optimizer="bert_adam",
        schedule="linear",
        learning_rate=5e-5,
        weight_decay=0.01,
        warmup=0.1,
    )


def train(
    settings: Settings,
    shards: Sequence[str],
    valid: Sequence[str],
    run: Path,
    init: Path | None,
    resume: str,
    console: Console,
) -> dict[str, float]:
    """Trains into `run`; the last validation's figures. Raises UserError and JobFailed.

    init: the folder of a stage-1 run; without it the encoder starts from nothing.
    """
    loop = settings.loop
    if loop.threads:
        torch.set_num_threads(loop.threads)
    with joined(pick_device(loop) == "cuda") as ranks:
        console.quiet = not ranks.first
        data = runs.read(shards, valid, settings.hold_out, console)
        vocabulary = _vocabulary(settings, data.train, console)
        torch.manual_seed(loop.seed)
        captioner, features = make(settings, data.first, len(vocabulary), init)
        kept = shard_index.metas(data.held_out)
        objective = Stage2Objective(
            captioner,
            features,
            partial(_score, data.held_out, kept, vocabulary, run),
            MEASURES[0],
            settings.smoothing,
            loop.weight_decay,
            settings.encoder_rate,
            settings.freeze,
            settings.reference_decay,
            pick_device(loop),
        )
        batches = CaptionBatches(features.kind, vocabulary, settings.decoder.length)
        stream = Stream(data.train, batches, loop.batch_size, loop.seed, settings.stream, ranks)
        loop = loop.lasting(len(stream.items), ranks.world)
        everything = {
            "kind": "stage2",
            "samples": {"train": len(data.train), "held_out": len(data.held_out)},
            "tokenizer": data.first["tokenizer"],
            "tokenizer_sha256": data.first["tokenizer_sha256"],
            "seen": {"frames": features.kind, "compatible": features.compatible},
            "words": vocabulary.words,
            **settings.model_copy(update={"loop": loop}).model_dump(mode="json"),
        }
        if ranks.first:
            runs.write_vqgan(run, features.vqgan)
            if not (run / "vocabulary.json").exists():
                storage.write_bytes(str(run / "vocabulary.json"), vocabulary.to_json().encode())
        return fit(objective, stream, loop, everything, run, resume, console, ranks)


def make(
    settings: Settings, first: dict[str, Any], words: int, init: Path | None
) -> tuple[Captioner, FrameFeatures]:
    """A captioner to be trained, and what turns frames into its input. Raises UserError.

    first: the JSON of one of the shards' samples.
    """
    k = settings.queries.k
    if init is None:
        network = settings.network or Network()
        vqgan = runs.tokenizer(first, settings.vqgan)
        features = FrameFeatures(vqgan, settings.frames or "tokens", cache_mb=settings.cache_mb)
        encoder = network.encoder(features, k + 2, runs.grid(first, vqgan))
    else:
        encoder, features = _from_stage1(settings, first, init)
    config = caption_decoder.Config(words=words, **settings.decoder.model_dump())
    if config.width % config.heads or config.width % 2:
        raise UserError(
            f"decoder.width {config.width} is not in {config.heads} even parts",
            "Set decoder.width or decoder.heads",
        )
    compatible = features.compatible
    features.cache_mb = settings.cache_mb
    return Captioner(encoder, config, settings.queries.kind, compatible), features


def _from_stage1(
    settings: Settings, first: dict[str, Any], init: Path
) -> tuple[ProcedureEncoder, FrameFeatures]:
    found, trained = runs.read_encoder(init)
    for key, value in (("frames", settings.frames), ("network", settings.network)):
        given = value.model_dump(mode="json") if isinstance(value, Section) else value
        if given is not None and given != trained[key]:
            raise UserError(
                f"{key} is {trained[key]} in {init}, and {given} in the settings",
                f"Leave {key} out with --init",
            )
    features = runs.read_features(init, trained["frames"], trained["losses"]["compatible"])
    if features.kind == "tokens" and trained["tokenizer_sha256"] != first["tokenizer_sha256"]:
        raise UserError(
            f"{init} was trained on tokens of {trained['tokenizer']}, these shards hold those of "
            f"{first['tokenizer']}",
            "Use shards made with the same VQGAN",
        )
    rows, columns = runs.grid(first, features.vqgan)
    if (rows, columns) != (found.config.rows, found.config.columns):
        raise UserError(
            f"{init} was trained on {found.config.rows} × {found.config.columns} tokens a frame, "
            f"these shards hold {rows} × {columns}",
            "Use shards of the same image_size",
        )
    return resized(found, settings.queries.k + 2), features


def resized(encoder: ProcedureEncoder, frames: int) -> ProcedureEncoder:
    """The encoder for another number of frames: its times are drawn out or together."""
    from dataclasses import replace

    tensors = encoder.state_dict()
    times = "target_pos_emb.weights.0"
    tensors[times] = resized_times(tensors[times], frames)
    other = ProcedureEncoder(replace(encoder.config, frames=frames))
    other.load_state_dict(tensors)
    return other


def _vocabulary(settings: Settings, train: Sequence[Entry], console: Console) -> Vocabulary:
    if settings.vocabulary is not None:
        return Vocabulary.read(settings.vocabulary)
    with console.status("reading the captions to train on"):
        found = shard_index.metas(train)
    captions = [str(c) for meta in found for c in meta.get("captions") or []]
    if not captions:
        raise UserError("the shards hold no captions", "Give shards of a captioned data set")
    vocabulary = Vocabulary.of(captions, settings.least_count)
    console.print(f"{len(captions):,} captions, {len(vocabulary)} words", highlight=False)
    return vocabulary


def _score(
    entries: Sequence[Entry],
    metas: Sequence[dict[str, Any]],
    vocabulary: Vocabulary,
    run: Path,
    captioner: Captioner,
    features: FrameFeatures,
) -> dict[str, float]:
    """CIDEr and BLEU-4 of greedy captions of the held-out pairs; writes the captions."""
    references = {
        e.key: m["captions"] for e, m in zip(entries, metas, strict=True) if m["captions"]
    }
    captioned = [entry for entry in entries if entry.key in references]
    speaker = Speaker(captioner, features, vocabulary)
    said = {key: found.text for key, found in predict(speaker, captioned)}
    tokens = scorer.tokenised(references, said)
    figures = dict(scorer.score_tokens(tokens, MEASURES).corpus)
    still = {e.key for e, m in zip(entries, metas, strict=True) if m.get("kind") == NO_CHANGE}
    for name, keys in (("change", set(said) - still), ("no_change", set(said) & still)):
        if keys and keys != set(said):
            part = ({k: tokens[0][k] for k in keys}, {k: tokens[1][k] for k in keys})
            figures[f"CIDEr_{name}"] = scorer.score_tokens(part, ["CIDEr"]).corpus["CIDEr"]
    storage.write_json(str(run / "validation.json"), said)
    return figures
