"""A renderer's knowledge of pairs, which CLIP4IDC learns besides captions.

From captions alone, a small untrained network learns slowly what they are about. So further heads,
which are not exported, predict facts: all objects from the tokens of each image; what changed, and
where, from a comparison of the tokens of both images; where something changed from the joint
tokens of both images, and what changed from those at that place; what changed from the pair's
embedding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cc_prep.models.clip4idc import Config
from cc_prep.records import Facts, ObjectAttributes
from cc_train.data.ordered_pairs import OrderedPair, facts_of, objects_of
from cc_train.data.supervision import SOLIDS, UNKNOWN
from cc_train.layers.pair_comparison import Comparison
from cc_train.training import fact_losses
from cc_train.training.fact_losses import FactLosses


def moved(facts: Facts, shift: tuple[float, float], mirror: bool) -> Facts:
    """The facts of a pair whose images were moved by a share (right, down) and then mirrored."""

    def of_object(attributes: ObjectAttributes) -> ObjectAttributes:
        u, v = attributes.location[0] + shift[0], attributes.location[1] + shift[1]
        return replace(attributes, location=(1 - u if mirror else u, v))

    return replace(
        facts,
        before=None if facts.before is None else of_object(facts.before),
        after=None if facts.after is None else of_object(facts.after),
        objects_before=tuple(map(of_object, facts.objects_before)),
        objects_after=tuple(map(of_object, facts.objects_after)),
    )


def batch_of(known: Sequence[Facts | None], grid: tuple[int, int]) -> dict[str, Tensor]:
    """Targets of the losses for N pairs and 2N images, with the keys of `OrderedPairBatches`.

    Images come in the order: all before, all after. A pair whose facts are None has no targets.

    Args:
        grid: Rows and columns of an image's tokens.
    """
    pairs = [OrderedPair(0, 0, (), True, facts) for facts in known]
    objects = [
        *(() if facts is None else facts.objects_before for facts in known),
        *(() if facts is None else facts.objects_after for facts in known),
    ]
    return {**facts_of(pairs, grid), **objects_of(objects, grid)}


class FactHeads(nn.Module):
    """The heads of a CLIP4IDC of these sizes."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        side = config.resolution // config.patch
        self.grid = (side, side)
        self.comparison = Comparison(config.vision_width, self.grid)
        self.location = nn.Linear(config.vision_width, 2)  # of before, and of after
        self.joint = nn.Linear(config.vision_width, sum(SOLIDS.fact_classes))
        self.pair = nn.Linear(config.embedding, sum(SOLIDS.fact_classes))

    def losses(
        self,
        tokens: Tensor,
        joint: Tensor,
        pairs: Tensor,
        batch: Mapping[str, Tensor],
        counts: Mapping[str, Tensor],
        weights: FactLosses,
    ) -> dict[str, Tensor]:
        """All losses of a batch by name, and `facts`, their weighted sum.

        Args:
            tokens: Of each image alone with its class token, [2N, 1 + n, W].
            joint: Of each pair, [N, 2 + 2n, W], before first.
            pairs: Embeddings [N, E].
            counts: The result of `fact_losses.denominators`.
        """
        images = tokens[:, 1:].mT.unflatten(2, self.grid)
        changes = self.comparison(*images.chunk(2))
        known = fact_losses.losses(self.comparison, changes, images, batch, counts)
        read = fact_losses.of_change(self.pair(pairs), batch["facts"], counts)
        seen = self._of_joint(joint, batch, counts)
        total = weights.total(known) + weights.of_change(read) + weights.of_change(seen)
        total = total + weights.location * (seen["location_before"] + seen["location_after"])
        names = {f"pair_{name}": loss for name, loss in read.items()}
        names |= {f"joint_{name}": loss for name, loss in seen.items()}
        return {"facts": total, **known, **names}

    def _of_joint(
        self, joint: Tensor, batch: Mapping[str, Tensor], counts: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The losses of where something changed, and of what changed at that place."""
        places, images = batch["places"], joint.chunk(2, dim=1)
        losses = {
            f"location_{name}": F.cross_entropy(
                self.location(images[i][:, 1:])[..., i].float(),
                places[:, i],
                ignore_index=UNKNOWN,
                reduction="sum",
            )
            / counts[f"location_{name}"]
            for i, name in enumerate(("before", "after"))
        }
        before, after = places.unbind(1)
        last = after != UNKNOWN  # after, where the object is there
        rows = 1 + torch.where(last, after + joint.shape[1] // 2, before)
        tokens = joint[torch.arange(len(joint), device=joint.device), rows]
        known = batch["facts"].masked_fill((~last & (before == UNKNOWN))[:, None], UNKNOWN)
        return {**losses, **fact_losses.of_change(self.joint(tokens), known, counts)}
