"""Beam search of a batch of pairs together, against one pair after the other.

    python benchmarks/bench_beam.py [--device cpu] [--beams 5] [--repeats 5]

The reference's sizes: 24 positions, two layers of 512, four frames of 196 tokens; 64 pairs in
batches of 32. The weights are random, so hardly a sentence ends before its last position. Both
ways must find the same sentences.
"""

from __future__ import annotations

import click
import torch
from lib.measuring import report, turns

from cc_train.decoding.cached_decoder import CachedDecoder
from cc_train.decoding.search import beam
from cc_train.layers.caption_decoder import CaptionDecoder, DecoderSettings

PAIRS, BATCH, WORDS, TOKENS, THREADS = 64, 32, 80, 4 * 196, 2


@click.command()
@click.option("--device", default="cpu", show_default=True)
@click.option("--beams", default=5, show_default=True)
@click.option("--repeats", default=5, show_default=True)
def main(device: str, beams: int, repeats: int) -> None:
    """Prints the seconds of both ways and their ratio."""
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    decoder = CaptionDecoder(WORDS, DecoderSettings(width=512, heads=8, hidden=2048)).eval()
    memory = torch.randn(PAIRS, TOKENS, decoder.sizes.width).to(device)
    cached = CachedDecoder(decoder.to(device))

    def searched(size: int) -> list[list[int]]:
        hypotheses = [one for part in memory.split(size) for one in beam(cached, part, beams)]
        return [one[0].ids for one in hypotheses]

    assert searched(BATCH) == searched(1), "other sentences"
    ways = {"together": lambda: searched(BATCH), "apart": lambda: searched(1)}
    seconds = turns(ways, repeats)
    ratio = seconds["apart"] / seconds["together"]
    each = {name: 1e3 * duration / PAIRS for name, duration in seconds.items()}
    print(
        f"{device}: {each['together']:.1f} ms a pair, one after the other {each['apart']:.1f} ms: "
        f"× {ratio:.1f}"
    )
    report(f"beam_{device}", {"threads": THREADS, "beams": beams, **seconds, "ratio": ratio})


if __name__ == "__main__":
    main()
