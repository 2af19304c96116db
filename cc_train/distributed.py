"""Several processes that train one network: `torchrun` starts them, this joins them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cc_prep.errors import JobFailed

WAIT = timedelta(minutes=30)  # for a rank that validates, or died


class _Gather(torch.autograd.Function):
    """all_gather whose backward pass sums the gradients of all ranks.

    counts: the rows of each rank. All ranks send as many as the longest one has.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, rank: int, counts: list[int]) -> Tensor:
        ctx.first, ctx.rows = sum(counts[:rank]), counts[rank]
        padded = values.new_zeros(max(counts), *values.shape[1:])
        padded[: len(values)] = values
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        return total[ctx.first : ctx.first + ctx.rows], None, None


@dataclass(frozen=True)
class Ranks:
    """The number of this process among those that train together.

    rank: from 0 to world − 1. world: the number of processes. local: the number of the process on
    its machine, which is that of its GPU.
    """

    rank: int = 0
    world: int = 1
    local: int = 0

    @property
    def first(self) -> bool:
        """Whether this process is the one that prints and writes files."""
        return self.rank == 0

    def all_reduce_sum(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Scalars by name, each summed over all ranks in float64. All ranks give the same names."""
        if self.world == 1 or not values:
            return dict(values)
        device = next(iter(values.values())).device
        stacked = torch.stack([value.to(device, torch.float64) for value in values.values()])
        dist.all_reduce(stacked)
        return dict(zip(values, stacked, strict=True))

    def gather(self, values: Tensor) -> Tensor:
        """The rows [sum of all N, …] of all ranks, in the order of the ranks, of [N, …] on each.

        N may differ between ranks, as it does where `stream.pair_scenes` makes an item of one or
        two pairs. The gradients that all ranks have of this rank's rows are added up. If each rank
        computes the same loss over all rows, the mean of the ranks' gradients, which
        DistributedDataParallel takes, is the gradient of one process with all rows.
        """
        if self.world == 1:
            return values
        own = torch.tensor([len(values)], device=values.device)
        counts = [torch.empty_like(own) for _ in range(self.world)]
        dist.all_gather(counts, own)
        rows = torch.cat(counts).tolist()
        gathered: Tensor = _Gather.apply(values, self.rank, rows)
        return gathered

    def any_true(self, value: bool, device: str) -> bool:
        """Whether `value` is true on any rank."""
        number = torch.tensor(float(value), device=device)
        return bool(self.all_reduce_sum({"value": number})["value"] > 0)

    def broadcast(self, value: Any) -> Any:
        """The first rank's value on every rank. It is pickled, so it must be a plain object."""
        if self.world == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values)
        return values[0]


def world_size() -> int:
    """How many processes `torchrun` started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def joined(cuda: bool) -> Iterator[Ranks]:
    """Joins the processes that `torchrun` started; without it there is one.

    cuda: whether they exchange tensors between GPUs (NCCL) or on CPUs (gloo). Raises JobFailed when
    another process ends.
    """
    world = world_size()
    if world == 1:
        yield Ranks()
        return
    ranks = Ranks(int(os.environ["RANK"]), world, int(os.environ.get("LOCAL_RANK", "0")))
    if cuda:
        torch.cuda.set_device(ranks.local)
    dist.init_process_group("nccl" if cuda else "gloo", timeout=WAIT)
    try:
        yield ranks
    except RuntimeError as error:
        if not _lost_another(error):
            raise
        raise JobFailed(
            f"rank {ranks.rank}: another process of this training ended; the same command goes "
            f"on from the last checkpoint ({str(error).strip().splitlines()[0]})"
        ) from None
    finally:
        dist.destroy_process_group()


def _lost_another(error: RuntimeError) -> bool:
    """Whether a process lost its connection to another: gloo has no type of its own for it."""
    return isinstance(error, dist.DistError) or any(
        words in str(error) for words in ("onnection closed", "onnection reset", "gloo", "NCCL")
    )
