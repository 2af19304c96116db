"""What every step is: items in, a sample or a rejection of each item out.

At the end stands what the steps ask of a pair, as far as it can be seen before any network runs.
They and `cc-prep inspect` call the same functions with the same settings, so that no pair is
rejected for what `inspect` could have seen and did not say.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from cc_prep import devices, strict_json, weights
from cc_prep.errors import Reason, RejectedPair, UserError
from cc_prep.formats import changes, training_shards
from cc_prep.formats.changes import StoredChange
from cc_prep.formats.entities import Entity
from cc_prep.formats.sequences import StoredSequence
from cc_prep.manifest import NONE, TRUTH, Keyframes, Manifest
from cc_prep.records import MAX_CAPTION_LENGTH, ImagePair

# What the driver found for each weight that a manifest names, so that a node of a cluster that has
# another file under the same name is noticed.
Digests = Mapping[str, str]
# A sample of a tar: its members by extension.
Members = dict[str, bytes]
# What a sample is depends on the format: members of a tar, or a row of a table.
Sample = Any
Size = tuple[int, int]  # height and width in px
MAX_SIDES = {"jpg": 65_500, "webp": 16_383}  # px of the formats that cannot hold every image


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


class Multiple(NamedTuple):
    """What both sides of a frame must be multiples of, in px, and what asks for it."""

    px: int
    what: str

    @classmethod
    def of_tokens(cls, factor: int) -> Multiple:
        return cls(factor, "the size of a token")

    @classmethod
    def of_features(cls, multiple: int) -> Multiple:
        return cls(multiple, "as the backbone needs it")


def check_captions(captions: Sequence[str]) -> None:
    """Raises RejectedPair if one has more characters than a shard takes."""
    longest = max(map(len, captions), default=0)
    if longest > MAX_CAPTION_LENGTH:
        raise RejectedPair(
            Reason.CAPTION_TOO_LONG,
            f"{longest:,} characters, at most {MAX_CAPTION_LENGTH:,}",
            "Shorten it: a caption is a sentence",
        )


def check_sizes(before: Size, after: Size, truth: Iterable[Size] = ()) -> None:
    """Raises RejectedPair if the images of a pair, or the true frames between them, differ."""
    if before != after:
        raise RejectedPair(
            Reason.SIZES_DIFFER,
            f"{size_text(before)} and {size_text(after)} px",
            "Set image_size to resize both, or pairs.resize to resize the larger one",
        )
    others = [size for size in truth if size != before]
    if others:
        raise RejectedPair(
            Reason.SIZES_DIFFER,
            f"{size_text(before)} px, and a true frame has {size_text(others[0])} px",
            "Set image_size to resize all",
        )


def check_divisible(size: Size, multiple: Multiple) -> None:
    """Raises RejectedPair if a side is no multiple of what a network needs."""
    if any(side % multiple.px for side in size):
        raise RejectedPair(
            Reason.SIZE_NOT_DIVISIBLE,
            f"{size_text(size)} px: not divisible by {multiple.px} px, {multiple.what}",
            "Set image_size",
        )


def check_codec(size: Size, codec: str) -> None:
    """Raises RejectedPair if a frame is too large for the format that it is stored in."""
    max_side = MAX_SIDES.get(codec)
    if max_side is not None and max(size) > max_side:
        raise RejectedPair(
            Reason.IMAGE_TOO_LARGE,
            f"{size_text(size)} px: {codec} holds {max_side:,} px a side at most",
            "Set image_size",
        )


def check_keyframes(size: Size, settings: Keyframes) -> None:
    """Raises RejectedPair if a training shard stores images of frames and these are too large."""
    if settings.images != "none":
        check_codec(size, "jpg")


def multiples(manifest: Manifest) -> list[Multiple]:
    """What tokens and features ask of the size of frames.

    Raises:
        UserError: Where that depends on weights that are not on this machine.
    """
    from cc_prep.models import backbones  # which brings torch
    from cc_prep.weights import networks

    asked = []
    if manifest.tokenize.weights != NONE:
        network, _, _ = networks.vqgan(manifest.tokenize.weights, manifest.tokenize.config)
        asked.append(Multiple.of_tokens(network.config.factor))
    settings = manifest.features
    if settings.backbone != NONE and settings.folder is None:
        known = backbones.BACKBONES.get(settings.backbone)
        multiple = None if known is None else known.multiple
        if multiple is None:
            backbone, _ = networks.features_backbone(settings)
            multiple = backbones.multiple(settings.backbone, backbone)
        asked.append(Multiple.of_features(multiple))
    return asked


def true_frames(pair: ImagePair, depth: int) -> dict[int, str]:
    """The true frames that a sequence of this depth has room for: images by number of frame."""
    last = 2**depth
    return {round(t * last): image for t, image in pair.truth if (t * last).is_integer()}


def reads_truth(manifest: Manifest) -> bool:
    """Whether a job reads the true frames of a data set."""
    settings = manifest.interpolate
    return settings.keep_truth or settings.method == TRUTH


def size_text(size: Size) -> str:
    """A size as width × height."""
    return f"{size[1]}×{size[0]}"
