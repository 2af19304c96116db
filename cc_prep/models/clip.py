"""CLIP's transformer, tokenizer and text encoder, and the parts that its image encoders share.

Module names follow OpenAI's checkpoints, so their tensors load by name. Blocks are pre-norm with
QuickGELU: weights trained with it evaluate wrong, silently, under the exact GELU.
Source: Radford et al., 2021.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import distribution
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

_Place = tuple[torch.Size, tuple[int, ...], int]  # of a tensor in its storage

# Every CLIP has heads of 64 channels.
HEAD_WIDTH = 64
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
# Of OpenAI's own tokenizer, as `clip-anytorch` packages it.
START_TOKEN, END_TOKEN, PAD_TOKEN = 49406, 49407, 0
CONTEXT = 32
MAX_CHARACTERS = 4000  # of a text that are read: a word's time grows with the square of its length
TOKENIZER_PACKAGE, TOKENIZER_FILE = "clip-anytorch", "clip/simple_tokenizer.py"


@contextmanager
def recompute_in_backward(f: Callable[[Tensor], Tensor], x: Tensor) -> Iterator[Tensor]:
    """f(x) for what follows within; the backward pass makes it again, nothing keeps it until then.

    For an f that is cheap beside the layer it is for, and that needs x itself for its gradient:
    a norm, an activation.
    """
    output = f(x)
    # A compiler remakes by itself. On a GPU under autocast a copy in half precision is kept, which
    # no hook would know, and a hook in Python costs more than the memory is worth.
    if not torch.is_grad_enabled() or torch.compiler.is_compiling() or output.is_cuda:
        yield output
        return
    place = output.untyped_storage().data_ptr()

    def pack(saved: Tensor) -> Tensor | _Place:
        if saved.untyped_storage().data_ptr() != place:
            return saved
        return saved.shape, saved.stride(), int(saved.storage_offset())

    def unpack(packed: Tensor | _Place) -> Tensor:
        return packed if isinstance(packed, Tensor) else f(x).detach().as_strided(*packed)

    with saved_tensors_hooks(pack, unpack):
        yield output


@dataclass(frozen=True)
class RowMask:
    """A mask that is all true but for some consecutive rows, which are computed by themselves.

    For all other rows there is no mask, so that a GPU takes its fast kernels.

    Attributes:
        first: The first of these rows.
        visible: Bool [R, L], whether each may look at a column.
    """

    first: int
    visible: Tensor

    def rows(self, rows: Sequence[int]) -> Tensor:
        """The mask of these rows, bool [rows, L]."""
        own = range(self.first, self.first + len(self.visible))
        free = torch.ones_like(self.visible[0])
        return torch.stack([self.visible[r - self.first] if r in own else free for r in rows])


Mask = Tensor | RowMask


class Attention(nn.Module):
    """Multi-head self-attention; parameters are named as `nn.MultiheadAttention` names them."""

    linear = staticmethod(F.linear)
    attend = staticmethod(F.scaled_dot_product_attention)

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // HEAD_WIDTH)
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        nn.init.normal_(self.in_proj_weight, std=width**-0.5)

    def forward(self, x: Tensor, causal: bool = False, mask: Mask | None = None) -> Tensor:
        joined = self.linear(x, self.in_proj_weight, self.in_proj_bias)
        query, key, value = joined.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if isinstance(mask, RowMask):
            mixed = _by_rows(query, key, value, mask)
        else:
            mixed = (
                F.scaled_dot_product_attention(query, key, value, is_causal=True)
                if causal
                else self.attend(query, key, value, mask)
            )
        out: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(2))
        return out

    def forward_rows(self, rows: Sequence[int], x: Tensor, mask: Mask | None = None) -> Tensor:
        """Some rows of `forward`'s output; the queries of the others are never made."""
        width = x.shape[2]
        weights, biases = self.in_proj_weight, self.in_proj_bias
        (query,) = self._split(self.linear(rows_of(x, rows), weights[:width], biases[:width]))
        key, value = self._split(self.linear(x, weights[width:], biases[width:]))
        if mask is None:
            row_mask = None
        else:
            row_mask = mask.rows(rows) if isinstance(mask, RowMask) else mask[rows,]
        mixed = self.attend(query, key, value, row_mask)
        out: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(2))
        return out

    def _split(self, joined: Tensor) -> Tensor:
        """[B, L, P · width] → [P, B, heads, L, head width]."""
        width = len(self.in_proj_weight) // 3
        split = joined.unflatten(2, (-1, self.heads, width // self.heads))
        return split.permute(2, 0, 3, 1, 4)


def _by_rows(query: Tensor, key: Tensor, value: Tensor, mask: RowMask) -> Tensor:
    """Attention without a mask, and in its place that of the rows with one."""
    mixed = F.scaled_dot_product_attention(query, key, value)
    end = mask.first + len(mask.visible)
    own = query[:, :, mask.first : end]
    few = F.scaled_dot_product_attention(own, key, value, attn_mask=mask.visible)
    return torch.cat((mixed[:, :, : mask.first], few, mixed[:, :, end:]), dim=2)


def rows_of(x: Tensor, rows: Sequence[int]) -> Tensor:
    """Rows of x [B, L, D]. Those of a range are a slice: a list would be copied to a GPU as an
    index, and its gradient added row by row."""
    consecutive = len(rows) == 1 or (isinstance(rows, range) and rows.step == 1)
    return x[:, rows[0] : rows[-1] + 1] if consecutive else x[:, rows]


class MLP(nn.Module):
    """Two layers, four times as wide between, QuickGELU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        scaled = self.c_fc(x).mul_(1.702)
        if not torch.is_grad_enabled():
            inferred: Tensor = self.c_proj(F.silu(scaled, inplace=True).mul_(1 / 1.702))
            return inferred
        with recompute_in_backward(_gated, scaled) as gated:
            out: Tensor = self.c_proj(gated)
        return out


def _gated(x: Tensor) -> Tensor:
    """QuickGELU, x · sigmoid(1.702 x), of 1.702 x: a tensor where written out it takes three."""
    return F.silu(x).mul_(1 / 1.702)


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attn, self.mlp = Attention(width), MLP(width)
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, causal: bool = False, mask: Mask | None = None) -> Tensor:
        if not torch.is_grad_enabled():
            x = x + self.attn(self.ln_1(x), causal, mask)
            inferred: Tensor = x + self.mlp(self.ln_2(x))
            return inferred
        with recompute_in_backward(self.ln_1, x) as normed:
            x = x + self.attn(normed, causal, mask)
        with recompute_in_backward(self.ln_2, x) as normed:
            out: Tensor = x + self.mlp(normed)
        return out

    def forward_rows(self, rows: Sequence[int], x: Tensor, mask: Mask | None = None) -> Tensor:
        """Some rows of `forward`'s output; of the others only what attention needs is computed."""
        x = rows_of(x, rows) + self.attn.forward_rows(rows, self.ln_1(x), mask)
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class Transformer(nn.Module):
    """Blocks; `forward` runs those from `start` to before `stop`.

    mask: bool [L, L], whether a row may look at a column, or a `RowMask`; not together with
    `causal`.
    """

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList(Block(width) for _ in range(layers))

    def forward(
        self,
        x: Tensor,
        causal: bool = False,
        start: int = 0,
        stop: int | None = None,
        mask: Mask | None = None,
    ) -> Tensor:
        for block in self.resblocks[start:stop]:
            x = block(x, causal, mask)
        return x

    @property
    def last(self) -> Block:
        """The last block, for those who want some of its rows only."""
        last = self.resblocks[-1]
        assert isinstance(last, Block)
        return last


def token_ids(text: str) -> list[int]:
    """Ids of a caption between the start and the end id, as long as it is."""
    return [START_TOKEN, *_tokenizer().encode(text), END_TOKEN]


def tokenize(texts: Sequence[str], context: int = CONTEXT) -> np.ndarray:
    """Ids of captions, int64 [N, context], padded with 0; of long ones the end is cut."""
    ids = np.full((len(texts), context), PAD_TOKEN, np.int64)
    for row, text in enumerate(texts):
        tokens = token_ids(text[:MAX_CHARACTERS])
        if len(tokens) > context:
            tokens = [*tokens[: context - 1], END_TOKEN]
        ids[row, : len(tokens)] = tokens
    return ids


@lru_cache(maxsize=1)
def _tokenizer() -> Any:
    """The tokenizer alone: `import clip` takes pkg_resources, which setuptools no longer has."""
    spec = importlib.util.spec_from_file_location(
        "clip_simple_tokenizer", str(distribution(TOKENIZER_PACKAGE).locate_file(TOKENIZER_FILE))
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.SimpleTokenizer()


class TextEncoder(nn.Module):
    """Captions → embeddings; a mixin of parameters that CLIP keeps at its top level."""

    def __init__(
        self, vocabulary: int, context: int, width: int, layers: int, embedding: int
    ) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.positional_embedding = nn.Parameter(torch.randn(context, width) * 0.01)
        self.transformer = Transformer(width, layers)
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.randn(width, embedding) * width**-0.5)
        nn.init.normal_(self.token_embedding.weight, std=0.02)

    def no_weight_decay(self) -> set[str]:
        """Parameters that weight decay spares, besides biases, norms and the word table."""
        return {"positional_embedding", "text_projection"}

    def encode_text(self, tokens: Tensor) -> Tensor:
        """The embedding is taken at the largest token id, which is the end of the text.

        Args:
            tokens: int64 [N, L], L at most the context, padded with 0 → embeddings [N, E].
        """
        x = self.token_embedding(tokens) + self.positional_embedding[: tokens.shape[1]]
        x = self.ln_final(self.transformer(x, causal=True))
        ends = x[torch.arange(len(x), device=x.device), tokens.argmax(dim=-1)]
        return ends @ self.text_projection


def count_layers(shapes: Mapping[str, object], prefix: str) -> int:
    """How many blocks a checkpoint has below `prefix`."""
    start = f"{prefix}.resblocks."
    numbers = {name[len(start) :].split(".")[0] for name in shapes if name.startswith(start)}
    return len(numbers)
