"""The chain: regions of change, a caption of them, and rounds in which each refines the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cc_train.captioner import Caption
from cc_train.decoding.cached_decoder import CachedDecoder
from cc_train.decoding.search import greedy
from cc_train.layers import caption_decoder, pair_encoder
from cc_train.layers.caption_decoder import CaptionDecoder
from cc_train.layers.comparison import Changes, change_bridge, change_kinds, change_tokens
from cc_train.layers.frozen_backbone import FrozenBackbone
from cc_train.layers.pair_trunk import PairTrunk
from cc_train.systems.chain import regions as region_layers
from cc_train.systems.chain.masks import LEAST, classes_of
from cc_train.systems.chain.regions import UP, RegionHead, RegionInputs, Regions
from cc_train.text import TextCodec

Feedback = Literal["text", "constant", "none"]
SETTLED = 0.95  # intersection over union of two rounds' masks from which on nothing changes


@dataclass(frozen=True)
class Look:
    """What is seen of P pairs before any region or word. tokens: the decoder's share of it,
    [P, M, width], the summaries and every place.
    """

    inputs: RegionInputs
    tokens: Tensor

    def select(self, rows: Tensor) -> Look:
        """The same of some pairs, int64 [P']."""
        return Look(self.inputs.select(rows), self.tokens[rows])


class ChainCaptioner(PairTrunk):
    """Two images, or their stored features → a sentence and a mask.

    backbone: see `PairTrunk`. rounds: how often regions and caption refine each other.
    feedback: what a round gets: `text`, the states of the caption's words; `constant`, a learned
    vector in their place; `none`: regions and caption do not see each other at all. All three hold
    the same parameters, of which `none` trains fewer: those that tell words of regions rest.
    folded: how many of the first channels are squares of a finer grid. mask_classes: the names of
    the classes.
    """

    def __init__(
        self,
        backbone: FrozenBackbone,
        size: tuple[int, int],
        config: pair_encoder.Config,
        regions: region_layers.Config,
        decoder: caption_decoder.Config,
        text: TextCodec,
        rounds: int = 2,
        feedback: Feedback = "text",
        folded: int = 0,
        mask_classes: tuple[str, ...] = (),
    ) -> None:
        super().__init__(backbone, size, config, text, decoder.length)
        self.inputs = replace(self.inputs, mask_classes=mask_classes)
        self.rounds, self.feedback, self.folded = rounds, feedback, folded
        self.bridge = change_bridge(config.width, decoder.width)
        self.kinds = change_kinds(decoder.width)
        self.decoder = CaptionDecoder(decoder)
        self.regions = RegionHead(config.width, decoder.width, folded // UP**2, regions)
        self.of_region = change_bridge(config.width, decoder.width)
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
        """What is seen of P pairs of N images.

        changes: of the pairs. images: the encoder's, [N, D, rows, columns]; features: of the
        backbone, float [N, C, rows, columns]. first, second: the images of each pair, int64 [P].
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
        """What the decoder attends to, [P, M + N + 1, width]: what is seen, the regions, each as
        strong as it is present, and how likely it is that there is none.
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
        """The regions after a round. states: of the decoder at ids int64 [P, L], [P, L, width]."""
        if self.feedback == "text":
            return self.regions.refined(regions, look.inputs, states, self.is_word(ids))
        return self.regions.refined(regions, look.inputs, None, None)

    def is_word(self, ids: Tensor) -> Tensor:
        """Where ids are words, or the mark that begins a sentence; bool like ids."""
        return (ids != self.text.marks.pad) & (ids != self.text.marks.end)

    def glance(self, before_after: Tensor) -> tuple[Look, Regions]:
        """What is seen of B pairs, and their regions before any word."""
        features = self.features(before_after).flatten(0, 1)
        images = self.encoder.images(features)
        first = torch.arange(0, len(images), 2, device=images.device)
        changes = self.encoder(images[first], images[first + 1])
        look = self.look(changes, images, features, first, first + 1)
        return look, self.regions.first(look.inputs)

    @torch.no_grad()
    def rounds_of(self, before_after: Tensor) -> tuple[Tensor, Tensor, list[int]]:
        """What the decoder attends to at the end, the masks, and how many rounds each pair took.

        Masks are class ids uint8 [B, H, W]. A pair whose words stay, and whose mask nearly does, is
        done.
        """
        look, regions = self.glance(before_after)
        # Written below, while side by side it would be the tokens of the look themselves.
        memory = self.attended(look, regions).clone()
        masks, taken = self.mask(regions), [0] * len(memory)
        active = torch.arange(len(memory), device=memory.device)
        decoder = self.next_word()
        ids = greedy(decoder, memory, self.text.marks) if self.rounds else active
        for number in range(1, self.rounds + 1):
            states = self.decoder.hidden(ids[:, :-1], memory[active])
            regions = self.refine(look, regions, states, ids[:, :-1])
            part = self.attended(look, regions)
            previous, memory[active], masks[active] = masks[active], part, self.mask(regions)
            for row in active.tolist():
                taken[row] = number
            if number == self.rounds:
                break
            new = greedy(decoder, part, self.text.marks)
            going = ((new != ids).any(1) | (overlap(previous, masks[active]) < SETTLED)).nonzero()
            rows = going[:, 0]
            active, ids = active[rows], new[rows]
            look, regions = look.select(rows), regions.select(rows)
            if not len(active):
                break
        return memory, masks, taken

    def mask(self, regions: Regions) -> Tensor:
        """Where P pairs changed, class ids uint8 [P, H, W]."""
        return classes_of(regions.evidence.logits(self.inputs.size)[:, :, 0])

    def memory(self, before_after: Tensor) -> Tensor:
        """See `EncoderDecoder`."""
        return self.rounds_of(before_after)[0]

    def logits(self, ids: Tensor, memory: Tensor) -> Tensor:
        """Of the next word at each position, [B, L, words]."""
        logits: Tensor = self.decoder(ids, memory)
        return logits

    def next_word(self) -> CachedDecoder:
        """The decoder with kept keys and values."""
        return CachedDecoder(self.decoder)

    @torch.inference_mode()
    def caption(self, before_after: Tensor, beams: int = 1) -> list[Caption]:
        """Captions of B pairs with their masks; see `CaptionModel.caption`."""
        assert not self.training, "eval() first: dropout would change the words"
        before_after = self.prepare(before_after)
        memory, masks, _ = self.rounds_of(before_after)
        captions = self.decoded(memory, beams)
        strangeness = self.strangeness(before_after)
        return [
            replace(self._judged(caption, strange), mask=mask)
            for caption, strange, mask in zip(
                captions, strangeness, masks.cpu().numpy(), strict=True
            )
        ]


def overlap(one: Tensor, other: Tensor) -> Tensor:
    """Intersection over union of masks [P, H, W] of class ids; 1 where both are empty."""
    shared = ((one == other) & (one > 0)).sum((1, 2))
    union = ((one > 0) | (other > 0)).sum((1, 2))
    return torch.where(union > 0, shared / union.clamp(min=1), 1.0)
