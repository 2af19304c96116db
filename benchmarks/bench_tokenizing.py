"""Tokenising a sequence, against the reference's way: one image at a time, all distances at once.

    python benchmarks/bench_tokenizing.py [--repeats 5]

The f16-1024 VQGAN's sizes with random weights; the codes agree but for ties of the last bit. The
reference's way writes its activation as x · sigmoid(x) and all distances into one matrix. Each way
has a process of its own, two threads; both keep freed memory. A third one is ours with the C
library's allocator as it is, which does not.
"""

from __future__ import annotations

from functools import cache

import click
import numpy as np
import torch
from lib.measuring import report, turns_apart
from lib.reference import codec, swish

from cc_prep.steps.tokenization import Tokenizer

FRAMES, THREADS = 9, 2


@click.command()
@click.option("--repeats", default=5, show_default=True)
def main(repeats: int) -> None:
    """Measures sequences a second."""
    unkept = "ours, C library's allocator"
    ways = {"ours": ours, "plain": plain, unkept: ours}
    runs = turns_apart(ways, repeats, plain_allocator=[unkept])
    same = (runs["ours"].result == runs["plain"].result).mean()
    assert same > 0.99, same
    seconds = {name: run.seconds for name, run in runs.items()}
    ratio = seconds["plain"] / seconds["ours"]
    print(f"ours {seconds['ours']:.2f} s, plain {seconds['plain']:.2f} s a sequence: × {ratio:.2f}")
    print(f"ours with the C library's allocator {seconds[unkept]:.2f} s")
    report("tokenizing", {"threads": THREADS, **seconds, "ratio": ratio, "same codes": float(same)})


@cache
def frames() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (FRAMES, 224, 224, 3), np.uint8)


def ours() -> np.ndarray:
    torch.set_num_threads(THREADS)
    return Tokenizer(codec())(frames())


@torch.inference_mode()
def plain() -> np.ndarray:
    """Tokenizes by the code of the reference."""
    torch.set_num_threads(THREADS)
    indices = []
    codes = codec().quantize.embedding.weight
    for frame in frames():
        image = torch.tensor(frame).permute(2, 0, 1)[None].float() / 255
        with swish():
            latent = codec().quant_conv(codec().features(image))
        flat = latent.permute(0, 2, 3, 1).reshape(-1, latent.shape[1])
        distances = flat.square().sum(1, keepdim=True) + codes.square().sum(1) - 2 * flat @ codes.T
        indices.append(distances.argmin(1).view(latent.shape[2:]).numpy())
    return np.stack(indices)


if __name__ == "__main__":
    main()
