"""ProCap's stage 1: masked reconstruction of a change's frames, given its caption.

Three losses: msm, the codebook indices of masked tokens; align, whether the caption at [REL] is the
change's own; consistency, whether the frames at [VID] are in their order. The losses are sums over
three variants of the input, which go through the encoder as one batch, or, where that is large and
a CPU's, one by one, each with its backward pass. Source: ProCap, section 3.3, and its code.

A fourth loss is ours: local, what was pasted where into both ends of a pair (`pasting`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from cc_prep.models.clip import rows_of
from cc_prep.models.cpu import use_kernels
from cc_prep.settings import Section
from cc_train.distributed import ALONE, Ranks
from cc_train.runs.checkpoints import Criterion
from cc_train.systems.procap import pasting
from cc_train.systems.procap.frame_features import FrameFeatures, as_input
from cc_train.systems.procap.masking import NAMES as MASKS
from cc_train.systems.procap.procedure_encoder import VID, ProcedureEncoder
from cc_train.text import IGNORED
from cc_train.training.loader import to_device
from cc_train.training.objective import Objective

NAMES = ("msm", "align", "consistency")
Variant = Literal["true", "align", "consistency"]  # the last two are the negatives
# The true variant comes last, since it uses every head: with several processes, gradients are
# exchanged in the last backward pass.
VARIANTS: tuple[Variant, ...] = ("align", "consistency", "true")
KEPT = 10  # numbers a channel that a block keeps of a token: 1 + 1 input, 3 q k v, 1 mixed, 4 inner


class Losses(Section):
    """Weights of the losses; a loss of weight 0 costs no pass. The paper's sum is 1, 1, 1 and 0."""

    msm: float = Field(7.0, ge=0)
    """Of the codebook indices of masked tokens."""
    align: float = Field(0.5, ge=0)
    """Of whether the caption describes this change."""
    consistency: float = Field(0.5, ge=0)
    """Of whether the frames are in order."""
    local: float = Field(0.0, ge=0)
    """Of what happened at each place of a pair into which things were pasted; not in the paper. It
    needs shards with images, and a sample's captions and frames in between play no part."""
    ignore_fully_masked: bool = True
    """Samples of which nothing is seen do not count for `align` and `consistency`."""
    reference_quirks: bool = False
    """Two deviations of ProCap's code: `consistency` sums over all samples and divides by those
    that are not fully masked, and captions of other pairs may be true of this one as well."""

    @model_validator(mode="after")
    def _something_is_learned(self) -> Losses:
        if not (self.of_frames or self.local):
            raise ValueError("all weights are 0")
        return self

    @property
    def of_frames(self) -> bool:
        """Whether there is a loss of the sequence of frames itself."""
        return any(getattr(self, name) for name in NAMES)


@dataclass(frozen=True)
class Batch:
    """The input of the losses.

    Attributes:
        text: byte-pair ids [B + E, L], those of the batch and of E others whose captions are wrong
            ones.
        frames: Features [B, F, n, C], the T of the sequence first, then what only the damaged
            sequence shows.
        damaged: int64 [B, T], which of them that one shows at each place.
        tokens: Indices [B, T · n].
        visible: Bool [B, T · n], False where a token is masked.
        negative_index: int64 [B], which text is the wrong one.
        negative_is_valid: Bool [B], whether it is untrue of the sample.
    """

    text: Tensor
    frames: Tensor
    damaged: Tensor
    tokens: Tensor
    visible: Tensor
    negative_index: Tensor
    negative_is_valid: Tensor

    @property
    def sequence(self) -> Tensor:
        """Features of the sequence itself, [B, T, n, C]."""
        return self.frames[:, : self.damaged.shape[1]]


def denominators(visible: Tensor, negative_is_valid: Tensor, settings: Losses) -> dict[str, Tensor]:
    """Number of terms of each loss, by which it is divided (by 1 if there are none)."""
    consistent, aligned = _sample_weights(visible, negative_is_valid, settings)
    return {"msm": (~visible).sum(), "align": aligned.sum(), "consistency": consistent.sum()}


def sums(
    encoder: ProcedureEncoder,
    batch: Batch,
    settings: Losses,
    variants: Sequence[Variant] = VARIANTS,
) -> dict[str, Tensor]:
    """Sums of the losses over a batch; those of weight 0 are left out.

    Args:
        variants: Only the terms of these; the sums of single variants add up to the whole.
    """
    return losses_of(encoder, batch, settings, hidden_states(encoder, batch, settings, variants))


def hidden_states(
    encoder: ProcedureEncoder,
    batch: Batch,
    settings: Losses,
    variants: Sequence[Variant] = VARIANTS,
) -> dict[Variant, Tensor]:
    """Hidden states by variant: `true` at all positions, [B, L + T · n, D]; others where read."""
    variants = [name for name in variants if name in _needed(settings)]
    control = encoder.control(batch.text)
    own = control[: len(batch.visible)]
    texts = {name: control[batch.negative_index] if name == "align" else own for name in variants}
    # Each frame is embedded once for all variants.
    embedded = encoder.embed(batch.frames)
    samples = torch.arange(len(embedded), device=embedded.device)[:, None]
    inputs = [
        (
            texts[name],
            encoder.placed(
                embedded[samples, batch.damaged]
                if name == "consistency"
                else embedded[:, : batch.damaged.shape[1]],
                batch.visible,
            ),
        )
        for name in variants
    ]
    read = _rows(encoder, batch)
    rows = [None if name == "true" else read[name] for name in variants]
    return dict(zip(variants, encoder.forward_variants(inputs, rows), strict=True))


def losses_of(
    encoder: ProcedureEncoder, batch: Batch, settings: Losses, hidden: Mapping[Variant, Tensor]
) -> dict[str, Tensor]:
    """The sums of the losses of these states."""
    losses: dict[str, Tensor] = {}
    for name, rows in _rows(encoder, batch).items():
        if not getattr(settings, name):
            continue
        # Binary cross-entropy of 1 in the true pass, and of 0 in the other.
        if "true" in hidden:
            states = _read(encoder, name, rows_of(hidden["true"], rows))
            losses[name] = binary_loss(encoder, batch, settings, name, states, -1)
        if name in hidden:
            states = _read(encoder, name, hidden[name])
            negative = binary_loss(encoder, batch, settings, name, states, 1)
            losses[name] = losses.get(name, 0) + negative
    if "true" in hidden:
        losses["msm"] = _reconstruction_loss(encoder, batch, _of_frames(batch, hidden["true"]))
    return losses


def _reconstruction_loss(encoder: ProcedureEncoder, batch: Batch, states: Tensor) -> Tensor:
    """The sum over masked tokens of the cross-entropy of their codes."""
    masked = ~batch.visible
    if torch.compiler.is_compiling():  # a count of tokens that the data decides breaks the graph
        targets = torch.where(masked, batch.tokens, IGNORED)
        logits = encoder.to_logits(states).flatten(0, 1)
        return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="sum")
    return F.cross_entropy(encoder.to_logits(states[masked]), batch.tokens[masked], reduction="sum")


def right_of(
    encoder: ProcedureEncoder, batch: Batch, settings: Losses, hidden: Mapping[Variant, Tensor]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Numbers of right decisions and of all decisions of each sample, by figure; float32 [B] each.

    accuracy: the codes of masked tokens. align_accuracy, consistency_accuracy: the true input is
    judged true and the other one false, in samples that count.
    """
    masked = ~batch.visible
    guessed = encoder.to_logits(_of_frames(batch, hidden["true"])).argmax(-1)
    counts = {"accuracy": (((guessed == batch.tokens) & masked).sum(1), masked.sum(1))}
    heads = {"align": encoder.to_logits_rel, "consistency": encoder.to_logits_vid}
    consistent, aligned = _sample_weights(batch.visible, batch.negative_is_valid, settings)
    weights = {"consistency": consistent, "align": aligned}
    for name, rows in _rows(encoder, batch).items():
        if name in hidden:
            true = heads[name](_read(encoder, name, rows_of(hidden["true"], rows)))[:, 0] > 0
            false = heads[name](_read(encoder, name, hidden[name]))[:, 0] < 0
            right = (true.float() + false.float()) * weights[name]
            counts[f"{name}_accuracy"] = (right, 2 * weights[name])
    return {name: (right.float(), count.float()) for name, (right, count) in counts.items()}


def _rows(
    encoder: ProcedureEncoder, batch: Batch
) -> dict[Literal["align", "consistency"], list[int]]:
    """Rows of the states that each binary loss reads.

    `align` reads [REL] and, depending on the network, both ends; `consistency` reads [VID], which
    follows the text and [ST1].
    """
    vid = batch.text.shape[1] + VID
    return {"align": encoder.relation_rows(vid + 1), "consistency": [vid]}


def _read(encoder: ProcedureEncoder, name: str, states: Tensor) -> Tensor:
    """The input of a binary loss's head, [B, D or 3 D], from the states at its rows."""
    return encoder.relation(states) if name == "align" else states[:, 0]


def _of_frames(batch: Batch, states: Tensor) -> Tensor:
    """The states of the frames' tokens, [B, T · n, D]."""
    return states[:, -batch.visible.shape[1] :]


def _needed(settings: Losses) -> tuple[Variant, ...]:
    """The variants without those whose loss has weight 0."""
    return tuple(name for name in VARIANTS if name == "true" or getattr(settings, name))


def pasted_features(features: FrameFeatures, images: Tensor) -> Tensor:
    """What the encoder sees of images uint8 [B, 2, H, W, 3], of whatever kind: [B, 2, n, C]."""
    pixels = as_input(images)
    seen: Tensor = features(features.indices(pixels) if features.kind == "tokens" else pixels)
    return seen


def local_loss(
    encoder: ProcedureEncoder, pasted: Tensor, kinds: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum over all places of the cross-entropy of what happened there; and, of the places where
    something did, how many were told, and their number.

    Args:
        pasted: Features of both ends, [B, 2, n, C].
        kinds: Of `pasting.KINDS`, int64 [B, n].
    """
    logits = encoder.local(encoder.forward_ends(encoder.embed(pasted))).float()
    loss = F.cross_entropy(logits.flatten(0, 1), kinds.flatten(), reduction="sum")
    changed = kinds != pasting.NONE
    told = (logits.argmax(-1) == kinds) & changed
    return loss, told.sum(), changed.sum()


def binary_loss(
    encoder: ProcedureEncoder, batch: Batch, settings: Losses, name: str, states: Tensor, sign: int
) -> Tensor:
    """The sum of softplus(sign · logit) of hidden states [B, D], over the samples that count.

    In the head's own float32 also under autocast: bfloat16 would round terms near log 2 to half
    a percent.
    """
    consistent, aligned = _sample_weights(batch.visible, batch.negative_is_valid, settings)
    if name == "align":
        head, weights = encoder.to_logits_rel, aligned
    else:
        head = encoder.to_logits_vid
        weights = torch.ones_like(consistent) if settings.reference_quirks else consistent
    states = states.to(next(head.parameters()).dtype)
    with torch.autocast(states.device.type, enabled=False):
        return (F.softplus(sign * head(states)[:, 0]) * weights).sum()


def _sample_weights(
    visible: Tensor, negative_is_valid: Tensor, settings: Losses
) -> tuple[Tensor, Tensor]:
    """Weights [B], 0 or 1, of the samples for consistency and for alignment."""
    consistent = torch.ones(len(visible), device=visible.device)
    if settings.ignore_fully_masked:
        consistent = visible.any(dim=1).float()
    aligned = consistent if settings.reference_quirks else consistent * negative_is_valid
    return consistent, aligned


class Stage1Objective(Objective):
    """The objective of stage 1; see `Objective` in `cc_train.training.objective`.

    A batch from the stream is {text, frames: images uint8 [B, T, H, W, 3], indices [B, T, n] or
    features [B, T, C, h, w], altered: the same of one frame more, damaged_order: int64 [B, T], see
    `damage.Damage`, tokens (not where frames are cropped), visible, negative_index,
    negative_is_valid, mask: int64 [B], by `masking.NAMES`, changed: bool [B]}, with `losses.local`
    also {pasted: images uint8 [B, 2, H, W, 3], pasted_kinds: int64 [B, n]}; a chunk has its
    `variants` besides, and the last one what was pasted.

    Args:
        held_out: Such batches for validation, those of this rank.
        picture: Makes the grid of a validation.
        probe: Further figures of a validation.
        max_activation_mb: On a CPU, variants run one by one if together they would keep more than
            this for the backward pass.
    """

    network: ProcedureEncoder
    criterion = Criterion("msm", higher_is_better=False)

    def __init__(
        self,
        network: ProcedureEncoder,
        features: FrameFeatures,
        *,
        settings: Losses,
        held_out: Iterable[Mapping[str, Any]],
        weight_decay: float,
        device: str,
        picture: Callable[[ProcedureEncoder], np.ndarray | None] = lambda network: None,
        probe: Callable[[ProcedureEncoder], dict[str, float]] = lambda network: {},
        max_activation_mb: int = 1000,
        ranks: Ranks = ALONE,
    ) -> None:
        super().__init__(use_kernels(network.to(device)))
        self.features = features.to(device)
        self.max_activation_mb, self.ranks = max_activation_mb, ranks
        self.settings, self.held_out, self.device = settings, held_out, device
        self.weight_decay, self.picture, self.probe = weight_decay, picture, probe
        if not settings.of_frames:
            self.criterion = Criterion("local", higher_is_better=False)

    def groups(self, phase: str) -> list[dict[str, Any]]:
        from cc_train.training import optim

        return optim.param_groups([self.network], self.weight_decay)

    def denominators(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        counts = denominators(batch["visible"], batch["negative_is_valid"], self.settings)
        if self.settings.local:
            kinds = batch["pasted_kinds"]
            counts["local"] = torch.tensor(kinds.numel(), device=kinds.device)
        return counts

    def chunks(self, batch: Mapping[str, Tensor]) -> list[dict[str, Any]]:
        """One chunk for each part of `division`, as input of the encoder."""
        chunks: list[dict[str, Any]] = [{}]
        if self.settings.of_frames:
            seen = self._seen(batch, _needed(self.settings))
            chunks = [{**seen, "variants": some} for some in self.division(batch["visible"])]
        if self.settings.local:  # with the last pass, which is that of all parameters
            chunks[-1] |= self._pasted(batch)
        return chunks

    def division(self, visible: Tensor) -> list[tuple[Variant, ...]]:
        """All variants of a batch with this mask together, or each by itself: one by one they keep
        a third of the activations. A CPU is no slower for it at the paper's width of 768, and up to
        a tenth at 128."""
        variants, config = _needed(self.settings), self.network.config
        values = len(variants) * visible.numel() * config.width * config.layers * KEPT
        if self.device != "cpu" or 4 * values <= self.max_activation_mb * 1e6:
            return [variants]
        return [(name,) for name in variants]

    @property
    def all_parameters_used(self) -> bool:
        """Whether the last chunk of a step, which is that of all heads, uses every parameter."""
        return all(getattr(self.settings, name) for name in NAMES)

    def losses(
        self, phase: str, batch: Mapping[str, Any], step: int, denominators: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = {}
        if "variants" in batch:
            losses = sums(self.network, _batch(batch), self.settings, batch["variants"])
        if "pasted" in batch:
            losses["local"], *_ = local_loss(self.network, batch["pasted"], batch["pasted_kinds"])
        return self._weighed({name: value / denominators[name] for name, value in losses.items()})

    def validate(self, network: nn.Module) -> tuple[dict[str, float], np.ndarray | None]:
        assert isinstance(network, ProcedureEncoder)
        tally = Tally()
        for raw in self.held_out:
            on_device = to_device(raw, self.device)
            if self.settings.local:
                pasted = self._pasted(on_device)
                kinds = pasted["pasted_kinds"]
                loss, told, changed = local_loss(network, pasted["pasted"], kinds)
                tally.add("local", loss, torch.tensor(kinds.numel()))
                tally.add("local_accuracy", told, changed)
            if not self.settings.of_frames:
                continue
            batch = _batch(self._seen(on_device, _needed(self.settings)))
            hidden = hidden_states(network, batch, self.settings)
            counts = denominators(batch.visible, batch.negative_is_valid, self.settings)
            for name, value in losses_of(network, batch, self.settings, hidden).items():
                tally.add(name, value, counts[name])
            groups = _groups(on_device)
            for name, (right, count) in right_of(network, batch, self.settings, hidden).items():
                tally.add(name, right.sum(), count.sum())
                for group, members in groups.items():
                    tally.add(f"{name}_{group}", right[members].sum(), count[members].sum())
        whole = Tally.summed(self.ranks.gather_objects((tally.sums, tally.counts)))
        if not self.ranks.is_main_process:
            return whole.means(), None
        return {**whole.means(), **self.probe(network)}, self.picture(network)

    def _weighed(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        total = sum(
            (getattr(self.settings, n) * mean for n, mean in means.items()), torch.tensor(0)
        )
        return {"total": total, **{name: mean.detach() for name, mean in means.items()}}

    def _seen(self, raw: Mapping[str, Any], variants: Sequence[Variant]) -> dict[str, Any]:
        """A batch from the stream as the encoder sees it, with features for images. The frozen
        networks see a frame of both sequences once, and run outside of what is compiled."""
        left_out = ("altered", "pasted", "pasted_kinds")
        batch = {name: value for name, value in raw.items() if name not in left_out}
        frames, batch["damaged"] = raw["frames"], raw["damaged_order"]
        if "consistency" in variants:
            frames = torch.cat((frames, raw["altered"]), dim=1)
        batch["frames"] = self.features(as_input(frames))
        if "tokens" not in raw:  # cropped frames have others than the shards'
            batch["tokens"] = self.features.indices(as_input(raw["frames"])).flatten(1)
        return batch

    def _pasted(self, raw: Mapping[str, Any]) -> dict[str, Tensor]:
        """The pairs with pasted things as the encoder sees them."""
        seen = pasted_features(self.features, raw["pasted"])
        return {"pasted": seen, "pasted_kinds": raw["pasted_kinds"]}


def _batch(seen: Mapping[str, Any]) -> Batch:
    return Batch(
        text=seen["text"],
        frames=seen["frames"],
        damaged=seen["damaged"],
        tokens=seen["tokens"],
        visible=seen["visible"],
        negative_index=seen["negative_index"],
        negative_is_valid=seen["negative_is_valid"].float(),
    )


class Tally:
    """Sums and the counts that divide them, by name."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.counts: dict[str, float] = {}

    def add(self, name: str, value: Tensor, count: Tensor) -> None:
        """Adds a batch's sum and count."""
        self.sums[name] = self.sums.get(name, 0.0) + float(value)
        self.counts[name] = self.counts.get(name, 0.0) + float(count)

    @classmethod
    def summed(cls, parts: Sequence[tuple[dict[str, float], dict[str, float]]]) -> Tally:
        """The tally of several sums and counts, added up."""
        whole = cls()
        for sums, counts in parts:
            for name, value in sums.items():
                whole.sums[name] = whole.sums.get(name, 0.0) + value
                whole.counts[name] = whole.counts.get(name, 0.0) + counts[name]
        return whole

    def means(self) -> dict[str, float]:
        """Means by name; a name without any count is left out."""
        return {name: value / self.counts[name] for name, value in self.sums.items()
                if self.counts[name]}  # fmt: skip


def _groups(raw: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Groups of samples by mask and by change, bool [B] by name."""
    masks = {name: raw["mask"] == number for number, name in enumerate(MASKS)}
    return {**masks, "changed": raw["changed"], "unchanged": ~raw["changed"]}


def predict(network: ProcedureEncoder, batch: Batch) -> Tensor:
    """The likeliest codebook index at every frame position, int64 [B, T · n]."""
    control = network.control(batch.text[: len(batch.visible)])
    hidden = network(control, network.frames(batch.sequence, batch.visible))
    guessed: Tensor = network.to_logits(hidden[:, control.shape[1] :]).argmax(-1)
    return guessed
