"""What is told in place of a sentence that is almost certainly wrong, and of equal images."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from cc_train import doubt
from cc_train.calibration import Calibration
from cc_train.captioner import Caption, Change
from cc_train.cli.caption import say_other_captioner
from cc_train.pretrained import Captioner
from cc_train.runs import run_folder
from cc_train.serve.server import shipped_examples
from tests.commands import cc_train

CALIBRATION = Calibration(1.0, 0.0, ood_threshold=2.0)


@pytest.mark.parametrize(
    ("confidence", "ood_score", "calibration", "reason"),
    [
        (0.0499, 2.1, CALIBRATION, "not sure: these images are unlike those that the captioner"),
        (
            0.0499,
            1.9,
            CALIBRATION,
            "not sure: its sentence is right with a chance of less than 5 %",
        ),
        (0.0499, 2.0, CALIBRATION, "not sure: its sentence is right with a chance"),
        (0.0499, None, Calibration(1.0, 0.0, ood_threshold=0.5), "not sure: its sentence is right"),
        (0.0499, 2.1, Calibration(1.0, 0.0), "not sure: its sentence is right with a chance"),
        (0.0, None, None, "not sure: its sentence is right with a chance"),
        (0.05, 2.1, CALIBRATION, "a cube moved"),
        (None, 9.0, CALIBRATION, "a cube moved"),
    ],
)
def test_a_sentence_that_is_hardly_right_is_replaced(
    confidence: float | None, ood_score: float | None, calibration: Calibration, reason: str
) -> None:
    """Keeps away: metal spheres on a photograph, in bold, with a small 0 % below."""
    own = Caption("a cube moved", confidence=confidence, ood_score=ood_score)
    told = doubt.told(own, False, calibration)
    assert told.text.startswith(reason)
    assert told.raw == (None if reason == own.text else own.text)
    assert told.confidence == confidence
    assert doubt.told(told, False, calibration) == told


def test_equal_images_are_equal_whatever_the_captioner_says() -> None:
    """Keeps away: a change, a mask or boxes for two images of which no pixel differs."""
    change = Change("moved", "cube", (0, 0, 1, 1), (0, 0, 1, 1))
    mask = np.ones((4, 4), np.uint8)
    told = doubt.told(Caption("a cube moved", confidence=0.01, mask=mask, changes=(change,)), True)
    assert (told.text, told.raw) == ("the two images are equal", "a cube moved")
    assert told.confidence == 1
    assert told.mask is not None
    assert not told.mask.any()
    assert told.changes == ()
    assert mask.all()
    bare = doubt.told(Caption("a cube moved"), True)
    assert (bare.confidence, bare.mask, bare.changes) == (None, None, None)


@pytest.mark.parametrize(("compared", "share"), [(0.999, 1), (0.99, 1), (0.6, 40), (0.404, 60)])
def test_the_share_that_is_not_compared_is_rounded(compared: float, share: int) -> None:
    assert doubt.missing(compared).startswith(f"{share} % of the image before has no counterpart")


def test_what_registered_images_do_not_share_is_said(tmp_path: Path) -> None:
    """Keeps away: "nothing changed 99 %" where 40 % of an image is not compared."""
    view = cv2.imread(str(shipped_examples("photos-mini") / "yard5_before.jpg"))
    width = 300
    for name, left in (("a", 0), ("near", 30), ("far", 120)):
        cv2.imwrite(str(tmp_path / f"{name}.png"), view[:, left : left + width])
    listed = tmp_path / "pairs.csv"
    listed.write_text("before,after\na.png,near.png\na.png,far.png\n")
    args = ("--register", "translation", "--device", "cpu")
    done = cc_train("caption", "photos-mini", "--pairs", listed, "--json", *args)
    near, far = (json.loads(line) for line in done.stdout.splitlines())
    assert near["compared"] == pytest.approx(0.9, abs=0.02)
    assert not near["caption"].startswith(doubt.NOT_SURE)
    assert "pair 1: 11 % of the image before has no counterpart in the one after" in done.stderr
    assert far["compared"] == pytest.approx(0.6, abs=0.02)
    assert far["caption"].startswith("not sure: 41 % of the image before has no counterpart")
    assert "confidence" not in far
    assert not far["raw_caption"].startswith(doubt.NOT_SURE)
    assert "pair 2" not in done.stderr  # its caption says it


def test_each_captioner_of_rendered_scenes_names_the_one_of_photographs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Keeps away: three of four that said "not sure" of photographs, and nothing of photos-mini."""
    for name in run_folder.shipped():
        say_other_captioner(run_folder.locate(name))
    told = capsys.readouterr().err.splitlines()
    names = [line.partition(" knows rendered scenes alone. For photographs: ")[0] for line in told]
    assert sorted(names) == ["captioner-mini", "captioner-multi", "chain-mini", "procap-mini"]


def test_the_command_and_programs_say_it(tmp_path: Path) -> None:
    """Keeps away: a doubt that one of them leaves out, and a caption that a table loses."""
    noise = np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)
    other = noise.copy()
    other[0, 0] ^= 1  # at 112×112 px it is hardly there, and the images are not equal
    files = [str(tmp_path / f"{name}.png") for name in "abc"]
    for file, image in zip(files, (noise, noise[::-1], other), strict=True):
        cv2.imwrite(file, image)
    captioner = Captioner.from_pretrained("captioner-mini", device="cpu")
    pairs = [(files[0], files[1]), (files[0], files[0]), (files[0], files[2])]
    listed = tmp_path / "pairs.jsonl"
    listed.write_text("".join(json.dumps({"before": a, "after": b}) + "\n" for a, b in pairs))
    done = cc_train("caption", "--pairs", listed, "--json", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["caption"] for row in rows] == [str(captioner(*pair)) for pair in pairs]
    assert rows[0]["caption"] == f"{doubt.NOT_SURE}{doubt.UNLIKE}"
    assert rows[0]["raw_caption"] == captioner(*pairs[0]).raw
    assert not rows[0]["raw_caption"].startswith(doubt.NOT_SURE)
    assert (rows[1]["caption"], rows[1]["confidence"]) == (doubt.EQUAL, 1)
    assert rows[2]["caption"] != doubt.EQUAL
    other = "captioner-mini knows rendered scenes alone. For photographs: cc-train caption photos"
    assert done.stderr.count(other) == 1
    assert other in cc_train("caption", *pairs[0], "--device", "cpu").stderr
    one = cc_train("caption", *pairs[1], "--device", "cpu")
    assert one.stdout.startswith(doubt.EQUAL)
    assert other not in one.stderr
