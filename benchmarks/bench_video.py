"""Reading pairs of video frames: one pass a video against pair by pair, with both libraries.

    python benchmarks/bench_video.py [--repeats 5]

The pairs are those of the three videos of `cc-prep videos`, in the order of a job's shards, at 224
pixels. All ways must give the same bytes. Frames in between are not read, as in `cc-prep build`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from unittest.mock import patch

import click
from lib.measuring import report, turns

from cc_prep import manifest, storage
from cc_prep.datasets import sample_videos
from cc_prep.media import video, video_readers
from cc_prep.media.video_frames import VideoFrames
from pipelines.plan import plan

SIZE = 224
FOLDER = "out/bench/videos"


@click.command()
@click.option("--repeats", default=5, show_default=True)
def main(repeats: int) -> None:
    """Measures milliseconds a pair."""
    sample_videos.fetch(FOLDER)
    settings = manifest.load("video", root=FOLDER)
    shards = [
        [
            storage.resolve(FOLDER, reference)
            for pair in shard.pairs
            for reference in (pair.before, pair.after)
        ]
        for shard in plan(settings, ["train"])
    ]
    pairs = sum(map(len, shards)) // 2
    digests: dict[str, str] = {}

    def way(library: str, ahead: bool) -> None:
        video.stop_decoder()  # the next one starts with the other library
        frames, digest = VideoFrames(), hashlib.sha256()
        with patch.object(video_readers, "library", lambda: library):
            for shard in shards:
                frames.expect(shard if ahead else ())
                read(shard, frames, digest)
        digests[f"{library} {ahead}"] = digest.hexdigest()

    ways = {
        f"{library}, {'one pass' if ahead else 'pair by pair'}": (
            lambda library=library, ahead=ahead: way(library, ahead)
        )
        for library in ("decord", "av")
        for ahead in (False, True)
    }
    seconds = turns(ways, repeats)
    assert len(set(digests.values())) == 1, digests
    milliseconds = {name: 1000 * value / pairs for name, value in seconds.items()}
    for name, value in milliseconds.items():
        print(f"{name}: {value:.1f} ms a pair, {pairs} pairs")
    ratio = milliseconds["decord, pair by pair"] / milliseconds["decord, one pass"]
    print(f"one pass a video: × {ratio:.1f}; the same bytes in all four ways")
    report("video", {**milliseconds, "pairs": pairs, "ratio": ratio})


def read(references: Sequence[str], frames: VideoFrames, digest: hashlib._Hash) -> None:
    for reference in references:
        digest.update(frames.read(reference, SIZE).tobytes())


if __name__ == "__main__":
    main()
