"""Grid features that others computed, one file per image, instead of a backbone.

SCORER's public code, and with it DUDA's, DIRL's and MEDIC's, reads `features/<image file>.npy` for
an image in `images`, likewise `sc_features` for `sc_images` and `nsc_features` for `nsc_images`;
`cc-prep export scorer` writes them so.
"""

from __future__ import annotations

from pathlib import PurePosixPath

import numpy as np

from cc_prep import npy, storage
from cc_prep.errors import FileRefused, Reason, RejectedPair, UserError, first_line
from cc_prep.formats.training_shards import Features
from cc_prep.records import ImagePair

IMAGES, FEATURES = "images", "features"
UNKNOWN = "imported"  # in place of a digest where nobody knows the weights' file


class FeatureFiles:
    """Reads the features of both images of a pair.

    Args:
        folder: The folder of the files, a path or URL.
        name, sha256: The backbone that made them, and the digest of its weights or UNKNOWN.
        precision: `float16` or `float32`, in which they are stored.
    """

    def __init__(self, folder: str, name: str, sha256: str, precision: str) -> None:
        self.folder, self.name, self.sha256 = folder, name, sha256
        self.dtype = np.dtype(precision)

    def __call__(self, pair: ImagePair, last: int) -> Features:
        """Features [2, channels, h, w] of before and after, the frames 0 and `last`.

        Raises:
            RejectedPair: If a file is missing or holds no features, or the two differ in shape.
        """
        before, after = (self._read(image) for image in (pair.before, pair.after))
        if before.shape != after.shape:
            raise RejectedPair(
                Reason.UNREADABLE_FEATURES, f"of the shapes {before.shape} and {after.shape}"
            )
        with np.errstate(over="ignore"):  # what does not fit is refused below
            values = np.stack((before, after)).astype(self.dtype)
        if not np.isfinite(values).all():
            raise RejectedPair(
                Reason.UNREADABLE_FEATURES, f"{pair.before}: not all are finite {self.dtype}"
            )
        return Features(self.name, self.sha256, (0, last), values)

    def _read(self, image: str) -> np.ndarray:
        """Features, float [channels, h, w], of an image of the data set."""
        path = storage.join(self.folder, file_of(image))
        try:
            array = npy.read(storage.read_bytes(path), path)
        except FileNotFoundError:
            raise RejectedPair(Reason.MISSING_FEATURES, path) from None
        except FileRefused as error:  # as S3 answers for a missing one to keys that may not list
            raise RejectedPair(Reason.UNREADABLE_FEATURES, error.what) from None
        except ValueError as error:
            raise RejectedPair(Reason.UNREADABLE_FEATURES, str(error)) from None
        except OSError as error:
            raise RejectedPair(Reason.UNREADABLE_FEATURES, f"{path}: {first_line(error)}") from None
        if array.dtype.kind != "f" or array.ndim != 3:
            raise RejectedPair(
                Reason.UNREADABLE_FEATURES, f"{path}: no floats of channels, rows and columns"
            )
        return array


def file_of(image: str) -> str:
    """The file of an image's features, relative to their folder.

    The part `images`, or `<word>_images`, of its path becomes `features`, or `<word>_features`; a
    path without such a part stays as it is.
    """
    path = PurePosixPath(image)
    if path.is_absolute() or "://" in image:
        raise UserError(
            f"features.folder: {image} is not below the data set's root",
            "Build with a backbone, or name the images relative to the root",
        )
    parts = [_renamed(part) for part in path.parts[:-1]]
    return str(PurePosixPath(*parts, f"{path.name}.npy"))


def _renamed(part: str) -> str:
    if part == IMAGES or part.endswith(f"_{IMAGES}"):
        return part.removesuffix(IMAGES) + FEATURES
    return part
