"""Images for a text-only language model: grid features of a frozen network, compared.

Before, after and their differences become a few tokens of the prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from cc_train.layers.pair_comparison import (
    Changes,
    change_bridge,
    change_kinds,
    change_tokens,
)
from cc_train.layers.pair_encoder import EncoderSettings, FeatureComparison
from cc_train.systems.mllm.attention_tap import Rows


class Connector(EncoderSettings):
    """Sizes of the connector of `lm`."""

    grid: int = Field(3, ge=1)
    """Rows and columns of the tokens of places, which follow the summaries of the comparison."""
    rate: float = Field(1.0, gt=0)
    """Its learning rate in units of `loop.learning_rate`; new weights learn faster than adapters.
    """


class GridConnector(FeatureComparison):
    """Features float [B, 2, C, rows, columns] → tokens of a language model.

    Args:
        width: Of the language model.
        scale: The initial scale of the tokens, that of its words' embeddings.
    """

    def __init__(
        self, sizes: Connector, grid: tuple[int, int, int], width: int, scale: float
    ) -> None:
        super().__init__(grid, sizes)
        self.cells, self.scale = sizes.grid, scale
        self.bridge = change_bridge(sizes.width, width)
        self.kinds = change_kinds(width, self.summaries)

    @property
    def tokens(self) -> int:
        """Number of tokens of a pair."""
        return self.summaries + self.cells**2

    def tokens_of(self, changes: Changes, rows: int) -> Tensor:
        """Tokens [B, tokens, width]: summaries, then places row by row.

        Args:
            rows: Of the features.
        """

        def pool(places: Tensor) -> Tensor:
            grid = places.transpose(1, 2).unflatten(2, (rows, -1))
            return F.adaptive_avg_pool2d(grid, self.cells).flatten(2).transpose(1, 2)

        return change_tokens(changes, self.position, self.bridge, self.kinds, pool) * self.scale


@dataclass
class Output:
    """logits: of the next token. looked: attention of the connector to before and after,
    [B, places].
    """

    logits: Tensor
    looked: tuple[Rows, Rows]


class SeeingLanguageModel(nn.Module):
    """A language model whose prompt has the connector's tokens in place of `image`."""

    def __init__(self, language_model: nn.Module, connector: GridConnector, image: int) -> None:
        super().__init__()
        self.language_model, self.connector, self.image = language_model, connector, image

    @property
    def config(self) -> Any:
        """Configuration of the language model."""
        return self.language_model.config

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, features: Tensor, **options: Any
    ) -> Output:
        """The model's output for tokens int64 [B, L] and features [B, 2, C, rows, columns]."""
        words, changes = self._embedded(input_ids, features)
        logits = self.language_model(
            inputs_embeds=words, attention_mask=attention_mask, **options
        ).logits
        looked = tuple(
            Rows(scores.float().softmax(-1)[:, None], scores.float()[:, None])
            for scores in (changes.before, changes.after)
        )
        return Output(logits, looked)  # type: ignore[arg-type]

    @torch.no_grad()
    def generate(
        self, input_ids: Tensor, attention_mask: Tensor, features: Tensor, **options: Any
    ) -> Any:
        """The result of transformers' `generate`, without the prompt."""
        words, _ = self._embedded(input_ids, features)
        return self.language_model.generate(  # type: ignore[operator]
            inputs_embeds=words, attention_mask=attention_mask, **options
        )

    def _embedded(self, ids: Tensor, features: Tensor) -> tuple[Tensor, Changes]:
        changes = self.connector.changes(features)
        tokens = self.connector.tokens_of(changes, features.shape[3])
        places = ids == self.image
        embed = self.language_model.get_input_embeddings()  # type: ignore[operator]
        words: Tensor = embed(ids.masked_fill(places, 0))  # the mark is no word of the model
        return words.masked_scatter(places[..., None], tokens.to(words.dtype)), changes
