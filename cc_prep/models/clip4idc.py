"""CLIP4IDC: CLIP made into an encoder of image pairs, to score a change against a caption.

The first blocks see each image alone, the others both images of a pair together. So the first
("intra") blocks run once a frame, however many pairs the frame is part of.
Source: Guo et al., "CLIP4IDC: CLIP for Image Difference Captioning", AACL 2022.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from cc_prep.errors import UserError
from cc_prep.models.clip import CONTEXT, TextEncoder, Transformer, count_layers
from cc_prep.settings import Conflict, Section

VOCABULARY = 49408  # byte pairs of CLIP


class Sizes(Section):
    """Sizes that a new CLIP4IDC may have."""

    embedding: int = Field(192, ge=1)
    """Channels in which texts and images are compared."""
    resolution: int = Field(112, ge=16)
    """Side of the images, in px; a multiple of `patch`."""
    patch: int = Field(16, ge=4)
    """Side of a patch, in px."""
    vision_width: int = Field(192, ge=64, multiple_of=64)
    """Channels of the visual blocks."""
    vision_layers: int = Field(8, ge=2)
    """Visual blocks."""
    context: int = Field(CONTEXT, ge=8, le=CONTEXT)
    """Byte pairs of a text."""
    text_width: int = Field(128, ge=64, multiple_of=64)
    """Channels of the text's blocks."""
    text_layers: int = Field(3, ge=1)
    """Blocks of the text."""

    @model_validator(mode="after")
    def _whole_patches(self) -> Sizes:
        if self.resolution % self.patch:
            raise Conflict(
                f"resolution {self.resolution} is no multiple of patch {self.patch}",
                "Change one of them",
            )
        return self


class Config(Sizes):
    """Sizes of a CLIP4IDC.

    Attributes:
        intra_layers: How many blocks see one image alone.
        vocabulary: Byte pairs that have a vector.
    """

    intra_layers: int
    vocabulary: int = VOCABULARY

    @property
    def tokens(self) -> int:
        """Tokens of an image: its patches and the class token."""
        return (self.resolution // self.patch) ** 2 + 1

    @property
    def caption_tokens(self) -> int:
        """Tokens of a caption; a network may have fewer positions than captions are given."""
        return min(CONTEXT, self.context)

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], intra_layers: int = 9) -> Config:
        """Read off a checkpoint's shapes, in which only `intra_layers` leaves no trace; the bounds
        of new ones do not count.
        """
        patches = len(tensors["visual.positional_embedding"]) - 1
        patch = tensors["visual.conv1.weight"].shape[-1]
        return cls.model_construct(
            embedding=tensors["text_projection"].shape[1],
            resolution=round(patches**0.5) * patch,
            patch=patch,
            vision_width=tensors["visual.conv1.weight"].shape[0],
            vision_layers=count_layers(tensors, "visual.transformer"),
            intra_layers=intra_layers,
            vocabulary=len(tensors["token_embedding.weight"]),
            context=len(tensors["positional_embedding"]),
            text_width=tensors["ln_final.weight"].shape[0],
            text_layers=count_layers(tensors, "transformer"),
        )


class PairEncoder(nn.Module):
    """The visual half: frames → tokens (intra), two frames' tokens → an embedding (inter)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, scale = config.vision_width, config.vision_width**-0.5
        self.tokens, self.intra_layers = config.tokens, config.intra_layers
        self.conv1 = nn.Conv2d(3, width, config.patch, config.patch, bias=False)
        self.class_embedding = nn.Parameter(scale * torch.randn(width))
        self.positional_embedding = nn.Parameter(scale * torch.randn(config.tokens, width))
        self.joint_positional_embedding = nn.Parameter(
            scale * torch.randn(2 * config.tokens, width)
        )
        self.bef_embedding = nn.Parameter(scale * torch.randn(width))
        self.aft_embedding = nn.Parameter(scale * torch.randn(width))
        self.ln_pre, self.ln_mid = nn.LayerNorm(width), nn.LayerNorm(width)
        self.transformer = Transformer(width, config.vision_layers)
        self.ln_post = nn.LayerNorm(width)
        self.proj = nn.Parameter(scale * torch.randn(width, config.embedding))

    def no_weight_decay(self) -> set[str]:
        """Parameters that weight decay spares, besides biases and norms."""
        return {"positional_embedding", "joint_positional_embedding", "proj"}

    def encode_frames(self, images: Tensor) -> Tensor:
        """Normalised images [N, 3, R, R] → tokens of each image alone [N, T, W]."""
        patches = self.conv1(images).flatten(2).transpose(1, 2)  # [N, T - 1, W]
        heads = self.class_embedding.expand(len(images), 1, -1)
        x = torch.cat((heads, patches), dim=1) + self.positional_embedding
        return self.transformer(self.ln_pre(x), stop=self.intra_layers)

    def encode_pairs(self, before: Tensor, after: Tensor) -> Tensor:
        """Tokens of two images, each [N, T, W] → the pair's embedding [N, E]."""
        return self.embed_joint(self.joint_tokens(before, after))

    def joint_tokens(self, before: Tensor, after: Tensor) -> Tensor:
        """Tokens of two images, each [N, T, W], after all joint blocks but the last: [N, 2T, W]."""
        x = torch.cat((before + self.bef_embedding, after + self.aft_embedding), dim=1)
        x = self.ln_mid(x + self.joint_positional_embedding)
        return self.transformer(x, start=self.intra_layers, stop=-1)

    def embed_joint(self, x: Tensor) -> Tensor:
        """What `joint_tokens` gives → the pairs' embeddings [N, E]."""
        classes = self.ln_post(self.transformer.last.forward_rows((0, self.tokens), x))
        return classes.mean(dim=1) @ self.proj


class CLIP4IDC(TextEncoder):
    """Pairs of images and captions in one space."""

    def __init__(self, config: Config) -> None:
        super().__init__(
            config.vocabulary,
            config.context,
            config.text_width,
            config.text_layers,
            config.embedding,
        )
        self.config = config
        self.visual = PairEncoder(config)
        self.logit_scale = nn.Parameter(torch.tensor(1 / 0.07).log())

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], intra_layers: int = 9) -> CLIP4IDC:
        """A network with a checkpoint's tensors.

        Names may carry the prefix `clip.` of CLIP4IDC's own files. Raises UserError naming what is
        missing or left over.
        """
        own = {name.removeprefix("clip."): tensor.float() for name, tensor in tensors.items()}
        own = {name: tensor for name, tensor in own.items() if name not in UNUSED}
        if "token_embedding.rows" in own:
            own = _with_all_words(own)
        try:
            config = Config.of(own, intra_layers)
        except KeyError as error:
            reason = f"these are no CLIP4IDC weights: no {error.args[0]} in them"
            raise UserError(reason, "Give a checkpoint of CLIP4IDC, or clip4idc-mini") from None
        network = cls(config)
        expected = network.state_dict().keys()
        missing, surplus = sorted(expected - own.keys()), sorted(own.keys() - expected)
        if missing or surplus:
            differences = [
                f"{len(names)} {what} ({', '.join(names[:4])}{', …' if len(names) > 4 else ''})"
                for what, names in (("missing", missing), ("left over", surplus))
                if names
            ]
            raise UserError(
                f"these are no CLIP4IDC weights: {'; '.join(differences)}",
                "Plain CLIP weights are where training starts, they cannot score",
            )
        network.load_state_dict(own)
        return network.eval()

    def similarity(self, text: Tensor, pairs: Tensor) -> Tensor:
        """Logits [texts, pairs] of embeddings [texts, E] and [pairs, E], any length each.

        In float32 also under autocast: bfloat16 rounds logits of up to 100 to half a unit.
        """
        with torch.autocast(text.device.type, enabled=False):
            text, pairs = text.float(), pairs.float()
            text = text / text.norm(dim=-1, keepdim=True)
            pairs = pairs / pairs.norm(dim=-1, keepdim=True)
            return self.logit_scale.exp() * text @ pairs.T

    def score_tokens(self, tokens: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        """How well (before, frame) and (frame, after) fit the captions, for every frame.

        Args:
            tokens: Of `encode_frames`, [F, T, W], before first and after last.
            text: Embeddings [C, E].

        Returns:
            `bef_inter_sim` and `inter_aft_sim`, logits [C, F] each.
        """
        # (before, after) is the last pair of the one and the first of the other: encoded once.
        first, last = (end.expand_as(tokens) for end in (tokens[:1], tokens[-1:]))
        lefts, rights = torch.cat((first, tokens[1:])), torch.cat((tokens, last[1:]))
        similarity = self.similarity(text, self.visual.encode_pairs(lefts, rights))
        return similarity[:, : len(tokens)], similarity[:, len(tokens) - 1 :]

    def image_similarity(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """How similar each frame is to either end by the images alone: logits [F] each.

        Args:
            tokens: Of `encode_frames`, [F, T, W]. The cosine between the frames' mean tokens, on
                the scale of the captions' logits, so that the same keyframe rule fits both. In
                float32, as `similarity`.
        """
        with torch.autocast(tokens.device.type, enabled=False):
            mean = tokens.float().mean(dim=1)
            mean = mean / mean.norm(dim=-1, keepdim=True)
            similarity = self.logit_scale.exp() * mean @ mean[[0, -1]].T
        return similarity[:, 0], similarity[:, 1]


def _with_all_words(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A packed file's word table in full: words that its training never saw are zero."""
    rows = tensors["token_embedding.rows"].long()
    trained_rows = tensors["token_embedding.weight"]
    if len(rows) != len(trained_rows) or rows.min() < 0 or rows.max() >= VOCABULARY:
        raise UserError("token_embedding.rows does not fit the word table")
    table = trained_rows.new_zeros((VOCABULARY, trained_rows.shape[1]))
    table[rows] = trained_rows
    others = {name: t for name, t in tensors.items() if name != "token_embedding.rows"}
    return {**others, "token_embedding.weight": table}


# Buffers of OpenAI's archives that say sizes and are no weights.
UNUSED = frozenset({"input_resolution", "context_length", "vocab_size"})
