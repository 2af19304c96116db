"""The pair captioner as two graphs: of both images, and of the next word."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cc_prep.errors import UserError
from cc_train import doubt
from cc_train.layers.feature_grid import ood_score
from cc_train.sharing.onnx_graph import Graph, Graphs
from cc_train.systems.pair.captioner import PairCaptioner
from cc_train.systems.pair.several import SeveralCaptioner
from cc_train.text import MASK, Vocabulary

EXAMPLE_WORDS = 5


class _Encoder(nn.Module):
    """Images uint8 [B, 2, H, W, 3] RGB → memory float32 [B, N, width], ood_score float32 [B]."""

    def __init__(self, captioner: PairCaptioner) -> None:
        super().__init__()
        self.captioner, self.network = captioner, captioner.backbone.network

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        pixels = images.flatten(0, 1).permute(0, 3, 1, 2).float() / 255
        assert self.network is not None
        # In the precision of the shards, as `FrozenBackbone.compute` gives them.
        features = self.network(pixels).to(getattr(torch, self.captioner.backbone.spec.precision))
        features = features.float().view(images.shape[0], 2, *features.shape[1:])
        encoder = self.captioner.encoder
        unlike = ood_score(features.mean((3, 4)), encoder.mean, encoder.spread)
        return self.captioner.memory(features), unlike


class _Decoder(nn.Module):
    """Ids so far int64 [B, L], memory → chances of the next word float32 [B, words]."""

    def __init__(self, captioner: PairCaptioner) -> None:
        super().__init__()
        self.decoder = captioner.decoder
        never = torch.zeros(len(captioner.codec))
        never[list(captioner.codec.marks.never)] = float("-inf")
        self.register_buffer("never", never)
        self.never: Tensor

    def forward(self, ids: Tensor, memory: Tensor) -> Tensor:
        logits = self.decoder.hidden(ids, memory)[:, -1]
        return (self.decoder.out(logits) + self.never).softmax(-1)


def of(captioner: PairCaptioner, pairs: Tensor) -> Graphs:
    """The graphs of a captioner, and what decodes with them.

    Args:
        pairs: Examples, uint8 [B, 2, H, W, 3].

    Raises:
        UserError: For one that has no backbone of its own, another codec than words, or a map of
            changes in place of the decoder.
    """
    codec = captioner.codec
    if not captioner.inputs.takes_images or captioner.backbone.network is None:
        raise UserError("this captioner reads stored features alone", "Give one that reads images")
    if not isinstance(codec, Vocabulary):
        raise UserError("this captioner has another text codec than words", "Leave out --onnx")
    if isinstance(captioner, SeveralCaptioner):
        raise UserError("this captioner speaks by a map of changes", "Leave out --onnx")
    encoder, decoder = _Encoder(captioner).eval(), _Decoder(captioner).eval()
    with torch.inference_mode():
        memory = encoder(pairs)[0].clone()
    ids = torch.full((len(pairs), EXAMPLE_WORDS), codec.marks.begin)
    ids[:, 1:] = torch.arange(MASK + 1, MASK + EXAMPLE_WORDS) % len(codec)
    axes = {"ids": {0: "batch", 1: "length"}}
    calibration = captioner.calibration
    about: dict[str, Any] = {
        "size": list(captioner.inputs.size),
        "length": captioner.length,
        "begin": codec.marks.begin,
        "end": codec.marks.end,
        "words": codec.words,
        "marks": MASK + 1,
        "spaced": [" " in codec.join([word, word]) for word in codec.words],
        "calibration": None if calibration is None else calibration.to_json(),
        "equal": doubt.EQUAL,
        "unsure": [doubt.NOT_SURE + why for why in (doubt.UNLIKELY, doubt.UNLIKE)],
        "min_confidence": doubt.MIN_CONFIDENCE,
    }
    return Graphs(
        {
            "encoder": Graph(encoder, {"images": pairs}, ("memory", "ood_score")),
            "decoder": Graph(decoder, {"ids": ids, "memory": memory}, ("chances",), axes),
        },
        about,
        page=True,
    )
