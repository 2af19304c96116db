"""Feature files of others: found by the image's name, checked, and never unpickled."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from cc_prep.errors import Reason, RejectedPair, UserError
from cc_prep.records import ImagePair
from cc_prep.steps.imported_features import UNKNOWN, FeatureFiles, file_of

PAIR = ImagePair("d", "train", "1", "change", "images/a.png", "sc_images/a.png")
VALUES = np.random.default_rng(0).normal(size=(2, 6, 3, 4)).astype(np.float32)


def encoded(save: Callable[..., None], array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    save(buffer, array)
    return buffer.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, values in zip(("features", "sc_features"), VALUES, strict=True):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "a.png.npy", values)
    return tmp_path


def files(folder: Path, precision: str = "float32") -> FeatureFiles:
    return FeatureFiles(str(folder), "resnet101", UNKNOWN, precision)


@pytest.mark.parametrize("form", [">f8", "<f2", "<f4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_floats_of_other_forms_are_read(folder: Path, form: str, order: Literal["C", "F"]) -> None:
    """Keeps away: rows and columns exchanged, and bytes the wrong way around."""
    np.save(folder / "features/a.png.npy", VALUES[0].astype(form, order))
    expected = VALUES[0].astype(form).astype(np.float32)
    assert np.array_equal(files(folder)(PAIR, 8).values, np.stack((expected, VALUES[1])))


def test_both_images_features_are_read(folder: Path) -> None:
    features = files(folder)(PAIR, 8)
    assert (features.backbone, features.sha256, features.frames) == ("resnet101", UNKNOWN, (0, 8))
    assert np.array_equal(features.values, VALUES)
    half = files(folder, "float16")(PAIR, 1).values
    assert half.dtype == np.float16
    assert np.array_equal(half, VALUES.astype(np.float16))


@pytest.mark.parametrize(
    ("image", "file"),
    [
        ("images/a.png", "features/a.png.npy"),
        ("nsc_images/a.png", "nsc_features/a.png.npy"),
        ("train/images/0_1.jpg", "train/features/0_1.jpg.npy"),
        ("train/A/a.png", "train/A/a.png.npy"),
        ("a.png", "a.png.npy"),
    ],
)
def test_where_features_of_an_image_lie(image: str, file: str) -> None:
    assert file_of(image) == file


def test_images_elsewhere_have_no_features() -> None:
    with pytest.raises(UserError, match="below the data set's root"):
        file_of("/data/a.png")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a.png.npy"),
        (b"hello", "a.png.npy"),
        (encoded(np.save, VALUES[1]) + b"x", "bytes for float32"),
        (encoded(np.save, VALUES[1])[:-1], "bytes for float32"),
        (
            encoded(np.save, VALUES[1]).replace(b"4), }" + b" " * 12, b"4000000000000), }"),
            "bytes for",
        ),
        (encoded(np.savez, VALUES[1]), "magic"),
        (encoded(np.savez, VALUES[1])[:-40], "magic"),
        (np.array([{}], object), "objects"),
        (VALUES[1][0], "channels, rows and columns"),
        (VALUES[1].astype(np.int64), "no floats"),
        (VALUES[1][:, :2], "shapes"),
        (np.full_like(VALUES[1], np.nan), "finite"),
    ],
)
def test_what_is_no_file_of_features(
    folder: Path, content: bytes | np.ndarray, message: str
) -> None:
    path = folder / "sc_features/a.png.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content)
    with pytest.raises(RejectedPair) as caught:
        files(folder)(PAIR, 8)
    assert caught.value.reason is Reason.UNREADABLE_FEATURES
    assert message in str(caught.value)


def test_a_missing_file_is_named(folder: Path) -> None:
    with pytest.raises(RejectedPair) as caught:
        files(folder)(replace(PAIR, after="sc_images/b.png"), 8)
    assert caught.value.reason is Reason.MISSING_FEATURES
    assert "sc_features/b.png.npy" in str(caught.value)


def test_a_file_that_the_keys_do_not_open_is_a_reject(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a job that ends at a missing file, for which S3 answers so to some keys."""

    def refused(fs: object, key: str, **_: int) -> bytes:
        raise PermissionError("Forbidden")

    monkeypatch.setattr(MemoryFileSystem, "cat_file", refused)
    path = "memory://bucket/features/a.png.npy"
    with pytest.raises(RejectedPair, match=f"^unreadable features: {path}: Forbidden$"):
        FeatureFiles("memory://bucket", "resnet101", UNKNOWN, "float32")(PAIR, 8)


def test_values_too_large_for_half_precision_are_refused(folder: Path) -> None:
    np.save(folder / "features/a.png.npy", VALUES[0] * 1e6)
    with pytest.raises(RejectedPair, match="finite float16"):
        files(folder, "float16")(PAIR, 8)
