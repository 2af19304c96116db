"""Scoring a sequence with CLIP4IDC: each frame encoded once, against the plain pass over all pairs.

    python benchmarks/bench_scoring.py [--threads 2] [--repeats 5]

The reference scores 9 frames as 18 pairs of images, each pair through the whole network with the
text beside it. ViT-B/32 sizes with random weights; the scores agree, which is asserted.
"""

from __future__ import annotations

import click
import numpy as np
import torch
from measuring import options, report, turns

from cc_prep import byte_pairs
from cc_prep.models.clip4idc import CLIP4IDC, Config
from cc_prep.scoring import Scorer, normalised

FRAMES = 9
CAPTIONS = ("the small red cube has moved to the left of the sphere", "a cube is gone")


@click.command()
@options
def main(threads: int, repeats: int) -> None:
    """Measures sequences a second."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    network = CLIP4IDC(Config()).eval()
    scorer = Scorer(network)
    frames = np.random.default_rng(0).integers(0, 256, (FRAMES, 224, 224, 3), np.uint8)
    ours, theirs = scorer(frames, CAPTIONS), plain(network, frames)
    assert np.allclose(ours.bef_inter_sim, theirs[0], atol=1e-3)
    assert np.allclose(ours.inter_aft_sim, theirs[1], atol=1e-3)
    found = turns(
        {"ours": lambda: scorer(frames, CAPTIONS), "plain": lambda: plain(network, frames)}, repeats
    )
    ratio = found["plain"] / found["ours"]
    print(f"ours {found['ours']:.2f} s, plain {found['plain']:.2f} s a sequence: × {ratio:.2f}")
    report("scoring", {"threads": threads, **found, "ratio": ratio})


@torch.inference_mode()
def plain(network: CLIP4IDC, frames: np.ndarray) -> list[np.ndarray]:
    """All 18 pairs, both images of each from the pixels on; the captions with either half."""
    images = normalised(frames, network.config.resolution)
    found = []
    for firsts, seconds in (
        (images[:1].expand_as(images), images), (images, images[-1:].expand_as(images))
    ):  # fmt: skip
        ids = torch.tensor(byte_pairs.batch(CAPTIONS, byte_pairs.CONTEXT))
        text = network.encode_text(ids)
        tokens = network.visual.encode_frames(torch.cat((firsts, seconds)))
        pairs = network.visual.encode_pairs(*tokens.chunk(2))
        found.append(network.similarity(text, pairs).numpy())
    return found


if __name__ == "__main__":
    main()
