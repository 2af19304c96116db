"""ProCap's stage 2: captions from two images and procedure queries.

The loss is that of any captioner, divided by captions (the reference does not divide).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from cc_train.captioner import Captioner
from cc_train.systems.procap.captioner import ProCap
from cc_train.training import optim
from cc_train.training.caption_objective import CaptionObjective

UNUSED = ("to_logits.", "to_logits_rel.", "to_logits_vid.")


class Stage2Objective(CaptionObjective):
    """`CaptionObjective` with a learning rate of its own for the encoder.

    encoder_lr_scale: the encoder's share of the learning rate. freeze: the encoder learns nothing.
    decay_norms: biases alone are spared the weight decay, as in the reference.
    """

    network: ProCap

    def __init__(
        self,
        network: ProCap,
        score: Callable[[Captioner], dict[str, float]],
        label_smoothing: float,
        weight_decay: float,
        device: str,
        encoder_lr_scale: float,
        freeze: bool,
        decay_norms: bool,
    ) -> None:
        super().__init__(network, score, label_smoothing, weight_decay, device)
        self.encoder_lr_scale, self.decay_norms = encoder_lr_scale, decay_norms
        for name, parameter in network.encoder.named_parameters():
            parameter.requires_grad_(not freeze and not name.startswith(UNUSED))

    def groups(self, phase: str) -> list[dict[str, Any]]:
        network = self.network
        rest = nn.ModuleList([network.mlp, network.text_decoder])
        parts: list[tuple[nn.Module, float]] = [
            (network.encoder, self.encoder_lr_scale),
            (rest, 1.0),
        ]
        groups = [
            {**group, "scale": scale}
            for module, scale in parts
            for group in optim.param_groups([module], self.weight_decay, self.decay_norms)
        ]
        if network.queries is not None:
            queries = {"params": [network.queries], "weight_decay": 0.0}
            groups.append({**queries, "scale": self.encoder_lr_scale})
        return [
            {**group, "params": [p for p in group["params"] if p.requires_grad]} for group in groups
        ]
