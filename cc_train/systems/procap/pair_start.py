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
from cc_train.runs import origin, stored_run, transfer
from cc_train.runs.stored_run import Run
from cc_train.sharing import hub
from cc_train.systems.procap.captioner import ComparisonSettings, Decoder, ProCap
from cc_train.text import VOCABULARY, Vocabulary

SYSTEM = "pair"
# Its names and those of `ProCap`. The statistics of channels have none: see `restandardised`.
NAMES = {
    "encoder.adapter.": "skip.adapter.",
    "encoder.": "comparison.",
    "decoder.": "text_decoder.decoder.",
    "bridge.": "bridge.",
    "kinds": "kinds",
}
STATISTICS = ("encoder.mean", "encoder.std", "encoder.spread")
WORD_TENSORS = ("text_decoder.decoder.out.weight", "text_decoder.decoder.out.bias")


def read(name: str) -> Run:
    """The run of `cc-train pair` that is called so.

    Raises:
        UserError: For another system, and for a captioner of pairs that sees what stage 2 does not.
    """
    run = stored_run.read(hub.locate(name), SYSTEM)
    settings = run.settings
    other = {
        "knows other facts than those of rendered solids": "facts" in settings,
        "tells its decoder where the change is": settings["encoder"].get("places", False),
        "says several changes": settings["decoder"].get("changes") is not None,
        "hides the grid from its decoder": not settings["decoder"].get("attend_grid", True),
    }
    for what, is_so in other.items():
        if is_so:
            raise UserError(
                f"init_pair: {name} {what}, unlike stage 2",
                "Give another captioner, such as captioner-mini, or init_pair=null",
            )
    return run


def about(run: Run, name: str) -> dict[str, str]:
    """What a run's settings say of the captioner of pairs that it started from."""
    started = origin.started_from(run.folder, name)
    assert started is not None
    return {key: started[key] for key in ("name", "sha256")}


def take_over(network: ProCap, run: Run, comparison: ComparisonSettings, decoder: Decoder) -> None:
    """Loads what a run of `cc-train pair` learned into a new captioner that compares features.

    Raises:
        UserError: For a run of another backbone or of other sizes.
    """
    assert network.features.backbone is not None
    spec = network.features.backbone.frozen.spec
    trained = BackboneSpec.of_json(run.settings["backbone"])
    frozen_backbone.require_same(run.folder, trained, spec, "set init_pair=null")
    transfer.require_same(run, "encoder.heads", comparison.heads, "comparison.heads")
    transfer.require_same(run, "decoder.heads", decoder.heads)
    transfer.take_over(network, _tensors(run, network), run.folder)


def _tensors(run: Run, network: ProCap) -> dict[str, Tensor]:
    """All tensors of the captioner, with those of the run in place of its own."""
    renamed = {
        _renamed(name): tensor for name, tensor in run.tensors.items() if name not in STATISTICS
    }
    own, codec = network.state_dict(), network.codec
    assert isinstance(codec, Vocabulary)
    rows = transfer.word_rows(Vocabulary.read(Path(run.folder) / VOCABULARY), codec)
    taken = own | transfer.with_rows(renamed, own, WORD_TENSORS, rows)
    first = "skip.adapter.0."
    weight, bias = (taken[first + part] for part in ("weight", "bias"))
    statistics = (run.tensors["encoder.mean"], run.tensors["encoder.std"])
    if weight.shape == own[first + "weight"].shape:  # `transfer.take_over` refuses other sizes
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
