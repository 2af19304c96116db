"""A user's own table of pairs, with what users' tables hold."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cc_prep import datasets, manifest
from cc_prep.errors import UserError
from cc_prep.manifest import Manifest
from cc_prep.records import EMPTY_MASK, ImagePair

ROWS = [
    {
        "before": "bilder/vor her é.png",
        "after": "b.png",
        "caption": "a cup, moved",
        "split": "train",
    },
    {
        "before": "bilder/vor her é.png",
        "after": "b.png",
        "caption": "the cup moved",
        "split": "train",
    },
    {"before": "c.png", "after": "d.png", "caption": "", "split": "val", "kind": "no change"},
    {"before": "c.png", "after": "e.png", "caption": "gone", "split": "trian", "mask": "m.png"},
]


def settings(root: Path, *more: str) -> Manifest:
    return manifest.load("own", list(more), root=str(root))


def write_csv(root: Path, rows: list[dict[str, str]] = ROWS) -> None:
    import csv

    with (root / "pairs.csv").open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, sorted({k for row in rows for k in row}))
        writer.writeheader()
        writer.writerows(rows)


def every(dataset: Manifest) -> list[ImagePair]:
    return [pair for split in dataset.splits for pair in datasets.pairs(dataset, split)]


@pytest.mark.parametrize(
    ("cell", "captions"),
    [
        ('["a car left", "it is gone"]', ("a car left", "it is gone")),
        ("""['a car left', "it's gone"]""", ("a car left", "it's gone")),
        ("""['a car left'\n 'it is gone']""", ("a car left", "it is gone")),
        ("[]", ()),
        ("[sign] a car left", ("[sign] a car left",)),
        ("['a' + 'b']", ("['a' + 'b']",)),
        ("[1, 2]", ("[1, 2]",)),
    ],
)
def test_a_cell_of_captions(tmp_path: Path, cell: str, captions: tuple[str, ...]) -> None:
    """Keeps away: a list as json, pandas or NumPy writes it, learned as one sentence."""
    write_csv(tmp_path, [{"before": "a.png", "after": "b.png", "caption": cell}])
    [pair] = every(settings(tmp_path))
    assert pair.captions == captions


def test_a_list_of_captions_under_another_name_is_read_once(tmp_path: Path) -> None:
    """Keeps away: captions twice, as `caption` and as `captions`."""
    rows = [{"before": "a.png", "after": "b.png", "captions": '["it left", "gone"]'}]
    write_csv(tmp_path, rows)
    for columns in ([], ["table.columns={caption: captions}"]):
        [pair] = every(settings(tmp_path, *columns))
        assert pair.captions == ("it left", "gone")


def test_null_is_no_list_of_captions(tmp_path: Path) -> None:
    """Keeps away: a table that is refused, since it writes so where there are none."""
    write_csv(tmp_path, [{"before": "c.png", "after": "d.png", "captions": "null"}])
    [pair] = every(settings(tmp_path))
    assert pair.captions == ()


def test_blanks_and_dots_are_no_names(tmp_path: Path) -> None:
    """Keeps away: two pairs of one, and images that are "not there" after a blank."""
    rows = "before, after, caption\n./a.png, b.png, gone\na.png,././b.png,it left\n"
    (tmp_path / "pairs.csv").write_text(rows)
    [pair] = every(settings(tmp_path))
    assert (pair.before, pair.after, pair.captions) == ("a.png", "b.png", ("gone", "it left"))


def test_a_table_as_a_spreadsheet_writes_it(tmp_path: Path) -> None:
    write_csv(tmp_path)
    train, val = every(settings(tmp_path))
    assert train.captions == ("a cup, moved", "the cup moved")
    assert train.before == "bilder/vor her é.png"
    assert (val.kind, val.captions, val.split) == ("no_change", (), "val")
    [fault] = datasets.reader(settings(tmp_path)).faults(settings(tmp_path))
    assert fault == "split 'trian' of 1 pair is not in the manifest (train, val, test)"


@pytest.mark.parametrize("hint", ["", "sep={}\r\n", '"SEP={}"\n'])
@pytest.mark.parametrize("mark", [";", "\t"])
def test_a_table_of_another_separator(tmp_path: Path, mark: str, hint: str) -> None:
    """Keeps away: a table as spreadsheets write it in many languages that has "no columns"."""
    rows = [["before", "caption", "after"], ["a.png", '"gone; or, moved"', "b.png"]]
    text = hint.format(mark) + "\r\n".join(mark.join(row) for row in rows)
    (tmp_path / "pairs.csv").write_text(text, newline="")
    [pair] = every(settings(tmp_path))
    assert (pair.before, pair.after, pair.captions) == ("a.png", "b.png", ("gone; or, moved",))


def test_the_same_from_json_lines_and_parquet(tmp_path: Path) -> None:
    write_csv(tmp_path)
    expected = every(settings(tmp_path))
    (tmp_path / "my.jsonl").write_text("\n".join(map(json.dumps, ROWS)) + "\n\n")
    names = sorted({name for row in ROWS for name in row})
    full = [{name: row.get(name) for name in names} for row in ROWS]
    pq.write_table(pa.Table.from_pylist(full), tmp_path / "my.parquet")
    for name in ("my.jsonl", "my.parquet"):
        assert every(settings(tmp_path, f"table.file={name}")) == expected


def test_masks_of_a_table(tmp_path: Path) -> None:
    """Keeps away: an unchanged pair that teaches nothing, and an object that came as unknown."""
    images = {"before": "a.png", "after": "b.png"}
    rows = [
        {**images, "id": "moved", "mask_before": "v.png", "mask_after": "n.png"},
        {**images, "id": "came", "mask_after": "n.png"},
        {**images, "id": "same", "kind": "no_change"},
        {**images, "id": "unknown"},
    ]
    write_csv(tmp_path, rows)
    references = {
        pair.id: (pair.mask, pair.mask_before, pair.mask_after)
        for pair in every(settings(tmp_path))
    }
    assert references == {
        "moved": (None, "v.png", "n.png"),
        "came": (None, EMPTY_MASK, "n.png"),
        "same": (EMPTY_MASK, EMPTY_MASK, EMPTY_MASK),
        "unknown": (None, None, None),
    }
    write_csv(tmp_path, [{**images, "id": "one", "mask": "m.png"}, rows[2]])
    assert [pair.mask for pair in every(settings(tmp_path))] == ["m.png", EMPTY_MASK]
    assert {pair.mask_after for pair in every(settings(tmp_path))} == {None}
    write_csv(tmp_path, rows[2:])
    assert {pair.mask for pair in every(settings(tmp_path))} == {None}


def test_what_a_pair_has_once_may_stand_in_any_row(tmp_path: Path) -> None:
    """Keeps away: a mask, or "no change", of the first of a pair's rows that a later one loses."""
    images = {"id": "a", "before": "x.png", "after": "y.png"}
    first = {**images, "caption": "one", "mask": "m.png", "kind": "no change", "change_type": "z"}
    write_csv(tmp_path, [first, {**images, "caption": "two", "mask_after": "n.png"}])
    [pair] = every(settings(tmp_path))
    assert pair.captions == ("one", "two")
    assert (pair.kind, pair.change_type) == ("no_change", "z")
    assert (pair.mask, pair.mask_before, pair.mask_after) == ("m.png", EMPTY_MASK, "n.png")
    for parts in (("val", ""), ("", "val")):
        write_csv(tmp_path, [{**images, "split": part} for part in parts])
        assert [pair.split for pair in every(settings(tmp_path))] == ["val"]
    write_csv(tmp_path, [{**images, "split": part} for part in ("val", "train")])
    with pytest.raises(
        UserError,
        match=r"line 3: 'a' is in an .* another split",
    ):
        every(settings(tmp_path))
    write_csv(tmp_path, [first, {**images, "kind": "same"}])
    assert every(settings(tmp_path))[0].kind == "no_change"
    for name, other in (("mask", "o.png"), ("kind", "changed"), ("change_type", "y")):
        write_csv(tmp_path, [first, {**images, name: other}])
        with pytest.raises(UserError, match=f"line 3: 'a' is in an earlier row with .* {name}"):
            every(settings(tmp_path))


def test_lists_of_captions_and_ids(tmp_path: Path) -> None:
    rows = [{"id": "x", "before": "a", "after": "b", "captions": '["one", " two "]'}]
    write_csv(tmp_path, rows)
    [pair] = every(settings(tmp_path))
    assert (pair.id, pair.split, pair.captions) == ("x", "train", ("one", "two"))


@pytest.mark.parametrize(
    ("captions", "result"),
    [
        ({"captions": ["one", None], "caption": None}, ("one",)),
        ({"caption": ["one", "two"]}, None),
        ({"captions": [{"raw": "one"}]}, None),
        ({"captions": 3}, None),
    ],
)
def test_what_is_no_sentence_is_no_caption(
    tmp_path: Path, captions: dict[str, object], result: tuple[str, ...] | None
) -> None:
    """Keeps away: "None" and "['one', 'two']" as what a captioner learns to say."""
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"before": "a", "after": "b", **captions}))
    if result is not None:
        assert [pair.captions for pair in every(settings(tmp_path))] == [result]
    else:
        with pytest.raises(UserError, match=r"line 1: (captions are|a caption is) no"):
            every(settings(tmp_path))


def test_the_same_images_under_two_ids(tmp_path: Path) -> None:
    write_csv(tmp_path, [{"id": i, "before": "a", "after": "b"} for i in ("x", "y")])
    dataset = settings(tmp_path)
    assert datasets.reader(dataset).faults(dataset) == ["y has the same images as x"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"before": "a", "caption": "b"}], "no columns before and after, but before, caption"),
        ([{"before": "a", "after": " "}], "line 2: no before or no after"),
        ([{"before": "a", "after": "b", "kind": "maybe"}], "line 2: kind 'maybe'"),
        ([{"before": "a", "after": "b", "captions": "one"}], "line 2: captions are no JSON list"),
        (
            [{"id": "x", "before": a, "after": "b"} for a in "ac"],
            "line 3: 'x' is in an earlier row with another before",
        ),
    ],
)
def test_mistakes_name_the_row(tmp_path: Path, rows: list[dict[str, str]], message: str) -> None:
    write_csv(tmp_path, rows)
    with pytest.raises(UserError, match=message):
        every(settings(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a car left, and a bike came", r"line 2: more values than columns; one with ','"),
        ('"a car left\nc,d,x\ne,f,y', r"line 2: unexpected end of data"),
        ('"a car" left', r"line 2: ',' expected after '\"'"),
    ],
)
def test_commas_and_quotes_that_are_not_written_as_a_csv_has_them(
    tmp_path: Path, text: str, message: str
) -> None:
    """Keeps away: half a caption, and a caption that holds all rows below it."""
    (tmp_path / "pairs.csv").write_text(f"before,after,caption\na,b,{text}\n")
    with pytest.raises(UserError, match=message):
        every(settings(tmp_path))


@pytest.mark.parametrize(
    ("name", "lines", "number"),
    [
        ("pairs.csv", ["before,after,kind", "a,b,", "", "c,d,maybe"], 4),
        ("pairs.csv", ["sep=,", "", "before,after,kind", "a,b,", "c,d,maybe"], 5),
        ("pairs.csv", ["before,after,caption,kind", 'a,b,"two', 'lines",', "c,d,,maybe"], 4),
        ("pairs.jsonl", ['{"before": "a", "after": "b"}', "", "", "{"], 4),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_place_is_the_line_that_an_editor_shows(
    tmp_path: Path, name: str, lines: list[str], number: int, end: str
) -> None:
    """Keeps away: "row 3" for line 5, below blank lines and sentences of several lines."""
    (tmp_path / name).write_text(end.join(lines), newline="")
    with pytest.raises(UserError, match=rf"{name}, line {number}: (kind 'maybe'|not JSON)"):
        every(settings(tmp_path))


def test_a_row_of_parquet_has_a_number_and_an_id(tmp_path: Path) -> None:
    """Keeps away: a row that nobody finds, since a Parquet table has no lines."""
    rows = [{"id": i, "before": i, "after": i, "kind": k} for i, k in (("x", ""), ("y", "maybe"))]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "pairs.parquet")
    with pytest.raises(UserError, match=r"pairs\.parquet, row 2 \(id y\): kind 'maybe'"):
        every(settings(tmp_path))


@pytest.mark.parametrize("encoding", ["latin-1", "gbk", "utf-16"])
def test_another_encoding_is_named_with_its_line(tmp_path: Path, encoding: str) -> None:
    """Keeps away: "Give a CSV" to someone who gave one, as Excel saves it."""
    text = "before,after,caption\na,b,gone\na,b,déjà là\n".replace(
        "déjà là", "\u8f66" if encoding == "gbk" else "déjà là"
    )
    (tmp_path / "pairs.csv").write_bytes(text.encode(encoding))
    line = 1 if encoding == "utf-16" else 3
    with pytest.raises(UserError, match=rf"is not UTF-8 text \(line {line}\)\. Save it as UTF-8"):
        every(settings(tmp_path))


def test_a_json_list_is_no_json_lines(tmp_path: Path) -> None:
    """Keeps away: "Expecting value: line 1 column 2" of a file that is sound JSON."""
    (tmp_path / "pairs.jsonl").write_text(json.dumps(ROWS, indent=1))
    with pytest.raises(
        UserError, match=r"is a JSON list, not JSON lines\. Write one object on each"
    ):
        every(settings(tmp_path))


E_ACUTE = ("\u00e9", "e\u0301")  # as Linux and Windows write it, and as macOS does


@pytest.mark.parametrize(("here", "there"), [E_ACUTE, E_ACUTE[::-1]])
def test_a_name_in_another_form_is_found(tmp_path: Path, here: str, there: str) -> None:
    """Keeps away: a missing image whose name looks like that of the file beside it."""
    (tmp_path / there).mkdir()
    (tmp_path / there / f"{there}.png").touch()
    rows = [
        {"before": f"{here}/{here}.png", "after": f"{form}.png", "caption": form, "id": form}
        for form in (here, there)
    ]
    write_csv(tmp_path, rows)
    [pair] = every(settings(tmp_path))
    assert (pair.id, pair.before) == ("\u00e9", f"{there}/{there}.png")
    assert pair.after == f"{there}.png"  # as the last row has it: nothing there is called so
    assert pair.captions == (here, there)
    (tmp_path / here).mkdir()
    (tmp_path / here / f"{here}.png").touch()
    [pair] = every(settings(tmp_path))
    assert pair.before == rows[0]["before"]


def test_empty_cells_beyond_the_header_are_nothing(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("before,after,caption\na,b,gone,, \n")
    [pair] = every(settings(tmp_path))
    assert pair.captions == ("gone",)


@pytest.mark.parametrize("name", ["Caption", "ID"])
def test_a_column_that_is_nearly_known(tmp_path: Path, name: str) -> None:
    """Keeps away: a table whose captions are passed over without a word."""
    (tmp_path / "pairs.csv").write_text(f"before,after,{name}\na,b,gone\n")
    with pytest.raises(UserError, match=f"a column is called '{name}', which is not read as"):
        every(settings(tmp_path))


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    """Keeps away: the captions of the last column alone."""
    (tmp_path / "pairs.csv").write_text("before,after,caption,caption\na,b,gone,left\n")
    with pytest.raises(UserError, match=r"two columns are called 'caption'"):
        every(settings(tmp_path))


def test_no_table_two_tables_and_no_text(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none of pairs\.csv"):
        every(settings(tmp_path))
    write_csv(tmp_path)
    (tmp_path / "pairs.jsonl").write_text("{")
    with pytest.raises(UserError, match=r"pairs\.csv and pairs\.jsonl"):
        every(settings(tmp_path))
    with pytest.raises(UserError, match=r"pairs\.jsonl, line 1: not JSON \(Expecting"):
        every(settings(tmp_path, "table.file=pairs.jsonl"))
    (tmp_path / "pairs.csv").write_bytes(b"before,after\n\xff\xfe,b\n")
    with pytest.raises(UserError, match=r"pairs\.csv: is not UTF-8"):
        every(settings(tmp_path, "table.file=pairs.csv"))


def test_json_lines_end_at_newlines_alone(tmp_path: Path) -> None:
    """Keeps away: a table that is refused because a caption holds a separator of lines."""
    row = {"before": "a.png", "after": "b.png", "caption": "a\u2028b\x85c"}
    text = json.dumps(row, ensure_ascii=False)
    (tmp_path / "pairs.jsonl").write_text(f"{text}\r\n", encoding="utf-8", newline="")
    [pair] = every(settings(tmp_path))
    assert pair.captions == (row["caption"],)


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """Keeps away: a job that fails at its end, and whose folder no later run can finish."""
    (tmp_path / "pairs.jsonl").write_text('{"before": "a.png", "after": "b.png", "id": "\\ud800"}')
    with pytest.raises(UserError, match=r": '\\ud800' is not UTF-8\. Rename the file"):
        datasets.pairs(settings(tmp_path), "train")


def test_a_locale_that_is_not_utf8_is_at_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: "Rename the file" for one whose name is right, with LC_ALL=C."""
    monkeypatch.setattr("sys.getfilesystemencoding", lambda: "ascii")
    (tmp_path / "pairs.jsonl").write_text('{"before": "a.png", "after": "b.png", "id": "\\ud800"}')
    with pytest.raises(UserError, match=r"is not UTF-8\. Set PYTHONUTF8=1"):
        datasets.pairs(settings(tmp_path), "train")


def test_a_row_without_a_split_among_rows_with_one(tmp_path: Path) -> None:
    """Keeps away: a test pair in train, for one cell that was forgotten."""
    rows = [{"before": f"{i}.png", "after": "b.png", "split": s} for i, s in enumerate(("val", ""))]
    write_csv(tmp_path, rows)
    dataset = settings(tmp_path)
    assert [pair.split for pair in every(dataset)] == ["train", "val"]
    assert datasets.reader(dataset).faults(dataset) == [
        "no split in the rows of 1 pair, such as '1.png b.png': taken as train"
    ]
    write_csv(tmp_path, [{**row, "split": ""} for row in rows])
    assert datasets.reader(dataset).faults(dataset) == []


def test_a_folder_of_each_split_needs_a_file_of_each(tmp_path: Path) -> None:
    """Keeps away: images "not there", since {split} in table.folder was replaced by nothing."""
    write_csv(tmp_path)
    with pytest.raises(UserError, match=r"the split in the name of file, which has none"):
        settings(tmp_path, "table.folder=images/{split}")
    settings(tmp_path, "table.folder=images/{split}", "table.file=of-{split}.csv")
