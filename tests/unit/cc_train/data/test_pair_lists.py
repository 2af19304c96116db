"""Lists of pairs: what paths mean, and rows that name no pair."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cc_prep.errors import UserError
from cc_train.data.pair_lists import read_pairs


def listed(folder: Path, text: str) -> list[tuple[str, str]]:
    path = folder / "pairs.csv"
    path.write_text(text)
    return list(read_pairs(path))


def test_json_lines_end_at_newlines_alone(tmp_path: Path) -> None:
    """Keeps away: a row that is cut in two at a character of one of its captions."""
    path = tmp_path / "pairs.jsonl"
    row = {"before": "/a.png", "after": "/b.png", "caption": "one\u2028more"}
    path.write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    assert list(read_pairs(path)) == [("/a.png", "/b.png")]


def test_urls_stand_as_they_are(tmp_path: Path) -> None:
    """Keeps away: s3://b/x.png that became FOLDER/s3:/b/x.png."""
    pairs = listed(
        tmp_path, "before,after\ns3://b/x.png,y.png\n/abs/x.png,sub/y.png\nfile:///a.png,y.png"
    )
    assert pairs == [
        ("s3://b/x.png", str(tmp_path / "y.png")),
        ("/abs/x.png", str(tmp_path / "sub/y.png")),
        ("file:///a.png", str(tmp_path / "y.png")),
    ]


def test_blanks_around_a_path_are_none_of_it(tmp_path: Path) -> None:
    """Keeps away: a list that `cc-prep build` reads and whose images are all missing here."""
    here = (str(tmp_path / "a.png"), str(tmp_path / "b.png"))
    assert listed(tmp_path, "before,after\na.png, b.png\na.png ,b.png") == [here] * 2
    with pytest.raises(UserError, match=r"pairs\.csv, line 2: no before or no after"):
        listed(tmp_path, "before,after\na.png, \n")


@pytest.mark.parametrize("pattern", ["{side}/a{ending}", "a_{side}{ending}"])
def test_a_folder_of_images_as_the_layout_takes_them(tmp_path: Path, pattern: str) -> None:
    """Keeps away: a folder of TIFFs with "no pairs in it", and any one of two images of a name."""
    for side, endings in {"before": [".TIF"], "after": [".bmp", ".png", ".xml"]}.items():
        for ending in endings:
            path = tmp_path / pattern.format(side=side, ending=ending)
            path.parent.mkdir(exist_ok=True)
            path.touch()
    [pair] = read_pairs(tmp_path)
    before = tmp_path / pattern.format(side="before", ending=".TIF")
    assert pair == (str(before), str(tmp_path / pattern.format(side="after", ending=".png")))


@pytest.mark.parametrize("mark", [";", "\t"])
def test_lists_of_a_spreadsheet_are_read(tmp_path: Path, mark: str) -> None:
    """Keeps away: "no columns before and after" of a list that has both, as Excel writes it."""
    text = "\r\n".join(mark.join(row) for row in (["before", "after"], ["a, 1.png", "b.png"], []))
    assert listed(tmp_path, text) == [(str(tmp_path / "a, 1.png"), str(tmp_path / "b.png"))]


def test_lines_that_are_no_objects(tmp_path: Path) -> None:
    """Keeps away: "no columns" of a file of JSON that is no JSON lines."""
    (tmp_path / "pairs.jsonl").write_text('[{"before": "a.png", "after": "b.png"}]')
    with pytest.raises(UserError, match="JSON list"):
        list(read_pairs(tmp_path / "pairs.jsonl"))
    (tmp_path / "pairs.jsonl").write_text('\n{"before": "a.png", "after": "b.png"}\n"before"')
    with pytest.raises(UserError, match="line 3: no columns before and after, but none"):
        list(read_pairs(tmp_path / "pairs.jsonl"))


@pytest.mark.parametrize("pattern", ["{side}/{name}.png", "{name}_{side}.png"])
def test_a_name_on_one_side_alone_is_a_pair_without_an_image(tmp_path: Path, pattern: str) -> None:
    """Keeps away: a folder of which nothing is captioned for one file, where a list goes on."""
    for name, side in (("a", "before"), ("b", "before"), ("b", "after"), ("c", "after")):
        path = tmp_path / pattern.format(side=side, name=name)
        path.parent.mkdir(exist_ok=True)
        path.touch()
    expected = [
        tuple(str(tmp_path / pattern.format(side=s, name=n)) for s in ("before", "after"))
        for n in "abc"
    ]
    assert list(read_pairs(tmp_path)) == expected


def test_sides_in_capitals_are_sides(tmp_path: Path) -> None:
    """Keeps away: pairs that are left out without a word, as y_Before.png and y_AFTER.png."""
    for name in ("x_before.png", "x_after.png", "y_Before.png", "y_AFTER.png"):
        (tmp_path / name).touch()
    assert [pair[1] for pair in read_pairs(tmp_path)] == [
        str(tmp_path / "x_after.png"),
        str(tmp_path / "y_AFTER.png"),
    ]


def test_a_name_in_another_form_of_unicode_is_found(tmp_path: Path) -> None:
    """Keeps away: a missing image of a list from a Mac, or of a folder with one side from it."""
    (tmp_path / "e\u0301.png").touch()
    [pair] = listed(tmp_path, "before,after\n\u00e9.png,\u00e8.png")
    assert pair == (str(tmp_path / "e\u0301.png"), str(tmp_path / "\u00e8.png"))
    (tmp_path / "e\u0301_before.png").touch()
    (tmp_path / "\u00e9_after.png").touch()
    [pair] = read_pairs(tmp_path)
    assert pair == (str(tmp_path / "e\u0301_before.png"), str(tmp_path / "\u00e9_after.png"))


def test_the_home_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: LIST/~/a.png for ~/a.png."""
    monkeypatch.setenv("HOME", "/home/me")
    assert listed(tmp_path, "before,after\n~/a.png,~/b.png") == [
        ("/home/me/a.png", "/home/me/b.png")
    ]


def test_what_is_no_list_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.csv"):
        list(read_pairs(tmp_path / "nowhere.csv"))
    (tmp_path / "pairs.json").write_text("[]")
    with pytest.raises(UserError, match=r"pairs\.json: neither a CSV nor JSON lines\. Give a CSV"):
        list(read_pairs(tmp_path / "pairs.json"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("first,second\na,b\n", "no columns before and after, but first, second. Give a CSV whose"),
        ("a.png,b.png\n", "no rows. Give a CSV whose first line is before,after"),
        ("before,after\na,b\nc\n", "line 3: no before or no after"),
        ("before,after\n", "no rows"),
        ('before,after\n"' + 140_000 * "x", "field larger than field limit"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, text: str, message: str) -> None:
    """Keeps away: a traceback, and a short row that was taken for a missing column."""
    with pytest.raises(UserError, match=message):
        listed(tmp_path, text)
