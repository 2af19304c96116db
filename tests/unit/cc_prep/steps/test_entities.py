"""`cc-prep entities` on rendered pairs: nothing of val and test is read, and all of it resumes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cc_prep.formats import entities, region_features, rejects, training_shards
from tests.conftest import Command
from tests.weight_factory import write_clip, write_sam

SMALL = [
    *("image_size=64", "shards.pairs_per_shard=3", "interpolate.method=crossfade"),
    *("interpolate.depth=0", "score.weights=none", "keyframes.k=0", "tokenize.weights=none"),
    *("entities.min_count=1", "entities.features=lab"),
]


def arguments(command: str, root: Path, out: Path, *settings: str) -> list[object]:
    values = [part for value in (*SMALL, *settings) for part in ("--set", value)]
    return [command, "synth", "--root", root, "--out", out, *values]


@pytest.fixture(scope="module")
def planted_root(tmp_path_factory: pytest.TempPathFactory, synth_root: Path) -> Path:
    """The rendered scenes, with a word in each caption that says which split it is of."""
    root = tmp_path_factory.mktemp("planted") / "synth"
    shutil.copytree(synth_root, root)
    splits = json.loads((root / "splits.json").read_text())
    split_of = {str(number): split for split, listed in splits.items() for number in listed}
    path = root / "change_captions.json"
    captions = json.loads(path.read_text())
    for name, listed in captions.items():
        split = split_of[str(int(Path(name).stem.rpartition("_")[2]))]
        captions[name] = [f"{caption} near a {split} lantern" for caption in listed]
    path.write_text(json.dumps(captions))
    return root


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, planted_root: Path, prepare: Command) -> Path:
    """An OUT with found changes, their entities, and training shards that took both in."""
    folder = tmp_path_factory.mktemp("entities") / "out"
    for command in ("changes", "entities", "build"):
        done = prepare(*arguments(command, planted_root, folder))
        assert done.returncode == 0, done.stderr
    return folder


def test_no_caption_of_val_and_test_is_read(out: Path) -> None:
    """Keeps away: entities that know the captions which a captioner is tested on."""
    phrases = entities.read_vocabulary(str(out / "entities"))
    assert any("lantern" in phrase for phrase in phrases)
    named = {
        one.phrase
        for file in sorted((out / "entities").glob("*-0*.parquet"))
        for key, row in entities.read_shard(str(file))
        for one in entities.decode({"key": key, **row})
    }
    assert named
    assert named <= phrases.keys()
    for phrase in phrases:
        assert not {"val", "test"} & set(phrase.split()), phrase
    for file in sorted((out / "region_features").glob("*-0*.parquet")):
        for row in region_features.read(str(file)):
            assert bool(row.phrases) <= (row.split == "train")
            assert len({*row.phrases}) == len(row.phrases), "a pair has a phrase once"


def test_training_shards_hold_the_entities(out: Path, prepare: Command) -> None:
    """Keeps away: entities of another pair, or in another order than their scores."""
    stored = {
        key: entities.decode({"key": key, **row})
        for file in sorted((out / "entities").glob("*-0*.parquet"))
        for key, row in entities.read_shard(str(file))
    }
    samples = [
        one
        for file in sorted((out / "shards").glob("*.tar"))
        for one in training_shards.read(str(file))
    ]
    assert len(samples) == len(stored) == 12
    for sample in samples:
        assert sample.meta["entities"] == [[one.phrase, one.score] for one in stored[sample.key]]
        assert bool(sample.meta["regions"]) >= bool(sample.meta["entities"])
    assert prepare("verify", out).returncode == 0
    figures = json.loads(prepare("stats", out, "--json").stdout)
    assert figures["pairs asked for entities"] == 12
    assert 0 < figures["pairs with an entity"] <= 12


def test_a_vocabulary_that_is_gone_is_noticed(out: Path, tmp_path: Path, prepare: Command) -> None:
    """Keeps away: a folder without its vocabulary that is called whole."""
    shutil.copytree(out / "entities", tmp_path / "entities")
    (tmp_path / "entities" / entities.VOCABULARY).unlink()
    done = prepare("verify", tmp_path / "entities")
    assert done.returncode == 1
    assert "vocabulary.parquet: missing" in done.stdout


def test_entities_that_are_not_all_there_are_gone_on_with(
    out: Path, tmp_path: Path, planted_root: Path, prepare: Command
) -> None:
    """Keeps away: a second job that was killed, and whose own half is then refused."""
    for name in ("changes", "region_features", "entities"):
        shutil.copytree(out / name, tmp_path / name)
    record = tmp_path / "entities/provenance.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "complete": False}))
    (tmp_path / "entities/.state/val-000000.done.json").unlink()
    done = prepare(*arguments("entities", planted_root, tmp_path))
    assert done.returncode == 0, done.stderr
    for file in sorted((out / "entities").glob("*.parquet")):
        assert (tmp_path / "entities" / file.name).read_bytes() == file.read_bytes()


def test_one_split_has_the_same_rows(
    out: Path, tmp_path: Path, planted_root: Path, prepare: Command
) -> None:
    """Keeps away: entities that depend on which splits were asked for together."""
    shutil.copytree(out / "changes", tmp_path / "changes")
    done = prepare(*arguments("entities", planted_root, tmp_path), "--split", "val")
    assert done.returncode == 0, done.stderr
    [file] = (tmp_path / "entities").glob("val-0*.parquet")
    assert file.read_bytes() == (out / "entities" / file.name).read_bytes()
    assert list((tmp_path / "entities").glob("train-*")) == []
    assert list((tmp_path / "region_features").glob("train-*"))


def test_sam_and_clip_of_folders(tmp_path: Path, planted_root: Path, prepare: Command) -> None:
    """Keeps away: workers that look for the weights elsewhere than the driver."""
    sam, clip = write_sam(tmp_path / "sam"), write_clip(tmp_path / "clip")
    settings = ["changes.segmenter=sam", f"changes.weights={sam}"]
    done = prepare(*arguments("changes", planted_root, tmp_path, *settings), "--limit", 1)
    assert done.returncode == 0, done.stderr
    settings = ["entities.retriever=clip", f"entities.weights={clip}"]
    done = prepare(*arguments("entities", planted_root, tmp_path, *settings), "--limit", 1)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "entities/provenance.json").read_text())
    assert record["settings"]["entities"]["weights"].startswith("clip@")
    assert record["settings"]["changes"]["weights"].startswith("sam@")
    assert any(name.startswith("clip@") for name in record["weights"])
    rows = dict(entities.read_shard(str(tmp_path / "entities/train-000000.parquet")))
    assert {row["source"].partition("@")[0] for row in rows.values()} == {"clip"}


@pytest.mark.parametrize(
    ("command", "setting", "message"),
    [
        ("changes", "changes.segmenter=sam", "Set changes.weights to a local folder"),
        ("changes", "changes.weights=/x", "changes.segmenter fill takes no weights"),
        ("entities", "entities.retriever=clip", "Set entities.weights to a local folder"),
        ("entities", "entities.weights=/x", "neighbours takes no weights"),
        ("entities", "splits=[val]", "no split train"),
    ],
)
def test_mistakes_get_one_line(
    out: Path,
    tmp_path: Path,
    planted_root: Path,
    prepare: Command,
    command: str,
    setting: str,
    message: str,
) -> None:
    """Keeps away: a job that starts and only then lacks what it needs."""
    # Finished changes of other settings would be said first.
    folder = tmp_path if command == "changes" else out
    done = prepare(*arguments(command, planted_root, folder, setting))
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_entities_need_changes(tmp_path: Path, planted_root: Path, prepare: Command) -> None:
    """Keeps away: entities of nothing."""
    done = prepare(*arguments("entities", planted_root, tmp_path))
    assert done.returncode == 2
    assert "cc-prep changes" in done.stderr


def test_a_build_goes_on_without_pairs_whose_images_are_broken(
    tmp_path: Path, planted_root: Path, prepare: Command
) -> None:
    """Keeps away: one broken image, after `entities`, that makes every build impossible.

    Of one pair of the training split the image is cut short; of the split `val` both pairs' are.
    """
    root = tmp_path / "synth"
    shutil.copytree(planted_root, root)
    splits = json.loads((root / "splits.json").read_text())
    [of_val] = splits["val"]
    for number in (splits["train"][0], of_val):
        (root / f"sc_images/CLEVR_semantic_{number:06d}.png").write_bytes(b"cut short")
    (root / f"nsc_images/CLEVR_nonsemantic_{of_val:06d}.png").write_bytes(b"cut short")
    for command in ("changes", "entities", "build"):
        done = prepare(*arguments(command, root, tmp_path / "out"), "--max-rejects", "1")
        assert done.returncode == 0, done.stderr
    samples = [
        sample
        for file in sorted((tmp_path / "out/shards").glob("*.tar"))
        for sample in training_shards.read(str(file))
    ]
    assert len(samples) == 9
    assert all("entities" in sample.meta for sample in samples)
    assert len(rejects.read(str(tmp_path / "out/shards"))) == 3
