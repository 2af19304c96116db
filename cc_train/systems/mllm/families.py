"""The families of multi-modal language models, as a table.

A family describes the models of one architecture: how a prompt marks the position of an image,
where attention can be read, which layers take adapters, and the order of an image's tokens.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import nn

from cc_prep.errors import UserError
from cc_train.systems.mllm.attention_tap import Reading

LAST = "{}"  # in the name of a module, a placeholder for the number of a layer
Part = Literal["vision", "bridge", "language"]
PARTS: tuple[Part, ...] = ("vision", "bridge", "language")


@dataclass(frozen=True)
class Family:
    """A row of the table.

    Attributes:
        model_types: `model_type` of the configurations that belong to it.
        marker: The token of a prompt at each position of an image token.
        image: An image in a prompt without a chat template, `{}` for its markers; a chat template
            writes one marker itself, and `around` is put around it.
        pixels: The input of the images of B pairs: `flat` [2B, …], `pairs` [B, 2, …], `patches` in
            merge order, or `features` of another network.
        vision, language: Names of the attention modules, `{}` for the number of a layer; empty if
            there are none.
        reading: How the vision module's attention is read.
        adapters: The layers that take adapters, by part, as regular expressions of whole names.
        queries: Image tokens are learned queries, which have no place in the image.
        crossing: The end of the names of the modules by which they see an image.
        question: The prompt goes to the bridge as well.
        chat: A chat template is used if there is one.
        space: The text between prompt and caption.
        mean, std: Of the pixels, if the folder does not have them.
    """

    name: str
    model_types: tuple[str, ...]
    marker: str = "<image>"
    image: str = "{}"
    around: str = "{}"
    pixels: Literal["flat", "pairs", "patches", "features", "processor"] = "flat"
    vision: str = ""
    language: str = ""
    reading: Reading = "received"
    adapters: Mapping[Part, str] = field(default_factory=dict)
    queries: bool = False
    crossing: str = ""
    question: bool = False
    chat: bool = True
    space: str = ""
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    @property
    def vision_encoder(self) -> str:
        """Name of the vision network; empty if it is not known."""
        return re.split(r"\.(?:encoder|blocks)\.", self.vision)[0]


CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
_LANGUAGE = r"self_attn\.(q_proj|k_proj|v_proj)"
_QFORMER = r"qformer\.encoder\.layer\.\d+\.(attention|crossattention)\.attention\.(query|key|value)"
_BLIP_VISION = r"vision_model\.encoder\.layers\.\d+\.self_attn\.qkv"

INSTRUCTBLIP = Family(
    "instructblip",
    ("instructblip",),
    vision="vision_model.encoder.layers.{}.self_attn",
    language="language_model.model.layers.{}.self_attn",
    reading="cls",
    adapters={
        "vision": _BLIP_VISION,
        "bridge": _QFORMER,
        "language": rf"language_model\.model\.layers\.\d+\.{_LANGUAGE}",
    },
    queries=True,
    crossing=".crossattention.attention",
    question=True,
    chat=False,
    mean=CLIP_MEAN,
    std=CLIP_STD,
)
BLIP2 = Family(
    "blip2",
    ("blip-2",),
    vision="vision_model.encoder.layers.{}.self_attn",
    language="language_model.model.decoder.layers.{}.self_attn",
    reading="cls",
    adapters={
        "vision": _BLIP_VISION,
        "bridge": _QFORMER,
        "language": rf"language_model\.model\.decoder\.layers\.\d+\.{_LANGUAGE}",
    },
    queries=True,
    crossing=".crossattention.attention",
    chat=False,
    space=" ",
    mean=CLIP_MEAN,
    std=CLIP_STD,
)
QWEN_VL = Family(
    "qwen_vl",
    ("qwen2_5_vl", "qwen3_vl"),
    marker="<|image_pad|>",
    image="<|vision_start|>{}<|vision_end|>",
    pixels="patches",
    vision="model.visual.blocks.{}.attn",
    language="model.language_model.layers.{}.self_attn",
    adapters={
        "vision": r"model\.visual\.blocks\.\d+\.attn\.qkv",
        "bridge": r"model\.visual\.merger\.(mlp\.[02]|linear_fc\d)",
        "language": rf"model\.language_model\.layers\.\d+\.{_LANGUAGE}",
    },
    mean=CLIP_MEAN,
    std=CLIP_STD,
)
SMOLVLM = Family(
    "smolvlm",
    ("smolvlm", "idefics3"),
    around="<fake_token_around_image><global-img>{}<fake_token_around_image>",
    pixels="pairs",
    vision="model.vision_model.encoder.layers.{}.self_attn",
    language="model.text_model.layers.{}.self_attn",
    adapters={
        "vision": rf"model\.vision_model\.encoder\.layers\.\d+\.{_LANGUAGE}",
        "bridge": r"model\.connector\.modality_projection\.proj",
        "language": rf"model\.text_model\.layers\.\d+\.{_LANGUAGE}",
    },
)
INTERNVL = Family(
    "internvl",
    ("internvl",),
    marker="<IMG_CONTEXT>",
    around="<img>{}</img>",
    vision="model.vision_tower.encoder.layer.{}.attention",
    language="model.language_model.layers.{}.self_attn",
    reading="cls",
    adapters={
        "vision": r"model\.vision_tower\.encoder\.layer\.\d+\.attention\.(q_proj|k_proj|v_proj)",
        "bridge": r"model\.multi_modal_projector\.linear_\d",
        "language": rf"model\.language_model\.layers\.\d+\.{_LANGUAGE}",
    },
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
)
# Any other model of images and text, by what its processor makes of a chat.
AUTO = Family(
    "auto",
    (),
    pixels="processor",
    adapters={"language": rf".*(language_model|text_model|decoder)\b.*\.{_LANGUAGE}"},
)
# A language model of text alone, which sees the features of a frozen network through a connector.
LM = Family(
    "lm",
    (),
    pixels="features",
    language="language_model.model.layers.{}.self_attn",
    adapters={"language": rf"language_model\.model\.layers\.\d+\.{_LANGUAGE}"},
    chat=False,
    space=" ",
)
FAMILIES = {one.name: one for one in (INSTRUCTBLIP, BLIP2, QWEN_VL, SMOLVLM, INTERNVL, AUTO, LM)}


def of_type(model_type: str) -> Family | None:
    """The family of a configuration's `model_type`; None if the table has none."""
    for family in FAMILIES.values():
        if model_type in family.model_types:
            return family
    return None


def attention_modules(model: nn.Module) -> list[str]:
    """The attention modules of a network, for a message: one name for all layers of a kind."""
    names = {
        re.sub(r"\.\d+\.", ".{}.", name)
        for name, module in model.named_modules()
        if re.search(r"(^|\.)(self_attn|attn|attention|self_attention)$", name)
        and any(True for _ in module.parameters())
    }
    return sorted(names)


def with_language(family: Family, model: nn.Module) -> Family:
    """The unknown family, with the attention modules of the language model in `model`.

    That is the one with the most layers of `self_attn` below a language model's usual names.
    """
    stacks = Counter(
        match[1]
        for name, _ in model.named_modules()
        if (
            match := re.fullmatch(
                r"(.*(language_model|text_model|decoder).*)\.\d+\.self_attn", name
            )
        )
    )
    if not stacks:
        return family
    return replace(family, language=f"{stacks.most_common(1)[0][0]}.{LAST}.self_attn")


def module_at(model: nn.Module, name: str, layer: int) -> tuple[nn.Module, int]:
    """An attention module and the number of its layer.

    Args:
        name: From the table.
        layer: Number of the layer; −1 is the last one.

    Raises:
        UserError: If there is no such module.
    """
    stack, _, rest = name.partition("." + LAST)
    try:
        layers = model.get_submodule(stack)
        count = len(layers)  # type: ignore[arg-type]
        number = layer % count if -count <= layer < count else layer
        return model.get_submodule(f"{stack}.{number}{rest}"), number
    except (AttributeError, TypeError, ZeroDivisionError):
        raise UserError(
            f"no module {name.format(layer)} to read attention from",
            f"Set attention.layer, or attention.where=none; this model has "
            f"{', '.join(attention_modules(model)) or 'no attention modules'}",
        ) from None
