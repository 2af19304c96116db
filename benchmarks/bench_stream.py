"""The training stream against the same tar files read in a row, and against ProCap's HDF5.

    python benchmarks/bench_stream.py [--pairs 600] [--repeats 5]

Nine frames of 224 px a pair in the reference's HDF5 (gzip, one data set a pair, read whole at
random); the keyframe images and all tokens in our shards. The sequential reading is plain
webdataset's, in the files' order, with the same decoding of JSON and arrays. "unchecked" is the
stream with `stream.verify_checksums=false`; both have their images decoded, as in a training.
"""

from __future__ import annotations

import io
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import click
import cv2
import h5py
import numpy as np
import webdataset
from lib.measuring import report, turns

from cc_prep.formats import training_shards
from cc_prep.formats.training_shards import TrainingSample, encode
from cc_prep.records import FrameSequence, ImagePair
from cc_prep.weights.registry import SHIPPED
from cc_train.data import shard_index
from cc_train.data.shard_index import Entry
from cc_train.data.stream import Stream, StreamSettings
from cc_train.distributed import Ranks

FRAMES, PER_SHARD, BATCH = 9, 64, 8
TOKENIZER = {"codes": 512, "tokenizer": "vqgan-mini",
             "tokenizer_sha256": SHIPPED["vqgan-mini"].sha256}  # fmt: skip
TRAINING = ("loop.batch_size=8", "network.width=128", "network.layers=2", "loop.threads=2",
            "validation_split.pairs=2", "loop.log_every=40")  # fmt: skip


@click.command()
@click.option("--pairs", default=600, show_default=True)
@click.option("--repeats", default=5, show_default=True)
def main(pairs: int, repeats: int) -> None:
    """Measures samples a second of one epoch."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, pairs)
        write_hdf5(folder, pairs)
        entries = shard_index.read([f"{folder}/*.tar"])
        stream = stream_of(entries, counted)
        pixels = stream_of(entries, decoded)
        unchecked = stream_of(entries, decoded, verify_checksums=False)
        steps = pairs // BATCH
        seconds = turns(
            {
                "stream": lambda: [stream(number) for number in range(steps)],
                "pixels": lambda: [pixels(number) for number in range(steps)],
                "unchecked": lambda: [unchecked(number) for number in range(steps)],
                "sequential": lambda: in_a_row(sorted(map(str, folder.glob("*.tar")))),
                "hdf5": lambda: random_access(folder / "videos.h5", pairs),
            },
            repeats,
        )
        waits = {str(workers): waiting(folder, workers, repeats) for workers in (0, 1)}
    rates = {way: pairs / duration for way, duration in seconds.items()}
    share, ratio = rates["stream"] / rates["sequential"], rates["pixels"] / rates["hdf5"]
    checked = rates["pixels"] / rates["unchecked"]
    print(f"stream {rates['stream']:.0f} samples/s, {share:.0%} of webdataset in a row, "
          f"decoding {rates['pixels']:.0f}, × {ratio:.1f} of HDF5")  # fmt: skip
    print(f"with checksums compared: × {checked:.3f} of the samples a second without")
    for workers, wait in waits.items():
        print(f"a training with {workers} loader workers waits {wait:.0%} of its time for samples")
    figures = {"share": share, "ratio": ratio, "checked": checked, "waits": waits}
    report("stream", {"pairs": pairs, **rates, **figures})


def write(folder: Path, pairs: int) -> None:
    """Pairs as training shards, with their index."""
    index = {}
    for start in range(0, pairs, PER_SHARD):
        name = f"train-{start // PER_SHARD:06d}"
        with training_shards.write_shard(f"{folder}/{name}.tar") as (writer, written):
            for sequence, rng in drawn_sequences(range(start, min(start + PER_SHARD, pairs))):
                tokens = rng.integers(0, 512, (FRAMES, 14, 14))
                scores = rng.random((2, 1, FRAMES))
                members = encode(
                    sequence, tokens, scores, [0, 3, 5, 8], quality=95, processing_meta=TOKENIZER
                )
                writer.add(sequence.pair.key, members)
        index[name] = written.index
    training_shards.write_index(str(folder), index)


def write_hdf5(folder: Path, pairs: int) -> None:
    """Writes the same pairs as ProCap's HDF5."""
    with h5py.File(folder / "videos.h5", "w") as videos:
        for number, (sequence, _) in enumerate(drawn_sequences(range(pairs))):
            pixels = sequence.frames.transpose(0, 3, 1, 2)
            videos.create_dataset(f"{number}", data=pixels, compression="gzip")


def drawn_sequences(numbers: Iterable[int]) -> Iterator[tuple[FrameSequence, np.random.Generator]]:
    """The pairs of these numbers, and what is to be drawn for each."""
    for number in numbers:
        rng = np.random.default_rng(number)
        coarse = rng.integers(0, 256, (FRAMES, 14, 14, 3), np.uint8)
        frames = np.stack([cv2.resize(one, (224, 224)) for one in coarse])
        pair = ImagePair(
            dataset="a",
            split="train",
            id=f"{number:06d}",
            kind="change",
            before="b",
            after="a",
            captions=("x",),
        )
        yield FrameSequence(pair, frames), rng


def stream_of(
    entries: Sequence[Entry],
    make_batch: Callable[..., dict[str, object]],
    verify_checksums: bool = True,
) -> Stream:
    """The trainer's stream of these samples."""
    settings = StreamSettings(verify_checksums=verify_checksums)
    return Stream(entries, make_batch, batch_size=BATCH, seed=0, settings=settings, ranks=Ranks())


def counted(samples: list[TrainingSample], rng: object) -> dict[str, object]:
    """The number of samples alone: a batch that costs nothing to make."""
    return {"n": len(samples)}


def decoded(samples: list[TrainingSample], rng: object) -> dict[str, object]:
    """A batch with its keyframes' pixels."""
    return {"images": [sample.image(frame) for sample in samples for frame in sample.images]}


def waiting(folder: Path, workers: int, repeats: int) -> float:
    """The share that `cc-train stage1` itself prints, of 40 steps of a small network; median."""
    shares = []
    for number in range(repeats):
        options = (*TRAINING, f"loop.loader_workers={workers}")
        command = [
            str(Path(sys.executable).parent / "cc-train"), "stage1", "--steps", "40",
            "--shards", f"{folder}/*.tar", "--out", f"{folder}/run-{workers}-{number}",
            *(part for option in options for part in ("--set", option)),
        ]  # fmt: skip
        log = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        [share, *_] = re.findall(r"(\d+)% waiting", log)
        shares.append(int(share) / 100)
    return statistics.median(shares)


def in_a_row(shards: list[str]) -> int:
    """All samples by plain webdataset."""
    count = 0
    for sample in webdataset.WebDataset(shards, shardshuffle=False):
        json.loads(sample["json"])
        for name in ("tokens.npy", "scores.npy"):
            np.load(io.BytesIO(sample[name]), allow_pickle=False)
        count += 1
    return count


def random_access(path: Path, pairs: int) -> list[np.ndarray]:
    """Every pair once, in a random order, as the reference's data set class reads them."""
    frames = []
    with h5py.File(path, "r") as videos:
        for number in np.random.default_rng(1).permutation(pairs):
            frames = [videos[f"{number}"][()]]
    return frames


if __name__ == "__main__":
    main()
