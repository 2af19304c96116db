"""Lists of pairs: what paths mean, and rows that name no pair."""

from __future__ import annotations

from pathlib import Path

import pytest

from cc_prep.errors import UserError
from cc_train.data.pair_lists import read_pairs


def listed(folder: Path, text: str) -> list[tuple[str, str]]:
    place = folder / "pairs.csv"
    place.write_text(text)
    return list(read_pairs(place))


def test_urls_stand_as_they_are(tmp_path: Path) -> None:
    """Keeps away: s3://b/x.png that became FOLDER/s3:/b/x.png."""
    pairs = listed(tmp_path, "before,after\ns3://b/x.png,y.png\n/abs/x.png,sub/y.png\n")
    assert pairs == [
        ("s3://b/x.png", str(tmp_path / "y.png")),
        ("/abs/x.png", str(tmp_path / "sub/y.png")),
    ]


@pytest.mark.parametrize("mark", [";", "\t"])
def test_lists_of_a_spreadsheet_are_read(tmp_path: Path, mark: str) -> None:
    """Keeps away: "no columns before and after" of a list that has both, as Excel writes it."""
    text = "\r\n".join(mark.join(row) for row in (["before", "after"], ["a, 1.png", "b.png"], []))
    assert listed(tmp_path, text) == [(str(tmp_path / "a, 1.png"), str(tmp_path / "b.png"))]


def test_what_is_no_list_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.csv: no such file or folder\. Look at the path"):
        list(read_pairs(tmp_path / "nowhere.csv"))
    (tmp_path / "pairs.json").write_text("[]")
    with pytest.raises(UserError, match=r"pairs\.json: neither a CSV nor JSON lines\. Give a CSV"):
        list(read_pairs(tmp_path / "pairs.json"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("first,second\na,b\n", "no columns before and after, but first, second. Give a CSV whose"),
        ("a.png,b.png\n", "lists no pairs. Give a CSV whose first line is before,after"),
        ("before,after\na,b\nc\n", "pair 2 lacks before or after"),
        ("before,after\n", "lists no pairs"),
        ('before,after\n"' + 140_000 * "x", "field larger than field limit"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, text: str, message: str) -> None:
    """Keeps away: a traceback, and a short row that was taken for a missing column."""
    with pytest.raises(UserError, match=message):
        listed(tmp_path, text)
