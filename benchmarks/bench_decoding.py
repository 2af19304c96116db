"""Greedy decoding with kept keys and values against full recomputation, as the reference decodes.

    python benchmarks/bench_decoding.py [--threads 2] [--repeats 5]

The reference's sizes: 24 positions, two layers of 512, four frames of 196 tokens. Both ways give
the same ids, which is asserted. Prints medians, and a JSON line.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import click
import torch
from torch import Tensor

from cc_train.decoding import greedy
from cc_train.models.caption_decoder import CaptionDecoder, Config
from cc_train.vocabulary import BOS, PAD, UNK

WORDS, FRAMES, FRAME_TOKENS = 80, 4, 196


@click.command()
@click.option("--threads", default=2, show_default=True)
@click.option("--repeats", default=5, show_default=True)
def main(threads: int, repeats: int) -> None:
    """Measures batches of 8 and 64."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    decoder = CaptionDecoder(Config(words=WORDS)).eval()
    found = {}
    for batch in (8, 64):
        memory = torch.randn(batch, FRAMES * FRAME_TOKENS, decoder.config.width)
        assert (greedy(decoder, memory, stop=False) == recomputed(decoder, memory)).all()
        kept = timed(lambda m=memory: greedy(decoder, m, stop=False), repeats)
        plain = timed(lambda m=memory: recomputed(decoder, m), repeats)
        found[batch] = {"kept": kept, "recomputed": plain, "ratio": plain / kept}
        print(f"batch {batch}: {1e3 * kept:.0f} ms, recomputed {1e3 * plain:.0f} ms: "
              f"{plain / kept:.1f} times as fast")  # fmt: skip
    print(json.dumps({"bench": "decoding", "threads": threads, **found}))


@torch.inference_mode()
def recomputed(decoder: CaptionDecoder, memory: Tensor) -> Tensor:
    """All 24 positions and the memory's keys and values anew for each word."""
    ids = torch.full((len(memory), decoder.config.length), PAD)
    ids[:, 0] = BOS
    for place in range(1, decoder.config.length):
        logits = decoder(ids, memory)[:, place - 1]
        logits[:, UNK] = -1e10
        ids[:, place] = logits.argmax(-1)
    return ids


def timed(work: Callable[[], object], repeats: int) -> float:
    """Median seconds."""
    seconds = []
    for _ in range(repeats):
        began = time.monotonic()
        work()
        seconds.append(time.monotonic() - began)
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
