"""Greedy decoding, a word at a time, against full recomputation, as the reference decodes.

    python benchmarks/bench_decoding.py [--repeats 5]

The reference's sizes: 24 positions, two layers of 512, four frames of 196 tokens; 64 sentences in
batches of 8 and of 64. The reference computes all positions 24 times; what the last pass says has
no place left. Both ways give the same ids, which is asserted. Each way has a process of its own,
two threads; both keep freed memory.
"""

from __future__ import annotations

from functools import cache, partial

import click
import numpy as np
import torch
from lib.measuring import report, turns_apart
from lib.reference import recompute_all, torchs_products
from torch import Tensor

from cc_train.decoding.cached_decoder import CachedDecoder
from cc_train.decoding.search import greedy
from cc_train.layers.caption_decoder import CaptionDecoder, DecoderSettings
from cc_train.text import BOS, PAD, UNK

SENTENCES, WORDS, FRAMES, FRAME_TOKENS, THREADS = 64, 80, 4, 196, 2


@click.command()
@click.option("--repeats", default=5, show_default=True)
def main(repeats: int) -> None:
    """Measures batches of 8 and 64."""
    figures = {}
    for batch in (8, 64):
        ways = {"kept": partial(cached, batch), "recomputed": partial(recomputed, batch)}
        runs = turns_apart(ways, repeats)
        assert (runs["kept"].result == runs["recomputed"].result).all()
        seconds = {name: run.seconds for name, run in runs.items()}
        ratio = seconds["recomputed"] / seconds["kept"]
        figures[f"batch {batch}"] = {**seconds, "ratio": ratio}
        ours, plain = (1e3 * run.seconds * batch / SENTENCES for run in runs.values())
        print(f"batch {batch}: {ours:.0f} ms, recomputed {plain:.0f} ms a batch: × {ratio:.1f}")
    report("decoding", {"threads": THREADS, **figures})


@cache
def parts() -> tuple[CaptionDecoder, Tensor]:
    """The decoder and what it looks at, the same in every process."""
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    decoder = CaptionDecoder(WORDS, DecoderSettings(width=512, heads=8, hidden=2048)).eval()
    return decoder, torch.randn(SENTENCES, FRAMES * FRAME_TOKENS, decoder.sizes.width)


def cached(batch: int) -> np.ndarray:
    """Decodes as cc-train does."""
    decoder, memory = parts()
    cached_decoder = CachedDecoder(decoder)
    return torch.cat(
        [greedy(cached_decoder, part, stop=False) for part in memory.split(batch)]
    ).numpy()


@torch.inference_mode()
def recomputed(batch: int) -> np.ndarray:
    """Computes all 24 positions and the memory's keys and values again for each word."""
    torchs_products()
    decoder, memory = parts()
    length = decoder.sizes.length
    parts_of_ids = [
        recompute_all(decoder, part, BOS, PAD, UNK, length) for part in memory.split(batch)
    ]
    return torch.cat(parts_of_ids).numpy()


if __name__ == "__main__":
    main()
