"""What captioners of pairs share: a frozen backbone, and an encoder of what differs.

A captioner adds what it makes of the changes: words alone, or masks as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from cc_prep.errors import UserError
from cc_train.captioner import EncoderDecoder, Inputs
from cc_train.data import feature_statistics
from cc_train.data.shard_index import Entry
from cc_train.layers import pair_encoder
from cc_train.layers.comparison import Changes
from cc_train.layers.pair_encoder import PairEncoder
from cc_train.text import VOCABULARY, TextCodec, Vocabulary
from cc_train.training.runs import Run

BACKBONE = "backbone."
WORD_TENSORS = ("decoder.out.weight", "decoder.out.bias")  # a row for each word


class PairTrunk(EncoderDecoder):
    """Two images, or their stored features → what differs between them.

    backbone: frozen, and no part of `state_dict`: a run has it as a file, so that images need no
    shards. digest: SHA-256 of its weights, by which stored features are checked.
    """

    def __init__(
        self,
        backbone: nn.Module,
        digest: str,
        size: tuple[int, int],
        config: pair_encoder.Config,
        text: TextCodec,
        length: int,
    ) -> None:
        super().__init__(Inputs(size, "features", backbone=digest), text, length)
        self._frozen = (backbone.requires_grad_(False),)  # in a tuple, so that it is no submodule
        self.encoder = PairEncoder(config)

    @property
    def backbone(self) -> nn.Module:
        """The frozen network whose features are compared."""
        return self._frozen[0]

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Loads weights. Checkpoints from before the backbone was a file hold it as well."""
        return super().load_state_dict(without_backbone(state_dict), *args, **kwargs)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self.backbone._apply(fn, recurse)
        return super()._apply(fn, recurse)

    def prepare(self, before_after: Tensor) -> Tensor:
        """The features: the backbone runs once."""
        return self.features(before_after)

    def features(self, before_after: Tensor) -> Tensor:
        """Features float32 [B, 2, C, h, w] of images uint8 [B, 2, H, W, 3], or of stored ones."""
        if before_after.dtype != torch.uint8:
            return before_after.float()
        pixels = before_after.flatten(0, 1).permute(0, 3, 1, 2).float() / 255
        with torch.no_grad(), torch.autocast(pixels.device.type, enabled=False):
            features: Tensor = self.backbone(pixels)
        return features.unflatten(0, before_after.shape[:2])

    def changes(self, before_after: Tensor) -> Changes:
        """What is seen of pairs."""
        features = self.features(before_after)
        images = self.encoder.images(features.flatten(0, 1)).unflatten(0, features.shape[:2])
        changes: Changes = self.encoder(images[:, 0], images[:, 1])
        return changes

    @torch.inference_mode()
    def strangeness(self, before_after: Tensor) -> list[float | None]:
        """Of each pair that of the stranger image: how far the means of its channels lie from those
        of the training images, in their deviations, squared and averaged over channels.
        """
        features = self.features(before_after)
        means = (features.mean((3, 4)) - self.encoder.mean) / self.encoder.spread
        distances: list[float | None] = means.square().mean(2).amax(1).tolist()
        return distances

    def train(self, mode: bool = True) -> Any:
        """The backbone stays in evaluation."""
        super().train(mode)
        self.backbone.eval()
        return self

    def standardise(self, entries: Sequence[Entry], sha256: str, console: Console) -> None:
        """Sets each channel's statistics over training samples. Raises UserError."""
        statistics = feature_statistics.over(entries, sha256, console)
        self.encoder.mean.copy_(statistics.mean)
        self.encoder.std.copy_(statistics.std)
        self.encoder.spread.copy_(statistics.spread)


def without_backbone(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors that are not the backbone's."""
    return {name: t for name, t in state_dict.items() if not name.startswith(BACKBONE)}


def learned(
    run: Run, backbone: Mapping[str, Any], words: Vocabulary, own: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The tensors of a run with the rows of words in the order of another vocabulary.

    Of the words, those that both know; others begin as in `own`, the new captioner's tensors.
    backbone: the new captioner's, as `frozen_backbone.about` tells it. Raises UserError for a run
    of another backbone.
    """
    if run.settings["backbone"] != backbone:
        raise UserError(
            f"{run.folder} has another backbone or image size than these shards",
            "Build the shards as it was trained, or leave out --init",
        )
    known = Vocabulary.read(Path(run.folder) / VOCABULARY)
    rows = [known.ids.get(word) for word in words.words]
    tensors = without_backbone(run.tensors)
    for name in WORD_TENSORS:
        if own[name].shape[1:] == tensors[name].shape[1:]:
            moved = [
                own[name][i] if row is None else tensors[name][row] for i, row in enumerate(rows)
            ]
            tensors[name] = torch.stack(moved)
    return tensors
