"""The options of `cc-train evaluate` and `cc-train caption`, and which do not go together."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest

from cc_prep.errors import UserError
from cc_train import Caption, cli
from cc_train.commands import caption, evaluate
from tests.commands import cc_train

SHARDS: Any = ("test-000000.tar",)


@pytest.mark.parametrize(
    ("command", "options"), [(cli.evaluate, evaluate.Options), (cli.caption, caption.Options)]
)
def test_the_command_line_and_the_command_have_the_same_options(
    command: click.Command, options: type
) -> None:
    """Keeps away: an option that the help lists and that ends in a TypeError."""
    assert {one.name for one in command.params} == {one.name for one in fields(options)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 2, "predicted_only": True}, "masks and captions are both"),
        ({"mask_predictions": "x", "shards": SHARDS}, "masks and captions are both"),
        ({"mask_references": "x"}, "--mask-predictions and --mask-references belong together"),
        ({"predictions": ("x",), "protocol": "coco"}, "no protocol is named coco"),
        ({"predictions": ("x",)}, "--predictions needs either"),
        ({"predictions": ("x",), "references": "y", "shards": SHARDS}, "needs either"),
        ({"predictions": ("x",), "references": "y", "run": "z"}, "needs either"),
        ({}, "nothing is given to score"),
        ({"shards": SHARDS, "types": "x"}, "nothing is given to score"),
        ({"run": "x", "shards": SHARDS, "types": "y"}, "are of --predictions"),
        ({"run": "x", "shards": SHARDS, "predicted_only": True}, "are of --predictions"),
    ],
)
def test_what_evaluate_refuses(options: dict[str, Any], message: str) -> None:
    """Keeps away: a file that is read, or a captioner that is loaded, before a mistake is named."""
    with pytest.raises(UserError, match=message):
        evaluate.evaluate(evaluate.Options(**options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask": "m.png", "pairs": "x.csv"}, "--mask and --overlay are of one pair"),
        ({"paths": ("r", "a", "b"), "mask": "m.jpg"}, "m.jpg"),
        ({"paths": ("r", "a", "b"), "shards": SHARDS}, "--shards and other pairs"),
        ({"pairs": "x.csv", "shards": SHARDS}, "--shards and other pairs"),
        ({"paths": ("r", "a", "b"), "limit": 1}, "--limit without --shards"),
        ({"paths": ("r",)}, "no images given"),
        ({"paths": ("r", "a", "b"), "pairs": "x.csv"}, "images and --pairs"),
    ],
)
def test_what_caption_refuses(options: dict[str, Any], message: str) -> None:
    """Keeps away: a captioner that is loaded before a mistake is named."""
    with pytest.raises(UserError, match=message):
        caption.caption(caption.Options(**options))


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
