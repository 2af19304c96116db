"""Token-wise matching: how well every sample's tokens find each other's, and a contrast of that.

    T[a, b, l, m] = q[a, l] · k[b, m]
    M[a, b] = (mean over l of max over m of T + mean over m of max over l of T) / 2

T has B · B · N · N numbers, 629 million for 128 samples of 14 × 14 tokens. It is never there whole:
some rows of queries at a time are multiplied with all keys, and of their products only the maxima
and where they lie are kept. Source: SCORER (Tu et al., ICCV 2023) and its code.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

# Numbers of T at a time: in float32 10 MB on a processor, 128 MB on a GPU.
PRODUCTS = {"cpu": 2_500_000, "cuda": 32_000_000}
EDGES = 1_000_000  # maxima at a time in the backward pass on a processor


def token_matching(queries: Tensor, keys: Tensor, heads: int = 1) -> Tensor:
    """M, float32 [A, B], of queries [A, N, D] and keys [B, N, D].

    Args:
        heads: The channels are cut into so many parts, each part is matched by itself, and the
            parts are added up; D is a multiple of it.
    """
    assert queries.shape[1:] == keys.shape[1:], (queries.shape, keys.shape)
    half = torch.get_autocast_dtype(queries.device.type)
    # Products are not scaled, and would overflow in float16.
    if torch.is_autocast_enabled(queries.device.type) and half is torch.bfloat16:
        queries, keys = queries.to(half), keys.to(half)
    else:
        queries, keys = queries.float(), keys.float()
    with torch.autocast(queries.device.type, enabled=False):
        matched: Tensor = _Matching.apply(queries, keys, heads)
    return matched


def contrast(matching: Tensor, scenes: Tensor | None = None) -> Tensor:
    """Cross-entropy of each row of a matching [B, B] with its own column, the mean; 0 without rows.

    Source: InfoNCE (van den Oord et al., 2018).

    Args:
        scenes: The scene of each row and column, int64 [B]. Other columns of a row's own scene do
            not count, because its pairs can share images. Without it every row is a scene of its
            own.
    """
    if not len(matching):
        return matching.sum()
    own = torch.arange(len(matching), device=matching.device)
    matching = matching.float()
    if scenes is not None:
        others = (scenes[:, None] == scenes) & (own[:, None] != own)
        matching = matching.masked_fill(others, -torch.inf)
    return F.cross_entropy(matching, own)


class _Matching(torch.autograd.Function):
    """The forward pass stores the positions of the maxima; the backward pass visits only those."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, heads: int) -> Tensor:
        count, tokens = keys.shape[:2]
        of_queries, of_keys = _places(queries, keys, heads)
        q, k = _by_head(queries, heads), _by_head(keys, heads)  # [heads, A | B, N, D / heads]
        matched = torch.zeros(len(queries), count, device=queries.device)
        for head in range(heads):
            for rows, columns in _tiles(len(queries), count, tokens, queries.device.type):
                one, other = q[head, rows], k[head, columns]
                products = one.flatten(0, 1) @ other.flatten(0, 1).T
                products = products.view(len(one), tokens, len(other), tokens)
                best, place = products.max(3)  # [a, N, b]
                of_queries[head, rows, :, columns] = place.to(of_queries.dtype)
                matched[rows, columns] += best.float().mean(1)
                best, place = products.max(1)  # [a, b, N]
                of_keys[head, rows, columns] = place.to(of_keys.dtype)
                matched[rows, columns] += best.float().mean(2)
        ctx.save_for_backward(queries, keys, of_queries, of_keys)
        ctx.heads = heads
        return matched / 2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        queries, keys, of_queries, of_keys = ctx.saved_tensors
        weights = gradient / (2 * queries.shape[1])
        q, k = _by_head(queries.float(), ctx.heads), _by_head(keys.float(), ctx.heads)
        d_q, d_k = torch.zeros_like(q), torch.zeros_like(k)
        add = _add_visited if queries.device.type == "cpu" else _add_multiplied
        for head in range(ctx.heads):
            places = of_queries[head], of_keys[head]
            add(d_q[head], d_k[head], q[head], k[head], places, weights)
        return _together(d_q, queries), _together(d_k, keys), None


def _add_visited(
    d_q: Tensor,
    d_k: Tensor,
    q: Tensor,
    k: Tensor,
    places: tuple[Tensor, Tensor],
    weights: Tensor,
) -> None:
    """Gradients as sums over the pairs of tokens that were maxima: few of all pairs."""
    of_queries, of_keys = places
    tokens = q.shape[1]
    for rows in _blocks(len(q), 2 * len(k) * tokens, EDGES):
        edges = _edges(of_queries[rows], of_keys[rows], weights[rows])
        d_q[rows] = _summed(edges.query, edges.key, edges.weight, k, len(d_q[rows]))
    for rows in _blocks(len(k), 2 * len(q) * tokens, EDGES):
        edges = _edges(of_queries[:, :, rows], of_keys[:, rows], weights[:, rows])
        d_k[rows] = _summed(edges.key, edges.query, edges.weight, q, len(d_k[rows]))


class _Edges(NamedTuple):
    """Pairs of tokens whose product was a maximum: their numbers, and the weight of the product."""

    query: Tensor
    key: Tensor
    weight: Tensor


def _edges(of_queries: Tensor, of_keys: Tensor, weights: Tensor) -> _Edges:
    """of_queries [a, N, b], of_keys [a, b, N] → tokens numbered from 0 to a · N and b · N."""
    count, tokens, others = of_queries.shape
    query = torch.arange(count * tokens).view(count, tokens)
    key = torch.arange(others * tokens).view(others, tokens)
    return _Edges(
        torch.cat(
            (
                query[:, :, None].expand(-1, -1, others).flatten(),
                (query[:, :1, None] + of_keys).flatten(),
            )
        ),
        torch.cat(((key[:, 0] + of_queries).flatten(), key.expand(count, -1, -1).flatten())),
        torch.cat(
            (
                weights[:, None].expand(-1, tokens, -1).flatten(),
                weights[:, :, None].expand(-1, -1, tokens).flatten(),
            )
        ),
    )


def _summed(to: Tensor, of: Tensor, weight: Tensor, table: Tensor, count: int) -> Tensor:
    """[count, N, D]: at each token `to` the weighted sum of the table's tokens `of`, [·, N, D]."""
    tokens = table.shape[1]
    order = to.argsort(stable=True)
    each = torch.bincount(to, minlength=count * tokens)
    sums = F.embedding_bag(
        of[order],
        table.flatten(0, 1),
        each.cumsum(0) - each,
        mode="sum",
        per_sample_weights=weight[order],
    )
    return sums.view(count, tokens, -1)


def _add_multiplied(
    d_q: Tensor,
    d_k: Tensor,
    q: Tensor,
    k: Tensor,
    places: tuple[Tensor, Tensor],
    weights: Tensor,
) -> None:
    """Computes the same gradients by matrix products, which are cheap on a GPU.

    No sum depends on the order of threads, so a step gives the same bits each time.
    """
    count, tokens = k.shape[:2]
    flat = k.flatten(0, 1)
    for rows in _blocks(len(q), tokens * count * tokens, PRODUCTS["cuda"]):
        of_queries, of_keys, weight = (x[rows] for x in (*places, weights))
        chosen = q.new_zeros(len(weight), tokens, count, tokens)
        each = weight[:, None, :, None]
        place = of_queries.long()[..., None]  # [a, N, B, 1]
        chosen.scatter_add_(3, place, each.expand(place.shape))
        place = of_keys.long()[:, None]  # [a, 1, B, N]
        chosen.scatter_add_(1, place, each.expand(place.shape))
        chosen = chosen.view(len(weight) * tokens, -1)
        d_q[rows] = (chosen @ flat).view(-1, tokens, q.shape[2])
        d_k += (chosen.T @ q[rows].flatten(0, 1)).view_as(d_k)


def _tiles(rows: int, columns: int, tokens: int, device: str) -> list[tuple[slice, slice]]:
    """Samples of queries and of keys that are multiplied at once."""
    room = PRODUCTS["cpu" if device == "cpu" else "cuda"]
    across = _blocks(columns, tokens**2, room)
    widest = max(1, min(columns, room // tokens**2))
    return [(down, one) for down in _blocks(rows, widest * tokens**2, room) for one in across]


def _blocks(rows: int, each: int, room: int) -> list[slice]:
    """All rows in parts that have room; each row takes so many numbers."""
    size = max(1, room // max(1, each))
    return [slice(first, min(first + size, rows)) for first in range(0, rows, size)]


def _places(queries: Tensor, keys: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Room for the places of maxima: of queries [heads, A, N, B], of keys [heads, A, B, N]."""
    tokens, kind = queries.shape[1], torch.int16
    assert tokens < 2**15, "a token's number is an int16"
    size = (heads, len(queries))
    return (
        queries.new_empty((*size, tokens, len(keys)), dtype=kind),
        queries.new_empty((*size, len(keys), tokens), dtype=kind),
    )


def _by_head(x: Tensor, heads: int) -> Tensor:
    """[B, N, D] → [heads, B, N, D / heads], each head's part contiguous."""
    return x.unflatten(2, (heads, -1)).permute(2, 0, 1, 3).contiguous()


def _together(x: Tensor, like: Tensor) -> Tensor:
    """[heads, B, N, D / heads] → [B, N, D]."""
    return x.permute(1, 2, 0, 3).flatten(2).to(like.dtype)
