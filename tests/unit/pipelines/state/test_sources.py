"""What later jobs notice of the data that a folder was made from."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from cc_prep import manifest
from cc_prep.errors import UserError
from cc_prep.formats import provenance, training_shards
from cc_prep.inspect import verification
from pipelines import jobs
from pipelines.job import Options, Request
from pipelines.state import sources
from tests import job_factory

interpolate, build_from_out, changes = (
    partial(jobs.run, name) for name in ("interpolate", "build", "changes")
)
PLAIN = (
    *("image_size=32", "interpolate.method=crossfade", "interpolate.depth=0"),
    *("score.weights=none", "keyframes.k=0", "tokenize.weights=none"),
)
SPLITS = {"train": ["0", "1", "2"], "val": ["3", "4"]}
Job = Callable[..., str]


@pytest.fixture(autouse=True)
def workers_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    job_factory.work_in_this_process(monkeypatch)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Five pairs of a table; a split file by hand divides them."""
    folder = tmp_path / "data"
    folder.mkdir()
    rows = ["id,before,after,caption"]
    for i in range(5):
        for name in (f"a{i}.png", f"b{i}.png"):
            Image.fromarray(np.full((32, 32, 3), 40 * i, np.uint8)).save(folder / name)
        rows.append(f"{i},a{i}.png,b{i}.png,The Car {i} left.")
    (folder / "pairs.csv").write_text("\n".join(rows) + "\n")
    (folder / "s.json").write_text(json.dumps({"splits": SPLITS}))
    (tmp_path / "mine.yaml").write_text(
        f"layout: table\nroot: {folder}\nsplits: [train, val]\nsplit_file: s.json\n"
    )
    return folder


@pytest.fixture
def job(tmp_path: Path, root: Path) -> Job:
    """A job on these pairs into OUT; what it prints."""

    def run(
        step: Callable[[Request], object],
        *overrides: str,
        splits: tuple[str, ...] = ("train", "val"),
        limit: int | None = None,
        root: Path | None = None,
    ) -> str:
        out = io.StringIO()
        settings = manifest.load(
            str(tmp_path / "mine.yaml"), [*PLAIN, *overrides], root and str(root)
        )
        options = Options(device="cpu", workers=1)
        console = Console(file=out, width=1000)
        step(Request(settings, str(tmp_path / "out"), splits, limit, options, console))
        return out.getvalue()

    return run


def test_limited_sequences_are_named(job: Job, tmp_path: Path) -> None:
    """Keeps away: 3 of 800 pairs as the whole of a data set, since a trial interpolated no more."""
    job(interpolate, limit=2)
    assert "sequences of 2 of 3 pairs of train, made with --limit" in job(build_from_out)
    assert "made with --limit" not in job(build_from_out, splits=("val",))
    assert "made with --limit" not in job(build_from_out, limit=2)
    assert "made with --limit" in job(build_from_out, limit=3)
    job(interpolate)
    assert "made with --limit" not in job(build_from_out)
    for name in ("sequences", "shards"):
        record = provenance.read(str(tmp_path / "out" / name))
        assert sources.recorded_in(record)["pairs"] == {"train": 3, "val": 2}


def test_limited_sequences_are_named_by_changes(job: Job) -> None:
    """Keeps away: found changes of 3 of 800 pairs, for the same reason."""
    job(interpolate, limit=2)
    assert "sequences of 2 of 3 pairs of train, made with --limit" in job(changes)
    assert "made with --limit" not in job(changes, limit=2)
    job(interpolate)
    assert "made with --limit" not in job(changes)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("captions.normalise=[lowercase]", r"captions\.normalise: \[\] → \['lowercase'\]"),
        ("masks.classes={house: 1}", r"masks\.classes\.house: None → \[1\]"),
    ],
)
def test_settings_of_the_pairs_hold_for_later_steps(job: Job, override: str, message: str) -> None:
    """Keeps away: a setting of captions or masks that changes nothing, without a word."""
    job(interpolate, splits=("train",))
    with pytest.raises(UserError, match=message):
        job(build_from_out, override)
    with pytest.raises(UserError, match=message):
        job(interpolate, override, splits=("val",))
    assert job(build_from_out, splits=("train",)) == ""


def test_pairs_that_moved_to_another_split_are_refused(job: Job, root: Path) -> None:
    """Keeps away: test pairs that are training pairs by now, from sequences of before."""
    job(interpolate)
    moved = {"train": ["0", "1", "3"], "val": ["2", "4"]}
    (root / "s.json").write_text(json.dumps({"splits": moved}))
    with pytest.raises(UserError, match="the split file has other pairs in train, val"):
        job(build_from_out)
    with pytest.raises(UserError, match="the split file has other pairs in train"):
        job(interpolate, splits=("val",))


def test_a_split_that_joins_the_split_file_changes_no_other(job: Job, root: Path) -> None:
    """Keeps away: a folder that takes no further split, though its own pairs stay as they are."""
    (root / "s.json").write_text(json.dumps({"splits": {"train": SPLITS["train"], "val": ["3"]}}))
    (root / "pairs.csv").write_text("".join((root / "pairs.csv").open().readlines()[:-1]))
    job(interpolate, splits=("train",))
    with (root / "pairs.csv").open("a") as table:
        table.write("4,a4.png,b4.png,It left.\n")
    (root / "s.json").write_text(json.dumps({"splits": SPLITS}))
    job(interpolate, splits=("val",))
    assert job(build_from_out) == ""


def test_changed_pairs_are_named_where_the_data_lies(job: Job, root: Path, tmp_path: Path) -> None:
    """Keeps away: corrected captions that no shard has, since the sequences are of before."""
    job(interpolate)
    table = (root / "pairs.csv").read_text()
    (root / "pairs.csv").write_text(table.replace("The Car 0 left.", "A bus left."))
    output = job(build_from_out)
    assert "the pairs of train-000000 in" in output
    assert "changed since" in output
    [shard] = (tmp_path / "out/shards").glob("train-*.tar")
    captions = [sample.meta["captions"] for sample in training_shards.read(str(shard))]
    assert ["The Car 0 left."] in captions
    root.rename(tmp_path / "elsewhere")
    root.mkdir()
    (root / "s.json").write_text(json.dumps({"splits": SPLITS}))
    assert "changed since" not in job(build_from_out), "the data is gone"


def test_another_root_is_named(job: Job, root: Path, tmp_path: Path) -> None:
    """Keeps away: a folder of two data sets, half from one root and half from another."""
    job(build_from_out, splits=("train",))
    other = root.rename(tmp_path / "other")
    output = job(build_from_out, root=other)
    line = f"images are read from {other}; what {tmp_path}/out/shards holds already was made from"
    assert f"{line} {root}\n" in output
    record = provenance.read(str(tmp_path / "out/shards"))
    assert sources.recorded_in(record)["roots"] == [str(root), str(other)]
    assert "images are read from" not in job(build_from_out, root=other)


def test_shards_of_a_split_that_was_renamed_are_named(job: Job, root: Path, tmp_path: Path) -> None:
    """Keeps away: the same pairs in two splits of a folder, which then counts them twice."""

    def name_splits(*names: str) -> None:
        rows = (root / "pairs.csv").read_text().splitlines()
        values = ["split", *names[:1] * 3, *names[1:] * 2]
        lines = [f"{row},{value}" for row, value in zip(rows, values, strict=True)]
        (root / "parted.csv").write_text("\n".join(lines) + "\n")

    name_splits("train", "valid")
    parted = ("split_file=null", "table.file=parted.csv")
    old = job(build_from_out, *parted, "splits=[train,valid]", splits=("train", "valid"))
    assert "also has shards" not in old
    name_splits("train", "val")
    with pytest.raises(UserError, match="holds the pairs of the split val as valid"):
        job(build_from_out, *parted)
    output = job(build_from_out, *parted, splits=("train",))
    assert "the folder also has shards of valid, which the manifest does not name" in output
    [note] = verification.notes(str(tmp_path / "out/shards"))
    assert "has shards of valid, which the manifest of its last run does not name" in note


def test_folders_of_an_older_version_are_continued(job: Job, tmp_path: Path) -> None:
    """Keeps away: sequences that no later step takes, since nothing says what they came from."""
    job(interpolate, limit=2)
    path = tmp_path / "out/sequences" / provenance.FILE
    record = json.loads(path.read_text())
    del record[sources.KEY]
    path.write_text(json.dumps(record))
    assert job(build_from_out, "captions.normalise=[lowercase]") == ""
    job(interpolate)
    assert sources.recorded_in(json.loads(path.read_text()))["pairs"] == {"train": 3, "val": 2}


def test_pairs_that_came_later_are_named(job: Job, tmp_path: Path) -> None:
    """Keeps away: new rows of a table that no later step takes in, without a word."""
    in_order = ("split_file=null", "shards.shuffle_seed=null")
    job(interpolate, *in_order, splits=("train",))
    assert "now has" not in job(build_from_out, *in_order, splits=("train",))
    with (tmp_path / "data/pairs.csv").open("a") as table:
        table.write("5,a1.png,b2.png,The car came back.\n")
    text = job(build_from_out, *in_order, splits=("train",))
    assert "now has 6 pairs of train, and had 5" in text


def test_a_root_is_recorded_without_its_password(root: Path, tmp_path: Path) -> None:
    """Keeps away: a password in provenance.json, which is published; "images are read from" another
    place once the password changed."""
    settings = manifest.load(
        str(tmp_path / "mine.yaml"), ["split_file=null"], "https://me:s3cret@host/data?sig=1"
    )
    again = settings.model_copy(update={"root": "https://me:other@host/data?sig=2"})
    recorded = [sources.of_pairs(one, [])["roots"] for one in (settings, again)]
    assert recorded == [["https://host/data?sig=***"]] * 2


@pytest.mark.parametrize("damaged", [{"splits": 5}, {"roots": 5}, [1], {"pairs": {"train": "3"}}])
def test_a_damaged_section_is_one_line(damaged: object) -> None:
    """Keeps away: a traceback of a provenance that somebody edited."""
    with pytest.raises(UserError, match=r"provenance\.json has a damaged section 'data'"):
        sources.recorded_in({"data": damaged})
