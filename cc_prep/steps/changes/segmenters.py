"""Segmenters make an object's mask of a cluster: the filled cluster, SAM, or the cluster itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import cv2
import numpy as np

from cc_prep import extras
from cc_prep.manifest import Changes
from cc_prep.steps.changes.clustering import Cluster
from cc_prep.steps.changes.difference import disc_of
from cc_prep.weights import Located, folders

CLOSING_RADIUS = 2  # px of the closing before holes are filled: a disc of 5 px


class Segmenter(Protocol):
    """The interface of a segmenter: one method."""

    def segment(self, images: Sequence[np.ndarray], clusters: Sequence[Cluster]) -> np.ndarray:
        """The mask of each cluster in each image, bool [images, clusters, H, W].

        Args:
            images: uint8 [H, W, 3] RGB, of one size. A segmenter with prompts takes each cluster's
                box and its centre.
        """
        ...


class AsItIs:
    """`none`: the changed pixels themselves."""

    def segment(self, images: Sequence[np.ndarray], clusters: Sequence[Cluster]) -> np.ndarray:
        return np.stack([np.stack([one.pixels for one in clusters])] * len(images))


class Fill:
    """`fill`: small gaps closed, holes filled. It looks at no image and needs no weights."""

    def segment(self, images: Sequence[np.ndarray], clusters: Sequence[Cluster]) -> np.ndarray:
        return np.stack([np.stack([filled(one.pixels) for one in clusters])] * len(images))


class Sam:
    """`sam`: transformers' SamModel from a local folder, prompted with the box and its centre.

    Raises UserError without transformers, or if the folder holds another model.

    Args:
        device: `cpu` or `cuda`.
    """

    def __init__(self, folder: Located, device: str) -> None:
        extras.require("transformers", "changes.segmenter sam")
        from transformers import SamModel, SamProcessor

        self.device = device
        self.model, self.processor = folders.load(
            folder, "SAM", "changes", SamModel, SamProcessor, device
        )

    def segment(self, images: Sequence[np.ndarray], clusters: Sequence[Cluster]) -> np.ndarray:
        import torch

        boxes = [list(map(float, one.box)) for one in clusters]
        points = [[list(one.centre)] for one in clusters]
        count = len(images)
        inputs = self.processor(
            images=list(images),
            input_boxes=[boxes] * count,
            input_points=[points] * count,
            input_labels=[[[1]] * len(clusters)] * count,
            return_tensors="pt",
        )
        with torch.inference_mode():
            outputs = self.model(**self._prompts(inputs), multimask_output=False)
        masks = self.processor.post_process_masks(
            outputs.pred_masks.float().cpu(),
            inputs["original_sizes"],
            inputs["reshaped_input_sizes"],
        )
        result: np.ndarray = torch.stack(list(masks))[:, :, 0].numpy()
        return result

    def _prompts(self, inputs: Any) -> dict[str, Any]:
        """The model's arguments; the processor's float64 boxes and points become float32."""
        prompts = {
            name: inputs[name].to(self.device).float()
            for name in ("pixel_values", "input_boxes", "input_points")
        }
        return {**prompts, "input_labels": inputs["input_labels"].to(self.device)}


def make(settings: Changes, weights: Located | None, device: str) -> Segmenter:
    """The segmenter that the settings name. Raises UserError."""
    if settings.segmenter == "sam":
        assert weights is not None
        return Sam(weights, device)
    return Fill() if settings.segmenter == "fill" else AsItIs()


def filled(pixels: np.ndarray) -> np.ndarray:
    """A cluster, bool [H, W], with small gaps closed and the area inside its outline filled."""
    closed = cv2.morphologyEx(pixels.astype(np.uint8), cv2.MORPH_CLOSE, disc_of(CLOSING_RADIUS))
    outlines, _ = cv2.findContours(closed, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    drawn = np.zeros_like(closed)
    cv2.drawContours(drawn, outlines, -1, 1, -1)
    result: np.ndarray = drawn > 0
    return result
