"""Stage 2 at the paper's sizes: encoding, against the reference's way, and words a second.

    python benchmarks/bench_stage2.py [--repeats 5]

Batch 4, images of 224 px, 12 layers, random weights, float32, two threads. The reference's way: all
images through the VQGAN together, torch's own layers, attention weights asked for; each way has a
process of its own and keeps freed memory, and what they return agrees, which is asserted. Then
words a second, pairs' tokens to ids, by the number of queries k.
"""

from __future__ import annotations

from functools import cache, partial

import click
import numpy as np
import torch
from lib.measuring import report, turns, turns_apart
from lib.reference import as_the_reference_encodes, codec, swish, torchs_products
from torch import Tensor

from cc_prep.devices import keep_freed_memory
from cc_prep.models.cpu import use_kernels
from cc_train.data.collate import Reads
from cc_train.decoding.cached_decoder import CachedDecoder
from cc_train.decoding.search import greedy
from cc_train.systems.procap.captioner import Decoder, ProCap
from cc_train.systems.procap.frame_features import FrameFeatures
from cc_train.systems.procap.procedure_encoder import Config, ProcedureEncoder
from cc_train.systems.procap.stage1_objective import as_input
from cc_train.text import MARKS, Vocabulary

BATCH, SIDE, THREADS = 4, 224, 2
PUBLISHED = Decoder(width=512, heads=8, hidden=2048)
PAPER = {1: 766, 2: 699, 4: 461, 7: 271}


@click.command()
@click.option("--repeats", default=5, show_default=True)
def main(repeats: int) -> None:
    """Measures seconds a batch, and words a second."""
    runs = turns_apart({"pixels": pixels, "tokens": tokens, "reference": reference}, repeats)
    plain = runs["reference"]
    assert np.allclose(plain.result, runs["pixels"].result, atol=1e-2)
    rows = {
        way: {"seconds_a_pair": run.seconds / BATCH, "ratio": plain.seconds / run.seconds}
        for way, run in runs.items()
    }
    for way, row in rows.items():
        print(f"{way}: {row['seconds_a_pair']:.2f} s a pair to encode, × {row['ratio']:.2f}")
    words = words_a_second(repeats)
    for k, rate in words.items():
        print(f"k = {k}: {rate:.1f} words/s, {rate / words[1]:.2f} of k = 1 (paper: "
              f"{PAPER[k] / PAPER[1]:.2f})")  # fmt: skip
    report("stage2", {"threads": THREADS, "batch": BATCH, **rows, "words_a_second": words})


def pixels() -> np.ndarray:
    """Ours on images."""
    return ours("pixels")


def tokens() -> np.ndarray:
    """Ours on the shards' indices."""
    return ours("tokens")


def ours(kind: Reads) -> np.ndarray:
    return encoded(captioner(2, kind), kind)[:, ::97, ::97].numpy()


@torch.inference_mode()
def encoded(model: ProCap, kind: Reads) -> Tensor:
    return model.memory(ends(kind))


@torch.inference_mode()
def reference() -> np.ndarray:
    """All images at once through the VQGAN."""
    torchs_products()
    model = captioner(2, "pixels")
    as_the_reference_encodes(model.encoder)
    with swish():
        maps = codec().features(as_input(ends("pixels")).flatten(0, 1))
    features = maps.flatten(2).transpose(1, 2).unflatten(0, (BATCH, 2))
    memory: np.ndarray = model.mlp(model.procedure(features))[:, ::97, ::97].numpy()
    return memory


def words_a_second(repeats: int) -> dict[int, float]:
    """Pairs to ids, by k; sentences that never end, as untrained decoders say them."""
    keep_freed_memory()

    def decode(model: ProCap) -> None:
        greedy(CachedDecoder(model.decoder), encoded(model, "tokens"), stop=False)

    seconds = turns({str(k): partial(decode, captioner(k, "tokens")) for k in PAPER}, repeats)
    words = BATCH * (captioner(1, "tokens").length - 1)
    return {k: words / seconds[str(k)] for k in PAPER}


@cache
def captioner(k: int, kind: Reads) -> ProCap:
    torch.set_num_threads(THREADS)
    torch.manual_seed(1)
    encoder = ProcedureEncoder(Config(frames=k + 2))
    words = Vocabulary([*MARKS, *map(str, range(80 - len(MARKS)))])
    features = FrameFeatures(codec(), kind)
    return use_kernels(ProCap(encoder, PUBLISHED, features=features, codec=words).eval())


@cache
def ends(kind: Reads) -> Tensor:
    rng = np.random.default_rng(0)
    if kind == "tokens":
        return torch.from_numpy(rng.integers(0, 1024, (BATCH, 2, 196)))
    return torch.from_numpy(rng.integers(0, 256, (BATCH, 2, SIDE, SIDE, 3), np.uint8))


if __name__ == "__main__":
    main()
