"""Pictures of what stage 1 reconstructs or finds, and of the frames between two images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from cc_prep.steps.tokenization import images_of
from cc_train.systems.procap.frame_features import FrameFeatures
from cc_train.systems.procap.procedure_encoder import ProcedureEncoder
from cc_train.systems.procap.stage1_objective import Batch, as_input, pasted_features, predict
from cc_train.training.loader import to_device

GREY, GAP = 128, 4
# Of what happened at a place: appeared green, vanished red, recolored yellow, moved blue.
TINTS = np.array([[0, 0, 0], [0, 200, 80], [230, 50, 40], [240, 200, 0], [40, 110, 255]], np.uint8)
TINTED = 0.6


@torch.inference_mode()
def reconstructions(
    raw: Mapping[str, Tensor], features: FrameFeatures, network: ProcedureEncoder
) -> np.ndarray:
    """A picture uint8 [H, W, 3] with three rows for each sample of a batch.

    The rows are the frames, the visible parts of them, and the frames with the masked tokens
    predicted. All are decoded from tokens.

    Args:
        raw: A batch of `ProcedureBatches`.
    """
    device = next(network.parameters()).device
    tensors = to_device(raw, str(device))
    encoded = features(as_input(tensors["frames"]))
    batch = Batch(
        text=tensors["text"],
        frames=encoded,
        damaged=tensors["damaged_order"],
        tokens=tensors["tokens"],
        visible=tensors["visible"],
        negative_index=tensors["negative_index"],
        negative_is_valid=tensors["negative_is_valid"],
    )
    guessed = torch.where(batch.visible, batch.tokens, predict(network, batch))
    sizes = network.config
    grid = (-1, sizes.frames, sizes.rows, sizes.columns)
    true, rebuilt = (_decoded(features, t.view(grid)) for t in (batch.tokens, guessed))
    visible = batch.visible.view(grid).cpu().numpy()
    factor = features.vqgan.config.factor
    pixels_visible = visible.repeat(factor, axis=2).repeat(factor, axis=3)[..., None]
    masked = np.where(pixels_visible, true, GREY)
    return _rows([_row(frames[i]) for i in range(len(true)) for frames in (true, masked, rebuilt)])


@torch.inference_mode()
def pasted(
    raw: Mapping[str, Tensor], features: FrameFeatures, network: ProcedureEncoder
) -> np.ndarray:
    """A picture uint8 [H, W, 3] with a row for each pair into which things were pasted.

    From left to right: before, after, what happened at each place, and what the network says.

    Args:
        raw: A batch of `ProcedureBatches` with `pasted`.
    """
    device = str(next(network.parameters()).device)
    seen = pasted_features(features, to_device(raw, device)["pasted"])
    found = network.local(network.forward_ends(network.embed(seen))).argmax(-1).cpu()
    grid = (network.config.rows, network.config.columns)
    rows = []
    for ends, *both in zip(raw["pasted"].numpy(), raw["pasted_kinds"], found, strict=True):
        maps = [_tinted(ends[1], kinds.reshape(grid).numpy()) for kinds in both]
        rows.append(_row(np.stack([*ends, *maps])))
    return _rows(rows)


def _tinted(image: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """An image uint8 [H, W, 3] in grey, with places int64 [rows, columns] in colors."""
    height, width = image.shape[:2]
    down = np.arange(height) * kinds.shape[0] // height
    right = np.arange(width) * kinds.shape[1] // width
    shown = kinds[down[:, None], right]
    grey = image.mean(2, keepdims=True).repeat(3, 2)
    mixed = TINTED * TINTS[shown] + (1 - TINTED) * grey
    tinted: np.ndarray = np.where(shown[..., None] > 0, mixed, grey).astype(np.uint8)
    return tinted


@torch.inference_mode()
def between(states: Tensor, encoder: ProcedureEncoder) -> Tensor:
    """The likeliest codebook indices int64 [B, k, rows, columns] of the frames between two images.

    Args:
        states: The encoder's output at all frame positions, [B, T · n, D].
    """
    sizes = encoder.config
    indices: Tensor = encoder.to_logits(states).argmax(-1)
    return indices.view(-1, sizes.frames, sizes.rows, sizes.columns)[:, 1:-1]


@torch.inference_mode()
def procedure(features: FrameFeatures, before_after: Tensor, inner: Tensor) -> Tensor:
    """A whole procedure as pictures uint8 [B, T, H, W, 3]: both ends and the frames between.

    Both ends are decoded from the tokens of their images, so they show the best that the VQGAN can
    draw.

    Args:
        before_after: Images uint8 [B, 2, H, W, 3] RGB, or their tokens int64 [B, 2, n].
        inner: Indices [B, k, rows, columns].
    """
    shown = as_input(before_after)
    tokens = shown if shown.ndim == 3 else features.indices(shown)
    ends = tokens.view(len(tokens), 2, *inner.shape[2:])
    return torch.from_numpy(_decoded(features, torch.cat((ends[:, :1], inner, ends[:, 1:]), 1)))


def head_is_trained(encoder: ProcedureEncoder) -> bool:
    """Whether stage 1 trained the head of the tokens, which stage 2 leaves untrained."""
    norm = encoder.to_logits[0]
    assert isinstance(norm, nn.LayerNorm)
    return not (torch.equal(norm.weight, torch.ones_like(norm.weight)) and not norm.bias.any())


def _decoded(features: FrameFeatures, tokens: Tensor) -> np.ndarray:
    """Pictures uint8 [B, T, H, W, 3] of indices [B, T, h, w]."""
    pixels = images_of(features.vqgan, tokens.flatten(0, 1)).permute(0, 2, 3, 1)
    images: np.ndarray = (pixels * 255).round().to(torch.uint8).cpu().numpy()
    return images.reshape(*tokens.shape[:2], *images.shape[1:])


def _row(frames: np.ndarray) -> np.ndarray:
    """Frames side by side."""
    gap = np.full((frames.shape[1], GAP, 3), 255, np.uint8)
    parts = [part for frame in frames for part in (frame, gap)]
    return np.concatenate(parts[:-1], axis=1)


def _rows(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Rows below each other."""
    gap = np.full((GAP, rows[0].shape[1], 3), 255, np.uint8)
    spaced = [part for row in rows for part in (row, gap)]
    return np.concatenate(spaced[:-1]).astype(np.uint8)
