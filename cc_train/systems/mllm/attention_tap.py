"""Taps: they record attention at named modules of a network, without changing its output.

transformers accepts a custom attention function for every model. This one calls the usual `sdpa`,
and at tapped modules also records the rows of attention that a loss or a picture needs, from the
same queries and keys, with their gradients. The outputs are those of sdpa.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

IMPLEMENTATION = "sdpa_tapped"
Reading = Literal["cls", "received", "rows", "all"]


class Rows(NamedTuple):
    """Rows of attention of one call of a module, means over its heads.

    Attributes:
        probabilities: float32 [B, R, N], over all N keys.
        scores: float32 [B, R, N], the values before the softmax; −inf for a key that is masked.
    """

    probabilities: Tensor
    scores: Tensor


class Tap:
    """Records a module's attention, and holds only a weak reference to the module.

    Args:
        reading: `cls` keeps the row of the first query, `received` the mean over all queries, `all`
            every row, and `rows` those of the queries `queries`, int64 [B, R], of a causal network.
            `cls` and `received` have R = 1.
        calls: The rows of each call of the module.
    """

    def __init__(self, module: nn.Module, reading: Reading, queries: Tensor | None = None) -> None:
        self._module = weakref.ref(module)
        self.reading, self.queries = reading, queries
        self.calls: list[Rows] = []

    @property
    def module(self) -> nn.Module:
        """The tapped module."""
        module = self._module()
        assert module is not None, "the model is gone"
        return module

    def take(self) -> list[Rows]:
        """Returns the rows of all calls since the last `take`, and clears them.

        Checkpointed layers compute twice, the second time in the backward pass. The rows of that
        have to be taken before the next forward pass, or the two are mixed.
        """
        calls, self.calls = self.calls, []
        return calls


_open: weakref.WeakKeyDictionary[nn.Module, Tap] = weakref.WeakKeyDictionary()


def register() -> None:
    """Registers `IMPLEMENTATION` with transformers; a second call changes nothing."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(IMPLEMENTATION, _attention)
    # Without it transformers makes no mask for a function that it does not know: padding would be
    # attended to, and nothing would say so.
    AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)


def attach(tap: Tap) -> None:
    """Makes a tap record from now on, until it is detached.

    It has to stay attached for the backward pass: a checkpointed layer computes again there, and
    has to compute the same.
    """
    _open[tap.module] = tap


def detach(tap: Tap) -> None:
    """Stops a tap from recording, and clears its rows with the graph behind them."""
    _open.pop(tap.module, None)
    tap.calls = []


@contextmanager
def only(*taps: Tap) -> Iterator[None]:
    """Within the block, these taps record, and no others."""
    others = dict(_open)
    _open.clear()
    for tap in taps:
        attach(tap)
    try:
        yield
    finally:
        _open.clear()
        for tap in others.values():
            attach(tap)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The output of `sdpa`; query [B, heads, N, D], key and value [B, groups, N, D]."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    output: tuple[Tensor, None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, **options
    )
    tap = _open.get(module)
    if tap is not None:
        scale = options.get("scaling")
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        tap.calls.append(_rows(tap, query, key, attention_mask, scale))
    return output


def _rows(tap: Tap, query: Tensor, key: Tensor, mask: Tensor | None, scale: float) -> Rows:
    if query.shape[1] != key.shape[1]:  # several heads share a key
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    if tap.reading == "cls":
        query = query[:, :, :1]
    if tap.reading == "rows":
        assert tap.queries is not None
        chosen = tap.queries[:, None, :, None].expand(-1, query.shape[1], -1, query.shape[3])
        query = query.gather(2, chosen)
    # float32 outside of autocast: sums of small probabilities, whatever the network computes in.
    with torch.autocast(query.device.type, enabled=False):
        scores = query.float() @ key.float().transpose(-1, -2) * scale
        if tap.reading == "rows":
            assert tap.queries is not None
            seen = _seen(tap.queries, scores.shape[-1], mask)
            scores = scores.masked_fill(~seen[:, None], float("-inf"))
        rows = scores.softmax(-1).mean(1), scores.mean(1)
        if tap.reading == "received":
            return Rows(*(part.mean(1, keepdim=True) for part in rows))
        return Rows(*rows)


def _seen(queries: Tensor, keys: int, mask: Tensor | None) -> Tensor:
    """Which keys each query sees, bool [B, R, N]: earlier ones, and none of the padding.

    Args:
        mask: The mask of the attention, [B, 1, N, N], bool or additive; None without padding.
    """
    seen = torch.arange(keys, device=queries.device) <= queries[..., None]
    if mask is not None:
        chosen = queries[..., None].expand(-1, -1, mask.shape[-1])
        of_queries = mask[:, 0].expand(len(queries), -1, -1).gather(1, chosen)
        seen = seen & (of_queries if mask.dtype == torch.bool else of_queries == 0)
    return seen
