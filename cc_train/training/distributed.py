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


@dataclass(frozen=True)
class Ranks:
    """Which of how many processes this is. local: its number on this machine, for its GPU."""

    rank: int = 0
    world: int = 1
    local: int = 0

    @property
    def first(self) -> bool:
        """Whether this one speaks and writes for all."""
        return self.rank == 0

    def sums(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Each value summed over all ranks; the names are the same on each."""
        if self.world == 1 or not values:
            return dict(values)
        device = next(iter(values.values())).device
        stacked = torch.stack([value.to(device, torch.float64) for value in values.values()])
        dist.all_reduce(stacked)
        return dict(zip(values, stacked, strict=True))

    def any(self, said: bool, device: str) -> bool:
        """Whether any rank says so."""
        number = torch.tensor(float(said), device=device)
        return bool(self.sums({"said": number})["said"] > 0)

    def same(self, value: Any) -> Any:
        """The first rank's value, on every rank."""
        if self.world == 1:
            return value
        held = [value]
        dist.broadcast_object_list(held)
        return held[0]


@contextmanager
def joined(cuda: bool) -> Iterator[Ranks]:
    """This process among those that `torchrun` started; alone without it."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
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
            "on from the last checkpoint"
        ) from None
    finally:
        dist.destroy_process_group()


def _lost_another(error: RuntimeError) -> bool:
    """Whether a process lost its connection to another: gloo has no type of its own for it."""
    said = str(error)
    return isinstance(error, dist.DistError) or any(
        words in said for words in ("onnection closed", "onnection reset", "gloo", "NCCL")
    )
