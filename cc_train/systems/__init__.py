"""The table of systems: each is a package here, and a command of `cc-train` by its name.

A system's module (its recipe) is imported only when it is used. It has

    Settings                      all settings, with defaults
    prepare(settings, request)    → `cc_train.training.task.Task`: what is trained on what; these
                                  two only if it is trained
    load(run, device)             → `cc_train.captioner.CaptionModel`; only if it is a captioner
    by_name(run)                  → files that `cc-train export --by-name` leaves out; optional
    imagine(run, pair, caption)   → the frames between two images; optional
    card(file, samples)           → what `cc-train export` measures; only if it is no captioner
    compact(tensors)              → the tensors that `cc-train export` stores; optional, with `card`

Code outside a system's package reaches it only through this table. The code that `pair` and `chain`
share is in `pair_trunk` and `pair_training`, which only systems import.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from cc_prep.errors import UserError


@dataclass(frozen=True)
class System:
    """A row of the table.

    Attributes:
        name: Of the command, and of the section in a manifest.
        module: Of the recipe.
        help: The help text of the command.
        valid: Whether it takes shards to validate on (--valid).
        init: Whether a training may start from a run or weights (--init), which its `prepare`
            then loads.
        ranks: Whether several processes can train it together.
        pictures: For the report, the legend of the pictures of its validation.
        attention: Whether captions have an attention map for each word.
        imagines: Whether it draws frames between two images.
        masks: Whether it predicts change masks.
        dry_run: The module whose `dry_run(settings)` estimates the cost of a training, as text.
        trains: Whether a command trains it.
        start_instead: By system, what its training may start from in place of a run of this one.
    """

    name: str
    module: str
    help: str
    valid: bool = True
    init: bool = True
    ranks: bool = True
    pictures: str = ""
    attention: bool = False
    imagines: bool = False
    masks: bool = False
    dry_run: str = ""
    trains: bool = True
    start_instead: Mapping[str, str] = field(default_factory=dict)


_SYSTEMS: dict[str, System] = {}
_IMPORTERS = {
    "procap": "cc_train.systems.procap.import_checkpoint",
    "scorer": "cc_train.systems.scorer.import_checkpoint",
}


def register(system: System) -> None:
    """Adds a system to the table."""
    assert system.name not in _SYSTEMS, system.name
    _SYSTEMS[system.name] = system


def names() -> list[str]:
    """The names of all systems that are trained, in the order in which they were registered."""
    return [name for name, system in _SYSTEMS.items() if system.trains]


def get(name: str) -> System:
    """The system of a name. Raises UserError."""
    if name not in _SYSTEMS:
        raise UserError(f"no system is named {name}", f"Known: {', '.join(_SYSTEMS)}")
    return _SYSTEMS[name]


def start_instead(name: str, system: str) -> str:
    """What a training of `system` may start from in place of a run of another; empty: one of its.

    Args:
        name: The other system, as a stranger's file may name it.
    """
    return _SYSTEMS[name].start_instead.get(system, "") if name in _SYSTEMS else ""


def importer(code: str) -> ModuleType:
    """The module whose `make_run` makes a run of a checkpoint of a published code."""
    return importlib.import_module(_IMPORTERS[code])


def dry_run(name: str, settings: Any) -> str:
    """The estimated cost of a training, as text. Raises UserError.

    Args:
        settings: Its recipe's.
    """
    text: str = importlib.import_module(get(name).dry_run).dry_run(settings)
    return text


def recipe(name: str) -> ModuleType:
    """The recipe of a system, imported on first use.

    Raises:
        UserError: For an unknown name.
    """
    return importlib.import_module(get(name).module)


register(
    System(
        "pair",
        "cc_train.systems.pair.recipe",
        """Trains a pair captioner on features of a frozen backbone.

        It compares the two images explicitly. On rendered data it also learns what the renderer
        knows: type of change, attributes and locations. The shards are built with
        --set features.backbone=efficientnet-lite0-x2. --init takes another run, or captioner-mini.
        More: docs/pair.md.

        \b
        Example:
          cc-train pair --shards 'out/pairs/shards/train-*.tar' --out out/pairs/captioner
        """,
    )
)
register(
    System(
        "chain",
        "cc_train.systems.chain.recipe",
        """Trains a captioner that also predicts a mask of the change.

        It finds regions of change, captions them, and refines each by the other in rounds. The
        shards hold masks, and features of a frozen backbone (--set
        features.backbone=efficientnet-lite0-x2); from pairs without a mask it learns the captions
        alone. --init takes another run, or one of cc-train pair, such as captioner-mini, for the
        encoder and the decoder. More: docs/chain.md.

        \b
        Example:
          cc-train chain --shards 'out/pairs/shards/train-*.tar' --init captioner-mini \\
              --out out/pairs/chain
        """,
        masks=True,
    )
)
register(
    System(
        "scorer",
        "cc_train.systems.scorer.recipe",
        """Trains SCORER with CBR on features of a frozen backbone.

        A contrastive loss between pairs teaches it to tell changes from differences between two
        views of a scene. The changed and the unchanged pair of a scene are trained on together. The
        shards are built with --set features.backbone=efficientnet-lite0, or resnet101 as published.
        --init takes another run. More: docs/scorer.md.

        \b
        Example:
          cc-train scorer --config clevr --shards 'out/clevr/shards/train-*.tar' \\
              --valid 'out/clevr/shards/val-*.tar' --out out/clevr/scorer
        """,
        attention=True,
    )
)
register(
    System(
        "stage1",
        "cc_train.systems.procap.stage1",
        """Trains ProCap's procedure encoder on training shards.

        It learns to reconstruct the masked tokens of the frames, to tell whether caption and frames
        belong together, and whether the frames are in order. --init takes CLIP's weights
        (ViT-B-32.pt): the encoder starts from their first blocks. More: docs/procap.md. Several
        GPUs: torchrun --nproc-per-node N -m cc_train stage1 …

        \b
        Example:
          cc-train stage1 --config clevr --shards 'out/clevr/shards/train-*.tar' \\
              --out out/clevr/stage1
        """,
        pictures="Three rows for each held-out sequence: its frames as the VQGAN decodes their "
        "tokens; what the encoder saw of them, grey where masked; its reconstruction.",
    )
)
register(
    System(
        "stage2",
        "cc_train.systems.procap.stage2",
        """Trains ProCap's captioner: procedure queries and a decoder.

        --init takes the folder of a stage-1 run, or CLIP's weights (ViT-B-32.pt) for an encoder of
        its width; without it the encoder starts from random weights. The best checkpoint is the one
        with the highest CIDEr in validation. More: docs/procap.md.

        \b
        Example:
          cc-train stage2 --config clevr --shards 'out/clevr/shards/train-*.tar' \\
              --valid 'out/clevr/shards/val-*.tar' --init out/clevr/stage1 --out out/clevr/stage2
        """,
        imagines=True,
    )
)
register(
    System(
        "mllm",
        "cc_train.systems.mllm.recipe",
        """Trains adapters of a multi-modal language model.

        The model is a folder on this machine; its weights stay frozen, and the run holds only the
        adapters. As in DAVIR, attention is drawn to the places where `cc-prep changes` found a
        change, and the prompt names what `cc-prep entities` found. --init takes a pair captioner,
        such as captioner-mini, for a language model that reads features. docs/mllm.md lists
        families.

        \b
        Example:
          cc-train mllm --set model.weights=/models/Qwen2.5-VL-3B-Instruct \\
              --shards 'out/spot/shards/train-*.tar' --out out/spot/davir
        """,
        attention=True,
        dry_run="cc_train.systems.mllm.dry_run",
    )
)
register(
    System(
        "vqgan",
        "cc_train.systems.vqgan.recipe",
        """Trains a VQGAN on all frames of sequence shards.

        The loss is L1, a perceptual distance and a patch discriminator. RUN gets checkpoints, a log
        as JSON lines and for TensorBoard, and pictures of reconstructions. --init takes a file of
        VQGAN weights. More: docs/training.md.

        \b
        Example:
          cc-train vqgan --shards 'out/clevr/sequences/train-*.tar' --out runs/vqgan
        """,
        valid=False,
        ranks=False,
        pictures="Held-out frames above what the network makes of them.",
    )
)
register(
    System(
        "clip4idc",
        "cc_train.systems.clip4idc.recipe",
        """Trains a CLIP4IDC on the captions of sequence shards.

        It starts from random weights, or with --init from CLIP's or CLIP4IDC's weights. Validation
        computes R@1, R@5 and R@10 in both directions on held-out pairs. More: docs/training.md.

        \b
        Example:
          cc-train clip4idc --shards 'out/clevr/sequences/train-*.tar' --out runs/clip4idc
        """,
        valid=False,
    )
)
register(
    System(
        "photos",
        "cc_train.systems.photos.recipe",
        "A captioner of photographs, which comes with the package as photos-mini.",
        masks=True,
        trains=False,
        start_instead={  # it is two frozen networks and a regression
            "pair": "photos-mini cannot be trained further. Give composites-mini with --set "
            "encoder.places=true"
        },
    )
)
