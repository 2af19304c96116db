"""The page of a run shows which words of a caption are right, and what the others should be."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cc_prep.errors import UserError
from cc_prep.formats.tar import DamagedShard
from cc_prep.inspect import pages
from cc_prep.records import CHANGE, NO_CHANGE, Facts
from cc_prep.synth.facts import attributes as solid
from cc_train.data import shard_index
from cc_train.evaluation import evaluation
from cc_train.evaluation.captions import coco, metrics
from cc_train.evaluation.evaluation_files import ScoredPair, ScoresFile, checked
from cc_train.report import facts as shown
from cc_train.report import legend, page
from tests import browser

RED = solid("red", "cube", "metal", "small", (0.5, 0.5))
BLUE = solid("blue", "cube", "metal", "small", (0.5, 0.5))
PAINTED, MOVED, STILL = Facts("color", RED, BLUE), Facts("move", RED, RED), Facts("none")


def states(caption: str, facts: Facts) -> str:
    """The caption with +right+ and -wrong- words."""
    signs = {"right": "+", "wrong": "-", "": ""}
    words = shown.words(caption, facts)
    return "".join(f"{signs[word.state]}{word.text}{signs[word.state]}" for word in words)


@pytest.mark.parametrize(
    ("caption", "facts", "expected"),
    [
        ("The red, matte cube turned blue!", PAINTED,
         "The +red+, -matte- +cube+ +turned+ +blue+!"),
        ("the big block behind the red ball moved", MOVED,
         "the -big- +block+ behind the red ball +moved+"),
        ("nothing changed", STILL, "+nothing+ +changed+"),
        ("nothing changed", MOVED, "-nothing- -changed-"),
        ("the red cube moved", STILL, "the -red- -cube- -moved-"),
        ("the red blue cube moved", MOVED, "the -red- -blue- +cube+ +moved+"),
        ("the red cube turned green", MOVED, "the +red+ +cube+ -turned- -green-"),
        ("what a day", MOVED, "what a day"),
        ("", MOVED, ""),
    ],
)  # fmt: skip
def test_words(caption: str, facts: Facts, expected: str) -> None:
    assert states(caption, facts) == expected


def test_titles_say_what_it_should_be() -> None:
    [_, red, *_, new] = shown.words("the green cube turned gray", PAINTED)
    assert (red.title, new.title) == ("color should be: red", "new value should be: blue")
    titles = {word.title for word in shown.words("the red cube turned gray", MOVED) if word.title}
    assert "type should be: move" in titles
    assert "no new value here: the change is of type move" in titles
    assert shown.words("it moved", STILL)[1].title == "should be: nothing changed"
    assert shown.sentence(PAINTED) == "color: small red metal cube → blue"
    assert shown.sentence(STILL) == "nothing changed"
    assert shown.unsaid("the red cube moved", PAINTED) == ["material", "size", "new value"]
    assert shown.unsaid("hm", STILL) == ["type"]


@given(st.text(alphabet="the redcubmovn nothing.,<>&\u0130 "), st.sampled_from([PAINTED, STILL]))
def test_the_words_are_the_caption(caption: str, facts: Facts) -> None:
    """Keeps away: a character that the page swallows or shows twice."""
    assert "".join(word.text for word in shown.words(caption, facts)) == caption


METAS = [
    {"key": f"{number}-{kind}", "kind": kind, "change_type": "color" if kind == CHANGE else None,
     "facts": (PAINTED if kind == CHANGE else STILL).to_json(),
     "captions": ["the red cube turned blue" if kind == CHANGE else "nothing changed"]}
    for number in range(3) for kind in (CHANGE, NO_CHANGE)
]  # fmt: skip
CAPTIONS = {
    "0-change": "the red block became blue", "1-change": "the red ball<br> turned green",
    "2-change": "nothing changed", "0-no_change": "nothing changed",
    "1-no_change": "nothing changed", "2-no_change": "hm",
}  # fmt: skip


def written(run: Path, with_facts: int = len(METAS)) -> str:
    """The page of a run whose first pairs, so many, have facts."""
    metas = [{**m, "facts": m["facts"] if n < with_facts else None} for n, m in enumerate(METAS)]
    items = coco.items(metas)
    scores = evaluation.evaluate(items, CAPTIONS, metrics.PLAIN)
    evaluation.write(run / "evaluation", scores, items, CAPTIONS)
    (run / "settings.json").write_text(json.dumps({"system": "stage2"}))
    return Path(page.write(str(run), None)).read_text()


def test_some_pairs_with_facts(tmp_path: Path) -> None:
    """Keeps away: a traceback, or a share of pairs that nothing judged, in a mixed evaluation."""
    text = written(tmp_path, with_facts=2)
    assert text.count("3 pairs; 1 of 1 captions are exact") == 2


def test_the_page(tmp_path: Path) -> None:
    text = written(tmp_path)
    sections = [name for _, name in pages.headings(text)]
    assert sections == ["Facts", "Scores", "Curves", "color", "no change", "Settings"]
    assert all(f'<a href="#{anchor}">' in text for anchor, _ in pages.headings(text))
    assert "3 pairs; 1 of 3 captions are exact" in text
    assert "3 pairs; 2 of 3 captions are exact" in text
    assert evaluation.NO_CIDER in html.unescape(text), "the references of unchanged pairs are alike"
    wrong = re.findall(r'<span class="claim wrong" title="([^"]+)">(\w+)<', text)
    assert ("shape should be: cube", "ball") in wrong
    assert ("new value should be: blue", "green") in wrong
    assert "ball<br>" not in text
    dom = html.unescape(re.sub(r"<[^>]+>", "", browser.opened(text, tmp_path)))
    assert "the red ball<br> turned green" in dom
    assert "color: small red metal cube → blue" in dom
    scores = checked(ScoresFile, json.loads((tmp_path / "evaluation/scores.json").read_text()))
    assert scores.facts is not None
    tables = shown.tables(scores.facts)
    assert tables.claimed == ["none", "color", "not recognised"]
    assert [kind for kind, _, _ in tables.confusion] == ["none", "color"]
    _, cells, exact = tables.confusion[1]
    assert [(cell.count, cell.right) for cell in cells] == [(1, False), (2, True), (0, False)]
    assert exact is not None
    assert exact.share == pytest.approx(100 / 3)
    names = [row.name for row in tables.rows]
    assert names[:4] == ["told apart", "changed pairs", "unchanged pairs", "type"]
    assert names[-2:] == ["new value", "exact"]
    assert tables.rows[4].if_said == 100  # the color, of the two that say it
    assert tables.rows[4].counts == (2, 0, 1, 3)


def test_the_page_holds_no_figure_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: colours, sizes and rows of a legend that the code no longer has; references
    that are not shown, of which nobody is told."""
    monkeypatch.setattr(legend, "VERDICTS", {"right": (1, 2, 3)})
    monkeypatch.setattr(legend, "WORD_SIDE", 77)
    monkeypatch.setattr(shown, "MEASURES", ("shape",))
    monkeypatch.setattr(page, "MISTAKES_A_GROUP", 3)
    references = [f"reference {number}" for number in range(7)]
    monkeypatch.setattr(
        f"{__name__}.METAS", [{**meta, "captions": meta["captions"] + references} for meta in METAS]
    )
    text = written(tmp_path)
    assert ".mask.right { color: rgb(1 2 3); }" in text
    assert ".mask.wrong" not in text
    assert ".pair .word img { width: 77px;" in text
    assert re.findall(r'<tr class="lead-row"><th>([^<]+)<', text) == ["shape"]
    assert text.count("<li>reference 6</li>") == len(METAS)
    assert "higher is better" in text
    assert "up to 3 mistakes come first" in text
    assert "spread evenly over the rest of the group, right or wrong" in text


@pytest.mark.parametrize("wrong", [0, 1, 3, 30, 40])
def test_mistakes_are_shown_first(wrong: int) -> None:
    """Keeps away: a report of a good captioner that shows none of its mistakes."""
    rows = [
        ScoredPair(
            id=str(n),
            caption="it moved",
            references=["it moved"],
            groups=[],
            facts=MOVED,
            exact=n >= wrong,
            scores={"CIDEr": float(n)},
        )
        for n in range(40)
    ]
    chosen = [int(row.id) for row in page._chosen(rows)]
    count = min(wrong, 4)
    assert chosen[:count] == list(range(count))
    assert len({*chosen}) == len(chosen) == page.CAPTIONS_A_GROUP
    assert max(chosen) - min(chosen[count:]) > 20, "the others are spread"
    without_facts = [row.model_copy(update={"facts": None, "references": ["no"]}) for row in rows]
    assert [row.id for row in page._chosen(without_facts)[:4]] == ["0", "1", "2", "3"]


def test_a_page_without_facts(tmp_path: Path) -> None:
    """Keeps away: reports of real data that speak of facts which nobody knows."""
    text = written(tmp_path, with_facts=0)
    assert "Facts" not in text
    assert 'class="claim' not in text
    assert "captions are exact" not in text
    assert not re.search(r'class="[^"]*\b(right|wrong)\b', text), "nobody knows what is right"


def test_what_no_page_can_be_made_of_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a KeyError for scores of masks alone; a traceback for one damaged sample."""
    written(tmp_path)
    metas = {str(meta["key"]): shard_index.Entry(str(meta["key"]), "a.tar", 0, 1) for meta in METAS}

    def damaged(entry: shard_index.Entry) -> None:
        raise DamagedShard(f"{entry.key}: no JSON")

    monkeypatch.setattr(shard_index.Entry, "read", damaged)
    monkeypatch.setattr(page, "_images", lambda shards: metas)
    with pytest.raises(UserError, match=r"^a\.tar: .*: no JSON\. Give shards"):
        page.write(str(tmp_path), None, ["a.tar"])
    (tmp_path / "evaluation/scores.json").write_text('{"masks": {}}')
    with pytest.raises(UserError, match=r"scores\.json: no scores of captions\. Evaluate the run"):
        page.write(str(tmp_path), None)


def test_an_evaluation_in_place_of_a_run_is_said(tmp_path: Path) -> None:
    """Keeps away: "Give the --out of a training" to whom gave that of `evaluate`."""
    (tmp_path / "scores.json").write_text("{}")
    with pytest.raises(UserError, match=rf"no run\. Give RUN --evaluation {tmp_path}"):
        page.write(str(tmp_path), None)
