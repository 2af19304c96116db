"""ProCap's stage 1: masked reconstruction of a change's frames, told by its caption.

Three losses: msm, the codebook indices of masked tokens; align, whether the caption at [REL] is the
change's own; consistency, whether the frames at [VID] are in their order. The losses are sums over
three variants of the input, which go through the encoder as one batch, or, where that is large and
a CPU's, one by one, each with its backward pass. Source: ProCap, section 3.3, and its code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from cc_prep.settings import Section
from cc_train.systems.procap.frame_features import FrameFeatures, as_input
from cc_train.systems.procap.procedure_encoder import REL, ProcedureEncoder

NAMES = ("msm", "align", "consistency")
Variant = Literal["true", "align", "consistency"]  # the last two are the negatives
# The true variant comes last, since it uses every head: with several processes, gradients are
# exchanged in the last backward pass.
VARIANTS: tuple[Variant, ...] = ("align", "consistency", "true")
KEPT = 10  # numbers a channel that a block keeps of a token: 1 + 1 input, 3 q k v, 1 mixed, 4 inner
FRAMES_OF: dict[Variant, str] = {"align": "frames", "consistency": "damaged", "true": "frames"}


class Losses(Section):
    """Weights of the three losses; a loss of weight 0 costs no pass. The paper's sum is 1, 1, 1.

    ignore_fully_masked: samples of which nothing is seen say nothing about caption and order.
    reference_quirks: two slips of the reference: its consistency sums over all samples and divides
        by those that are not fully masked, and its captions of other pairs may be true of this one
        as well.
    """

    msm: float = Field(7.0, ge=0)
    align: float = Field(0.5, ge=0)
    consistency: float = Field(0.5, ge=0)
    ignore_fully_masked: bool = True
    reference_quirks: bool = False


@dataclass(frozen=True)
class Batch:
    """What the losses are computed of.

    text: byte-pair ids [B, L]. frames, damaged: features [B, T, n, C]. tokens: indices [B, T · n].
    visible: bool [B, T · n], False where a token is masked. negative_index: int64 [B], whose
    caption is the wrong one. negative_is_valid: bool [B], whether that caption is untrue of the
    sample.
    """

    text: Tensor
    frames: Tensor
    damaged: Tensor
    tokens: Tensor
    visible: Tensor
    negative_index: Tensor
    negative_is_valid: Tensor


def denominators(batch: Batch, settings: Losses) -> dict[str, Tensor]:
    """How many terms each loss sums up; it is divided by that, or by 1 where there are none."""
    visible, valid = _sample_weights(batch, settings)
    return {"msm": (~batch.visible).sum(), "align": valid.sum(), "consistency": visible.sum()}


def sums(
    encoder: ProcedureEncoder,
    batch: Batch,
    settings: Losses,
    variants: Sequence[Variant] = VARIANTS,
) -> dict[str, Tensor]:
    """Sums of the losses over a batch; those of weight 0 are left out.

    variants: only their terms; those of all variants add up to the whole.
    """
    variants = [name for name in variants if name in _needed(settings)]
    control = encoder.control(batch.text)
    texts = {
        name: control[batch.negative_index] if name == "align" else control for name in variants
    }
    inputs = [
        (texts[name], encoder.frames(getattr(batch, FRAMES_OF[name]), batch.visible))
        for name in variants
    ]
    places = {"align": REL, "consistency": control.shape[1] - 1}  # the latter is [VID]
    rows = [[places[name]] if name in places else None for name in variants]
    hidden = dict(zip(variants, encoder.forward_variants(inputs, rows), strict=True))
    losses: dict[str, Tensor] = {}
    for name, place in places.items():
        if not getattr(settings, name):
            continue
        # Binary cross-entropy of 1 in the true pass, and of 0 in the other.
        if "true" in hidden:
            losses[name] = binary_loss(encoder, batch, settings, name, hidden["true"][:, place], -1)
        if name in hidden:
            negative = binary_loss(encoder, batch, settings, name, hidden[name][:, 0], 1)
            losses[name] = losses.get(name, 0) + negative
    if "true" in hidden:
        masked = ~batch.visible
        logits = encoder.to_logits(hidden["true"][:, control.shape[1] :][masked])
        losses["msm"] = F.cross_entropy(logits, batch.tokens[masked], reduction="sum")
    return losses


def _needed(settings: Losses) -> tuple[Variant, ...]:
    """The variants without those whose loss has weight 0."""
    return tuple(name for name in VARIANTS if name == "true" or getattr(settings, name))


def binary_loss(
    encoder: ProcedureEncoder, batch: Batch, settings: Losses, name: str, states: Tensor, sign: int
) -> Tensor:
    """The sum of softplus(sign · logit) of hidden states [B, D], over the samples that count.

    In the head's own float32 also under autocast: bfloat16 would round terms near log 2 to half
    a percent.
    """
    visible, valid = _sample_weights(batch, settings)
    if name == "align":
        head, weights = encoder.to_logits_rel, valid
    else:
        head = encoder.to_logits_vid
        weights = torch.ones_like(visible) if settings.reference_quirks else visible
    states = states.to(next(head.parameters()).dtype)
    with torch.autocast(states.device.type, enabled=False):
        return (F.softplus(sign * head(states)[:, 0]) * weights).sum()


def _sample_weights(batch: Batch, settings: Losses) -> tuple[Tensor, Tensor]:
    """Which samples count for consistency, and which for alignment, as numbers [B]."""
    visible = torch.ones(len(batch.visible), device=batch.visible.device)
    if settings.ignore_fully_masked:
        visible = batch.visible.any(dim=1).float()
    valid = visible if settings.reference_quirks else visible * batch.negative_is_valid
    return visible, valid


class Stage1Objective:
    """`Objective` in `cc_train.training.trainer` says what the parts are.

    A batch from the stream is {text, frames, damaged: images uint8 [B, T, H, W, 3] or indices
    [B, T, n], tokens (not where frames are cropped), visible, negative_index, negative_is_valid}; a
    chunk of one has its `variants` besides. held_out: such batches for validation. picture: makes
    the grid of a validation. max_activation_mb: on a CPU, variants that keep more than this for the
    backward pass go one by one.
    """

    phases = ("model",)
    best = ("msm", False)
    over: Literal["sum", "batch"] = "sum"

    def __init__(
        self,
        network: ProcedureEncoder,
        features: FrameFeatures,
        settings: Losses,
        held_out: Iterable[Mapping[str, Any]],
        weight_decay: float,
        device: str,
        picture: Callable[[ProcedureEncoder], np.ndarray | None] = lambda network: None,
        max_activation_mb: int = 1000,
    ) -> None:
        self.max_activation_mb = max_activation_mb
        self.network, self.features = network.to(device), features.to(device)
        self.settings, self.held_out, self.device = settings, held_out, device
        self.weight_decay, self.picture = weight_decay, picture
        self.others: dict[str, nn.Module] = {}
        self.buffers: dict[str, Tensor] = {}

    def groups(self, phase: str) -> list[dict[str, Any]]:
        from cc_train.training import optim

        return optim.param_groups([self.network], self.weight_decay)

    def denominators(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return denominators(self._batch(batch, features=False), self.settings)

    def chunks(self, batch: Mapping[str, Tensor]) -> list[dict[str, Any]]:
        """All variants, or each: one by one they keep a third of the activations. A CPU is no
        slower for it at the paper's width of 768, and up to a tenth at 128."""
        variants, config = _needed(self.settings), self.network.config
        values = len(variants) * batch["visible"].numel() * config.width * config.layers * KEPT
        if self.device != "cpu" or 4 * values <= self.max_activation_mb * 1e6:
            return [{**batch, "variants": variants}]
        return [{**batch, "variants": (name,)} for name in variants]

    def losses(
        self, phase: str, batch: Mapping[str, Any], step: int, denominators: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        losses = sums(self.network, self._batch(batch), self.settings, batch["variants"])
        return self._weighed({name: value / denominators[name] for name, value in losses.items()})

    def after_step(self, step: int) -> None:
        """Nothing to do."""

    def validate(self, network: nn.Module) -> tuple[dict[str, float], np.ndarray | None]:
        assert isinstance(network, ProcedureEncoder)
        totals: dict[str, float] = {}
        for raw in self.held_out:
            batch = self._batch({n: t.to(self.device) for n, t in raw.items()})
            losses, own = sums(network, batch, self.settings), denominators(batch, self.settings)
            right = accuracy(network, batch)
            for name, value in {**losses, "accuracy": right}.items():
                totals[name] = totals.get(name, 0.0) + float(value)
                count = own["msm" if name == "accuracy" else name]
                totals[f"of {name}"] = totals.get(f"of {name}", 0.0) + float(count)
        means = {
            n: totals[n] / max(totals[f"of {n}"], 1.0) for n in totals if not n.startswith("of ")
        }
        return means, self.picture(network)

    def _weighed(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        total = sum(
            (getattr(self.settings, n) * mean for n, mean in means.items()), torch.tensor(0)
        )
        return {"total": total, **{name: mean.detach() for name, mean in means.items()}}

    def _batch(self, raw: Mapping[str, Any], features: bool = True) -> Batch:
        variants = raw.get("variants", _needed(self.settings)) if features else ()
        needed = {FRAMES_OF[name] for name in variants}

        def features_of(name: str) -> Tensor:
            return self.features(as_input(raw[name])) if name in needed else raw[name]

        return Batch(
            text=raw["text"],
            frames=features_of("frames"),
            damaged=features_of("damaged"),
            tokens=self._tokens(raw, "true" in variants),
            visible=raw["visible"],
            negative_index=raw["negative_index"],
            negative_is_valid=raw["negative_is_valid"].float(),
        )

    def _tokens(self, raw: Mapping[str, Tensor], needed: bool) -> Tensor:
        """The shards' indices, or for cropped frames, which have others, the VQGAN's."""
        if "tokens" in raw:
            return raw["tokens"]
        if not needed:
            return raw["visible"].long()  # of the right shape, for counting alone
        return self.features.indices(as_input(raw["frames"])).flatten(1)


def accuracy(network: ProcedureEncoder, batch: Batch) -> Tensor:
    """How many masked tokens are guessed right."""
    guessed = predict(network, batch)
    return (guessed == batch.tokens)[~batch.visible].sum()


def predict(network: ProcedureEncoder, batch: Batch) -> Tensor:
    """The likeliest codebook index at every frame position, int64 [B, T · n]."""
    control = network.control(batch.text)
    hidden = network(control, network.frames(batch.frames, batch.visible))
    guessed: Tensor = network.to_logits(hidden[:, control.shape[1] :]).argmax(-1)
    return guessed
