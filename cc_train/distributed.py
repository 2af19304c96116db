"""Several processes that train one network: `torchrun` starts them, this joins them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from cc_prep.errors import JobFailed, UserError
from cc_prep.words import counted

WAIT = timedelta(minutes=30)  # for a rank that writes, or died
FAILED = "failed"  # where the first process that fails leaves its error for the others
LOST = ("connection closed", "connection reset", "gloo", "nccl")  # in an error, in lower case

T = TypeVar("T")


class FirstRankFailed(JobFailed):
    """An error that the first rank met for all, and prints; the others end without a word.

    Args:
        exit_code: The first rank's.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


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

    Attributes:
        rank: From 0 to world − 1.
        world: The number of processes.
        local: The number of the process on its machine, which is that of its GPU.
    """

    rank: int = 0
    world: int = 1
    local: int = 0

    @property
    def is_main_process(self) -> bool:
        """Whether this process is the one that prints and writes files."""
        return self.rank == 0

    def own_batches(self, count: int, batch: int) -> range:
        """First items of this rank's batches, out of `count` items; the ranks take turns.

        A batch holds the same items whatever the number of ranks.
        """
        return range(self.rank * batch, count, batch * self.world)

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

    def gather_objects(self, value: T) -> list[T]:
        """The values of all ranks, in their order. They are pickled, so they are plain objects."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def broadcast(self, value: Any) -> Any:
        """The first rank's value on every rank. It is pickled, so it must be a plain object."""
        if self.world == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values)
        return values[0]

    def broadcast_from_rank0(
        self, decide: Callable[[], T], to_send: Callable[[T], T] | None = None
    ) -> T:
        """What the first rank decides, on every rank.

        Args:
            to_send: What of it the others get, without tensors, say, which `broadcast_tensors`
                sends. Its UserError, JobFailed or OSError is raised there, and FirstRankFailed on
                the others.
        """
        if self.world == 1:
            return decide()
        error: Exception | None = None
        outcome: tuple[Any, str, int] = (None, "", 0)
        own: Any = None
        if self.is_main_process:
            try:
                own = decide()
                outcome = (own if to_send is None else to_send(own), "", 0)
            except (UserError, JobFailed, OSError) as raised:
                error, code = raised, 2 if isinstance(raised, UserError) else 1
                outcome = (None, str(raised), code)
        value, message, code = self.broadcast(outcome)
        if error is not None:
            raise error
        if code:
            raise FirstRankFailed(message, code)
        decision: T = own if self.is_main_process else value
        return decision

    def broadcast_tensors(self, tensors: Mapping[str, Tensor], device: str) -> dict[str, Tensor]:
        """The first rank's tensors by name on every rank, on this device; what others give is
        ignored. So only the first rank needs to see the files that they came from.
        """
        if self.world == 1:
            return {name: tensor.to(device) for name, tensor in tensors.items()}
        own = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
        shared = {}
        for name, (dtype, shape) in self.broadcast(own).items():
            tensor = torch.empty(shape, dtype=dtype, device=device)
            if self.is_main_process:
                tensor.copy_(tensors[name])
            dist.broadcast(tensor, 0)
            shared[name] = tensor
        return shared


ALONE = Ranks()  # the one process of an ordinary run


def world_size() -> int:
    """How many processes `torchrun` started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def joined(cuda: bool) -> Iterator[Ranks]:
    """Joins the processes that `torchrun` started; without it there is one.

    Args:
        cuda: Whether they exchange tensors between GPUs (NCCL) or on CPUs (gloo).

    Raises:
        UserError: Where a machine has more processes than GPUs.
        JobFailed: When another process ends; it says what that one met, if it was still able to say
            so.
    """
    world = world_size()
    if world == 1:
        yield ALONE
        return
    ranks = Ranks(int(os.environ["RANK"]), world, int(os.environ.get("LOCAL_RANK", "0")))
    device = torch.device("cuda", ranks.local) if cuda else None
    if device is not None:
        _require_gpus(ranks)
        torch.cuda.set_device(device)
    store, _, _ = next(dist.rendezvous("env://", timeout=WAIT))
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        store=dist.PrefixStore("group", store),
        rank=ranks.rank,
        world_size=world,
        timeout=WAIT,
        device_id=device,
    )
    try:
        yield ranks
    except Exception as error:
        if not _lost_another(error):
            _publish_failure(store, ranks, error)
            raise
        raise JobFailed(_failure_of_peer(store, ranks, error)) from error
    finally:
        dist.destroy_process_group()


def _require_gpus(ranks: Ranks) -> None:
    """Refuses more processes than GPUs on a machine, whose first process says so for its others.

    Raises UserError, and FirstRankFailed on the others.
    """
    here = int(os.environ.get("LOCAL_WORLD_SIZE", ranks.local + 1))
    gpus = torch.cuda.device_count()
    if here <= gpus:
        return
    error = UserError(
        f"{here} processes on this machine, which has {counted(gpus, 'GPU')}",
        f"Give torchrun --nproc-per-node {gpus}, or set loop.device=cpu",
    )
    raise FirstRankFailed(str(error), 2) if ranks.local else error


def _lost_another(error: Exception) -> bool:
    """Whether the exchange with other processes failed: gloo has no type of its own for it."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(words in str(error).lower() for words in LOST)
    )


def _publish_failure(store: Any, ranks: Ranks, error: Exception) -> None:
    """Tells the other processes what this one met: they only see that a connection was closed."""
    if isinstance(error, FirstRankFailed):
        return
    try:
        store.set(FAILED, f"rank {ranks.rank} met {type(error).__name__}: {_in_a_line(error)}")
    except RuntimeError:  # the store went with its process; this error is raised all the same
        return


def _failure_of_peer(store: Any, ranks: Ranks, error: Exception) -> str:
    """What to say when the exchange failed: the cause, if another process named it."""
    try:
        cause = store.get(FAILED).decode() if store.check([FAILED]) else None
    except RuntimeError:
        cause = None
    if cause is not None:
        return f"rank {ranks.rank} stopped, since {cause}"
    return (
        f"rank {ranks.rank}: the exchange with the other processes failed, perhaps because one "
        f"ended; the same command resumes from the last checkpoint ({_in_a_line(error)})"
    )


def _in_a_line(error: Exception) -> str:
    """All that an error says: NCCL names the cause in its last line."""
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
