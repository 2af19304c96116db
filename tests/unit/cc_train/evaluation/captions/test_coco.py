"""Predictions and references of every system find their pairs; the official scripts read ours."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pycocoevalcap.cider.cider import Cider
from pycocotools.coco import COCO

from cc_prep import datasets
from cc_prep.errors import UserError
from cc_prep.formats import coco as reference_files
from cc_prep.formats.sequences import pair_meta
from cc_prep.manifest import Manifest
from cc_train.data import shard_index
from cc_train.evaluation import evaluation
from cc_train.evaluation.captions import coco, metrics, score_predictions
from tests import dataset_factory, shard_factory
from tests.commands import cc_train
from tests.conftest import ROOT, golden


def items_of(settings: Manifest) -> list[coco.Item]:
    pairs = [pair for split in settings.splits for pair in datasets.pairs(settings, split)]
    return coco.items([pair_meta(pair) for pair in pairs])


OFFICIAL = {
    "clevr": ["000000.png", "000000.png_n"],
    "clevr_dc": ["000000.png", "008001.png"],
    "spot": ["7.png", "8.png"],
    "edit": ["Z_train", "Z_more"],
    "levir": ["train_000000.png", "train_000003.png"],
}


@pytest.mark.parametrize("name", list(OFFICIAL))
def test_official_ids(tmp_path: Path, name: str) -> None:
    settings = dataset_factory.MAKERS[name](tmp_path)
    pairs = datasets.pairs(settings, settings.splits[0])
    pairs += datasets.pairs(settings, settings.splits[1])
    assert reference_files.image_ids([pair_meta(pair) for pair in pairs])[:2] == OFFICIAL[name]


def test_one_id_in_two_splits_is_no_id(tmp_path: Path) -> None:
    # 8 stands in train and in test here.
    assert {item.name for item in items_of(dataset_factory.spot(tmp_path))} == {
        "spot-train-7-change",
        "spot-train-8-change",
        "spot-val-9-change",
        "spot-test-8-change",
    }


@pytest.mark.parametrize("outside", ["s3://b/a.png", "/data/a.png", "../a.png", "C:\\a.png"])
def test_images_outside_the_root_are_not_named(outside: str) -> None:
    """Keeps away: the folders of a maker's machine in a file that is handed on."""
    meta = {"key": "k", "id": "1", "before": outside, "after": "b/a.png"}
    assert reference_files.own_names("k", meta) == {"pair": "1", "after": "b/a.png"}
    assert reference_files.own_names("1.png", meta) == {}


def named(name: str, ids: list[str]) -> object:
    """Predictions of these ids in a system's format."""
    if name == "procap":
        return {"version": "VERSION 1.0", "results": {id: [{"sentence": id}] for id in ids}}
    if name == "object":
        return {id: id for id in ids}
    rows = [{"image_id": id, "caption": id} for id in ids]
    return {"annotations": rows} if name == "annotations" else rows


@pytest.mark.parametrize(
    ("layout", "name", "ids"),
    [
        ("clevr", "results", ["000000.png", "000000.png_n"]),
        ("clevr", "results", ["CLEVR_default_000000.png", "CLEVR_default_000000.png_n"]),
        ("clevr", "results", ["CLEVR_semantic_000000.png", "CLEVR_nonsemantic_000000.png"]),
        ("clevr", "results", ["CLEVR_semantic_000000", "CLEVR_nonsemantic_000000"]),
        ("clevr", "results", ["CLEVR_semantic_000000.png", "CLEVR_nonsemantic_000000.png_n"]),
        ("clevr", "annotations", ["000000", "000000_n"]),
        ("clevr", "procap", ["000000.pngc", "000000.pngnc"]),
        ("clevr", "procap", ["000000c", "000000nc"]),
        ("clevr", "object", ["clevr-train-000000-change", "clevr-train-000000-no_change"]),
        ("own", "results", ["a 0.png_é 0.png", "a 1.png é 1.png"]),
        ("edit", "procap", ["a b.jpg_train.jpg", "a b.jpg_more.jpg"]),
        ("edit", "results", ["Z_train", "Z_more"]),
        ("levir", "results", ["train_000000.png", "train_000003"]),
    ],
)
def test_predictions_of_other_systems(
    tmp_path: Path, layout: str, name: str, ids: list[str]
) -> None:
    items = items_of(dataset_factory.MAKERS[layout](tmp_path / "data"))
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps(named(name, ids)))
    predictions, predicted_items = coco.matched(
        coco.read_predictions([str(path)]), items, predicted_only=True
    )
    assert list(predictions.values()) == ids
    assert predicted_items == items[: len(ids)]


def test_pairs_without_official_ids_go_by_their_keys(tmp_path: Path) -> None:
    items = items_of(dataset_factory.own(tmp_path))
    predictions = {item.id: f"said of {item.id}" for item in items}
    assert coco.matched(predictions, items) == (predictions, items)


def test_predictions_are_not_replaced_by_their_evaluation(tmp_path: Path) -> None:
    """Keeps away: SCORER's results that an evaluation removes, since they lie in its --out."""
    theirs, other = tmp_path / "theirs", tmp_path / "other"
    theirs.mkdir()
    for name in ("sc_results.json", "predictions.json"):
        (theirs / name).write_text("[]")
        for path in (theirs, theirs / name):
            with pytest.raises(UserError, match="the evaluation would replace it"):
                coco.check_apart(tmp_path / "other/../theirs", [str(other), str(path)])
            coco.check_apart(other, [str(path)])
    coco.check_apart(theirs, [str(theirs / "mine.json")])


def test_the_id_0_is_one(tmp_path: Path) -> None:
    """Keeps away: "no predictions" of results whose ids are numbers from 0."""
    rows = [{"image_id": number, "caption": f"caption {number}"} for number in range(2)]
    (tmp_path / "results.json").write_text(json.dumps(rows))
    read = coco.read_predictions([str(tmp_path / "results.json")])
    assert read == {"0": "caption 0", "1": "caption 1"}


def test_own_pairs_are_found_by_their_images(tmp_path: Path) -> None:
    """Keeps away: predictions of own pairs by digests that no other system can know."""
    settings = dataset_factory.own(tmp_path)
    pairs = [pair for split in settings.splits for pair in datasets.pairs(settings, split)]
    items = items_of(settings)
    predictions = {item.id: f"said of {item.id}" for item in items}
    coco.write(tmp_path / "ours", items, predictions)
    coco.write_references(tmp_path / "ours.json", items)
    both = reference_files.references([pair_meta(pair) for pair in pairs])
    (tmp_path / "prep.json").write_text(json.dumps(both))
    rows = json.loads((tmp_path / "ours/predictions.json").read_text())
    assert (rows[1]["before"], rows[1]["after"]) == ("a 1.png", "é 1.png")
    by_images = [{k: row[k] for k in ("before", "after", "caption")} for row in rows]
    (tmp_path / "rows.json").write_text(json.dumps(by_images))
    named = {f"a {number}.png é {number}.png": row["caption"] for number, row in enumerate(rows)}
    (tmp_path / "named.json").write_text(json.dumps(named))
    for references in ("ours.json", "prep.json"):
        known = coco.read_references(str(tmp_path / references))
        for theirs in ("rows.json", "named.json"):
            read = coco.read_predictions([str(tmp_path / theirs)])
            assert coco.matched(read, known) == (predictions, known)


def test_scorers_folder(tmp_path: Path) -> None:
    items = items_of(dataset_factory.clevr(tmp_path / "data"))
    predictions = {item.id: f"said of {item.id}" for item in items}
    coco.write(tmp_path / "theirs", items, predictions)
    (tmp_path / "theirs/predictions.json").unlink()
    read = coco.read_predictions([str(tmp_path / "theirs")])
    assert coco.matched(read, items) == (predictions, items)
    coco.write(tmp_path / "theirs", items[:1], predictions)
    assert items[0].name.endswith(".png")
    left = [name for name in coco.SCORER_FILES if (tmp_path / "theirs" / name).exists()]
    assert left == [], "captions of an evaluation before this one"


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("{", "not JSON"),
        ("3", "no predictions"),
        ('[{"image_id": "7.png", "caption": "a"}, {"image_id": "7.png", "caption": "b"}]', "two"),
        ('{"7.png": "a", "7": "b"}', "two predictions"),
        ('{"x": "a"}', "of no pair of the references, such as 'x'. Ids there look like '7.png'"),
        ('{"7.png": "a"}', "1 of 2 pairs have no prediction, such as '8.png'"),
    ],
)
def test_predictions_that_do_not_fit(tmp_path: Path, written: str, message: str) -> None:
    path = tmp_path / "theirs.json"
    path.write_text(written)
    items = [coco.Item("k7", ("a",), (), "7.png", ("7",)), coco.Item("k8", ("b",), (), "8.png")]
    with pytest.raises(UserError) as caught:
        coco.matched(coco.read_predictions([str(path)]), items)
    assert message in str(caught.value)


def test_predictions_of_another_set_beside_one_pair() -> None:
    with pytest.raises(UserError, match=r"1 predictions are of no pair") as caught:
        coco.matched({"x": "a"}, [coco.Item("k7", ("a",), (), "7.png", ("7",))])
    assert caught.value.remedy == "Ids there look like '7.png'"


@given(st.lists(st.text(min_size=1, max_size=6), unique=True, min_size=1, max_size=8))
def test_every_pair_answers_to_its_own_names(names: list[str]) -> None:
    """Whatever aliases collide, a pair's official id and key mean that pair."""
    metas = [
        {"key": f"key-{i}", "image_id": name, "kind": "change", "captions": ["x"]}
        for i, name in enumerate(names)
    ]
    items = coco.items(metas)
    for way in ("name", "id"):
        predictions, _ = coco.matched({getattr(item, way): item.id for item in items}, items)
        assert all(id == caption for id, caption in predictions.items())


def test_cocos_own_reader_and_scorer_take_our_files(tmp_path: Path) -> None:
    [path] = [p for p in golden("caption_metrics") if p.is_dir()]
    known = json.loads((path / "own_40.json").read_text())
    facts = [
        {"key": f"spot-test-{id}-change", "image_id": f"{id}.png", "kind": "change",
         "captions": known["references"][id]}
        for id in known["ids"]
    ]  # fmt: skip
    items = coco.items(facts)
    predictions = {item.id: known["candidates"][item.image_id[:-4]] for item in items}
    scores = evaluation.evaluate(items, predictions, metrics.PLAIN)
    evaluation.write(tmp_path, scores, items, predictions)
    truth = COCO(str(tmp_path / "references.json"))
    theirs = truth.loadRes(str(tmp_path / "predictions.json"))
    assert set(theirs.getImgIds()) == {f"{id}.png" for id in known["ids"]}
    captions = {id: [a["caption"] for a in truth.imgToAnns[id]] for id in truth.getImgIds()}
    assert captions == {f"{id}.png": known["references"][id] for id in known["ids"]}
    # With the official tokeniser's output, the official CIDEr is what ours said.
    tokens = [known[f"tokenised_{what}"] for what in ("references", "candidates")]
    score, _ = Cider().compute_score(*tokens)
    assert scores.groups["total"].corpus["CIDEr"] == pytest.approx(100 * score, abs=5e-5)
    for name, value in known["corpus"].items():
        ours = name.replace("ROUGE_L", "ROUGE-L")
        if ours in scores.groups["total"].corpus:
            assert scores.groups["total"].corpus[ours] == pytest.approx(100 * value, abs=5e-5)


def test_captions_of_shards_whose_pairs_have_no_caption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: predictions of all samples of shards, as `cc-train caption --shards` prints them,
    refused as of no pair where a sample has no caption.
    """
    shards, _ = shard_factory.write_tokens(tmp_path / "shards", 1)
    first, second = shard_index.read([shards])
    entries = [first, replace(second, captions=())]
    monkeypatch.setattr(shard_index, "read", lambda paths: entries)
    (tmp_path / "theirs.json").write_text(json.dumps({e.key: "a car left" for e in entries}))
    done = cc_train("evaluate", "--predictions", tmp_path / "theirs.json",
                    "--shards", shards, "--out", tmp_path / "out")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "left out: 1 prediction of pairs without captions" in done.stderr
    again = coco.read_uncaptioned(str(tmp_path / "out/references.json"))
    assert [item.name for item in again] == [second.key]


SPOT_300 = ROOT.parent / "shared/golden/caption_metrics/spot_the_diff_300.json"


def check_a_real_systems_predictions(folder: Path) -> None:
    """The command, on files as CLIP4IDC writes and reads them, against the official scorer."""
    known = json.loads(SPOT_300.read_text())
    rows = [{"image_id": f"{id}.png", "caption": known["candidates"][id]} for id in known["ids"]]
    (folder / "hyp_ep_0.json").write_text(json.dumps(rows))
    annotations = [
        {"id": f"{id}-{number}", "image_id": f"{id}.png", "caption": caption}
        for id in known["ids"]
        for number, caption in enumerate(known["references"][id])
    ]
    images = [{"id": row["image_id"], "filename": row["image_id"]} for row in rows]
    truth = {"type": "captions", "images": images, "annotations": annotations}
    (folder / "spot_total_change_captions_reformat.json").write_text(json.dumps(truth))
    files = ["--predictions", folder / "hyp_ep_0.json",
             "--references", folder / "spot_total_change_captions_reformat.json"]  # fmt: skip
    done = cc_train("evaluate", "--json", *files)
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)["groups"]["total"]
    for name, value in known["corpus"].items():
        assert round(scores[name.replace("_", "-")] / 100, 4) == round(value, 4), name


if SPOT_300.exists():  # no licence: read where it stands

    def test_a_real_systems_predictions(tmp_path: Path) -> None:
        check_a_real_systems_predictions(tmp_path)


def read_references(folder: Path, content: Any) -> dict[str, tuple[str, ...]]:
    (folder / "references.json").write_text(json.dumps(content))
    items = coco.read_references(str(folder / "references.json"))
    return {item.id: tuple(item.references) for item in items}


@pytest.mark.parametrize(
    "content",
    [
        {"1": "it moved", "2": ["a", "b"], "3": []},
        {
            "images": [{"id": 1}, {"id": 2}, {"id": 3}],
            "annotations": [
                {"image_id": 1, "caption": "it moved"},
                {"image_id": 2, "caption": "a"},
                {"image_id": 2, "caption": "b"},
            ],
        },
    ],
    ids=["lists", "annotations"],
)
def test_captions_of_each_id(tmp_path: Path, content: Any) -> None:
    """Keeps away: a caption that is taken apart into letters, and a list that is one caption."""
    assert read_references(tmp_path, content) == {"1": ("it moved",), "2": ("a", "b")}


def test_half_a_pair_of_surrogates_is_evaluated(tmp_path: Path) -> None:
    """Keeps away: half an evaluation and a traceback, of a text that is JSON and no UTF-8."""
    half = "a \ud83d b"
    predictions, references = tmp_path / "p.json", tmp_path / "r.json"
    predictions.write_text(json.dumps({"1": half, "2": "it moved"}))
    references.write_text(json.dumps({"1": [half], "2": ["it moved"]}))
    done = cc_train(
        "evaluate", "--predictions", predictions, "--references", references,
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out/items.jsonl").read_text(encoding="utf-8").count("a ? b") == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"1": 3}, "no references"),
        ([], "no references|not one"),
        ({"1": []}, "not one reference"),
        ({"1": [None]}, "no references"),  # not the word None
        (
            {"images": [{"filename": "a.png", "sentences": [{"raw": "it moved"}]}]},
            "no references. Give COCO annotations, as cc-prep references NAME writes them, or ",
        ),
    ],
)
def test_what_is_no_reference_file(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_references(tmp_path, content)


@pytest.mark.parametrize(
    "content",
    [
        {"a": ["it moved"], "b": []},
        {
            "images": [{"id": "a"}, {"id": "b"}],
            "annotations": [{"image_id": "a", "caption": "it moved"}],
        },
    ],
    ids=["lists", "annotations"],
)
def test_predictions_of_pairs_that_anybody_s_file_has_without_captions(
    tmp_path: Path, content: Any
) -> None:
    """Keeps away: a message about wrong ids, where the file has them and no caption of one."""
    (tmp_path / "theirs.json").write_text(json.dumps(content))
    references = str(tmp_path / "theirs.json")
    items, without = coco.read_references(references), coco.read_uncaptioned(references)
    captions, matched = coco.matched({"a": "it moved", "b": "so"}, items, uncaptioned=without)
    assert (captions, [item.id for item in matched]) == ({"a": "it moved"}, ["a"])
    with pytest.raises(UserError, match="of no pair of the references, such as 'c'"):
        coco.matched({"a": "it moved", "c": "so"}, items, uncaptioned=without)


def test_predictions_of_pairs_without_captions(tmp_path: Path) -> None:
    """Keeps away: published predictions of Spot-the-Diff, which are of all 1,270 test pairs, 7 of
    them without a caption, were refused; and a file that the official scripts fail on.
    """
    metas = [
        {"key": "spot-test-7-change", "image_id": "7.png", "captions": ["a car left"]},
        {"key": "spot-test-8-change", "image_id": "8.png", "captions": []},
    ]
    path, theirs = tmp_path / "references.json", tmp_path / "theirs.json"
    path.write_text(json.dumps(reference_files.references(metas)))
    assert COCO(str(path)).getImgIds() == ["7.png"]
    theirs.write_text(json.dumps({"7": "a car left", "8": "a car left"}))
    files = ("--predictions", theirs, "--references", path)
    done = cc_train("evaluate", *files, "--out", tmp_path / "scores")
    assert done.returncode == 0, done.stderr
    assert "left out: 1 prediction of pairs without captions" in done.stderr
    again = coco.read_uncaptioned(str(tmp_path / "scores/references.json"))
    assert [item.name for item in again] == ["8.png"]
    assert list(score_predictions.score(theirs, path, measures=["CIDEr"]).items) == ["7.png"]
    theirs.write_text(json.dumps({"7": "a car left", "9": "a car left"}))
    assert "of no pair of the references, such as '9'" in cc_train("evaluate", *files).stderr
    path.write_text(json.dumps({"annotations": [], coco.coco.WITHOUT_CAPTIONS: 3}))
    with pytest.raises(UserError, match="is no list of ids"):
        coco.read_uncaptioned(str(path))


def predictions_of(path: Path, content: Any) -> dict[str, str]:
    path.write_text(json.dumps(content))
    return coco.read_predictions([str(path)])


@pytest.mark.parametrize("caption", [["a"], [{"caption": "a"}], "a"])
def test_predictions_as_pycocoevalcap_takes_them(tmp_path: Path, caption: Any) -> None:
    """Keeps away: "no predictions", of the file that the official scripts were given."""
    assert predictions_of(tmp_path / "p.json", {"7": caption, "8": ["b"]}) == {"7": "a", "8": "b"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([{"image_id": 7, "caption": "a"}, None], "p.json, row 2: null in place of an id and a"),
        ([{"image_id": 7, "caption": None}], "p.json, row 1 (id 7): no caption"),
        ([{"image_id": 7, "caption": ["a", "b"]}], 'row 1 (id 7): ["a", "b"] in place of one'),
        ([{"image_id": 7, "caption": 3}], "row 1 (id 7): 3 in place of one caption"),
        ([{"id": 7, "caption": "a"}], "row 1: no image_id"),
        ([{"image_id": 7.5, "caption": "a"}], "row 1: the image_id 7.5, not a text"),
        ({"annotations": [{"image_id": 7}]}, "row 1 (id 7): no caption"),
        ({"7": "a", "8": ["a", "b"]}, 'p.json, id 8: ["a", "b"] in place of one caption'),
        ({"results": {"7": []}}, "id 7: no caption"),
    ],
)
def test_a_bad_prediction_is_named(tmp_path: Path, content: Any, message: str) -> None:
    """Keeps away: "no predictions" of a thousand rows, of which one has none."""
    with pytest.raises(UserError) as caught:
        predictions_of(tmp_path / "p.json", content)
    assert message in str(caught.value)


def test_types_of_changes_are_groups(tmp_path: Path) -> None:
    """Keeps away: scores of a type over pairs of another, and a type for unchanged pairs."""
    kinds = {"000000.png": "change", "000000.png_n": "no_change", "000001.png": "change"}
    items = coco.items(
        [
            {"key": f"k{name}", "image_id": name, "kind": kind, "captions": ["it moved"]}
            for name, kind in kinds.items()
        ]
    )
    path = tmp_path / "types.json"

    def groups(mapping: Any) -> list[tuple[str, ...]]:
        path.write_text(json.dumps(mapping))
        return [item.groups for item in coco.with_types(items, str(path))]

    changed, still = coco.CHANGE, coco.STILL
    every = {"color": ["CLEVR_default_000000.png"], "move": ["000001", "000000.png_n"]}
    assert groups(every) == [(changed, "color"), (still,), (changed, "move")]
    assert groups({"color": ["000000.png"]}) == [(changed, "color"), (still,), (changed,)]
    for odd in ([], {"color": "000000.png"}):
        with pytest.raises(UserError, match="no type mapping"):
            groups(odd)
    with pytest.raises(UserError, match=r"no type of any changed pair .* look like '000000\.png'"):
        groups({"color": ["7.png"]})


def test_values_in_messages_are_cut_where_they_are_long() -> None:
    assert coco._shown("x" * (coco.SHOWN - 2)) == f'"{"x" * (coco.SHOWN - 2)}"'
    assert coco._shown("x" * (coco.SHOWN - 1)).endswith("x …")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"1": ["a"], "2": [None]}, "references.json, id 2: no references"),
        ({"annotations": [{"image_id": 1, "caption": 5}]}, "annotation 1: no references"),
        ({"images": [{}], "annotations": []}, "image 1: no references"),
    ],
)
def test_a_bad_reference_is_named(tmp_path: Path, content: Any, message: str) -> None:
    """Keeps away: "no references" of a thousand, of which one is none."""
    with pytest.raises(UserError, match=message):
        read_references(tmp_path, content)


def test_blank_references_are_scored_and_named(tmp_path: Path) -> None:
    """Keeps away: figures of public files that differ from the official scorer's, as Spot-the-Diff
    has captions that hold nothing; and blank captions without a word of it.
    """
    content = {"1": ["it moved", " \n"], "2": [""], "3": ["a"]}
    assert read_references(tmp_path, content) == {
        "1": ("it moved", " \n"),
        "2": ("",),
        "3": ("a",),
    }
    path = str(tmp_path / "references.json")
    assert coco.blank_references(path) == ["1", "2"]
    assert coco.read_uncaptioned(path) == []
