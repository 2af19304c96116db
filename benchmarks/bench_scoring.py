"""Scoring a sequence with CLIP4IDC: each frame encoded once, against the plain pass over all pairs.

    python benchmarks/bench_scoring.py [--repeats 5]

The reference scores 9 frames as 18 pairs of images, each pair through the whole network with the
text beside it. ViT-B/32 sizes with random weights; the scores agree, which is asserted. Each way
has a process of its own, two threads; both keep freed memory.
"""

from __future__ import annotations

from functools import cache

import click
import numpy as np
import torch
from lib.measuring import report, turns_apart
from lib.reference import VIT_B_32, torchs_products

from cc_prep.models import clip
from cc_prep.models.clip4idc import CLIP4IDC
from cc_prep.steps.score import FrameScorer, normalize

FRAMES, THREADS = 9, 2
CAPTIONS = ("the small red cube has moved to the left of the sphere", "a cube is gone")


@click.command()
@click.option("--repeats", default=5, show_default=True)
def main(repeats: int) -> None:
    """Measures sequences a second."""
    runs = turns_apart({"ours": ours, "plain": plain}, repeats)
    assert np.allclose(runs["ours"].result, runs["plain"].result, atol=1e-3)
    seconds = {name: run.seconds for name, run in runs.items()}
    ratio = seconds["plain"] / seconds["ours"]
    print(f"ours {seconds['ours']:.2f} s, plain {seconds['plain']:.2f} s a sequence: × {ratio:.2f}")
    report("scoring", {"threads": THREADS, **seconds, "ratio": ratio})


@cache
def parts() -> tuple[CLIP4IDC, np.ndarray]:
    """The network and a sequence, the same in every process."""
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    frames = np.random.default_rng(0).integers(0, 256, (FRAMES, 224, 224, 3), np.uint8)
    return CLIP4IDC(VIT_B_32).eval(), frames


def ours() -> np.ndarray:
    """Scores as a worker does."""
    network, frames = parts()
    scores = FrameScorer(network)(frames, CAPTIONS)
    return np.stack((scores.bef_inter_sim, scores.inter_aft_sim))


@torch.inference_mode()
def plain() -> np.ndarray:
    """All 18 pairs, both images of each from the pixels on; the captions with either half."""
    torchs_products()
    network, frames = parts()
    images = normalize(frames, network.config.resolution)
    similarities = []
    for firsts, seconds in (
        (images[:1].expand_as(images), images), (images, images[-1:].expand_as(images))
    ):  # fmt: skip
        ids = torch.tensor(clip.tokenize(CAPTIONS, clip.CONTEXT))
        text = network.encode_text(ids)
        tokens = network.visual.encode_frames(torch.cat((firsts, seconds)))
        pairs = network.visual.encode_pairs(*tokens.chunk(2))
        similarities.append(network.similarity(text, pairs).numpy())
    return np.stack(similarities)


if __name__ == "__main__":
    main()
