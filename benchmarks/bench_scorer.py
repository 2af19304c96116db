"""SCORER's step and its decoding against the public code's way of computing.

    python benchmarks/bench_scorer.py [--batch 64] [--repeats 1] [--width 512]

The published sizes: features of 1,024 × 14 × 14, two layers of 512 on either side, CBR frozen. The
public code's way: every layer's matching, of the whole matrix [B, B, N, N], by torch's own
gradients; both halves are kept until one backward pass. Both ways have the same losses, which is
asserted, no dropout, one thread and a process of their own, whose peak memory is that of the way;
both keep freed memory. A step of 64 scenes in the public code's way takes minutes and several GB.
Decoding: 32 pairs, 24 positions; the public code computes all of them for each word.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import click
import numpy as np
import torch
from lib.measuring import report, turns_apart
from lib.reference import recompute_all, torchs_products
from torch import Tensor

from cc_train.decoding.search import greedy
from cc_train.layers.caption_loss import caption_loss
from cc_train.layers.frozen_backbone import BackboneSpec, FrozenBackbone
from cc_train.layers.token_matching import contrast
from cc_train.systems.scorer.captioner import ScorerCaptioner
from cc_train.systems.scorer.decoder import DecoderSettings
from cc_train.systems.scorer.encoder import EncoderSettings, split
from cc_train.systems.scorer.objective import Losses, ScorerObjective, Ways
from cc_train.systems.scorer.reconstruction import Reconstruction, sentence_of
from cc_train.systems.scorer.words import END, MARKS, NULL, START, UNK, ScorerWords
from cc_train.text import IGNORED

WORDS, LENGTH, CHANNELS, SIDE, SENTENCES = 76, 24, 1024, 14, 32
WAYS = Ways(per_head=False, trained_cbr=False, slots=True)


@click.command()
@click.option("--batch", default=64, show_default=True, help="Scenes of a step.")
@click.option("--width", default=512, show_default=True)
@click.option("--repeats", default=1, show_default=True)
def main(batch: int, width: int, repeats: int) -> None:
    """Measures a step, and greedy words."""
    steps = {"ours": partial(ours, batch, width), "public": partial(public, batch, width)}
    runs = turns_apart(steps, repeats)
    assert np.allclose(runs["ours"].result, runs["public"].result, rtol=1e-3)
    step = {
        "seconds": {name: run.seconds for name, run in runs.items()},
        "peak_mb": {name: run.peak for name, run in runs.items()},
        "ratio": runs["public"].seconds / runs["ours"].seconds,
        "memory_ratio": runs["public"].peak / runs["ours"].peak,
    }
    rounds = "one round" if repeats == 1 else f"medians of {repeats} rounds"
    print(f"a step of {batch} scenes, {rounds}: "
          f"{runs['ours'].seconds:.1f} s and {runs['ours'].peak:.0f} MB, "
          f"the public way {runs['public'].seconds:.1f} s and {runs['public'].peak:.0f} MB: "
          f"× {step['ratio']:.2f}, memory × {step['memory_ratio']:.2f}")  # fmt: skip
    decoders = {"kept": partial(kept, width), "recomputed": partial(recomputed, width)}
    words = turns_apart(decoders, max(3, repeats))
    assert (words["kept"].result == words["recomputed"].result).all()
    ratio = words["recomputed"].seconds / words["kept"].seconds
    print(f"{SENTENCES} captions: {1e3 * words['kept'].seconds:.0f} ms, recomputed "
          f"{1e3 * words['recomputed'].seconds:.0f} ms: × {ratio:.1f}")  # fmt: skip
    report("scorer", {"batch": batch, "width": width, "step": step, "decoding_ratio": ratio})


@cache
def scorer_objective(width: int) -> ScorerObjective:
    """A network with equal weights in every process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    words = ScorerWords([*MARKS, *map(str, range(WORDS - len(MARKS)))])
    backbone = FrozenBackbone(None, BackboneSpec("random", None, (CHANNELS, SIDE, SIDE)))
    encoder = EncoderSettings(width=width, dropout=0.0)
    decoder = DecoderSettings(length=LENGTH, dropout=0.0)
    network = ScorerCaptioner(backbone, (224, 224), encoder, decoder, words)
    return ScorerObjective(
        network,
        Reconstruction(width, 8),
        score=lambda captioner: {},
        weights=Losses(),
        ways=WAYS,
        weight_decay=0.0,
        device="cpu",
        halves=("changed", "unchanged"),
    )


@cache
def batch_of(count: int) -> dict[str, dict[str, Tensor]]:
    """Random features of both halves, and captions of 12 words."""
    generator = torch.Generator().manual_seed(1)
    batch = {}
    for half in ("changed", "unchanged"):
        shape = (count, 2, CHANNELS, SIDE, SIDE)
        ids = torch.full((count, LENGTH), NULL)
        ids[:, 0], ids[:, 13] = START, END
        ids[:, 1:13] = torch.randint(len(MARKS), WORDS, (count, 12), generator=generator)
        labels = torch.full_like(ids, IGNORED)
        labels[:, :13] = ids[:, 1:14]
        features = torch.rand(shape, generator=generator).half()
        batch[half] = {
            "before_after": features, "ids": ids, "labels": labels, "scene": torch.arange(count)
        }  # fmt: skip
    return batch


def ours(count: int, width: int) -> list[float]:
    """A forward and a backward pass as cc-train takes them."""
    objective, batch = scorer_objective(width), batch_of(count)
    denominators = objective.denominators(batch)
    objective.network.zero_grad()
    totals: dict[str, float] = {}
    for chunk in objective.chunks(batch):
        losses = objective.losses("model", chunk, 0, denominators)
        losses["total"].backward()
        totals = {n: totals.get(n, 0) + float(v.detach()) for n, v in losses.items()}
    return [totals[name] for name in ("caption", "contrast", "cbr")]


def whole(queries: Tensor, keys: Tensor, heads: int) -> Tensor:
    """The matching of the whole matrix, its heads added up first."""
    q, k = (x.unflatten(2, (heads, -1)) for x in (queries, keys))
    products = torch.einsum("alhd,bmhd->ablm", q, k)
    return (products.max(3)[0].mean(2) + products.max(2)[0].mean(2)) / 2


def attended(attention: Any, x: Tensor, other: Tensor) -> Tensor:
    """An attention of the encoder with its weights written out."""
    parts = (attention.query(x), attention.key(other), attention.value(other))
    query, key, value = (split(part, attention.heads) for part in parts)
    weights = (query @ key.transpose(2, 3) / query.shape[3] ** 0.5).softmax(3)
    mixed: Tensor = attention.layer_norm((weights @ value).transpose(1, 2).flatten(2) + x)
    return mixed


def public(count: int, width: int) -> list[float]:
    """Both halves with everything that the public code computes, then one backward pass."""
    torchs_products()
    objective, batch = scorer_objective(width), batch_of(count)
    denominators = objective.denominators(batch)
    objective.network.zero_grad()
    parts = [_public(objective, batch[half], denominators[half]) for half in objective.halves]
    caption, similar, cbr = (sum(values) / 2 for values in zip(*parts, strict=True))
    (caption + objective.weights.contrast * similar + objective.weights.cbr * cbr).backward()
    return [float(value.detach()) for value in (caption, similar, cbr)]


def _public(objective: ScorerObjective, batch: Any, words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    network, reconstruction = objective.network, objective.reconstruction
    assert reconstruction is not None
    detector, heads = network.change_detector, network.change_detector.sizes.heads
    images = network.features(batch["before_after"])
    before, after = (detector.project(image) for image in images)
    sides = before, after
    matched: list[Tensor] = []
    for layer in detector.scorer:
        attention: Any = layer.attention
        x, y = sides
        sides = attended(attention, x, y), attended(attention, y, x)
        scale = attention.logit_scale.exp()
        matched = [
            scale * whole(attention.query(image), attention.key(other), heads)
            for image, other in ((x, y), (y, x))
        ]
    difference = detector.embed_fc(torch.cat(sides, dim=2))
    is_word = batch["ids"] != NULL
    hidden = network.speaker.hidden(batch["ids"], difference, is_word)
    caption = caption_loss(network.speaker.logit(hidden), batch["labels"], 0.0) / words
    made_up = reconstruction(before, sentence_of(hidden, is_word, True))
    of_cbr = reconstruction.scale * whole(*reconstruction.queries(made_up, after), heads)
    similar = (contrast(matched[0]) + contrast(matched[1])) / 2
    return caption, similar, (contrast(of_cbr) + contrast(of_cbr.T)) / 2


@cache
def differences(width: int) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(SENTENCES, SIDE * SIDE, width, generator=generator)


@torch.inference_mode()
def kept(width: int) -> np.ndarray:
    """Decodes as cc-train does."""
    network = scorer_objective(width).network.eval()
    ids = greedy(network.next_word(), differences(width), network.codec.marks, stop=False)
    return ids.numpy()


@torch.inference_mode()
def recomputed(width: int) -> np.ndarray:
    """Computes all 24 positions again for each word."""
    torchs_products()
    network, memory = scorer_objective(width).network.eval(), differences(width)
    return recompute_all(network.logits, memory, START, NULL, UNK, LENGTH).numpy()


if __name__ == "__main__":
    main()
