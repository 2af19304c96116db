"""LoRA on layers of a frozen model, with a separate rank for each part of it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import Field
from torch import nn

from cc_prep.errors import UserError
from cc_prep.settings import Section
from cc_train.systems.mllm.families import PARTS, Family, Part

DEFAULT_RANK = 8  # peft wants one; every layer has its own from a pattern


class Lora(Section):
    """Settings of the adapters."""

    vision: int = Field(4, ge=0)
    """Rank of the vision network's adapters; 0 leaves it frozen. `lm` has the language part alone.
    """
    bridge: int = Field(4, ge=0)
    """Rank between vision and language; 0 leaves it frozen."""
    language: int = Field(8, ge=0)
    """Rank of the language model's adapters; 0 leaves it frozen."""
    alpha: float = Field(2.0, gt=0)
    """The factor on an adapter's output, which is peft's `lora_alpha` divided by the rank."""
    dropout: float = Field(0.05, ge=0, lt=1)
    """The dropout."""
    targets: str | None = None
    """A regular expression of whole names of the language part's layers, instead of the family's.
    """

    def ranks(self) -> dict[Part, int]:
        """The rank of each part that has adapters."""
        return {part: rank for part in PARTS if (rank := getattr(self, part)) > 0}


def expressions(family: Family, lora: Lora) -> dict[Part, str]:
    """The layers of each part that get adapters, as a regular expression. Raises UserError.

    A part without an entry in the family's table gets no adapters.
    """
    known: Mapping[Part, str] = family.adapters
    if lora.targets is not None:
        if not lora.language:
            raise UserError(
                "lora.targets names layers of the language part, which lora.language=0 leaves out",
                "Set its rank, or leave lora.targets out",
            )
        try:
            re.compile(lora.targets)
        except re.error as error:
            raise UserError(
                f"lora.targets is no regular expression ({error})", "Escape dots as \\."
            ) from None
        known = {**known, "language": lora.targets}
    return {part: known[part] for part in lora.ranks() if part in known}


def layers_of(model: nn.Module, chosen: Mapping[Part, str]) -> dict[Part, list[str]]:
    """Names of the linear layers that get adapters, by part.

    Args:
        chosen: A regular expression of whole names for each part.

    Raises:
        UserError: For a part without such layers.
    """
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    matched = {
        part: [name for name in layers if re.fullmatch(expression, name)]
        for part, expression in chosen.items()
    }
    empty: Part | None = next((part for part, names in matched.items() if not names), None)
    if empty is not None:
        others = ", or lora.targets" if empty == "language" else ""
        raise UserError(
            f"no layer of this model is named as its {empty} adapters need ({chosen[empty]})",
            f"Set lora.{empty}=0{others}; it has such layers as {', '.join(sorted(layers)[:3])}",
        )
    return matched


def inject(model: nn.Module, family: Family, lora: Lora) -> list[str]:
    """Puts adapters into a model and returns the names of their layers.

    Afterwards only the adapters can be trained. They are float32 whatever the model's precision,
    and their initial output is 0.

    Raises:
        UserError: If no layer gets one.
    """
    chosen = expressions(family, lora)
    if not chosen:
        return []
    import peft

    matched = layers_of(model, chosen)
    ranks = lora.ranks()
    config = peft.LoraConfig(
        r=DEFAULT_RANK,
        lora_alpha=lora.alpha * DEFAULT_RANK,
        lora_dropout=lora.dropout,
        target_modules="|".join(f"({expression})" for expression in chosen.values()),
        rank_pattern={expression: ranks[part] for part, expression in chosen.items()},
        alpha_pattern={expression: lora.alpha * ranks[part] for part, expression in chosen.items()},
    )
    peft.inject_adapter_in_model(config, model)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()
    return [name for names in matched.values() for name in names]


def merge(model: nn.Module) -> None:
    """Adds every adapter to the weights that it adapts: the outputs stay, and take less time."""
    from peft.tuners.lora import LoraLayer

    for module in list(model.modules()):
        if isinstance(module, LoraLayer):
            module.merge()
