"""`--types`: which group of changes each pair counts for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cc_prep.errors import UserError
from cc_train.evaluation.captions import coco
from tests import dataset_factory
from tests.commands import cc_train
from tests.unit.cc_train.evaluation.captions.test_coco import items_of


def test_types_of_an_official_mapping(tmp_path: Path) -> None:
    (tmp_path / "types.json").write_text(json.dumps({"color": ["1.png"], "move": ["2.png"]}))
    references = {"1.png": ["a"], "2.png": ["b"], "2.png_n": ["same"], "3.png": ["c"]}
    (tmp_path / "references.json").write_text(json.dumps(references))
    items = coco.read_references(str(tmp_path / "references.json"))
    groups = {i.id: i.groups for i in coco.with_types(items, str(tmp_path / "types.json"))}
    assert groups == {
        "1.png": ("semantic change", "color"),
        "2.png": ("semantic change", "move"),
        "2.png_n": ("no change",),
        "3.png": ("semantic change",),  # of no type that the mapping has
    }
    broken = tmp_path / "broken.json"
    broken.write_text('{"color": "1.png"}')
    with pytest.raises(UserError, match="no type mapping"):
        coco.with_types(items, str(broken))


@pytest.mark.parametrize(
    "names", [["CLEVR_semantic_000000.png"], ["000000"], ["clevr-train-000000-change"]]
)
def test_a_type_mapping_may_have_other_names(tmp_path: Path, names: list[str]) -> None:
    """Keeps away: a mapping that matches no pair, and takes the groups of all of them away."""
    items = items_of(dataset_factory.clevr(tmp_path / "data"))[:2]
    (tmp_path / "types.json").write_text(json.dumps({"paint": names}))
    typed = coco.with_types(items, str(tmp_path / "types.json"))
    assert [item.groups for item in typed] == [("semantic change", "paint"), ("no change",)]
    (tmp_path / "types.json").write_text(json.dumps({"paint": [7, "8.png"]}))
    with pytest.raises(UserError, match=r"no type of any changed pair .*like '000000\.png'"):
        coco.with_types(items, str(tmp_path / "types.json"))


def test_a_type_mapping_that_lacks_pairs_says_so(tmp_path: Path) -> None:
    """Keeps away: a score of "semantic change" that is of some changed pairs, without a word."""
    (tmp_path / "types.json").write_text(json.dumps({"color": ["1.png"]}))
    (tmp_path / "references.json").write_text(json.dumps({"1.png": ["a"], "2.png": ["b"]}))
    (tmp_path / "theirs.json").write_text(json.dumps({"1.png": "a", "2.png": "b"}))
    done = cc_train("evaluate", "--predictions", tmp_path / "theirs.json", "--json",
                    "--references", tmp_path / "references.json",
                    "--types", tmp_path / "types.json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path}/types.json: no type of 1 changed pairs" in done.stderr
    rows = [
        json.loads(line)
        for line in (tmp_path / "theirs.json.evaluation/items.jsonl").read_text().splitlines()
    ]
    assert all("semantic change" in row["groups"] for row in rows), rows
