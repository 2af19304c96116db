"""The chain: regions of change, a caption of them, and rounds in which each refines the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cc_train.captioner import Encoded
from cc_train.decoding.search import greedy
from cc_train.layers.caption_decoder import DecoderSettings
from cc_train.layers.frozen_backbone import FrozenBackbone
from cc_train.layers.pair_comparison import Changes, change_bridge, change_tokens
from cc_train.layers.pair_encoder import EncoderSettings
from cc_train.systems.chain.masks import LEAST, classes_of
from cc_train.systems.chain.regions import UP, RegionHead, RegionInputs, Regions, RegionSettings
from cc_train.systems.pair_trunk import PairTrunk
from cc_train.text import TextCodec

Feedback = Literal["text", "constant", "none"]
SETTLED = 0.95  # intersection over union of two rounds' masks from which on nothing changes


@dataclass(frozen=True)
class Look:
    """The visual input of P pairs, before any region or word.

    Attributes:
        tokens: The decoder's part of it, [P, M, width], the summaries and every place.
    """

    inputs: RegionInputs
    tokens: Tensor

    def select(self, rows: Tensor) -> Look:
        """The look at some of the pairs.

        Args:
            rows: Their numbers, int64 [P'].
        """
        return Look(self.inputs.select(rows), self.tokens[rows])


class ChainCaptioner(PairTrunk):
    """Two images, or their stored features → a sentence and a mask.

    Args:
        backbone: See `PairTrunk`.
        rounds: How often regions and caption refine each other.
        feedback: The input of a round: `text`, the states of the caption's words; `constant`, a
            learned vector instead of them; `none`, nothing, so that regions and caption do not see
            each other. All three have the same parameters, but `none` does not train those that
            pass regions to words.
        folded: How many of the first channels are squares of a finer grid.
        mask_classes: Names of the classes.
    """

    def __init__(
        self,
        backbone: FrozenBackbone,
        *,
        size: tuple[int, int],
        encoder: EncoderSettings,
        regions: RegionSettings,
        decoder: DecoderSettings,
        codec: TextCodec,
        mask_classes: tuple[str, ...],
        rounds: int = 2,
        feedback: Feedback = "text",
        folded: int = 0,
    ) -> None:
        super().__init__(backbone, size, encoder, decoder, codec)
        self.inputs = replace(self.inputs, mask_classes=mask_classes)
        self.rounds, self.feedback, self.folded = rounds, feedback, folded
        self.regions = RegionHead(
            encoder.width,
            decoder.width,
            fine=folded // UP**2,
            classes=len(mask_classes),
            heads=encoder.heads,
            sizes=regions,
        )
        self.of_region = change_bridge(encoder.width, decoder.width)
        self.region_kinds = nn.Parameter(0.02 * torch.randn(2, decoder.width))
        self.gate = nn.Linear(1, decoder.width, bias=False)
        nn.init.zeros_(self.gate.weight)
        last = self.of_region[-1]
        assert isinstance(last, nn.Linear)
        for parameter in (last.weight, last.bias):  # at first the words hear nothing of regions
            nn.init.zeros_(parameter)

    def look(
        self, changes: Changes, images: Tensor, features: Tensor, first: Tensor, second: Tensor
    ) -> Look:
        """The visual input of P pairs of N images.

        Args:
            changes: Of the pairs.
            images: The encoder's, [N, D, rows, columns].
            features: Of the backbone, float [N, C, rows, columns].
            first, second: The images of each pair, int64 [P].
        """
        pairs = torch.stack((first, second), dim=1)
        fine = None
        if self.folded:
            encoder = self.encoder
            mean, std = (x[: self.folded, None, None] for x in (encoder.mean, encoder.std))
            folded = (features[:, : self.folded].float() - mean) / std
            fine = F.pixel_shuffle(folded, UP)[pairs]
        positions = self.encoder.position
        inputs = self.regions.inputs(changes, positions, images[pairs], fine)
        return Look(inputs, change_tokens(changes, positions, self.bridge, self.kinds))

    def attended(self, look: Look, regions: Regions) -> Tensor:
        """What the decoder attends to, [P, M + N + 1, width].

        It is the visual input, the regions, scaled by their presence, and the probability that
        there is no region.
        """
        if self.feedback == "none":
            return look.tokens
        tokens = regions.presence[..., None] * self.of_region(regions.tokens)
        unchanged = regions.unchanged  # log-odds, for what sums and products of chances give
        odds = unchanged - torch.log(-torch.expm1(unchanged.clamp(max=-LEAST)))
        gate = self.gate(odds.clamp(-10, 10)[:, None, None] / 10)
        kinds = self.region_kinds
        return torch.cat((look.tokens, tokens + kinds[0], gate + kinds[1]), dim=1)

    def refine(self, look: Look, regions: Regions, states: Tensor, ids: Tensor) -> Regions:
        """The regions after a round.

        Args:
            states: The decoder's, [P, L, width], at ids int64 [P, L].
        """
        if self.feedback == "text":
            return self.regions.refined(regions, look.inputs, states, self.is_word(ids))
        return self.regions.refined(regions, look.inputs, None, None)

    def is_word(self, ids: Tensor) -> Tensor:
        """Whether each id is a word, or the mark that begins a sentence; bool, shaped like ids."""
        return (ids != self.codec.marks.pad) & (ids != self.codec.marks.end)

    def glance(self, before_after: Tensor) -> tuple[Look, Regions]:
        """The visual input of B pairs, and their regions before any word."""
        features = self.features(before_after).flatten(0, 1)
        images = self.encoder.images(features)
        first = torch.arange(0, len(images), 2, device=images.device)
        changes = self.encoder(images[first], images[first + 1])
        look = self.look(changes, images, features, first, first + 1)
        return look, self.regions.first(look.inputs)

    @torch.no_grad()
    def rounds_of(self, before_after: Tensor) -> tuple[Tensor, Tensor, list[int]]:
        """What the decoder attends to at the end, the masks, and how many rounds each pair took.

        Masks are class ids uint8 [B, H, W]. A pair is done when its words stay the same and its
        mask hardly changes.
        """
        look, regions = self.glance(before_after)
        # Cloned: rounds write rows into it, and with feedback `none` it is `look.tokens` itself.
        memory = self.attended(look, regions).clone()
        masks, taken = self.mask(regions), [0] * len(memory)
        if not self.rounds:
            return memory, masks, taken
        active = torch.arange(len(memory), device=memory.device)
        decoder = self.next_word()
        ids = greedy(decoder, memory, self.codec.marks)
        for number in range(1, self.rounds + 1):
            states = self.decoder.hidden(ids[:, :-1], memory[active])
            regions = self.refine(look, regions, states, ids[:, :-1])
            refined, mask = self.attended(look, regions), self.mask(regions)
            previous = masks[active]
            memory[active], masks[active] = refined, mask
            for row in active.tolist():
                taken[row] = number
            if number == self.rounds:
                break
            new = greedy(decoder, refined, self.codec.marks)
            unsettled = (new != ids).any(1) | (overlap(previous, mask) < SETTLED)
            rows = unsettled.nonzero()[:, 0]
            if not len(rows):
                break
            active, ids = active[rows], new[rows]
            look, regions = look.select(rows), regions.select(rows)
        return memory, masks, taken

    def mask(self, regions: Regions) -> Tensor:
        """Change masks of P pairs, class ids uint8 [P, H, W]."""
        return classes_of(regions.evidence.logits(self.inputs.size)[:, :, 0])

    def memory(self, before_after: Tensor) -> Tensor:
        """What the decoder attends to, [B, N, width]; see `EncoderDecoder.memory`."""
        return self.encode(before_after).memory

    def encode(self, before_after: Tensor) -> Encoded:
        """What the decoder attends to and the masks, both of the last round."""
        memory, masks, _ = self.rounds_of(before_after)
        return Encoded(memory, masks)


def overlap(one: Tensor, other: Tensor) -> Tensor:
    """Intersection over union of masks [P, H, W] of class ids, [P]; 1 if both are empty."""
    shared = ((one == other) & (one > 0)).sum((1, 2))
    union = ((one > 0) | (other > 0)).sum((1, 2))
    return torch.where(union > 0, shared / union.clamp(min=1), 1.0)
