"""A folder of videos: pairs of frames `gap` apart, the real frames between them as truth.

Every video at the top of the folder belongs to the split `train`; videos in a sub-folder named
like a split belong to that split. There are no captions and every pair is a change.
"""

from __future__ import annotations

from collections import Counter

from cc_prep import storage
from cc_prep.datasets.layouts.annotation_files import visible
from cc_prep.errors import RejectedPair, UserError
from cc_prep.manifest import Manifest
from cc_prep.media import video
from cc_prep.records import CHANGE, ImagePair
from cc_prep.steps.interpolate import times
from cc_prep.words import counted

WANTED = (
    "Put videos there, or name their folder with --root, or fetch three real ones: "
    "cc-prep videos {m.root}"
)


def parts(root: str) -> dict[str, bool]:
    """Whether each part of the layout is there."""
    return {f"a video ({', '.join(video.ENDINGS)})": bool(_videos(root, "train"))}


def pairs(manifest: Manifest, split: str) -> list[ImagePair]:
    """The pairs of all videos of a split, by file name and frame.

    Raises:
        UserError: For none.
    """
    paths = _videos(manifest.root, split)
    named_alike = Counter(map(_stem, paths))
    image_pairs = [
        pair
        for path in paths
        # Folder and ending tell videos apart that have the same name, and only those.
        for pair in _of_video(
            manifest, split, path, _stem(path) if named_alike[_stem(path)] == 1 else path
        )
    ]
    if not image_pairs and split == "train":
        if paths:
            first, *others = faults(manifest)
            more = f", and {counted(len(others), 'more fault')}" if others else ""
            remedy = f"Give longer videos, or a lower video.gap than {manifest.video.gap}"
            raise UserError(f"{manifest.root}: no pair of frames in it: {first}{more}", remedy)
        raise UserError(f"{manifest.root}: no videos in it", WANTED.format(m=manifest))
    return image_pairs


def faults(manifest: Manifest) -> list[str]:
    """Videos that cannot be opened or that are too short to give a pair."""
    problems = []
    for split in manifest.splits:
        for path in _videos(manifest.root, split):
            try:
                count = video.count_frames(storage.resolve(manifest.root, path))
            except RejectedPair as error:
                problems.append(str(error))
            else:
                if count <= manifest.video.gap:
                    problems.append(
                        f"{path}: {count} frames, too few for a gap of {manifest.video.gap}"
                    )
    return problems


def _videos(root: str, split: str) -> list[str]:
    """Paths of a split's videos below the root."""
    folders = ["", f"{split}/"] if split == "train" else [f"{split}/"]
    return [
        f"{folder}{name}"
        for folder in folders
        for name in visible(storage.list_files(storage.join(root, folder.rstrip("/"))))
        if name.lower().endswith(video.ENDINGS)
    ]


def _stem(path: str) -> str:
    return path.rsplit("/", 1)[-1].rsplit(".", 1)[0]


def _of_video(manifest: Manifest, split: str, path: str, name: str) -> list[ImagePair]:
    gap = manifest.video.gap
    try:
        count = video.count_frames(storage.resolve(manifest.root, path))
    except RejectedPair:
        # One pair that the job will reject, so that a damaged video is named there and not lost.
        count = gap + 1
    starts = list(range(0, count - gap, manifest.video.stride))
    most = manifest.video.max_pairs_per_video
    if most is not None and len(starts) > most:
        starts = [starts[i * len(starts) // most] for i in range(most)]
    return [_pair(manifest, split, path, name, start) for start in starts]


def _pair(manifest: Manifest, split: str, path: str, name: str, start: int) -> ImagePair:
    gap = manifest.video.gap
    between = [(t, start + t * gap) for t in times(manifest.interpolate.depth)[1:-1]]
    truth = tuple((t, f"{path}#frame={int(at)}") for t, at in between if at == int(at))
    return ImagePair(
        dataset=manifest.name,
        split=split,
        id=f"{name}_{start:06d}",
        kind=CHANGE,
        before=f"{path}#frame={start}",
        after=f"{path}#frame={start + gap}",
        truth=truth,
    )
