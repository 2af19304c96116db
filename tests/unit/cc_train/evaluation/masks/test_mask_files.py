"""Masks of any system in folders: their values, and what is said of those that do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cc_prep.errors import UserError
from cc_train.evaluation.masks import files
from tests.commands import cc_train

TRUE = np.array([[0, 0, 1], [2, 2, 0]], np.uint8)
PREDICTED = np.array([[0, 1, 1], [2, 0, 0]], np.uint8)
RAW = np.array([0, 128, 255], np.uint8)
# The colours in which LEVIR-MCI's results are shown: roads yellow, buildings red.
DISPLAYED = np.array([(0, 0, 0), (255, 255, 0), (255, 0, 0)], np.uint8)
OPAQUE = np.concatenate([DISPLAYED, np.full((3, 1), 255, np.uint8)], axis=1)


def write(folder: Path, *masks: np.ndarray, mode: str | None = None) -> str:
    folder.mkdir(exist_ok=True)
    for number, mask in enumerate(masks):
        image = Image.fromarray(mask)
        (image.convert(mode) if mode else image).save(folder / f"test_{number}.png")
    return str(folder)


def test_class_ids_and_raw_values_are_the_same(tmp_path: Path) -> None:
    """Keeps away: labels of LEVIR-MCI whose 128 and 255 are other classes than 1 and 2."""
    ids = files.score(write(tmp_path / "p", PREDICTED), write(tmp_path / "r", TRUE))
    raw = files.score(
        write(tmp_path / "raw p", RAW[PREDICTED], mode="RGB"), write(tmp_path / "raw r", RAW[TRUE])
    )
    mixed = files.score(str(tmp_path / "p"), str(tmp_path / "raw r"), 3)
    assert [*ids.classes] == ["road", "building"]
    assert ids.to_json() == raw.to_json() == mixed.to_json()
    assert ids.to_json()["IoU"] == {"unchanged": 50, "road": 50, "building": 50}


def test_binary_masks_of_any_kind(tmp_path: Path) -> None:
    """Keeps away: 255 as an unknown class, and a palette's colours as ids."""
    references = write(tmp_path / "r", np.where(TRUE > 0, 255, 0).astype(np.uint8))
    for name, mask in (
        ("ids", (PREDICTED > 0).astype(np.uint8)),
        ("bits", PREDICTED > 0),
    ):
        figures = files.score(write(tmp_path / name, mask), references, 2).to_json()
        assert figures["IoU"] == {"unchanged": 50, "change": 50}
        assert figures["mIoU"] == figures["mIoU-change"] == figures["IoU-any"] == 50
    palette = Image.fromarray((PREDICTED > 0).astype(np.uint8), "P")
    palette.putpalette([9, 9, 9, 200, 0, 0])
    (tmp_path / "palette").mkdir()
    palette.save(tmp_path / "palette/test_0.png")
    assert files.score(str(tmp_path / "palette"), references, 2).to_json()["IoU-any"] == 50
    assert files.score(references, references).to_json()["mIoU"] == 100
    ids = str(tmp_path / "ids")
    assert [*files.score(ids, ids).classes] == ["change"]
    nothing = np.zeros_like(TRUE)
    references = write(tmp_path / "none", nothing, nothing, nothing, TRUE)
    predictions = write(tmp_path / "some", nothing, TRUE, nothing, TRUE)
    figures = files.score(predictions, references).to_json()
    assert (figures["false alarms"], figures["unchanged pairs"]) == (pytest.approx(100 / 3), 3)


def test_two_notations_that_may_be_one_class_or_two(tmp_path: Path) -> None:
    """Keeps away: predicted roads counted as the buildings that the references hold."""
    references = write(tmp_path / "r", np.where(TRUE == 2, 255, 0).astype(np.uint8))
    roads = write(tmp_path / "p", (TRUE == 1).astype(np.uint8))
    with pytest.raises(UserError, match=r"r/test_0\.png holds 255, .*p/test_0\.png 1: .*classes 3"):
        files.score(roads, references)
    assert files.score(roads, references, 3).to_json()["IoU"]["building"] == 0
    assert files.score(references, roads, 2).to_json()["IoU"]["change"] == 0


def test_more_classes_have_numbers(tmp_path: Path) -> None:
    folder = write(tmp_path / "p", TRUE + 2)
    assert [*files.score(folder, folder, 6).classes][-1] == "class 5"
    with pytest.raises(UserError, match=r"the value 3, and there are 3 classes.*--classes N"):
        files.score(folder, folder, 3)


@pytest.mark.parametrize(
    ("predictions", "message"),
    [
        ([TRUE], r"1 masks are missing, such as test_1\.png"),
        ([TRUE, TRUE[:1]], r"test_1\.png: 3×1 px, its reference 3×2"),
        ([TRUE, np.full((2, 3), 77, np.uint8)], r"test_1\.png: the value 77, and there are 3"),
        ([TRUE, np.full((2, 3), 256, np.uint16)], r"test_1\.png: the value 256"),
        ([TRUE, DISPLAYED[TRUE]], r"test_1\.png: a picture in colours.*class ids, in grey"),
        ([TRUE, OPAQUE[TRUE]], r"test_1\.png: a picture in colours"),
    ],
)
def test_what_does_not_fit(tmp_path: Path, predictions: list[np.ndarray], message: str) -> None:
    """Keeps away: a perfect prediction in display colours that gets an IoU of 0 for roads."""
    references = write(tmp_path / "r", TRUE, TRUE)
    with pytest.raises(UserError, match=message):
        files.score(write(tmp_path / "p", *predictions), references)


def test_no_masks(tmp_path: Path) -> None:
    folder = write(tmp_path / "r", TRUE)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no PNG in it"):
        files.score(folder, str(tmp_path / "empty"))
    with pytest.raises(UserError, match="nowhere: no such folder"):
        files.score(folder, str(tmp_path / "nowhere"))
    (tmp_path / "r/test_0.png").write_bytes(b"\x89PNG hello")
    with pytest.raises(UserError, match=r"test_0\.png: no mask"):
        files.score(folder, folder)


def test_the_command_prints_the_figures(tmp_path: Path) -> None:
    """Keeps away: other names in the JSON than on the screen, and in scores.json."""
    folders = (
        "--mask-predictions", write(tmp_path / "p", PREDICTED),
        "--mask-references", write(tmp_path / "r", TRUE),
    )  # fmt: skip
    done = cc_train("evaluate", *folders, "--classes", 3)
    assert done.returncode == 0, done.stderr
    for text in ("mIoU 50.00", "mIoU-change 50.00", "F1 66.67", "| building | 50.00 |"):
        assert text in done.stdout
    out = tmp_path / "out"
    figures = json.loads(cc_train("evaluate", *folders, "--json", "--out", out).stdout)
    assert figures["mIoU"] == 50
    assert figures["mIoU-change"] == 50
    assert figures["IoU"]["road"] == 50
    assert figures["F1"] == pytest.approx(200 / 3)
    assert json.loads((out / "scores.json").read_text()) == {"masks": figures}
    assert cc_train("evaluate", *folders, "--out", out).returncode == 0, "masks again"


@pytest.mark.parametrize("content", ['{"metrics": {}, "masks": {}}', "[1]", "{"])
def test_scores_of_captions_stay(tmp_path: Path, content: str) -> None:
    """Keeps away: an evaluation of captions that `compare` refuses after masks were scored."""
    scores = tmp_path / "scores.json"
    scores.write_text(content)
    folder = write(tmp_path / "r", TRUE)
    masks = ("--mask-predictions", folder, "--mask-references", folder)
    done = cc_train("evaluate", *masks, "--out", tmp_path)
    assert done.returncode == 2
    assert "scores.json: not the scores of masks" in done.stderr
    assert scores.read_text() == content


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mask-predictions", "x"], "belong together"),
        (["--classes", 3], "belong together"),
        (["run", "--mask-predictions", "x", "--mask-references", "y"], "masks and captions"),
        (["--mask-predictions", "x", "--mask-references", "y", "--facts", "z"], "one at a time"),
    ],
)
def test_half_a_question(arguments: list[object], message: str) -> None:
    done = cc_train("evaluate", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
