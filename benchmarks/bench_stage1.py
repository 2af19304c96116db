"""A step of stage 1 at the paper's sizes, against the reference's way; and its memory.

    python benchmarks/bench_stage1.py [--repeats 5]

Batch 2, 4 frames of 224 px, 12 layers, f16-1024 VQGAN, random weights, float32. The reference's
way, as in ProCap's code: the VQGAN encodes the frames, the damaged frames and, for their indices,
the frames again; three passes go through torch's own layers, one after the other; attention weights
are asked for and kept; all frame positions get logits; Adam tensor by tensor. Each way has a
process of its own, two threads; all keep freed memory. The losses agree, which is asserted; those
on tokens are others. The last row is in bfloat16, for processors that have it; it takes turns with
the reference by itself, since memory for all four is seldom there.
"""

from __future__ import annotations

from functools import cache

import click
import numpy as np
import torch
from lib.measuring import Run, report, turns_apart
from lib.reference import as_the_reference_encodes, codec, swish, torchs_products
from torch import Tensor

from cc_prep.models import vqgan
from cc_train.data.collate import Reads
from cc_train.systems.procap import damage
from cc_train.systems.procap import stage1_objective as stage1
from cc_train.systems.procap.frame_features import FrameFeatures
from cc_train.systems.procap.procedure_encoder import Config, ProcedureEncoder

BATCH, FRAMES, SIDE, THREADS = 2, 4, 224, 2


@click.command()
@click.option("--repeats", default=5, show_default=True)
def main(repeats: int) -> None:
    """Measures seconds a step and peak memory."""
    runs = turns_apart({"pixels": pixels, "tokens": tokens, "reference": reference}, repeats)
    for name, loss in runs["reference"].result.items():
        assert np.isclose(loss, runs["pixels"].result[name], rtol=1e-3), (name, runs)
    rows = {way: against(runs["reference"], run) for way, run in runs.items()}
    in_half = turns_apart({"reference": reference, "bfloat16": tokens_in_half}, repeats)
    rows["bfloat16"] = against(in_half["reference"], in_half["bfloat16"])
    for way, row in rows.items():
        print(f"{way}: {row['seconds']:.1f} s a step, × {row['ratio']:.2f}; "
              f"{row['peak_mb']:,.0f} MB, {row['memory']:.0%}")  # fmt: skip
    report("stage1", {"threads": THREADS, "batch": BATCH, **rows})


def against(plain: Run, run: Run) -> dict[str, float]:
    """A way's figures beside those of the reference that it took turns with."""
    return {
        "seconds": run.seconds, "reference_seconds": plain.seconds, "peak_mb": run.peak,
        "ratio": plain.seconds / run.seconds, "memory": run.peak / plain.peak,
    }  # fmt: skip


def pixels() -> dict[str, float]:
    """Ours on images, whose indices come with the shards."""
    return ours("pixels")


def tokens() -> dict[str, float]:
    """Ours on the shards' indices."""
    return ours("tokens")


def tokens_in_half() -> dict[str, float]:
    """The step with `loop.precision: bfloat16`."""
    with torch.autocast("cpu", torch.bfloat16):
        return ours("tokens")


def ours(kind: Reads) -> dict[str, float]:
    encoder, network = parts()
    optimiser = adam(fused=True)  # as cc-train's is
    optimiser.zero_grad()
    features = FrameFeatures(network, kind, cache_mb=500)  # empty: no image was seen before
    objective = stage1.Stage1Objective(
        encoder, features, settings=stage1.Losses(), held_out=(), weight_decay=0.0, device="cpu"
    )
    inputs = batch(kind)
    denominators, total = objective.denominators(inputs), dict[str, float]()
    for chunk in objective.chunks(inputs):
        losses = objective.losses("model", chunk, 0, denominators)
        losses["total"].backward()
        for name, loss in losses.items():
            total[name] = total.get(name, 0.0) + float(loss.detach())
    optimiser.step()
    return total


def reference() -> dict[str, float]:
    """Three passes, three encodings."""
    torchs_products()
    encoder, network = parts()
    optimiser = adam(fused=False)
    optimiser.zero_grad()
    as_the_reference_encodes(encoder)
    inputs, weights = batch("pixels"), stage1.Losses()
    with torch.no_grad(), swish():
        frames, damaged = (features(network, images) for images in true_and_damaged(inputs))
        maps = network.features(stage1.as_input(inputs["frames"]).flatten(0, 1))
        indices = network.quantize.nearest(network.quant_conv(maps))
        targets = indices.flatten(1).unflatten(0, (BATCH, FRAMES)).flatten(1)
    masked = ~inputs["visible"]
    control = encoder.control(inputs["text"])
    visible_frames = encoder.frames(frames, inputs["visible"])
    true = encoder(control, visible_frames)
    wrong = encoder(control[inputs["negative_index"]], visible_frames)
    shuffled = encoder(control, encoder.frames(damaged, inputs["visible"]))
    logits = encoder.to_logits(true[:, control.shape[1] :])  # of all, though few are masked
    msm = torch.nn.functional.cross_entropy(logits[masked], targets[masked])

    def discrimination_loss(head: torch.nn.Module, position: int, other: Tensor) -> Tensor:
        right, false = (head(hidden[:, position])[:, 0] for hidden in (true, other))
        softplus = torch.nn.functional.softplus
        return (softplus(-right) + softplus(false)).mean()

    align = discrimination_loss(encoder.to_logits_rel, 0, wrong)
    order = discrimination_loss(encoder.to_logits_vid, control.shape[1] - 1, shuffled)
    total = weights.msm * msm + weights.align * align + weights.consistency * order
    total.backward()
    optimiser.step()
    losses = {"total": total, "msm": msm, "align": align, "consistency": order}
    return {name: float(loss.detach()) for name, loss in losses.items()}


def true_and_damaged(inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Both sequences of images of a batch, uint8 [B, T, H, W, 3] each."""
    frames, order = inputs["frames"], inputs["damaged_order"]
    with_altered = torch.cat((frames, inputs["altered"]), dim=1)
    return frames, with_altered[torch.arange(len(order))[:, None], order]


def features(network: vqgan.VQGAN, images: Tensor) -> Tensor:
    """[B, T, n, C] of uint8 images, all frames at once."""
    maps = network.features(stage1.as_input(images).flatten(0, 1))
    return maps.flatten(2).transpose(1, 2).unflatten(0, (BATCH, FRAMES))


@cache
def parts() -> tuple[ProcedureEncoder, vqgan.VQGAN]:
    torch.set_num_threads(THREADS)
    network = codec()
    torch.manual_seed(0)
    return ProcedureEncoder(Config(latent=256)), network


@cache
def adam(fused: bool) -> torch.optim.Optimizer:
    # Weights stay where they are, so that the ways can be compared; the arithmetic is the same.
    return torch.optim.Adam(parts()[0].parameters(), lr=0.0, fused=fused)


@cache
def batch(kind: Reads) -> dict[str, Tensor]:
    """A batch as the stream makes it; the same in every process."""
    rng = np.random.default_rng(0)
    network = parts()[1]
    images = rng.integers(0, 256, (BATCH, FRAMES, SIDE, SIDE, 3), np.uint8)
    flat = stage1.as_input(torch.from_numpy(images)).flatten(0, 1)
    with torch.no_grad():
        features = [network.features(image[None]) for image in flat]
        indices = torch.cat([network.indices(one) for one in features]).flatten(1)
    indices = indices.unflatten(0, (BATCH, FRAMES))
    frames = images if kind == "pixels" else indices.numpy()
    damages = [damage.damage(frames[i], frames[1 - i], rng) for i in range(BATCH)]
    return {
        "text": torch.from_numpy(rng.integers(1, 400, (BATCH, 24))),
        "frames": torch.from_numpy(frames),
        "altered": torch.from_numpy(np.stack([one.altered[None] for one in damages])),
        "damaged_order": torch.from_numpy(np.stack([one.order for one in damages])),
        "tokens": indices.flatten(1),
        "visible": torch.from_numpy(rng.random((BATCH, indices[0].numel())) < 0.2),
        "negative_index": torch.from_numpy(np.arange(BATCH) ^ 1),
        "negative_is_valid": torch.tensor([True] * BATCH),
    }


if __name__ == "__main__":
    main()
