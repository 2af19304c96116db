"""Named protocols: what they let pass, what they refuse, and the page that shows them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from cc_prep.errors import UserError
from cc_train.evaluation import protocols, published
from cc_train.evaluation.captions import coco
from cc_train.report import published_page
from tests.commands import cc_train
from tests.conftest import ROOT


def levir(pairs: int = 1929, references: int = 5) -> list[coco.Item]:
    captions = tuple(f"house {n}" for n in range(references))
    return [coco.Item(f"test_{i}.png", captions) for i in range(pairs)]


def test_every_protocol_is_of_a_published_data_set() -> None:
    listed = protocols.read()
    assert {one.dataset for one in listed.values()} == set(published.read().datasets)
    assert all(one.prepare.startswith("cc-prep references ") for one in listed.values())
    assert protocols.of_dataset("spot_multi") == ["spot-multi"]


def test_a_protocol_counts_from_one() -> None:
    content = protocols.get("levir-cc").model_dump()
    for key in ("pairs", "revision"):
        assert protocols.Protocol.model_validate({**content, key: 1})
        with pytest.raises(ValueError, match=key):
            protocols.Protocol.model_validate({**content, key: 0})


def test_the_right_pairs_pass() -> None:
    assert protocols.checked("levir-cc", levir()) == "levir-cc@1"


@pytest.mark.parametrize(
    ("name", "items", "what"),
    [
        ("levir-cc", levir(1928), "1,929 pairs are to be scored, here are 1,928"),
        ("levir-cc", levir(references=4), "test_0.png has 4 references in place of 5"),
        ("image-editing", levir(495, 3), "the references, or their ids, are not the official"),
        ("clevr-dc", levir(4800), "4,000 pairs are 'semantic change', here 0"),
        ("spot-single", levir(1263, 1), "2,100 references are official, here are 1,263"),
    ],
)
def test_other_pairs_are_refused(name: str, items: list[coco.Item], what: str) -> None:
    """Keeps away: a score under a protocol's name that is of something else."""
    with pytest.raises(UserError, match=f"--protocol {name}: {what}.*cc-prep references"):
        protocols.checked(name, items)


def test_the_command(tmp_path: Path) -> None:
    names = [item.id for item in levir()]
    captions = dict.fromkeys(names, "a house is built")
    (tmp_path / "theirs.json").write_text(json.dumps(captions))
    references = {name: ["a house is built", "a new house", "b", "c", "d"] for name in names}
    (tmp_path / "refs.json").write_text(json.dumps(references))
    options = ("--predictions", tmp_path / "theirs.json", "--references", tmp_path / "refs.json")
    unknown = cc_train("evaluate", *options, "--protocol", "coco")
    assert unknown.returncode == 2
    assert "no protocol is named coco. Known: clevr-change, clevr-dc" in unknown.stderr
    refused = cc_train("evaluate", *options, "--protocol", "spot-single")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert not (tmp_path / "theirs.json.evaluation").exists()


def test_references_are_known_by_their_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a protocol of two pairs; the order and the punctuation of captions do not matter."""
    items = [coco.Item(f"{i}.png", ("a red car left", "one car is gone")) for i in range(2)]
    content = protocols.get("levir-cc").model_dump()
    content |= {"pairs": 2, "references_a_pair": (2, 2), "references": 4}
    lines = [f"{i}.png\ta red car left\tone car is gone" for i in range(2)]
    content["digest"] = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    small = protocols.Protocol.model_validate(content)
    monkeypatch.setattr(protocols, "read", lambda: {"small": small})
    assert protocols.checked("small", items) == "small@1"
    reordered = [coco.Item(i.id, ("One car is gone.", "A red car left.")) for i in items[::-1]]
    assert protocols.checked("small", reordered) == "small@1"
    other = [items[0], coco.Item("1.png", ("a red car left", "two cars are gone"))]
    with pytest.raises(UserError, match="not the official ones"):
        protocols.checked("small", other)


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs/published.md").read_text(encoding="utf-8")
    assert page == published_page.render(), "cc-train published --out docs/published.md"
    figures = published.read()
    for figure in figures.figures:
        assert f"| {figure.system} |" in page
