"""Changed regions as vectors, one in before and one in after, which retrievers compare."""

from __future__ import annotations

from typing import Any, Protocol

import cv2
import numpy as np

from cc_prep import extras
from cc_prep.formats.changes import FoundChange
from cc_prep.manifest import Entities
from cc_prep.weights import Located, folders

# Of the three channels of Lab; colours need finer steps than brightness, which light changes.
LAB_BINS = (4, 12, 12)
NETWORK_SIDE = 224  # px to which an image is resized for a network on grids
GROUND_SIGMA = 1 / 32  # of the longer side of the image: how softly a mask ends in a view


class Encoder(Protocol):
    """Regions of an image → vectors of unit length, so that a product is their cosine."""

    def __call__(self, image: np.ndarray, masks: np.ndarray) -> np.ndarray:
        """Vectors float32 [regions, D].

        Args:
            image: uint8 [H, W, 3] RGB.
            masks: Bool [regions, H, W].
        """
        ...


def region_masks(change: FoundChange, most: int) -> np.ndarray:
    """Masks of the strongest regions, bool [regions, H, W]: the marked pixels in each one's box.

    If none is marked, since a segmenter's mask is beside the box, the whole box is the mask.
    """
    masks = np.zeros((min(most, len(change.regions)), change.height, change.width), bool)
    for mask, region in zip(masks, change.regions, strict=False):
        x0, y0, x1, y1 = region.box
        inside = None if change.mask is None else change.mask[y0:y1, x0:x1]
        mask[y0:y1, x0:x1] = True if inside is None or not inside.any() else inside
    return masks


def vectors(
    encoder: Encoder, before: np.ndarray, after: np.ndarray, change: FoundChange, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """The vectors of the strongest regions in before and in after, float32 [regions, D] each."""
    masks = region_masks(change, most)
    if not len(masks):
        return np.zeros((0, 0), np.float32), np.zeros((0, 0), np.float32)
    return encoder(before, masks), encoder(after, masks)


class LabHistograms:
    """The colours of a region: square roots of the shares of its pixels in each bin of Lab.

    The cosine of two such vectors is their Bhattacharyya coefficient.
    """

    def __call__(self, image: np.ndarray, masks: np.ndarray) -> np.ndarray:
        lab = cv2.cvtColor(image, cv2.COLOR_RGB2LAB)
        counts = [
            cv2.calcHist([lab], [0, 1, 2], mask.astype(np.uint8), list(LAB_BINS), [0, 256] * 3)
            for mask in masks
        ]
        shares = np.stack(counts).reshape(len(masks), -1) / masks.sum((1, 2))[:, None]
        return np.sqrt(shares).astype(np.float32)


class GridFeatures:
    """The mean of EfficientNet-Lite0's features over a region, on the grid of 1/8 of the image.

    The first channels describe colour and fine shape, the last ones the kind of thing; each level
    has the same weight.

    Args:
        file: The network's weights.
        device: `cpu` or `cuda`.
    """

    def __init__(self, file: Located, device: str) -> None:
        from cc_prep.weights import networks

        network, _ = networks.backbone("efficientnet-lite0", str(file.path))
        self.network, self.device = network.to(device).eval(), device

    def __call__(self, image: np.ndarray, masks: np.ndarray) -> np.ndarray:
        import torch

        from cc_prep.models.efficientnet import CHANNELS

        resized = cv2.resize(image, (NETWORK_SIDE, NETWORK_SIDE), interpolation=cv2.INTER_CUBIC)
        pixels = torch.from_numpy(resized).to(self.device).permute(2, 0, 1)[None].float() / 255
        with torch.inference_mode():
            grid = self.network(pixels)[0].float().cpu().numpy()
        side = grid.shape[1]
        shares = np.stack(
            [
                cv2.resize(mask.astype(np.float32), (side, side), interpolation=cv2.INTER_AREA)
                for mask in masks
            ]
        )
        shares /= shares.sum((1, 2), keepdims=True)
        means = np.einsum("nyx,cyx->nc", shares, grid)
        levels = np.split(means, np.cumsum([4 * CHANNELS[1], CHANNELS[2]]), axis=1)
        return unit(np.concatenate([unit(level) for level in levels], axis=1))


class ClipImages:
    """CLIP's image tower from a local folder, on a view of each region.

    Raises UserError without transformers, or where the folder holds another model.
    """

    def __init__(self, folder: Located, settings: Entities, device: str) -> None:
        self.settings, self.device = settings, device
        self.model, self.processor = load_clip(folder, device)

    def __call__(self, image: np.ndarray, masks: np.ndarray) -> np.ndarray:
        import torch

        views = [view(image, mask, self.settings.view, self.settings.grow) for mask in masks]
        inputs = self.processor.image_processor(images=views, return_tensors="pt")
        with torch.inference_mode():
            output = self.model.get_image_features(
                pixel_values=inputs["pixel_values"].to(self.device)
            )
        return unit(embeddings(output))


def view(image: np.ndarray, mask: np.ndarray, kind: str, grow: float) -> np.ndarray:
    """The picture of a region that an image tower sees, uint8 [h, w, 3].

    Args:
        kind: `crop`, the region's box enlarged by the share `grow`; `dimmed`, the same crop with
            the surroundings of the mask faded to the mean colour; `masked`, the whole image times
            the soft mask, as in the paper, which leaves black around the region.
    """
    height, width = mask.shape
    soft = cv2.GaussianBlur(mask.astype(np.float32), (0, 0), GROUND_SIGMA * max(height, width))
    soft = np.maximum(soft, mask)[..., None]
    if kind == "masked":
        masked: np.ndarray = np.rint(image * soft).astype(np.uint8)
        return masked
    rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    up, left = (max(1, round(grow / 2 * len(places))) for places in (rows, columns))
    inside = np.s_[
        max(0, rows[0] - up) : min(height, rows[-1] + 1 + up),
        max(0, columns[0] - left) : min(width, columns[-1] + 1 + left),
    ]
    if kind == "dimmed":
        mean = image.reshape(-1, 3).mean(axis=0)
        image = np.rint(image * soft + mean * (1 - soft)).astype(np.uint8)
    return np.ascontiguousarray(image[inside])


def load_clip(folder: Located, device: str) -> tuple[Any, Any]:
    """A CLIPModel and its CLIPProcessor from a local folder. Raises UserError."""
    extras.require("transformers", "entities.retriever clip")
    from transformers import CLIPModel, CLIPProcessor

    return folders.load(folder, "CLIP", "entities", CLIPModel, CLIPProcessor, device)


def make(settings: Entities, weights: Located | None, device: str) -> Encoder:
    """The encoder that the settings name. Raises UserError."""
    if settings.retriever == "clip":
        assert weights is not None
        return ClipImages(weights, settings, device)
    if settings.features == "lab":
        return LabHistograms()
    assert weights is not None
    return GridFeatures(weights, device)


def embeddings(output: Any) -> np.ndarray:
    """Vectors float32 [N, D] of the output of a CLIP tower, which is a record in transformers 5."""
    tensor = getattr(output, "pooler_output", output)
    result: np.ndarray = tensor.float().cpu().numpy()
    return result


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows of length 1, float32."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    result: np.ndarray = (rows / np.maximum(lengths, 1e-12)).astype(np.float32)
    return result
