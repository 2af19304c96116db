"""A training step of ProCap's encoder on features in bfloat16, against the plain way.

    python benchmarks/bench_features_training.py [--repeats 7]

36 ordered pairs of 36 images, two queries, the sizes of `manifests/synth_features.yaml`, random
weights, one thread: forward and backward. The plain way takes each pair's two images by themselves
and attends by torch's fused kernel. Each way has a process of its own and keeps freed memory; their
gradients agree.
"""

from __future__ import annotations

from functools import cache

import click
import torch
import torch.nn.functional as F
from lib.measuring import report, turns_apart
from lib.reference import codec
from torch import Tensor

from cc_prep.models.cpu import use_kernels
from cc_prep.models.efficientnet import EfficientNetLite0
from cc_train.layers.frozen_backbone import BackboneSpec, FrozenBackbone
from cc_train.systems.procap.captioner import Decoder, ProCap
from cc_train.systems.procap.frame_features import BackboneFeatures, FrameFeatures
from cc_train.systems.procap.procedure_encoder import Config, ProcedureEncoder
from cc_train.text import MARKS, Vocabulary

IMAGES = PAIRS = 36
STORED, GRID, QUERIES = (248, 14, 14), (7, 7), 2


@click.command()
@click.option("--repeats", default=7, show_default=True)
def main(repeats: int) -> None:
    """Measures seconds a step."""
    runs = turns_apart({"ours": ours, "plain": plain}, repeats)
    seconds = {name: run.seconds for name, run in runs.items()}
    own, other = (torch.tensor(runs[name].result) for name in ("ours", "plain"))
    likeness = float(F.cosine_similarity(own, other, dim=0))
    assert likeness > 0.99, likeness
    ratio = seconds["plain"] / seconds["ours"]
    print(f"ours {seconds['ours']:.3f} s, plain {seconds['plain']:.3f} s a step: × {ratio:.2f}")
    report("features_training", {"threads": 1, **seconds, "ratio": ratio, "likeness": likeness})


def ours() -> list[float]:
    model, features, first, second = ready()
    use_kernels(model)
    with torch.autocast("cpu", torch.bfloat16):
        embedded = model.encoder.embed(model.features(features[:, None])[:, 0])
        pairs = embedded[torch.stack((first, second), dim=1)]
        return gradient(model, model.procedure_between(pairs))


def plain() -> list[float]:
    model, features, first, second = ready()
    with torch.autocast("cpu", torch.bfloat16):
        ends = model.features(features[torch.stack((first, second), dim=1)])
        return gradient(model, model.procedure(ends))


def gradient(model: ProCap, states: Tensor) -> list[float]:
    """What the backward pass leaves at the first layer."""
    model.zero_grad(set_to_none=True)
    states.float().square().mean().backward()
    weight = model.encoder.conv_to_embedding[1].weight
    assert isinstance(weight, Tensor)
    assert weight.grad is not None
    values: list[float] = weight.grad[:16].flatten().tolist()
    return values


@cache
def ready() -> tuple[ProCap, Tensor, Tensor, Tensor]:
    """The captioner, features float16 [IMAGES, C, h, w], and each pair's images, int64 [PAIRS]."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    spec = BackboneSpec("efficientnet-lite0", "", STORED)
    network = FrozenBackbone(EfficientNetLite0(), spec)
    backbone = BackboneFeatures(network, GRID, "unshuffle")
    frozen = FrameFeatures(codec(), "features", backbone=backbone)
    sizes = Config(width=128, layers=4, latent=backbone.channels, frames=QUERIES + 2,
                   rows=GRID[0], columns=GRID[1], standardised=True)  # fmt: skip
    words = Vocabulary([*MARKS, *map(str, range(40 - len(MARKS)))])
    model = ProCap(ProcedureEncoder(sizes, 0.02), Decoder(), features=frozen, codec=words)
    first, second = torch.randint(0, IMAGES, (2, PAIRS))
    return model, torch.randn(IMAGES, *STORED).half(), first, second


if __name__ == "__main__":
    main()
