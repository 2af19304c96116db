"""CLEVR-DC: its names and numbers, and what its captions say of the assumed order of actions."""

from __future__ import annotations

from pathlib import Path

import pytest

from cc_prep import datasets, manifest
from cc_prep.errors import UserError
from cc_prep.inspect.inspection import inspect
from tests.dataset_factory import clevr_dc, image, write


def test_clevr_dc(tmp_path: Path) -> None:
    settings = clevr_dc(tmp_path)
    pairs = datasets.pairs(settings, "train")
    assert [(p.id, p.kind, p.change_type, p.image_id) for p in pairs] == [
        ("000000", "change", "color", "000000.png"),
        ("008001", "change", "material", "008001.png"),
        ("040000", "no_change", None, "040000.png"),
    ]
    assert (pairs[1].before, pairs[1].after) == ("bef/8001.png", "aft/8001.png")
    assert pairs[0].captions == ("change 0", "another")
    assert inspect(settings, settings.splits).faults == []


def test_clevr_dc_as_others_rename_it(tmp_path: Path) -> None:
    image(tmp_path / "images/000007.png")
    image(tmp_path / "sc_images/000007.png")
    write(tmp_path / "change_captions.json", {"000007.png": ["it moved"]})
    write(tmp_path / "splits.json", {"train": ["7"]})
    write(tmp_path / "type_mapping.json", {"move": ["000007.png"], "distractor": ["000008.png"]})
    [pair] = datasets.pairs(manifest.load("clevr_dc", root=str(tmp_path)), "train")
    assert (pair.before, pair.change_type) == ("images/000007.png", "move")


def test_clevr_dc_numbered_in_another_way(tmp_path: Path) -> None:
    """Keeps away: a sixth of all flags that are wrong because the order of actions is assumed."""
    settings = clevr_dc(tmp_path)
    write(tmp_path / "captions.json", {str(i): ["it moved"] for i in (0, 8_001, 40_000)})
    write(tmp_path / "split.json", {"train": [0, 8_001, 40_000]})
    assert datasets.reader(settings).faults(settings) == [
        "1 of 1 pairs that count as unchanged have captions of a change, such as 40000 "
        "(the sixth 8,000 indices are assumed): say what changed in a type_mapping.json"
    ]


def test_clevr_dc_types_with_gaps(tmp_path: Path) -> None:
    """Keeps away: changed pairs that count as unchanged because a type mapping lacks them."""
    settings = clevr_dc(tmp_path)
    indices = (0, 8_001, 16_000, 32_000)
    write(tmp_path / "type_mapping.json", {"move": indices[:3]})
    write(tmp_path / "captions.json", {str(i): ["it moved"] for i in (*indices, 40_000)})
    [fault] = datasets.reader(settings).faults(settings)
    assert fault.startswith("2 of 2 pairs that count as unchanged have captions of a change, such")
    write(tmp_path / "type_mapping.json", {"move": indices, "none": [40_000]})
    [fault] = datasets.reader(settings).faults(settings)
    assert fault.startswith("1 of 1 pairs"), "what the captions gainsay is no matter of gaps"
    write(tmp_path / "type_mapping.json", {"move": indices[:3], "none": [40_000]})
    assert datasets.reader(settings).faults(settings) == [
        "type_mapping.json: no type for 1 of 5 indices, such as 32000, which count as unchanged"
    ]


@pytest.mark.parametrize("splits", [{"train": ["x"]}, {"train": 3}, {"train": [48_000]}])
def test_clevr_dc_indices_of_others(tmp_path: Path, splits: object) -> None:
    settings = clevr_dc(tmp_path)
    write(tmp_path / "split.json", splits)
    with pytest.raises(UserError, match=r"not a list of numbers|beyond the 48,000"):
        datasets.pairs(settings, "train")
