"""`cc_train.Captioner` in a user's hands: what it takes and gives, and how it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch

import cc_train
from cc_prep.errors import UserError
from cc_prep.synth import dataset
from cc_train import Caption, Captioner
from cc_train.decoding.consensus import Consensus
from tests import commands
from tests.commands import cc_train as command
from tests.conftest import write_video
from tests.network_factory import TALKATIVE_SIZE, Talkative


@pytest.fixture(scope="module")
def captioner() -> Captioner:
    return Captioner.from_pretrained("captioner-mini", device="cpu")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A rendered scene: its image, the changed one, and the one that only the camera changed."""
    root = tmp_path_factory.mktemp("scene")
    commands.render(root, 1, dataset.Settings(seed=771, size=112, wording="plain"))
    images = sorted(root.glob("*/CLEVR_default_*.png"))[0].name
    number = images.rsplit("_", 1)[1]
    return (
        root / "images" / f"CLEVR_default_{number}",
        root / "sc_images" / f"CLEVR_semantic_{number}",
        root / "nsc_images" / f"CLEVR_nonsemantic_{number}",
    )


def test_paths_arrays_and_pil_images_give_one_caption(
    captioner: Captioner, scene: tuple[Path, Path, Path]
) -> None:
    """Keeps away: channels swapped, or another filter, for one kind of image."""
    before, after, _ = scene
    opened = [PIL.Image.open(path) for path in (before, after)]
    arrays = [np.asarray(image.convert("RGB")) for image in opened]
    expected = captioner(before, after)
    assert captioner(str(before), arrays[1]) == expected
    assert captioner(arrays[0], opened[1]) == expected
    assert str(expected) == expected.text != "nothing changed"
    assert expected.confidence is not None
    assert expected.confidence > 0.5


def test_values_and_motions_are_arguments(
    captioner: Captioner, scene: tuple[Path, Path, Path]
) -> None:
    """Keeps away: an image of 16 bits or a shifted one that a program cannot caption."""
    before, after = (np.asarray(PIL.Image.open(path).convert("RGB")) for path in scene[:2])
    expected = captioner(before, after)
    deep = [np.dstack([one[..., ::-1], one]).astype(np.uint16) * 9 + 40 for one in (before, after)]
    assert captioner(*deep, bands=[3, 2, 1], scale=(40, 2335)) == expected
    assert captioner.caption_each([(deep[0], deep[1])], bands=[4, 5, 6], scale=(40, 2335)) == [
        expected
    ]
    shifted = np.roll(after, (5, -4), axis=(0, 1))
    assert captioner(before, shifted, register="affine") != captioner(before, shifted)
    with pytest.raises(UserError, match="bands and scale: bands: one or three numbers"):
        captioner(before, after, bands=[1, 2])
    with pytest.raises(UserError, match="register and resize: register"):
        captioner(before, after, register="rigid")


def test_lists_of_pairs_keep_their_order_whatever_the_batch(
    captioner: Captioner, scene: tuple[Path, Path, Path]
) -> None:
    before, after, still = scene
    pairs = [(before, after), (before, still), (still, before)]
    said = [captioner(*pair).text for pair in pairs]

    def texts(captions: list[Caption]) -> list[str]:
        return [one.text for one in captions]  # scores differ in their last bits

    assert texts(captioner(pairs, batch_size=2)) == said
    assert said[1:] == ["nothing changed"] * 2
    assert captioner([]) == []
    arrays = [[np.asarray(PIL.Image.open(one).convert("RGB")) for one in pair] for pair in pairs]
    assert texts(captioner(np.array(arrays))) == said
    assert texts(captioner(iter(pairs), batch_size=2)) == said


def test_pairs_are_read_a_batch_at_a_time() -> None:
    """Keeps away: all images of a data set in memory before the first caption."""
    captioner, held = Captioner(Talkative(), Path()), []

    def pairs() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for number in range(6):
            held.append(number)
            yield GREY, GREY

    def caption(pixels: torch.Tensor, beams: int) -> list[Caption]:
        held.append(-1)
        return Talkative().caption(pixels, beams)

    captioner.model.caption = caption  # type: ignore[method-assign]
    assert len(captioner(pairs(), batch_size=3)) == 6
    assert held == [0, 1, 2, -1, 3, 4, 5, -1]


def test_a_captioner_says_what_it_is(captioner: Captioner) -> None:
    """Keeps away: <cc_train.pretrained.Captioner object at 0x7f…> in a notebook."""
    assert repr(captioner) == "<Captioner captioner-mini: PairCaptioner, 112×112 px, cpu>"


def test_a_mask_comes_with_the_caption(scene: tuple[Path, Path, Path]) -> None:
    """A system that predicts masks returns class ids, at the size of its images."""
    caption = Captioner(Talkative(), Path())(*scene[:2])
    assert caption.mask is not None
    assert (caption.mask.dtype, caption.mask.shape) == (np.uint8, TALKATIVE_SIZE)
    assert set(np.unique(caption.mask)) == {0, 1, 2}


def test_beams_are_ranked(captioner: Captioner, scene: tuple[Path, Path, Path]) -> None:
    caption = captioner(*scene[:2], beams=3)
    assert len(caption.beams) == 3
    assert caption.beams[0] == (caption.text, caption.score)
    assert caption.confidence is None, "it was calibrated on greedy captions"


def test_beams_agree_on_a_caption(captioner: Captioner, scene: tuple[Path, Path, Path]) -> None:
    """Keeps away: a consensus of a captioner that nobody asked for beams."""
    model = Consensus(captioner.model)
    chosen = Captioner(model, Path())(*scene[:2], beams=3)
    assert sorted(chosen.beams) == sorted(captioner(*scene[:2], beams=3).beams)
    assert chosen.text == chosen.beams[0][0]
    with pytest.raises(UserError, match="this captioner gives one"):
        Captioner(model, Path())(*scene[:2])


GREY = np.zeros((32, 32), np.uint8)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ((GREY, np.zeros((32, 40), np.uint8)), "before is 32×32 px and the image after 40×32 px"),
        (
            (GREY.astype(np.complex64), GREY),
            r"^the image before: unreadable image \(complex64 \[32, 32\], "
            r"not numbers .*\)\. Give numbers",
        ),
        ((np.zeros((3, 32, 32), np.uint8), GREY), r"uint8 \[3, 32, 32\], not numbers \[H, W, ba"),
        ((np.arange(1024, dtype=np.uint16).reshape(32, 32), GREY), r"^the image before: .*--scale"),
        ((GREY[:8], GREY[:8]), r"too small \(32×8, at least 16 a side\)\. Give a larger image"),
        ((GREY, "nowhere.png"), r"^nowhere.png: missing image\. Check the path$"),
        ((GREY, __file__), r"^[^ ]*: unreadable image \(no image in PNG.*\)\. Save it again"),
        (("clip.MP4", GREY), "clip.MP4: is a video. Name a frame of it: clip.MP4#frame=0"),
        ((GREY,), "one image"),
        (("a.png",), "one image"),
        ((np.stack([GREY, GREY]),), "one image"),
        (([(GREY, GREY), (GREY,)],), "no list of pairs"),
    ],
)
def test_what_is_no_pair_of_images_is_one_line(
    captioner: Captioner, images: Any, message: str
) -> None:
    with pytest.raises(UserError, match=message) as error:
        captioner(*images)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("numbers", [{"beams": 0}, {"batch_size": 0}, {"beams": -1}])
def test_numbers_below_one_are_one_line(captioner: Captioner, numbers: dict[str, int]) -> None:
    """Keeps away: an IndexError of beam search, a ValueError of range()."""
    [(name, number)] = numbers.items()
    with pytest.raises(UserError, match=f"{name}={number}. Give 1 or more"):
        captioner([(GREY, GREY)], **numbers)


@pytest.mark.parametrize("device", ["tpu", "cuda:1", ""])
def test_a_device_that_we_do_not_know_is_one_line(device: str) -> None:
    """Keeps away: captions by the CPU, or another GPU, whatever was asked for."""
    with pytest.raises(UserError, match=f"device={device}: not known. Give auto, cpu, cuda"):
        Captioner.from_pretrained("captioner-mini", device=device)


def test_a_gpu_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: the remedy of a training, --set, in a program."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"torch finds no GPU\. Give cpu or auto"):
        Captioner.from_pretrained("captioner-mini", device="cuda")


def test_a_frame_of_a_video_is_an_image(captioner: Captioner, tmp_path: Path) -> None:
    write_video(tmp_path / "ramp.mp4", 4)
    frames = [f"{tmp_path}/ramp.mp4#frame={number}" for number in (0, 3)]
    assert captioner(*frames).text


def test_the_command_without_run_takes_the_shipped_captioner(
    captioner: Captioner, scene: tuple[Path, Path, Path]
) -> None:
    done = command("caption", *scene[:2])
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\t")[0] == captioner(*scene[:2]).text


@pytest.mark.parametrize("as_json", [False, True])
def test_a_bad_pair_of_a_list_stops_no_other(
    scene: tuple[Path, Path, Path], tmp_path: Path, as_json: bool
) -> None:
    """Keeps away: 40 captions that are lost for one truncated image."""
    before, after, _ = scene
    (tmp_path / "cut.png").write_bytes(before.read_bytes()[:2000])
    rows = [(before, after), (before, "cut.png"), ("nowhere.png", after), (after, after)]
    table = "".join(f"{one},{two}\n" for one, two in rows)
    (tmp_path / "pairs.csv").write_text(f"before,after\n{table}")
    done = command("caption", "--pairs", tmp_path / "pairs.csv", *["--json"] * as_json)
    assert done.returncode == 1, done.stderr
    errors = done.stderr.splitlines()
    assert errors[0].startswith(f"pair 2: {tmp_path / 'cut.png'}: ")
    assert errors[1].startswith(f"pair 3: {tmp_path / 'nowhere.png'}: missing image")
    assert errors[2:] == ["cc-train: 2 of 4 pairs have no caption"]
    lines = done.stdout.splitlines()
    if as_json:
        records = [json.loads(line) for line in lines]
        assert ["error" in record for record in records] == [False, True, True, False]
        assert records[1]["after"] == str(tmp_path / "cut.png")
        assert "caption" not in records[1]
        lines = [f"{one['before']}\t{one['after']}\t{one.get('caption')}" for one in records]
        lines = [lines[0], lines[3]]
    assert len(lines) == 2
    assert lines[1].startswith(f"{after}\t{after}\tthe two images are equal")


def test_a_list_of_one_pair_has_the_lines_of_a_list(
    scene: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    """Keeps away: a program that splits lines at tabs, and breaks on the one short list."""
    (tmp_path / "pairs.csv").write_text(f"before,after\n{scene[0]},{scene[1]}\n")
    done = command("caption", "--pairs", tmp_path / "pairs.csv")
    assert done.stdout.startswith(f"{scene[0]}\t{scene[1]}\tthe "), done.stderr


def test_one_image_alone_is_named_as_that(scene: tuple[Path, Path, Path]) -> None:
    """Keeps away: "no images given" where one is."""
    done = command("caption", scene[0])
    assert (done.returncode, "only one image is given" in done.stderr) == (2, True)


@pytest.mark.parametrize("run", ["captioner-mini", "somebody/captioner-v1.5"])
def test_one_image_of_a_captioner_by_name_is_named_as_that(
    scene: tuple[Path, Path, Path], run: str
) -> None:
    """Keeps away: the captioner's name called a missing image."""
    done = command("caption", run, scene[0])
    assert (done.returncode, "only one image is given" in done.stderr) == (2, True)


def test_a_mistyped_folder_of_an_image_is_no_captioner(scene: tuple[Path, Path, Path]) -> None:
    done = command("caption", "imagse/before.png", scene[0])
    assert "imagse/before.png: missing image" in done.stderr


def test_other_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'captioner_of_all'"):
        _ = cc_train.captioner_of_all
