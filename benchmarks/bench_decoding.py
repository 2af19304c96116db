"""Greedy decoding with kept keys and values against full recomputation, as the reference decodes.

    python benchmarks/bench_decoding.py [--threads 2] [--repeats 5]

The reference's sizes: 24 positions, two layers of 512, four frames of 196 tokens. Both ways give
the same ids, which is asserted. Prints medians, and a JSON line.
"""

from __future__ import annotations

from functools import partial

import click
import torch
from measuring import options, report, turns
from torch import Tensor

from cc_train.decoding import greedy
from cc_train.models.caption_decoder import CaptionDecoder, Config
from cc_train.vocabulary import BOS, PAD, UNK

WORDS, FRAMES, FRAME_TOKENS = 80, 4, 196


@click.command()
@options
def main(threads: int, repeats: int) -> None:
    """Measures batches of 8 and 64."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    decoder = CaptionDecoder(Config(words=WORDS)).eval()
    found = {}
    for batch in (8, 64):
        memory = torch.randn(batch, FRAMES * FRAME_TOKENS, decoder.config.width)
        assert (greedy(decoder, memory, stop=False) == recomputed(decoder, memory)).all()
        seconds = turns(
            {
                "kept": partial(greedy, decoder, memory, stop=False),
                "recomputed": partial(recomputed, decoder, memory),
            },
            repeats,
        )
        kept, plain = seconds["kept"], seconds["recomputed"]
        found[f"batch {batch}"] = {**seconds, "ratio": plain / kept}
        print(f"batch {batch}: {1e3 * kept:.0f} ms, recomputed {1e3 * plain:.0f} ms: "
              f"{plain / kept:.1f} times as fast")  # fmt: skip
    report("decoding", {"threads": threads, **found})


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


if __name__ == "__main__":
    main()
