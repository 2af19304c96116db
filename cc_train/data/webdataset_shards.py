"""Training shards as a pipeline of `webdataset`, for trainers other than ours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import webdataset
from webdataset import filters
from webdataset.compat import FluidInterface

from cc_prep.errors import UserError
from cc_prep.formats import sequences, tar, training_shards
from cc_prep.formats.tar import DamagedShard
from cc_prep.words import counted
from cc_train.data import shard_index
from cc_train.data.sequence_index import expand

MAX_WORKERS = 1024  # of a loader, whose epochs are counted


# Methods of a pipeline that give a sample for each sample.
ONE_FOR_ONE = ("shuffle", "map", "map_dict", "map_tuple", "to_tuple", "rename")


class ShardPipeline(webdataset.DataPipeline, FluidInterface):
    """A pipeline with the methods of `webdataset.WebDataset`: shuffle, batched, to_tuple, …

    `len()` is the number of samples of all shards, also where several processes or the workers of a
    loader share them; it raises TypeError after methods that change the number of samples.

    Args:
        paths: Its shards.
    """

    def __init__(self, paths: Sequence[str], *stages: Any) -> None:
        super().__init__(*stages)
        self.paths = paths
        self._stages = len(self.pipeline)
        self._count: int | None = None

    def __len__(self) -> int:
        known = [getattr(filters, name).f for name in ONE_FOR_ONE]
        added = self.pipeline[self._stages :]
        if self.repetitions != 1 or any(getattr(one, "f", None) not in known for one in added):
            raise TypeError("how many samples such a pipeline gives is not known")
        if self._count is None:
            self._count = shard_index.count(self.paths)
        return self._count

    def __bool__(self) -> bool:
        return True  # and its samples are not counted

    def __repr__(self) -> str:
        return f"<open_shards: {counted(len(self.paths), 'shard')}>"


class _Shuffled(filters.detshuffle):
    """Shards in an order of their own in each epoch.

    A loader starts new workers for each epoch, and their copy of the pipeline has counted no epoch
    yet. So epochs are counted in memory that the processes share: first the epochs without a
    worker, then those of each worker.
    """

    def __init__(self, window: int, seed: int) -> None:
        super().__init__(window, seed=seed)
        self.epochs = torch.zeros(1 + MAX_WORKERS, dtype=torch.int64).share_memory_()

    def run(self, src: Iterable[Any]) -> Iterator[Any]:
        """The shards of the next epoch of this process."""
        worker = torch.utils.data.get_worker_info()
        place = 0 if worker is None else 1 + worker.id % MAX_WORKERS
        self.epoch = int(self.epochs[place]) - 1  # the next one is counted below
        self.epochs[place] += 1
        shuffled: Iterator[Any] = super().run(src)
        return shuffled


def open_shards(
    shards: str | Sequence[str], *, shardshuffle: int = 0, seed: int = 0
) -> ShardPipeline:
    """The decoded samples of training shards, as a `webdataset` pipeline.

    A sample is a dictionary: `__key__`, `__url__`, `json` (dict), `tokens.npy` int16 [F, h, w],
    `scores.npy` float32 [2, captions, F]; where the shard has them `features.npy` [frames, C, h,
    w], float16, or float32 where the shards were built with `features.precision=float32`,
    `mask.png`, `mask_before.png` and `mask_after.png`, class ids uint8 [H, W], and `change.png`
    uint8 [H, W], 1 where a change was found; the stored frames `f00.jpg` … as uint8 [H, W, 3] RGB;
    and `before` and `after`, the first and the last of them. Features of the mirrored images are
    left out.

    Nothing is ever unpickled.

    Args:
        shards: A path, URL, glob or brace expression, or several.
        shardshuffle: The shards are shuffled within a window of so many, in another order in each
            epoch (each pass of a program over the pipeline or over a loader of it); 0 keeps their
            order.
        seed: The seed of that order. Shards are divided among the processes of a training and among
            the workers of a loader.

    Raises:
        UserError: For a pattern that names no file, and while reading for a damaged shard.
    """
    paths = expand([shards] if isinstance(shards, str) else list(shards))
    stages = [
        webdataset.SimpleShardList(paths),
        webdataset.split_by_node,
        webdataset.split_by_worker,
        *([_Shuffled(shardshuffle, seed)] if shardshuffle else []),
        _samples,
    ]
    return ShardPipeline(paths, *stages)


def _samples(sources: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for source in sources:
        path = source["url"]
        try:
            for sample in tar.decoded(path, _decoded):
                yield {"__url__": path, **sample}
        except DamagedShard as error:
            raise UserError(str(error), "Rebuild this shard") from None


def _decoded(key: str, encoded: Mapping[str, bytes]) -> dict[str, Any]:
    sample = training_shards.decode(key, encoded)
    members: dict[str, Any] = {
        "__key__": key,
        "json": sample.meta,
        "tokens.npy": sample.tokens,
        "scores.npy": sample.scores,
    }
    if sample.features is not None:
        members["features.npy"] = sample.features.values
    masks = (sample.mask(), sample.mask_before(), sample.mask_after())
    members |= {
        name: mask for name, mask in zip(sequences.MASKS, masks, strict=True) if mask is not None
    }
    change = sample.change()
    if change is not None:
        members["change.png"] = change
    frames = {number: sample.image(number) for number in sorted(sample.images)}
    members |= {f"f{number:02d}.jpg": pixels for number, pixels in frames.items()}
    ends = {"before": 0, "after": len(sample.tokens) - 1}
    return members | {side: frames[number] for side, number in ends.items() if number in frames}
