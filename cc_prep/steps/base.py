"""What every step is: items in, a sample or a rejection of each item out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from cc_prep import devices, strict_json, weights
from cc_prep.errors import RejectedPair, UserError
from cc_prep.formats import changes, training_shards
from cc_prep.formats.changes import StoredChange
from cc_prep.formats.entities import Entity
from cc_prep.formats.sequences import StoredSequence
from cc_prep.manifest import Manifest
from cc_prep.records import ImagePair

# What the driver found for each weight that a manifest names, so that a node of a cluster that has
# another file under the same name is noticed.
Digests = Mapping[str, str]
# A sample of a tar: its members by extension.
Members = dict[str, bytes]
# What a sample is depends on the format: members of a tar, or a row of a table.
Sample = Any


class Item(Protocol):
    """The input of a sample: a pair, a stored sequence, or the result of an earlier job."""

    @property
    def key(self) -> str: ...
    @property
    def split(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def kind(self) -> str: ...


@dataclass(frozen=True)
class WithFindings:
    """A pair or a sequence with its found change, and with its entities if that job was run.

    Attributes:
        change: None for a pair that `cc-prep changes` rejected.
        entities: Likewise.
    """

    item: ImagePair | StoredSequence
    change: StoredChange | None
    entities: tuple[Entity, ...] | None

    @property
    def key(self) -> str:
        return self.item.key

    @property
    def split(self) -> str:
        return self.item.split

    @property
    def id(self) -> str:
        return self.item.id

    @property
    def kind(self) -> str:
        return self.item.kind

    def add_to(self, members: Mapping[str, bytes]) -> dict[str, bytes]:
        """The members of a training sample, with the findings in its pair added."""
        complete = dict(members)
        meta = strict_json.loads(complete["json"])
        if self.change is not None:
            change = self.change.change
            assert (change.height, change.width) == (meta["height"], meta["width"]), self.key
            meta["regions"] = [region.to_json() for region in change.regions]
            if self.change.mask_png is not None:
                complete[changes.MASK] = self.change.mask_png
        if self.entities is not None:
            meta["entities"] = [[entity.phrase, entity.score] for entity in self.entities]
        complete["json"] = json.dumps(meta, sort_keys=True, ensure_ascii=False).encode()
        return {name: complete[name] for name in training_shards.ordered(complete)}


def unwrap(item: Any) -> Any:
    """The pair or the sequence of an item, which may come with findings."""
    return item.item if isinstance(item, WithFindings) else item


class Step(Protocol):
    """The work on some items, with the weights it needs held inside."""

    pairs_per_batch: int

    def __call__(self, items: Any, /) -> list[Any]:
        """Each item's sample, or why it was rejected, in the order given."""
        ...

    def free_memory(self) -> None:
        """Called after an out-of-memory error, before a smaller batch is tried."""
        ...

    def check_device(self) -> None:
        """Computes a little on the device, after a process before this one failed there.

        Raises the error of a broken device.
        """
        ...


@runtime_checkable
class Staged(Protocol):
    """A step of three stages; a call runs them one after the other.

    On a GPU, each stage has a thread of its own; only `compute` uses the device. All are called
    with the same items.
    """

    def read(self, items: Any, /) -> Any:
        """The network's input for the items. Safe to call from two threads at a time."""
        ...

    def compute(self, items: Any, inputs: Any, /) -> Any:
        """The network's output. Never called twice at a time."""
        ...

    def encode(self, items: Any, computed: Any, /) -> list[Any]:
        """Each item's sample, or why it was rejected, in the order given."""
        ...


@runtime_checkable
class Prefetches(Protocol):
    """A step that reads faster if it knows the items in advance."""

    def prefetch(self, items: Any, /) -> None:
        """Announces the items of a shard in their order; some of them may be left out later."""
        ...


# Builds the step inside a worker, on the device given: `cpu` or `cuda`.
MakeStep = Callable[[str], Step]


Result = TypeVar("Result")


def map_accepted(
    function: Callable[..., Result], outcomes: Iterable[Any], *others: Iterable[Any]
) -> list[Result | RejectedPair]:
    """Applies `function` to each outcome and the values beside it; rejections pass through.

    Args:
        others: Further arguments of `function`; each has to be as long as `outcomes`.
    """
    return [
        outcome if isinstance(outcome, RejectedPair) else function(outcome, *beside)
        for outcome, *beside in zip(outcomes, *others, strict=True)
    ]


class StepBase:
    """The base of every step.

    Args:
        digests: SHA-256 of the driver's weights by name.
        device: `cpu` or `cuda`, where networks run.
    """

    pairs_per_batch = 1

    def __init__(self, manifest: Manifest, digests: Digests, device: str) -> None:
        self.manifest, self.device, self.digests = manifest, device, digests
        if device == "cpu":
            devices.keep_freed_memory()
        else:
            # Before the first product: without it cuBLAS may sum otherwise each time.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    def check(self, file: weights.Located) -> weights.Located:
        """Returns `file` if its digest is the driver's, else raises UserError."""
        if self.digests.get(file.name) != file.sha256:
            raise UserError(
                f"{file.path} on this node is not the file that the driver has",
                "Put the same weights on every node",
            )
        return file

    def free_memory(self) -> None:
        """Gives the GPU's cached memory back."""
        if self.device == "cuda":
            import torch

            torch.cuda.empty_cache()

    def check_device(self) -> None:
        """Computes a little on the device. Raises the error of a broken device."""
        import torch

        ones = torch.ones(256, 256, device=self.device)
        product = (ones @ ones).sum().item()  # which waits for the device
        if product != 256**3:
            raise RuntimeError(f"CUDA error: a sum of ones is {product:.0f}, not {256**3}")


class StagedStep(StepBase):
    """A step of three stages, see `Staged`; a call runs them one after the other."""

    def __call__(self, items: Any) -> list[Any]:
        """Each item's sample, or why it was rejected, in the order given."""
        return self.encode(items, self.compute(items, self.read(items)))

    def read(self, items: Any) -> Any:
        raise NotImplementedError

    def compute(self, items: Any, inputs: Any) -> Any:
        raise NotImplementedError

    def encode(self, items: Any, computed: Any) -> list[Any]:
        raise NotImplementedError
