"""ProCap's stage 2: captions from two images and procedure queries.

The loss is cross-entropy with label smoothing whose mass is spread over the other words, summed
over words and divided by captions (the reference does not divide). Source: ProCap's code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cc_train.systems.procap.captioner import Captioner
from cc_train.systems.procap.frame_features import FrameFeatures
from cc_train.systems.procap.stage1_objective import as_input
from cc_train.text import IGNORED

UNUSED = ("to_logits.", "to_logits_rel.", "to_logits_vid.")


def caption_loss(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Summed loss of logits [B, L, V] and labels [B, L], −1 where there is none.

    KL divergence to a target of 1 − smoothing on the word, the rest even over the other V − 1.
    """
    counted = labels != IGNORED
    chances, right = logits[counted].float().log_softmax(-1), labels[counted]
    others = logits.shape[-1] - 1
    picked = chances.gather(1, right[:, None])[:, 0]
    cross = (1 - smoothing) * picked + smoothing / others * (chances.sum(-1) - picked)
    entropy = _plogp(1 - smoothing) + others * _plogp(smoothing / others)
    return (entropy - cross).sum()


def _plogp(p: float) -> float:
    return p * float(np.log(p)) if p > 0 else 0.0


class Stage2Objective:
    """`Objective` in `cc_train.training.trainer` says what the parts are.

    A batch from the stream is {ends: images uint8 [B, 2, H, W, 3] or indices [B, 2, n], ids,
    labels: int64 [B, L]}. score: the captioner in evaluation → figures, with `name` among them.
    encoder_scale: the encoder's share of the learning rate. frozen: the encoder learns nothing.
    reference_decay: biases alone are spared the weight decay, as in the reference.
    """

    turns = ("model",)

    def __init__(
        self,
        network: Captioner,
        features: FrameFeatures,
        score: Callable[[Captioner, FrameFeatures], dict[str, float]],
        best: str,
        smoothing: float,
        weight_decay: float,
        encoder_scale: float,
        frozen: bool,
        reference_decay: bool,
        device: str,
    ) -> None:
        self.network, self.features = network.to(device), features.to(device)
        self.score, self.best, self.smoothing = score, (best, True), smoothing
        self.weight_decay, self.encoder_scale = weight_decay, encoder_scale
        self.reference_decay = reference_decay
        self.others: dict[str, nn.Module] = {}
        self.buffers: dict[str, Tensor] = {}
        for name, parameter in network.intermediate_generator.named_parameters():
            parameter.requires_grad_(not frozen and not name.startswith(UNUSED))

    def groups(self, turn: str) -> list[dict[str, Any]]:
        from cc_train.training import optim

        encoder = self.network.intermediate_generator
        rest = nn.ModuleList([self.network.mlp, self.network.text_decoder])
        parts: list[tuple[nn.Module, float]] = [(encoder, self.encoder_scale), (rest, 1.0)]
        groups = [
            {**group, "scale": scale}
            for module, scale in parts
            for group in optim.decayed([module], self.weight_decay, self.reference_decay)
        ]
        if self.network.queries is not None:
            queries = {"params": [self.network.queries], "weight_decay": 0.0}
            groups.append({**queries, "scale": self.encoder_scale})
        return [
            {**group, "params": [p for p in group["params"] if p.requires_grad]} for group in groups
        ]

    def counts(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        labels = batch["labels"]
        captions = torch.tensor(len(labels), device=labels.device)
        return {"captions": captions, "words": (labels != IGNORED).sum()}

    def pieces(self, batch: Any) -> list[Any]:
        return [batch]

    def losses(
        self, turn: str, batch: Mapping[str, Tensor], step: int, counted: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        logits = self.network(self.features(as_input(batch["ends"])), batch["ids"])
        loss = caption_loss(logits, batch["labels"], self.smoothing)
        right = (logits.detach().argmax(-1) == batch["labels"]).sum()  # −1 is never said
        return {"total": loss / counted["captions"], "word_accuracy": right / counted["words"]}

    def after_step(self, step: int) -> None:
        """Nothing to do."""

    def validate(self, network: nn.Module) -> tuple[dict[str, float], np.ndarray | None]:
        assert isinstance(network, Captioner)
        return self.score(network, self.features), None
