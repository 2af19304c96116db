"""A pair captioner that says several changes, a sentence each, from a map of changes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cc_prep.composites import sentences as composed
from cc_prep.synth import grammar
from cc_train.captioner import Caption
from cc_train.data.supervision import SOLIDS, UNKNOWN
from cc_train.layers.caption_decoder import DecoderSettings
from cc_train.layers.change_map import ChangeMap, ChangeMaps, ChangeMapSettings, Found, peaks
from cc_train.layers.frozen_backbone import FrozenBackbone
from cc_train.layers.pair_encoder import EncoderSettings
from cc_train.systems.pair.captioner import PairCaptioner
from cc_train.text import TextCodec


@dataclass(frozen=True)
class Seen:
    """One change as it is read from a pair.

    Attributes:
        type: The word.
        values: The attributes of the object, by name.
        new: Its new color or material; empty for other types.
        log_chance: The logarithm of the chance that all of that is right.
    """

    type: str
    values: Mapping[str, str]
    new: str
    log_chance: float

    def __str__(self) -> str:
        """The plain sentence of `cc_prep.synth.grammar`."""
        it = " ".join(self.values[name] for name in grammar.FEATURES)
        return grammar.PLAIN[self.type].format(it=it, new=self.new)


class SeveralCaptioner(PairCaptioner):
    """Two images, or their stored features → a plain sentence for each change of a solid.

    The decoder of words is that of the captioner that it starts from, and is not used.
    """

    def __init__(
        self,
        backbone: FrozenBackbone,
        size: tuple[int, int],
        encoder: EncoderSettings,
        decoder: DecoderSettings,
        codec: TextCodec,
        attend_grid: bool,
        changes: ChangeMapSettings,
    ) -> None:
        super().__init__(backbone, size, encoder, decoder, codec, attend_grid, SOLIDS)
        self.change_map = ChangeMap(encoder.width, encoder.heads, changes, SOLIDS)

    def maps(self, grid: Tensor) -> ChangeMaps:
        """The maps of the differences between images, [P, N, D]."""
        maps: ChangeMaps = self.change_map(grid, self.encoder.position)
        return maps

    @torch.inference_mode()
    def caption(self, before_after: Tensor, beams: int = 1) -> list[Caption]:
        """Captions of B pairs; see `CaptionModel.caption`. There are no beams to search."""
        assert not self.training, "eval() first: dropout would change the words"
        features = self.prepare(before_after)
        images = self.encoder.images(features.flatten(0, 1)).unflatten(0, features.shape[:2])
        maps = self.maps(self.encoder(images[:, 0], images[:, 1]).grid)
        result = []
        for number, ood_score in enumerate(self.ood_score(features)):
            seen, nothing_else = self._seen(images[number], maps, number)
            text = grammar.SENTENCES_APART.join(map(str, seen)) or grammar.PLAIN_NO_CHANGE
            score = sum((one.log_chance for one in seen), nothing_else)
            result.append(self._judged(Caption(text, score=score), ood_score, beams=1))
        return result

    def _seen(self, images: Tensor, maps: ChangeMaps, number: int) -> tuple[list[Seen], float]:
        """The changes of a pair, and the logarithm of the chance that there are no others.

        Args:
            images: [2, D, rows, columns].
        """
        _, rows, columns = self.backbone.spec.grid
        seen, nothing_else = [], 0.0
        # What was added is seen in the second image, everything else in the first.
        for side, logits in enumerate((maps.before[number], maps.after[number])):
            chances = logits.softmax(1)
            added = list(SOLIDS.added)
            here = torch.zeros(len(SOLIDS.types), device=logits.device)
            here[added] = 1.0
            chances = chances * (here if side else 1 - here)
            chances[:, 0] = 0
            found, left = peaks(chances.cpu(), (rows, columns), self.change_map.settings.min_mass)
            nothing_else += math.log(max(1e-9, 1 - min(1.0, left)))
            seen += [self._read(one, images, maps.tokens[number], side) for one in found]
        return seen, nothing_else

    def _read(self, one: Found, images: Tensor, tokens: Tensor, side: int) -> Seen:
        """What changed at a place of the map of a side."""
        weights = one.weights.to(tokens.device)
        token = (weights[:, None] * tokens).sum(0, keepdim=True)
        place = torch.tensor([one.place], device=tokens.device)
        attributes = self.change_map.attributes(token) + self.encoder.attributes_at(
            images[side : side + 1], place
        )
        values, log_chance = {}, math.log(max(1e-9, one.mass))
        for name, chances in _log_chances(attributes):
            values[name] = SOLIDS.attributes[name][int(chances.argmax())]
            log_chance += float(chances.max())
        kind, new = SOLIDS.types[one.type], ""
        if composed.NEW.get(kind) in SOLIDS.new:
            other = images[1].flatten(1).T[None]
            where = self.change_map.counterparts(token, other, self.encoder.position).softmax(1)
            look = self.encoder.look((where[..., None] * other).sum(1))
            chances = self.change_map.new_values(token, look).log_softmax(1)[0]
            chances[SOLIDS.attributes[kind].index(values[kind])] = -math.inf
            new = SOLIDS.attributes[kind][int(chances.argmax())]
            log_chance += float(chances.max())
        elif kind == "material":
            new = next(name for name in SOLIDS.attributes[kind] if name != values[kind])
        return Seen(kind, values, new, log_chance)


def _log_chances(attributes: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The logarithms of the chances of each attribute's values, of logits [1, attributes]."""
    parts = attributes.float().split(SOLIDS.attribute_classes, dim=1)
    for name, part in zip(SOLIDS.attributes, parts, strict=True):
        yield name, part.log_softmax(1)[0]


def denominators(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """How many terms the losses of `losses` have."""
    both = (batch["change_before"] != UNKNOWN) & (batch["change_after"] != UNKNOWN)
    return {
        "changes": torch.tensor(len(batch["change_pair"]), device=both.device),
        "counterparts": both.sum(),
        "new_values": (batch["change_new"] != UNKNOWN).sum(),
    }


def losses(
    network: SeveralCaptioner,
    grid: Tensor,
    images: Tensor,
    batch: Mapping[str, Tensor],
    counts: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """The losses of the maps and of what is read from them, each divided by its denominator.

    Args:
        grid: The differences, [P, N, D].
        images: Adapted features of the images of a batch, [N, D, rows, columns].
    """
    maps, head = network.maps(grid), network.change_map
    sides = ((maps.before, batch["change_before"]), (maps.after, batch["change_after"]))
    places = [_map_loss(logits, cells, batch) for logits, cells in sides]
    result = {"changes": torch.stack(places).sum() / counts["changes"]}
    zero = torch.zeros((), device=grid.device)
    names = ("changed_attributes", "counterparts", "new_values")
    if not len(batch["change_pair"]):
        return {**result, **dict.fromkeys(names, zero)}
    pairs, added = batch["change_pair"], batch["change_before"] == UNKNOWN
    cells = torch.where(added, batch["change_after"], batch["change_before"])
    tokens = maps.tokens[pairs, cells]
    first, second = batch["first"][pairs], batch["second"][pairs]
    look = network.encoder.attributes_at(
        images[torch.where(added, second, first)], batch["change_location"]
    )
    parts = (head.attributes(tokens) + look).float().split(SOLIDS.attribute_classes, dim=1)
    attributes = [
        F.cross_entropy(part, batch["change_attributes"][:, i], reduction="sum")
        for i, part in enumerate(parts)
    ]
    result[names[0]] = torch.stack(attributes).sum() / counts["changes"]
    other = images[second].flatten(2).transpose(1, 2)
    where = head.counterparts(tokens, other, network.encoder.position)
    target = torch.where(added, UNKNOWN, batch["change_after"])
    result[names[1]] = _known_cross_entropy(where, target) / counts["counterparts"]
    pooled = (where.softmax(1)[..., None] * other.float()).sum(1)
    new = head.new_values(tokens, network.encoder.look(pooled))
    result[names[2]] = _known_cross_entropy(new, batch["change_new"]) / counts["new_values"]
    return result


def _map_loss(logits: Tensor, cells: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """Summed over all places of the pairs whose changes are known.

    Args:
        logits: [P, N, types].
        cells: Of the changes in that image, [K].
    """
    classes = torch.zeros(logits.shape[:2], dtype=torch.long, device=logits.device)
    there = cells != UNKNOWN
    classes[batch["change_pair"][there], cells[there]] = batch["change_type"][there]
    classes[~batch["has_changes"]] = UNKNOWN
    return _known_cross_entropy(logits.flatten(0, 1), classes.flatten())


def _known_cross_entropy(logits: Tensor, classes: Tensor) -> Tensor:
    return F.cross_entropy(logits, classes, ignore_index=UNKNOWN, reduction="sum")
