"""ProCap's captioner: two images in, a sentence out.

Before, `queries · n_I` procedure queries and after go through the procedure encoder; a bridge
leads to the caption decoder. Names follow the reference's `model.chkpt`: `intermediate_generator`
(the encoder), `mlp`, `text_decoder.decoder`.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from cc_prep.models.cpu.linear import Linear
from cc_train.layers import caption_decoder
from cc_train.layers.caption_decoder import CaptionDecoder
from cc_train.systems.procap.procedure_encoder import ProcedureEncoder

Queries = Literal["shared", "independent"]


class Captioner(nn.Module):
    """Features of two images → what the decoder attends to.

    queries: `shared` takes the encoder's mask vector for every query, told apart by their positions
        (the reference's code); `independent` gives every query a vector of its own that starts from
        it (the paper). Their number is that of the encoder's frames less two.
    compatible: with the reference's two slips of its second stage, for its published weights.
    """

    def __init__(
        self,
        encoder: ProcedureEncoder,
        decoder: caption_decoder.Config,
        queries: Queries = "shared",
        compatible: bool = False,
    ) -> None:
        super().__init__()
        self.intermediate_generator, self.compatible = encoder, compatible
        width = encoder.config.width
        self.mlp = nn.Sequential(
            Linear(width, width),
            nn.ReLU(),
            Linear(width, decoder.width),
            nn.LayerNorm(decoder.width),
        )
        self.text_decoder = nn.ModuleDict({"decoder": CaptionDecoder(decoder)})
        self.queries: nn.Parameter | None = None
        if queries == "independent":
            count = (encoder.config.frames - 2) * encoder.config.frame_tokens
            self.queries = nn.Parameter(encoder.image_mask.detach().repeat(count, 1))

    @property
    def encoder(self) -> ProcedureEncoder:
        """The procedure encoder."""
        return self.intermediate_generator

    @property
    def decoder(self) -> CaptionDecoder:
        """The caption decoder."""
        found = self.text_decoder["decoder"]
        assert isinstance(found, CaptionDecoder)
        return found

    def procedure(self, ends: Tensor) -> Tensor:
        """Encoder outputs at all frame positions, [B, T · n, D], of features [B, 2, n, latent]."""
        encoder, sizes = self.encoder, self.encoder.config
        seen = encoder.conv_to_embedding(ends)
        inner = (sizes.frames - 2) * sizes.frame_tokens
        queries = self.queries if self.queries is not None else encoder.image_mask
        middle = queries.expand(len(ends), inner, -1)
        frames = torch.cat((seen[:, 0], middle, seen[:, 1]), dim=1) + encoder.target_pos_emb()
        text = torch.zeros(len(ends), sizes.text_length, dtype=torch.long, device=ends.device)
        control = encoder.control(text, related=False, compatible=self.compatible)
        hidden: Tensor = encoder(control, frames, compatible=self.compatible)
        return hidden[:, control.shape[1] :]

    def memory(self, ends: Tensor) -> Tensor:
        """What the decoder attends to, [B, T · n, width]."""
        out: Tensor = self.mlp(self.procedure(ends))
        return out

    def forward(self, ends: Tensor, ids: Tensor) -> Tensor:
        """Logits [B, L, words] of features [B, 2, n, latent] and word ids [B, L]."""
        logits: Tensor = self.decoder(ids, self.memory(ends))
        return logits
