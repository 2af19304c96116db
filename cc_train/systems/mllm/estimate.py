"""Memory that training a multi-modal LLM takes, estimated without its weights: `--dry-run`.

The network is made from its configuration on torch's meta device, where tensors have shapes and no
content. Parameters and what follows from their number are exact. Activations are an estimate:

- A layer counts the tensors that its backward pass needs: the output of every linear layer, the
  product of a gated MLP, the input of every norm (in float32 for an RMSNorm), and the float32 input
  and dropout mask of an adapter. Attention itself keeps no matrix (sdpa).
- The language model's logits count in the model's precision, in float32, and once more each for
  their logarithms and gradients; only for the tokens of captions, if no others are computed.
- A part keeps nothing if neither it nor a part before it is trained: it has no backward pass.
- With checkpointing a layer keeps its input alone, and one layer at a time computes the rest again.

What the allocator, CUDA's own libraries and fragmentation take comes on top.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from cc_prep.errors import UserError, first_line
from cc_train.systems.mllm import images, loading
from cc_train.systems.mllm.adapters import layers_of
from cc_train.systems.mllm.families import Part

GIB = 2**30
BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
FLOAT32 = BYTES["float32"]  # of adapters, their gradients and their optimizer's state
ADAM_STATES = 2  # running means of gradients and of their squares
LOGIT_COPIES = 3  # in float32: the logits, their logarithms, their gradients
PICTURES = 2  # of a pair, unless its images are pasted into one
VISION, BRIDGE, LANGUAGE, OTHER = PARTS = ("vision", "bridge", "language", "other")
LOGITS = "lm_head"  # of the language model, of fewer tokens than its other layers
# The bridge comes first: Qwen's is within its vision model.
_BRIDGE = re.compile(
    r"(^|\.)(qformer|query_tokens|merger|deepstack_merger_list|connector|multi_modal_projector|"
    r"language_projection)(\.|$)"
)
_VISION = re.compile(r"(^|\.)(vision_model|vision_tower|visual)(\.|$)")
_LANGUAGE = re.compile(r"(^|\.)(language_model|text_model|lm_head)(\.|$)")
Precision = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class PartSize:
    """A part of a model.

    Attributes:
        parameters: Number without adapters.
        trainable: Number in adapters.
    """

    name: str
    parameters: int
    trainable: int


@dataclass(frozen=True)
class Estimate:
    """Sizes of a training, in parameters and bytes.

    Attributes:
        weights: Of the frozen model.
        adapters, gradients, optimizer: Of the trained tensors.
        activations: An estimate, for a step's batch of `batch_size` pairs of `sequence_length`
            tokens.
    """

    parts: tuple[PartSize, ...]
    weights: int
    adapters: int
    gradients: int
    optimizer: int
    activations: int
    batch_size: int
    sequence_length: int
    precision: str
    checkpointing: bool

    @property
    def parameters(self) -> int:
        """Number of parameters of the model without adapters."""
        return sum(part.parameters for part in self.parts)

    @property
    def trainable(self) -> int:
        """Number of parameters of all adapters."""
        return sum(part.trainable for part in self.parts)

    @property
    def total(self) -> int:
        """Total bytes."""
        return self.weights + self.adapters + self.gradients + self.optimizer + self.activations

    def table(self) -> str:
        """The sizes as lines of text."""
        lines = [f"{'part':<12}{'parameters':>14}{'adapters':>12}"]
        for part in self.parts:
            lines.append(f"{part.name:<12}{_millions(part.parameters):>14}"
                         f"{_millions(part.trainable):>12}")  # fmt: skip
        share = self.trainable / (self.parameters + self.trainable)
        lines += [
            f"{'all':<12}{_millions(self.parameters):>14}{_millions(self.trainable):>12}"
            f"   {100 * share:.3f} % are trained",
            "",
        ]
        checkpointing = "with checkpointing" if self.checkpointing else "without checkpointing"
        pairs = "1 pair" if self.batch_size == 1 else f"{self.batch_size} pairs"
        rows = (
            ("weights", self.weights, self.precision),
            ("adapters", self.adapters, "float32"),
            ("gradients", self.gradients, "float32, of the adapters"),
            ("optimizer", self.optimizer, "AdamW, of the adapters"),
            ("activations", self.activations,
             f"estimated: {pairs} of {self.sequence_length} tokens, {checkpointing}"),
            ("in all", self.total, "and what CUDA's libraries and the allocator take"),
        )  # fmt: skip
        lines += [f"{name:<12}{_gib(size):>14}   {about}" for name, size, about in rows]
        return "\n".join(lines) + "\n"


def estimate(
    config: Any,
    lora: Mapping[Part, tuple[str, int]],
    *,
    batch_size: int = 16,
    precision: Precision = "bfloat16",
    checkpointing: bool = False,
    sequence_length: int = 160,
    image_size: int | None = None,
    caption_length: int | None = None,
    pictures: int = PICTURES,
) -> Estimate:
    """The sizes of a training with adapters.

    Args:
        config: The configuration of a model, whose weights need not be there.
        lora: By part the layers that get adapters, as a regular expression of their whole names,
            and the rank; rank 0 is none.
        batch_size: Pairs whose backward pass is run at a time.
        precision: Of the frozen weights.
        sequence_length: Tokens of a pair in the language model, the images' places among them.
        image_size: In px; None for the configuration's, or where a model takes any, for 16 × 16
            places.
        caption_length: Tokens of a pair for which logits are computed; None for all.
        pictures: That the vision network sees of a pair.

    Raises:
        UserError: For a configuration that is no language model's, and for an expression that
            matches no layer.
    """
    network = _on_meta(config)
    ranks = _ranks(network, lora)
    size = BYTES[precision]
    trainable = dict.fromkeys(PARTS, 0)
    for name, rank in ranks.items():
        layer = network.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        trainable[part_of(name)] += rank * (layer.in_features + layer.out_features)
    count = dict.fromkeys(PARTS, 0)
    for name, parameter in network.named_parameters():  # a tied one once
        count[part_of(name)] += parameter.numel()
    adapters = FLOAT32 * sum(trainable.values())
    tokens = _tokens(config, batch_size, sequence_length, image_size, pictures)
    tokens[LOGITS] = batch_size * min(sequence_length, caption_length or sequence_length)
    return Estimate(
        tuple(PartSize(name, count[name], trainable[name]) for name in PARTS if count[name]),
        weights=size * sum(count.values()),
        adapters=adapters,
        gradients=adapters,
        optimizer=ADAM_STATES * adapters,
        activations=_activations(network, ranks, tokens, size, checkpointing),
        batch_size=batch_size,
        sequence_length=sequence_length,
        precision=precision,
        checkpointing=checkpointing,
    )


def part_of(name: str) -> str:
    """The part of a model that a module or parameter of this name belongs to, one of PARTS."""
    for part, pattern in ((BRIDGE, _BRIDGE), (VISION, _VISION), (LANGUAGE, _LANGUAGE)):
        if pattern.search(name):
            return part
    return OTHER


def _on_meta(config: Any) -> nn.Module:
    """The network of a configuration, without content.

    A text-only network is put under `language_model`, as in a captioner of stored features.
    """
    try:
        network = loading.empty(config)
    except (ValueError, AttributeError, TypeError) as error:
        raise UserError(
            f"{getattr(config, 'model_type', config)}: no language model ({first_line(error)})",
            "Give the folder of one",
        ) from None
    sees = getattr(config, "vision_config", None) is not None
    return network if sees else nn.ModuleDict({"language_model": network})


def _ranks(network: nn.Module, lora: Mapping[Part, tuple[str, int]]) -> dict[str, int]:
    """The rank of each linear layer that gets an adapter. Raises UserError."""
    chosen = {part: expression for part, (expression, rank) in lora.items() if rank}
    layers = layers_of(network, chosen)
    return {name: lora[part][1] for part, names in layers.items() for name in names}


def _tokens(
    config: Any, batch_size: int, sequence_length: int, image_size: int | None, pictures: int
) -> dict[str, int]:
    """Tokens of a batch that pass through each part."""
    vision = getattr(config, "vision_config", config)
    patch, merge = images.side_of(getattr(vision, "patch_size", 14)), images.merge_of(config)
    own = getattr(vision, "image_size", None) or images.UNITS * patch * merge
    patches = ((image_size or images.side_of(own)) // patch) ** 2
    queries = getattr(config, "num_query_tokens", None) or patches // merge**2
    seen, language = pictures * batch_size, batch_size * sequence_length
    return {VISION: seen * patches, BRIDGE: seen * queries, LANGUAGE: language, OTHER: language}


@dataclass
class _Layer:
    """Bytes that a layer keeps for each token.

    Attributes:
        whole: All that its backward pass needs.
        input: Its input alone.
    """

    whole: int = 0
    input: int = 0


def _activations(
    network: nn.Module,
    ranks: Mapping[str, int],
    tokens: Mapping[str, int],
    size: int,
    checkpointing: bool,
) -> int:
    """Bytes that a step keeps for its backward pass, by the rules at the head of this module."""
    layers: dict[tuple[str, str], _Layer] = {}
    for name, module in network.named_modules():
        per_token = _kept(name, module, ranks, size)
        if per_token:
            of = LOGITS if _is_head(name) else _layer_of(name)
            layer = layers.setdefault((part_of(name), of), _Layer())
            layer.whole += per_token
            if not layer.input:  # the first is the norm, or the layer, that reads the input
                layer.input = size * _width(module)
    trained = {part_of(name) for name in ranks}
    total, largest = 0, 0
    for part in _with_backward(trained):
        for (of, name), layer in layers.items():
            if of != part:
                continue
            count = tokens[LOGITS if name == LOGITS else part]
            if checkpointing and name not in ("", LOGITS):
                total += count * layer.input
                largest = max(largest, count * layer.whole)
            else:
                total += count * layer.whole
    return total + largest


def _with_backward(trained: set[str]) -> Iterator[str]:
    """The parts through which gradients pass: the first trained part, and all after it."""
    started = False
    for part in (VISION, BRIDGE, OTHER, LANGUAGE):
        started = started or part in trained
        if started:
            yield part


def _kept(name: str, module: nn.Module, ranks: Mapping[str, int], size: int) -> int:
    """Bytes that a module keeps for each token for the backward pass."""
    if isinstance(module, nn.Linear):
        per_token = size * module.out_features
        leaf = name.rpartition(".")[2]
        if _is_head(name):
            per_token += LOGIT_COPIES * FLOAT32 * module.out_features
        if leaf == "gate_proj":
            per_token += size * module.out_features  # what the gate is multiplied by
        if name in ranks:
            per_token += (FLOAT32 + 1) * module.in_features + FLOAT32 * ranks[name]
        return per_token
    if isinstance(module, nn.LayerNorm):
        return size * _width(module)
    if "norm" in type(module).__name__.lower() and hasattr(module, "weight"):
        return FLOAT32 * _width(module)
    return 0


def _is_head(name: str) -> bool:
    """Whether a layer outputs the logits of words."""
    return name.rpartition(".")[2] == LOGITS


def _width(module: nn.Module) -> int:
    """Number of input channels of a linear layer or a norm."""
    if isinstance(module, nn.Linear):
        return module.in_features
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    return weight.numel()


def _layer_of(name: str) -> str:
    """The outermost numbered layer around a module, such as `model.layers.3`; else empty."""
    match = re.match(r"(.*?\.\d+)\.", f"{name}.")
    return match[1] if match else ""


def _millions(count: int) -> str:
    return f"{count / 1e6:,.2f} M"


def _gib(size: int) -> str:
    return f"{size / GIB:,.2f} GiB" if size >= GIB / 10 else f"{size / 2**20:,.1f} MiB"
