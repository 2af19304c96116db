"""The objective of CLIP4IDC: it pulls pairs to their captions and pushes others away.

Source: Guo et al., 2022. One addition: a caption that is as true of another pair in the batch (the
same sentence, or both pairs without change) shares the target with the caption of that pair.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from cc_prep.errors import UserError
from cc_prep.models.clip4idc import CLIP4IDC, Config, Sizes
from cc_prep.models.cpu import use_kernels
from cc_train.distributed import ALONE, Ranks
from cc_train.runs.checkpoints import Criterion
from cc_train.systems.clip4idc.known_facts import FactHeads
from cc_train.training import fact_losses, optim
from cc_train.training.fact_losses import FactLosses
from cc_train.training.loader import to_device
from cc_train.training.objective import Objective

MAX_SCALE = math.log(100)
RANKS = (1, 5, 10)
POSITION_SCALE = 0.5
SCRATCH_INTRA_LAYERS = 4
# What plain CLIP does not have.
NEW = ("joint_positional_embedding", "bef_embedding", "aft_embedding", "ln_mid")


class Network(Sizes):
    """Sizes of the CLIP4IDC, which --init replaces."""

    intra_layers: int | None = Field(None, ge=1)
    """How many visual blocks see one image alone. null: with --init the number that our training
    wrote into the weights, or 9 as the reference; without --init 4. A number is needed for weights
    of others with another one, and refused if it is not that of our own."""


class Clip4idcObjective(Objective):
    """Symmetric cross-entropy.

    A batch is {before, after: normalised [N, 3, R, R], tokens: int64 [N, L], positives: bool [M,
    M], whether caption i is true of pair j}; M is the N of all ranks together, which are compared
    with each other.

    Args:
        held_out: Such batches for validation.
        clip_lr_scale: Share of the learning rate for what came from CLIP.
        facts: Weights of the losses of what a renderer knows; batches then hold what
            `known_facts.batch_of` makes, too.
    """

    network: CLIP4IDC
    criterion = Criterion("recall", higher_is_better=True)
    over = "batch"

    def __init__(
        self,
        network: CLIP4IDC,
        held_out: Iterable[Mapping[str, Tensor]],
        *,
        weight_decay: float,
        clip_lr_scale: float,
        device: str,
        ranks: Ranks = ALONE,
        facts: FactLosses | None = None,
    ) -> None:
        super().__init__(use_kernels(network.to(device)))
        self.ranks, self.facts = ranks, facts
        self.held_out, self.device = held_out, device
        self.weight_decay, self.clip_lr_scale = weight_decay, clip_lr_scale
        self.heads = None if facts is None else FactHeads(network.config).to(device)
        if self.heads is not None:
            self.others["facts"] = self.heads

    def groups(self, phase: str) -> list[dict[str, Any]]:
        groups = optim.param_groups([self.network, *self.others.values()], self.weight_decay)
        if self.clip_lr_scale == 1:
            return groups
        new = {id(p) for n, p in self.network.named_parameters() if any(part in n for part in NEW)}
        new |= {id(p) for module in self.others.values() for p in module.parameters()}
        return [
            {**group, "params": [p for p in group["params"] if (id(p) in new) == fresh], "scale": s}
            for group in groups
            for fresh, s in ((True, 1.0), (False, self.clip_lr_scale))
        ]

    def denominators(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {} if self.heads is None else fact_losses.denominators(batch)

    def losses(
        self, phase: str, batch: Mapping[str, Tensor], step: int, denominators: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        tokens, joint, own_pairs, own_text = embed(self.network, batch)
        pairs, text = self.ranks.gather(own_pairs.float()), self.ranks.gather(own_text.float())
        logits = self.network.similarity(text, pairs)
        right = batch["positives"].float()
        to_pairs = F.cross_entropy(logits, right / right.sum(1, keepdim=True))
        to_text = F.cross_entropy(logits.T, right.T / right.T.sum(1, keepdim=True))
        contrast, scale = (to_pairs + to_text) / 2, self.network.logit_scale.detach().exp()
        if self.heads is None or self.facts is None:
            return {"total": contrast, "scale": scale}
        known = self.heads.losses(tokens, joint, own_pairs, batch, denominators, self.facts)
        return {"total": contrast + known["facts"], "contrast": contrast, "scale": scale, **known}

    def after_step(self, step: int) -> None:
        self.network.logit_scale.data.clamp_(max=MAX_SCALE)

    def validate(self, network: nn.Module) -> tuple[dict[str, float], np.ndarray | None]:
        assert isinstance(network, CLIP4IDC)
        return retrieval(network, self.held_out, self.device), None


def embed(network: CLIP4IDC, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens and embeddings of a batch of N pairs, four tensors.

    Tokens of each image alone, [2N, T, W], all before first; tokens of the pairs, [N, 2T, W];
    embeddings of the pairs and of the captions, [N, E] each.
    """
    tokens = network.visual.encode_frames(torch.cat((batch["before"], batch["after"])))
    joint = network.visual.joint_tokens(*tokens.chunk(2))
    return tokens, joint, network.visual.embed_joint(joint), network.encode_text(batch["tokens"])


def retrieval(
    network: CLIP4IDC, batches: Iterable[Mapping[str, Any]], device: str
) -> dict[str, float]:
    """R@1, R@5 and R@10 in percent, by caption and by pair, and the values of random retrieval.

    Each pair comes with one caption. A pair that shares its sentence with the query counts as
    right; a right pair that only ties with a wrong one does not. `recall` is the mean of the six
    metrics. If a similarity is not finite, all metrics except the random ones are NaN.
    """
    pairs, texts, captions = [], [], list[str]()
    for batch in batches:
        *_, pair, text = embed(network, to_device(batch, device))
        pairs.append(pair)
        texts.append(text)
        captions += batch["captions"]
    logits = network.similarity(torch.cat(texts).float(), torch.cat(pairs).float()).cpu()
    same = torch.tensor([[one == other for other in captions] for one in captions])
    finite = bool(torch.isfinite(logits).all())
    metrics: dict[str, float] = {}
    for way, scores, right in (("text", logits, same), ("pair", logits.T, same.T)):
        best = scores.masked_fill(~right, -math.inf).amax(1, keepdim=True)
        rank = ((scores >= best) & ~right).sum(1)
        for k in RANKS:
            metrics[f"{way}_r{k}"] = 100 * float((rank < k).float().mean()) if finite else math.nan
    metrics["recall"] = float(np.mean(list(metrics.values())))
    metrics |= {f"chance_r{k}": 100 * chance(same.sum(1).tolist(), k) for k in RANKS}
    return metrics


def chance(counts: Sequence[int], k: int) -> float:
    """Probability that one of the first `k` pairs in a random order is right, over all sentences.

    Args:
        counts: For each sentence, the number of pairs that it is true of. There are as many
            sentences as pairs.
    """
    total = len(counts)
    ways = math.comb(total, min(k, total))
    return float(np.mean([1 - math.comb(total - count, min(k, total)) / ways for count in counts]))


def from_clip(tensors: Mapping[str, Tensor], intra_layers: int) -> CLIP4IDC:
    """A CLIP4IDC that starts from plain CLIP, or from CLIP4IDC's own weights.

    The embeddings that CLIP lacks start from copies: both images' embeddings from the class
    embedding, the joint positions from the positions twice, `ln_mid` from `ln_pre`.

    Raises:
        UserError: For what is neither.
    """
    own = {name.removeprefix("clip."): tensor for name, tensor in tensors.items()}
    try:
        if "visual.joint_positional_embedding" not in own:
            places = own["visual.positional_embedding"]
            own["visual.joint_positional_embedding"] = torch.cat((places, places))
            for name in ("bef", "aft"):
                own[f"visual.{name}_embedding"] = own["visual.class_embedding"].clone()
            for part in ("weight", "bias"):
                own[f"visual.ln_mid.{part}"] = own[f"visual.ln_pre.{part}"].clone()
    except KeyError as error:
        raise UserError(
            f"these are no CLIP weights: no {error.args[0]} in them",
            "Give OpenAI's ViT-B-32.pt, or a CLIP4IDC checkpoint",
        ) from None
    return CLIP4IDC.from_tensors(own, intra_layers)


def from_scratch(sizes: Network) -> CLIP4IDC:
    """An untrained CLIP4IDC.

    Positions start as sines and cosines, the same ones for both images: so from the first step a
    patch can find its neighbours, and its own place in the other image. From noise this alone takes
    thousands of steps on a small data set.
    """
    known = {"intra_layers": SCRATCH_INTRA_LAYERS, **sizes.model_dump(exclude_none=True)}
    network = CLIP4IDC(Config(**known))
    side = sizes.resolution // sizes.patch
    places = POSITION_SCALE * sinusoids_2d(side, sizes.vision_width)
    network.visual.positional_embedding.data.copy_(places)
    network.visual.joint_positional_embedding.data.copy_(torch.cat((places, places)))
    return network


def sinusoids_2d(side: int, width: int) -> Tensor:
    """Sines and cosines of row and column, [1 + side², width], zeros for the class token.

    Source: Vaswani et al., 2017, for each of two axes.
    """
    quarter = width // 4
    frequencies = 100.0 ** -(torch.arange(quarter) / quarter)
    angles = torch.arange(side)[:, None] * frequencies  # [side, W / 4]
    axis = torch.cat((angles.sin(), angles.cos()), dim=1)  # [side, W / 2]
    rows = axis[:, None].expand(side, side, -1)
    columns = axis[None].expand(side, side, -1)
    grid = torch.cat((rows, columns), dim=2).reshape(side * side, 4 * quarter)
    return torch.cat((torch.zeros(1, width), grid))
