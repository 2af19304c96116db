"""The next word of a sentence: the protocol that decoding knows, and a plain way to serve it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


class State(Protocol):
    """What a decoder remembers of the sentences so far."""

    def select(self, rows: Tensor) -> Any:
        """The state of the sentences with these row numbers, int64 [B']; a row may occur twice."""
        ...


class NextWord(Protocol):
    """A decoder, one word at a time.

    Attributes:
        length: Positions of a sentence, its begin and end marks included.
    """

    @property
    def length(self) -> int: ...

    def start(self, memory: Tensor) -> Any:
        """The state before the first word of len(memory) sentences."""
        ...

    def step(self, ids: Tensor, memory: Tensor, state: Any) -> Tensor:
        """Logits [B, vocabulary] of the word after ids int64 [B], which are added to `state`.

        Args:
            memory: What the decoder attends to, [B, …].
        """
        ...


@dataclass
class Prefix:
    """All ids so far, int64 [B, words]."""

    ids: Tensor

    def select(self, rows: Tensor) -> Prefix:
        """The prefixes of some sentences."""
        return Prefix(self.ids[rows])


@dataclass(frozen=True)
class Recomputing:
    """A `NextWord` of any decoder: each step runs it over all words so far.

    Attributes:
        decoder: (ids int64 [B, L], memory) → logits [B, L, vocabulary].
    """

    decoder: Callable[[Tensor, Tensor], Tensor]
    length: int

    def start(self, memory: Tensor) -> Prefix:
        """No words yet."""
        return Prefix(torch.empty(len(memory), 0, dtype=torch.long, device=memory.device))

    @torch.inference_mode()
    def step(self, ids: Tensor, memory: Tensor, state: Prefix) -> Tensor:
        """Logits [B, vocabulary]."""
        state.ids = torch.cat((state.ids, ids[:, None]), dim=1)
        return self.decoder(state.ids, memory)[:, -1]
