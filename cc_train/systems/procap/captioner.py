"""ProCap's captioner: two images in, a sentence out.

Before, `queries · n_I` procedure queries and after go through the procedure encoder; a bridge
leads to the caption decoder. Names follow the reference's `model.chkpt`: `intermediate_generator`
(the encoder), `mlp`, `text_decoder.decoder`.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from cc_prep.errors import UserError
from cc_prep.settings import Section
from cc_train.captioner import EncoderDecoder, Inputs
from cc_train.data.feature_statistics import Statistics
from cc_train.decoding.cached_decoder import CachedDecoder
from cc_train.layers.caption_decoder import CaptionDecoder, DecoderSettings
from cc_train.layers.feature_grid import ood_score
from cc_train.layers.pair_comparison import (
    Changes,
    Comparison,
    change_bridge,
    change_kinds,
    change_tokens,
)
from cc_train.layers.pair_encoder import feature_adapter
from cc_train.layers.with_frozen import WithFrozen
from cc_train.systems.procap import visualise
from cc_train.systems.procap.frame_features import FrameFeatures, as_input
from cc_train.systems.procap.procedure_encoder import ProcedureEncoder
from cc_train.text import TextCodec

Queries = Literal["shared", "independent"]


class Decoder(DecoderSettings):
    """Sizes of the caption decoder of stage 2."""

    reference_quirks: bool = False
    """Two deviations of ProCap's decoder (docs/training.md)."""


class ComparisonSettings(Section):
    """Sizes of a `Comparison` of the states of both ends."""

    heads: int = Field(4, ge=1)
    """Attention heads."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """The dropout."""
    skip: bool = False
    """Beside the states of an end, the features that the encoder was given of it are compared too,
    so that a change that the states hide is still seen."""


class Skip(nn.Module):
    """Features [N, C, rows, columns] of images, adapted as a captioner of pairs does, and the
    states [N, D, rows, columns] of the same places → [N, D, rows, columns].

    At the start the states add nothing, so that a comparison which knows features still works.
    """

    def __init__(self, width: int, channels: int) -> None:
        super().__init__()
        self.adapter = feature_adapter(channels, width)
        self.norm, self.states = nn.LayerNorm(width), nn.Linear(width, width)
        nn.init.zeros_(self.states.weight)
        nn.init.zeros_(self.states.bias)

    def forward(self, states: Tensor, features: Tensor) -> Tensor:
        added: Tensor = self.states(self.norm(states.movedim(1, -1))).movedim(-1, 1)
        adapted: Tensor = self.adapter(features)
        return adapted + added


class ProCap(WithFrozen, EncoderDecoder):
    """Two images → a sentence.

    Args:
        features: The frozen networks before the encoder; they are not in `state_dict`.
        queries: `shared` takes the encoder's mask vector for every query, told apart by their
            positions (the reference's code); `independent` gives every query a vector of its own
            that starts from it (the paper). Their number is that of the encoder's frames less two.
        reference_quirks: Two deviations of the reference's second stage, which its published
            weights need: paddings use the ids of words, and the attention mask is shifted by one
            row. The decoder's deviations are a setting of its own.
        comparison: The decoder attends to explicit differences between the states of both ends, and
            to those of the queries; without it, as in the paper, to all states alike.
    """

    features: FrameFeatures
    channel_mean: Tensor
    channel_spread: Tensor

    def __init__(
        self,
        encoder: ProcedureEncoder,
        decoder: Decoder,
        *,
        features: FrameFeatures,
        codec: TextCodec,
        queries: Queries = "shared",
        reference_quirks: bool = False,
        tokenizer: str | None = None,
        comparison: ComparisonSettings | None = None,
    ) -> None:
        sizes, factor = encoder.config, features.vqgan.config.factor
        size = (sizes.rows * factor, sizes.columns * factor)
        inputs = Inputs(size, features.kind, tokenizer=tokenizer, backbone=features.source)
        super().__init__(inputs, codec, decoder.length)
        self.intermediate_generator, self.reference_quirks = encoder, reference_quirks
        self.use_frozen("features", features)
        width = encoder.config.width
        self.mlp = nn.Sequential(
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, decoder.width),
            nn.LayerNorm(decoder.width),
        )
        self.text_decoder = nn.ModuleDict(
            {"decoder": CaptionDecoder(len(codec), decoder, decoder.reference_quirks)}
        )
        self.comparison: Comparison | None = None
        self.skip: Skip | None = None
        if comparison is not None:
            grid = sizes.rows, sizes.columns
            self.comparison = Comparison(width, grid, comparison.heads, comparison.dropout)
            if comparison.skip:
                self.skip = Skip(width, sizes.latent)
            self.bridge = change_bridge(width, decoder.width)
            self.kinds = change_kinds(decoder.width)
        self.queries: nn.Parameter | None = None
        if queries == "independent":
            count = (encoder.config.frames - 2) * encoder.config.frame_tokens
            self.queries = nn.Parameter(encoder.image_mask.detach().repeat(count, 1))
        if features.kind == "features":
            self.register_buffer("channel_mean", torch.zeros(sizes.latent))
            self.register_buffer("channel_spread", torch.ones(sizes.latent))

    def remember(self, training: Statistics) -> None:
        """Takes the statistics of the training features, for `ood_score`; only with features."""
        self.channel_mean.copy_(training.mean)
        self.channel_spread.copy_(training.spread)

    @property
    def encoder(self) -> ProcedureEncoder:
        """The procedure encoder."""
        return self.intermediate_generator

    @property
    def decoder(self) -> CaptionDecoder:
        """The caption decoder."""
        decoder = self.text_decoder["decoder"]
        assert isinstance(decoder, CaptionDecoder)
        return decoder

    def procedure(self, features: Tensor) -> Tensor:
        """Encoder outputs at all frame positions, [B, T · n, D], of features [B, 2, n, latent].

        Raises:
            UserError: For frames of another number of tokens than the encoder's.
        """
        return self.procedure_between(self.encoder.embed(features))

    def procedure_between(self, embedded: Tensor) -> Tensor:
        """`procedure` of what the encoder's `embed` made of both ends, [B, 2, n, D]."""
        encoder, sizes = self.encoder, self.encoder.config
        if embedded.shape[2] != sizes.frame_tokens:
            raise UserError(
                f"{embedded.shape[2]} tokens a frame, where the captioner was trained on "
                f"{sizes.rows} × {sizes.columns}",
                "Use shards of the image_size that it was trained on",
            )
        inner = (sizes.frames - 2) * sizes.frame_tokens
        queries = self.queries if self.queries is not None else encoder.image_mask
        middle = queries.expand(len(embedded), inner, -1)
        frames = torch.cat((embedded[:, 0], middle, embedded[:, 1]), dim=1)
        frames = frames + encoder.target_pos_emb()
        shape = (len(embedded), sizes.text_length)
        text = torch.zeros(shape, dtype=torch.long, device=embedded.device)
        control = encoder.control(text, related=False, reference_quirks=self.reference_quirks)
        return encoder.forward_frames(control, frames, self.reference_quirks)

    def prepare(self, before_after: Tensor) -> Tensor:
        """The backbone's features, where it has one: the backbone runs once."""
        backbone = self.features.backbone
        if backbone is None:
            return before_after
        features: Tensor = backbone.frozen(before_after)
        return features

    @torch.inference_mode()
    def ood_score(self, before_after: Tensor) -> list[float | None]:
        """How unlike the training images each pair is: see `feature_grid.ood_score`.

        None where the captioner reads tokens or pixels.
        """
        if self.features.backbone is None:
            return super().ood_score(before_after)
        means = self.features(as_input(before_after)).mean(2)
        scores: list[float | None]
        scores = ood_score(means, self.channel_mean, self.channel_spread).tolist()
        return scores

    def memory(self, before_after: Tensor) -> Tensor:
        """What the decoder attends to, [B, N, width]."""
        features = self.features(as_input(before_after))
        states = self.procedure(features)
        changes = None if self.comparison is None else self.changes(*self.ends(states, features))
        return self.attended(states, changes)

    def ends(self, states: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """What is compared of before and after as images, [B, D, rows, columns] each.

        Args:
            states: The encoder's, [B, T · n, D].
            features: What the encoder was given of both ends, [B, 2, n, latent].
        """
        sizes = self.encoder.config
        count, shape = sizes.frame_tokens, (sizes.rows, sizes.columns)
        ends = torch.stack((states[:, :count], states[:, -count:]), dim=1)
        images = ends.mT.unflatten(3, shape)
        if self.skip is not None:
            given = self.encoder.standardised(features).mT.unflatten(3, shape)
            mixed = self.skip(images.flatten(0, 1), given.flatten(0, 1))
            images = mixed.unflatten(0, images.shape[:2])
        before, after = images.unbind(1)
        return before, after

    def changes(self, before: Tensor, after: Tensor) -> Changes:
        """The differences between the states of both ends; only with a comparison."""
        assert self.comparison is not None
        changes: Changes = self.comparison(before, after)
        return changes

    def attended(self, states: Tensor, changes: Changes | None) -> Tensor:
        """What the decoder attends to, [B, N, width], of the encoder's states [B, T · n, D]."""
        if self.comparison is None or changes is None:
            everywhere: Tensor = self.mlp(states)
            return everywhere
        differences = change_tokens(changes, self.comparison.position, self.bridge, self.kinds)
        count = self.encoder.config.frame_tokens
        imagined = self.mlp(states[:, count:-count])
        return torch.cat((differences, imagined), dim=1)

    def logits(self, ids: Tensor, memory: Tensor) -> Tensor:
        """Logits of the next word at each position, float [B, L, words]."""
        logits: Tensor = self.decoder(ids, memory)
        return logits

    @torch.inference_mode()
    def imagine(self, before_after: Tensor) -> Tensor | None:
        """Images of the procedure queries' states, by stage 1's head and the VQGAN's decoder.

        None for an encoder that no stage 1 trained.
        """
        if not visualise.head_is_trained(self.encoder):
            return None
        states = self.procedure(self.features(as_input(before_after)))
        inner = visualise.between(states, self.encoder)
        return visualise.procedure(self.features, before_after, inner)

    def next_word(self) -> CachedDecoder:
        """The decoder with kept keys and values."""
        return CachedDecoder(self.decoder)
