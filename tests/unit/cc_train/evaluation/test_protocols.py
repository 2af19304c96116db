"""Named protocols: what they let pass, what they refuse, and the page that shows them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from cc_prep.errors import UserError
from cc_train.evaluation import protocols, published
from cc_train.evaluation.captions import coco
from tests.commands import cc_train
from tests.conftest import ROOT
from tools import published_page


def levir(pairs: int = 1929, references: int = 5) -> list[coco.Item]:
    captions = tuple(f"house {n}" for n in range(references))
    return [coco.Item(f"test_{i}.png", captions) for i in range(pairs)]


def clevr_dc() -> list[coco.Item]:
    """The official test pairs of CLEVR-DC: 800 of each of six blocks of 8,000."""
    groups = [*[("semantic change",)] * 5, ("no change",)]
    return [
        coco.Item(f"{8000 * block + 7200 + i:06d}.png", ("a cube moved",), groups[block])
        for block in range(6)
        for i in range(800)
    ]


def test_every_protocol_is_of_a_published_data_set() -> None:
    listed = protocols.read()
    assert {one.dataset for one in listed.values()} == set(published.read().datasets)
    assert all(one.prepare.startswith("cc-prep references ") for one in listed.values())
    assert protocols.of_dataset("spot_multi") == ["spot-multi"]


def test_sentences_are_matched_where_a_caption_has_several() -> None:
    """Keeps away: figures of matched sentences beside captions of one sentence each."""
    assert [name for name, one in protocols.read().items() if one.sentences] == ["spot-multi"]


def test_a_protocol_counts_from_one() -> None:
    content = protocols.get("levir-cc").model_dump()
    for key in ("pairs", "revision"):
        assert protocols.Protocol.model_validate({**content, key: 1})
        with pytest.raises(ValueError, match=key):
            protocols.Protocol.model_validate({**content, key: 0})


def test_the_right_pairs_pass() -> None:
    assert protocols.checked("clevr-dc", clevr_dc()[::-1]) == "clevr-dc@1"


def test_a_checkpoint_that_was_chosen_on_the_pairs_is_said() -> None:
    """Keeps away: a figure that is too good under the name of an honest protocol."""
    marked = f"levir-cc{protocols.CHOSEN_ON_TEST}"
    assert protocols.get(marked) == protocols.get("levir-cc")
    with pytest.raises(UserError, match=rf"chosen on these very pairs.*--protocol {marked}"):
        protocols.require_said("levir-cc", chosen=True)
    protocols.require_said("levir-cc", chosen=False)
    protocols.require_said(marked, chosen=True)


def test_as_many_pairs_of_another_split_are_refused() -> None:
    """Keeps away: a training pair for a test pair, or a changed pair that counts as unchanged, in
    a data set whose captions we could not take the digest of.
    """
    items = clevr_dc()
    trained_on = [replace(items[0], id="000000.png"), *items[1:]]
    exchanged = [
        replace(items[0], groups=items[-1].groups),
        *items[1:-1],
        replace(items[-1], groups=items[0].groups),
    ]
    for others in (trained_on, exchanged):
        with pytest.raises(UserError, match="clevr-dc: the pairs, by their ids and groups"):
            protocols.checked("clevr-dc", others)


def test_every_protocol_knows_its_pairs() -> None:
    for name, protocol in protocols.read().items():
        assert protocol.digest or protocol.pairs_digest, name


@pytest.mark.parametrize(
    ("name", "items", "what"),
    [
        ("levir-cc", levir(1928), "1,929 pairs are to be scored, here are 1,928"),
        ("levir-cc", levir(), "the pairs, by their ids and groups, are not those of the official"),
        ("spot-single", levir(1263, 12), "test_0.png has 12 references in place of 1 to 11"),
        ("spot-single", levir(1263, 0), "test_0.png has 0 references in place of 1 to 11"),
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
    """The digest of a protocol's pairs depends on neither order nor punctuation of captions."""
    items = [coco.Item(f"{i}.png", ("a red car left", "one car is gone")) for i in range(2)]
    content = protocols.get("levir-cc").model_dump()
    content |= {"pairs": 2, "references_a_pair": (2, 2), "references": 4, "pairs_digest": None}
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
    assert page == published_page.render(), "python -m tools.published_page docs/published.md"
    figures = published.read()
    for figure in figures.figures:
        assert f"| {figure.system} |" in page
