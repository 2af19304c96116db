"""Stage 2 from a captioner of pairs: its comparison, its decoder and its words.

What such a captioner knows of the features of both ends need not be learned again. The states of
the encoder, which it has never seen, add nothing at the start; the queries are seen at once.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from cc_prep.errors import UserError
from cc_train.layers import frozen_backbone
from cc_train.layers.feature_grid import Standardise
from cc_train.layers.frozen_backbone import BackboneSpec
from cc_train.runs import run_folder, stored_run, transfer
from cc_train.runs.stored_run import Run
from cc_train.systems.procap.captioner import ComparisonSettings, Decoder, ProCap
from cc_train.text import VOCABULARY, Vocabulary

SYSTEM = "pair"
# Its names, and those of `ProCap`; others, such as the statistics of channels, are left out.
NAMES = {
    "encoder.adapter.": "skip.adapter.",
    "encoder.": "comparison.",
    "decoder.": "text_decoder.decoder.",
    "bridge.": "bridge.",
    "kinds": "kinds",
}
STATISTICS = ("encoder.mean", "encoder.std", "encoder.spread")
WORD_TENSORS = ("text_decoder.decoder.out.weight", "text_decoder.decoder.out.bias")


def take_over(
    network: ProCap, name: str, comparison: ComparisonSettings | None, decoder: Decoder
) -> None:
    """Loads what the run `name` of `cc-train pair` learned into a new captioner.

    Raises:
        UserError: For a run of another system, of another backbone or of other sizes, and for a
            captioner that does not compare features.
    """
    if network.skip is None or comparison is None or network.features.backbone is None:
        raise UserError(
            f"init_pair: {name} compares features, and this captioner compares none",
            "Set comparison.skip=true and frames=features, or init_pair=null",
        )
    folder = run_folder.locate(name)
    run = stored_run.read(folder, SYSTEM)
    frozen = network.features.backbone.frozen
    trained = BackboneSpec.of_json(run.settings["backbone"])
    frozen_backbone.require_same(folder, trained, frozen.spec)
    transfer.require_same(run, "encoder.heads", comparison.heads, "comparison.heads")
    transfer.require_same(run, "decoder.heads", decoder.heads)
    transfer.take_over(network, _tensors(run, network), folder)


def _tensors(run: Run, network: ProCap) -> dict[str, Tensor]:
    """All tensors of the captioner, with those of the run in place of its own."""
    renamed = {
        _renamed(name): tensor for name, tensor in run.tensors.items() if name not in STATISTICS
    }
    own, codec = network.state_dict(), network.codec
    assert isinstance(codec, Vocabulary)
    ids = Vocabulary.read(Path(run.folder) / VOCABULARY).ids
    rows = [ids.get(word) for word in codec.words]
    taken = own | transfer.with_rows(renamed, own, WORD_TENSORS, rows)
    first = "skip.adapter.0."
    weight, bias = (taken[first + part] for part in ("weight", "bias"))
    statistics = (run.tensors["encoder.mean"], run.tensors["encoder.std"])
    if weight.shape == own[first + "weight"].shape:
        moved = restandardised(weight, bias, statistics, network.encoder.standardise)
        taken[first + "weight"], taken[first + "bias"] = moved
    return taken


def _renamed(name: str) -> str:
    for theirs, ours in NAMES.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def restandardised(
    weight: Tensor, bias: Tensor, trained: tuple[Tensor, Tensor], given: Standardise | None
) -> tuple[Tensor, Tensor]:
    """A convolution [D, C, 1, 1] of channels that others standardised, for the same channels here.

    Args:
        bias: Of the convolution, [D].
        trained: Mean and deviation of the channels that it was trained with, [C] each.
        given: What standardises them here; None if nothing does.
    """
    mean, std = (part.double() for part in trained)
    wide, offset = weight.double(), bias.double()
    own_mean = torch.zeros_like(mean) if given is None else given.mean.double()
    own_std = torch.ones_like(std) if given is None else given.std.double()
    shift = (wide[:, :, 0, 0] * ((own_mean - mean) / std)).sum(1)
    scaled = wide * (own_std / std)[:, None, None]
    return scaled.to(weight.dtype), (offset + shift).to(bias.dtype)
