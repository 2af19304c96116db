"""Tokenising a sequence: its frames together, against one image at a time.

    python benchmarks/bench_tokenizing.py [--threads 2] [--repeats 5]

The f16-1024 VQGAN's sizes with random weights; the codes agree but for ties of the last bit.
"""

from __future__ import annotations

import click
import numpy as np
import torch
from measuring import options, report, turns

from cc_prep.models.vqgan import VQGAN, Config
from cc_prep.tokenization import Tokenizer

FRAMES = 9


@click.command()
@options
def main(threads: int, repeats: int) -> None:
    """Measures sequences a second."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    network = VQGAN(Config()).eval()
    tokenizer = Tokenizer(network)
    frames = np.random.default_rng(0).integers(0, 256, (FRAMES, 224, 224, 3), np.uint8)
    same = (tokenizer(frames) == plain(network, frames)).mean()
    assert same > 0.99, same
    found = turns(
        {"ours": lambda: tokenizer(frames), "plain": lambda: plain(network, frames)}, repeats
    )
    ratio = found["plain"] / found["ours"]
    print(f"ours {found['ours']:.2f} s, plain {found['plain']:.2f} s a sequence: × {ratio:.2f}")
    report("tokenizing", {"threads": threads, **found, "ratio": ratio, "same codes": float(same)})


@torch.inference_mode()
def plain(network: VQGAN, frames: np.ndarray) -> np.ndarray:
    """One image at a time; distances as the reference writes them, the whole matrix."""
    found = []
    codes = network.quantize.embedding.weight
    for frame in frames:
        image = torch.tensor(frame).permute(2, 0, 1)[None].float() / 255
        latent = network.quant_conv(network.features(image))
        flat = latent.permute(0, 2, 3, 1).reshape(-1, latent.shape[1])
        distances = flat.square().sum(1, keepdim=True) + codes.square().sum(1) - 2 * flat @ codes.T
        found.append(distances.argmin(1).view(latent.shape[2:]).numpy())
    return np.stack(found)


if __name__ == "__main__":
    main()
