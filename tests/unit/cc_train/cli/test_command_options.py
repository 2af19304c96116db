"""The options of `cc-train evaluate` and `cc-train caption`, and which do not go together."""

from __future__ import annotations

from pathlib import Path

import pytest

from cc_prep.errors import UserError
from cc_train import Caption
from cc_train.cli import caption
from cc_train.runs import run_folder
from tests.commands import cc_train


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("evaluate --classes 2 --predicted-only", "masks and captions are both"),
        ("evaluate --mask-predictions x --shards s.tar", "masks and captions are both"),
        (
            "evaluate --mask-references x",
            "--mask-predictions and --mask-references belong together",
        ),
        ("evaluate --predictions x --protocol coco", "no protocol is named coco"),
        ("evaluate --predictions x", "--predictions needs either"),
        ("evaluate --predictions x --references y --shards s.tar", "needs either"),
        ("evaluate z --predictions x --references y", "needs either"),
        ("evaluate", "nothing is given to score"),
        ("evaluate --shards s.tar --types x", "nothing is given to score"),
        ("evaluate x --shards s.tar --types y", "are of --predictions"),
        ("evaluate x --shards s.tar --predicted-only", "are of --predictions"),
        ("caption --mask m.png --pairs x.csv", "--mask and --overlay are of one pair"),
        ("caption r a b --mask m.jpg", "m.jpg"),
        ("caption r a b --shards s.tar", "--shards and other pairs"),
        ("caption --pairs x.csv --shards s.tar", "--shards and other pairs"),
        ("caption r a b --limit 1", "--limit without --shards"),
        ("caption r", "no images given"),
        ("caption r a b --pairs x.csv", "images and --pairs"),
    ],
)
def test_options_that_do_not_go_together(command: str, message: str) -> None:
    """Keeps away: a file that is read, or a captioner that is loaded, before a mistake is named."""
    done = cc_train(*command.split())
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize(
    ("confidence", "line"),
    [(None, "a ball"), (0.004, "a ball\t0 %"), (0.986, "a ball\t99 %"), (0.999, "a ball\t99 %")],
)
def test_no_caption_is_certain(confidence: float | None, line: str) -> None:
    """Keeps away: a caption that is right "with a chance of 100 %"."""
    assert caption._text(Caption("a ball", confidence=confidence)) == line


@pytest.mark.parametrize(
    "command",
    [
        "evaluate --predictions no.json --references no.json --out {file}",
        "evaluate no-run --shards no.tar --out {file}",
        "evaluate --mask-predictions no --mask-references no --out {file}",
        "baseline --shards no.tar --model no --out {file}",
        "pair --shards no.tar --out {file}",
        "export no-run {file}/captioner",
        "report no-run --out {folder}",
        "compare no-run --out {folder}",
        "compare no-run --out {file}/page.html",
        "imagine no-run a.png b.png --out {folder}/x.png",
        "caption no-run a.png b.png --mask {folder}/x.png",
    ],
)
def test_an_output_that_cannot_be_written_is_said_first(command: str, tmp_path: Path) -> None:
    """Keeps away: minutes of scores, captions or training, and then a word about --out."""
    (tmp_path / "file").write_text("")
    (tmp_path / "folder/x.png").mkdir(parents=True)
    words = command.format(file=tmp_path / "file", folder=tmp_path / "folder").split()
    done = cc_train(*words)
    assert done.returncode == 2
    assert "not a folder" in done.stderr or "not a file" in done.stderr


def test_two_files_of_one_ending_are_two_images() -> None:
    """Keeps away: "only one image is given" for two files of a kind that is no image's here."""
    pair = ("folder/a.heic", "folder/b.heic")
    assert caption._run_and_images(pair) == (run_folder.SHIPPED, pair)
    with pytest.raises(UserError, match="only one image is given"):
        caption._run_and_images(("owner/captioner", "a.png"))
