"""Files from strangers: refused or rejected in a line, never executed, never larger than said."""

from __future__ import annotations

import io
import json
import pickle
import struct
import tarfile
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from cc_prep import datasets, manifest, weights
from cc_prep.errors import Reason, RejectedPair, UserError
from cc_prep.formats import sequences, tar, training_shards
from cc_prep.records import MAX_CAPTION_LENGTH
from cc_prep.storage import sha256
from cc_train.data import sequence_index, shard_index
from cc_train.runs import checkpoints
from tests import dataset_factory, job_factory, weight_factory
from tests.browser import opened
from tests.commands import cc_train
from tests.conftest import Command
from tests.unit.cc_prep.media.test_images import bomb

REFUSALS = (tar.DamagedShard, UserError)


def npy(array: np.ndarray, pickled: bool = False) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=pickled)
    return file.getvalue()


IMAGE = cv2.imencode(".png", np.full((32, 32, 3), 90, np.uint8))[1].tobytes()
META = {
    **sequences.pair_meta(job_factory.pair(0)), "frames": 2, "codec": "png",
    "height": 32, "width": 32, "codes": 64, "keyframes": [1],
}  # fmt: skip
MEMBERS = {
    "json": json.dumps(META).encode(),
    "tokens.npy": npy(np.zeros((2, 2, 2), np.int16)),
    "scores.npy": npy(np.zeros((2, 2, 2), np.float32)),
    "f00.png": IMAGE,
    "f01.png": IMAGE,
}
KEY = job_factory.pair(0).key


def member(name: str, data: bytes = b"{}", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def written(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> str:
    with tarfile.open(path, "w") as file:
        for info, data in members:
            file.addfile(info, io.BytesIO(data))
    return str(path)


def shard(path: Path, **other: bytes) -> str:
    """A shard of one sample that is sequence and training sample at once."""
    named = {name.replace("_", "."): data for name, data in other.items()}
    return written(path, *(member(f"{KEY}.{n}", d) for n, d in {**MEMBERS, **named}.items()))


def read_all(path: str) -> None:
    """Everything that the preparation and the trainer read of a shard."""
    for one in sequences.read(path):
        one.pair()
        one.frames()


def train_all(path: str) -> None:
    for entry in shard_index.read([path]):
        entry.meta()
        sample = entry.read()
        for frame in sample.images:
            sample.image(frame)


def index_all(path: str) -> None:
    for sample in sequence_index.read_index([path]):
        for frame in sample.frames:
            sample.image(frame)


READERS: dict[str, Callable[[str], None]] = {
    "sequences": read_all, "catalogue": train_all, "index": index_all
}  # fmt: skip

HOSTILE = {
    "absolute": [member("/etc/passwd.json")],
    "parent": [member("../x.json")],
    "symbolic link": [member("a.json", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd")],
    "hard link": [member("a.json", b"", type=tarfile.LNKTYPE, linkname="/etc/passwd")],
    "device": [member("a.json", b"", type=tarfile.CHRTYPE, devmajor=1, devminor=5)],
    "pipe": [member("a.json", b"", type=tarfile.FIFOTYPE)],
    "folder": [member("a.json", b"", type=tarfile.DIRTYPE)],
    "no extension": [member("readme")],
    "twice": [member("a.json"), member("a.json")],
    "apart": [member("a.json"), member("b.json"), member("a.f00.png")],
    "NUL in a name": [member("a\0b.json")],
    "JSON with NaN": [member("a.json", b'{"frames": NaN, "codec": "png"}')],
    "deep JSON": [member("a.json", b"[" * 100_000)],
    "a list": [member("a.json", b"[]")],
    "no UTF-8": [member("a.json", b"\xff\xfe")],
}


@pytest.mark.parametrize("reader", READERS)
def test_a_good_shard_is_read(tmp_path: Path, reader: str) -> None:
    """So that what is refused below is refused for its fault."""
    READERS[reader](shard(tmp_path / "a.tar"))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_members(tmp_path: Path, name: str, reader: str) -> None:
    path = written(tmp_path / "a.tar", *HOSTILE[name])
    with pytest.raises(REFUSALS) as caught:
        READERS[reader](path)
    assert len(str(caught.value).splitlines()) == 1
    assert "a.tar" in str(caught.value)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("size", [10 * 2**30, 2**62])
def test_sizes_that_lie_take_no_memory(tmp_path: Path, reader: str, size: int) -> None:
    info, _ = member("a.json", b"", size=size)
    (tmp_path / "a.tar").write_bytes(info.tobuf() + b"x" * 2048)
    tracemalloc.start()
    with pytest.raises(REFUSALS):
        READERS[reader](str(tmp_path / "a.tar"))
    assert tracemalloc.get_traced_memory()[1] < 2**26
    tracemalloc.stop()


@pytest.mark.parametrize("reader", READERS)
def test_pickles_are_never_run(tmp_path: Path, reader: str) -> None:
    """`.pkl` and `.pyd` members are passed over; object arrays are refused."""
    payload = pickle.dumps(weight_factory.Payload(tmp_path / "RAN"))
    more = {"pkl": payload, "pyd": payload, "pickle": payload, "pth": payload}
    READERS[reader](shard(tmp_path / "a.tar", **more))
    objects = npy(np.array([weight_factory.Payload(tmp_path / "RAN")], object), pickled=True)
    path = shard(tmp_path / "b.tar", tokens_npy=objects, scores_npy=objects)
    if reader == "catalogue":
        with pytest.raises(tar.DamagedShard, match=r"is object|Python's objects"):
            READERS[reader](path)
    else:
        READERS[reader](path)
    assert not (tmp_path / "RAN").exists()


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("side", [100_000, 20_000])
def test_image_bombs_in_a_shard(tmp_path: Path, reader: str, side: int) -> None:
    with pytest.raises(REFUSALS):
        READERS[reader](shard(tmp_path / "a.tar", f00_png=bomb(side)))


def lists_of_captions(root: Path, text: str) -> str:
    """An annotation file with something in place of a caption."""
    dataset_factory.spot(root)
    path = root / "annotations/train.json"
    path.write_text('[{"img_id": "7", "sentences": [' + text + "]}]")
    return str(path)


@pytest.mark.parametrize("text", ["NaN", "3", "null", "[" * 50_000, '{"a": 1}', "1e999", '"\\ud8"'])
def test_odd_json(tmp_path: Path, text: str) -> None:
    lists_of_captions(tmp_path, text)
    with pytest.raises(UserError) as caught:
        datasets.pairs(manifest.load("spot", root=str(tmp_path)), "train")
    assert len(str(caught.value)) < 400


def test_a_caption_of_100_mb_is_a_reject(tmp_path: Path) -> None:
    from cc_prep.steps.interpolate import Interpolate

    lists_of_captions(tmp_path, '"' + "x" * 100_000_000 + '"')
    settings = manifest.load("spot", ["interpolate.method=crossfade"], root=str(tmp_path))
    [pair] = datasets.pairs(settings, "train")
    [rejected] = Interpolate(settings, {}, "cpu")([pair])
    assert isinstance(rejected, RejectedPair)
    assert rejected.reason is Reason.CAPTION_TOO_LONG
    assert "100,000,000" in rejected.detail
    assert MAX_CAPTION_LENGTH < 100_000_000


YAML = {
    "an object": "name: !!python/object/apply:os.system ['touch {mark}']",
    "a module": "name: !!python/module:os",
    "many aliases": "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"{n}: &{n} [{','.join([f'*{p}'] * 10)}]\n" for p, n in pairwise("abcdefghi")),
    "deep": "a: " + "[" * 1500,
    "huge": "a: " + "x" * 2_000_000,
    "no date": "name: 2026-99-99",
    "itself": "a: &a [*a]",
    "control characters": "a: \x00",
}


@pytest.mark.parametrize("name", YAML)
def test_hostile_yaml(tmp_path: Path, name: str) -> None:
    text = YAML[name].replace("{mark}", str(tmp_path / "RAN"))
    if name != "deep":  # which watching memory would make slow
        tracemalloc.start()
    with pytest.raises(UserError) as caught:
        manifest.build(text, "x.yaml")
    assert tracemalloc.get_traced_memory()[1] < 2**27
    tracemalloc.stop()
    assert len(str(caught.value)) < 400
    assert not (tmp_path / "RAN").exists()


def test_images_outside_the_root(tmp_path: Path) -> None:
    """A table cannot take a file of its user's along into shards that are then passed on."""
    root = tmp_path / "data"
    root.mkdir()
    dataset_factory.image(tmp_path / "mine.png")
    dataset_factory.image(root / "a.png")
    for outside in ("../mine.png", str(tmp_path / "mine.png"), f"file://{tmp_path}/mine.png",
                    "x/../../mine.png", "s3://other/mine.png", "../data2/mine.png"):  # fmt: skip
        (root / "pairs.csv").write_text(f"before,after\na.png,{outside}\n")
        with pytest.raises(UserError, match="outside_root=true"):
            datasets.pairs(manifest.load("own", root=str(root)), "train")
        trusted = manifest.load("own", ["outside_root=true"], root=str(root))
        assert datasets.pairs(trusted, "train")[0].after == outside
    (root / "pairs.csv").write_text(f"before,after\na.png,{root}/x/../a.png\n")
    assert datasets.pairs(manifest.load("own", root=str(root)), "train")


def lying(how: str) -> bytes:
    header: object = {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    data = b"\0" * 4
    if how == "length":
        return struct.pack("<Q", 2**60) + b"{}"
    if how == "shape":
        header = {"a": {"dtype": "F32", "shape": [2**40, 2**20], "data_offsets": [0, 4]}}
    if how == "offsets":
        header = {"a": {"dtype": "F32", "shape": [100], "data_offsets": [0, 400]}}
    if how == "overlap":
        one = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
        header = {"a": one, "b": one}
    if how == "type":
        header = {"a": {"dtype": "PICKLE", "shape": [1], "data_offsets": [0, 4]}}
    if how == "list":
        header = ["a"]
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize("how", ["length", "shape", "offsets", "overlap", "type", "list"])
def test_safetensors_with_lying_headers(tmp_path: Path, how: str) -> None:
    """As weights, and in a checkpoint whose digests are right."""
    (tmp_path / "a.safetensors").write_bytes(lying(how))
    with pytest.raises(UserError):
        weights.read_tensors(tmp_path / "a.safetensors")
    path = checkpoints.write(tmp_path, 5, {"a": torch.ones(1)}, {}, {"a": torch.ones(1)}, {})
    (path / checkpoints.TRAINING).write_bytes(lying(how))
    state = json.loads((path / checkpoints.STATE).read_text())
    state["sha256"][checkpoints.TRAINING] = sha256(path / checkpoints.TRAINING)
    (path / checkpoints.STATE).write_text(json.dumps(state))
    with pytest.raises(UserError):
        checkpoints.read(tmp_path, 5)


def test_settings_in_weights_that_lie(tmp_path: Path) -> None:
    from cc_prep.weights import networks

    for settings in ("{", "[]", '{"network": 3}', '{"network": {"channels": -1}}', "[" * 100_000):
        save_file({"a": torch.ones(1)}, tmp_path / "a.safetensors", metadata={"settings": settings})
        for load in (networks.vqgan, networks.clip4idc):
            with pytest.raises(UserError):
                load(str(tmp_path / "a.safetensors"))


EVIL = (
    "<script>document.body.dataset.ran = 1</script>"
    '<img src=x onerror="document.body.dataset.ran = 1">\'"--></style></title>'
    "<svg onload=document.body.dataset.ran=1>{{ 7*7 }}"
)


def test_html_in_captions_does_not_run(tmp_path: Path, prepare: Command) -> None:
    """In both reports, in a real browser, with the page's ban on scripts taken out."""
    root = tmp_path / "data"
    for name in ("a", "b"):
        dataset_factory.image(root / f"{name}.png", ord(name))
    rows = [{"before": "a.png", "after": "b.png", "caption": EVIL, "change_type": EVIL, "id": EVIL}]
    (root / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    interpolated = prepare(
        "interpolate", "own", "--root", root, "--out", tmp_path / "out", "--split", "train",
        "--set", "interpolate.method=crossfade",
    )  # fmt: skip
    assert interpolated.returncode == 0, interpolated.stderr
    page = tmp_path / "prep.html"
    done = prepare("report", tmp_path / "out", "--out", page)
    assert done.returncode == 0, done.stderr

    run = tmp_path / "run"
    (run / "evaluation").mkdir(parents=True)
    (run / "settings.json").write_text(json.dumps({"kind": EVIL, "words": []}))
    item = {"id": EVIL, "caption": EVIL, "references": [EVIL], "groups": [EVIL], "scores": {}}
    (run / "evaluation/items.jsonl").write_text(json.dumps(item) + "\n")
    done = cc_train("report", run, "--out", tmp_path / "train.html")
    assert done.returncode == 0, done.stderr

    for path in (page, tmp_path / "train.html"):
        assert "script-src" in path.read_text() or "default-src 'none'" in path.read_text()
        dom = opened(path.read_text(), tmp_path)
        assert "data-pictures" in dom, "the probe did not run, so nothing was shown"
        assert "&lt;script&gt;document.body.dataset.ran" in dom
        assert "data-ran" not in dom


def test_training_samples_with_numbers_that_lie() -> None:
    """Arrays whose header declares more than there is, or another type."""
    good = MEMBERS["tokens.npy"]
    for bad in (good.replace(b"(2, 2, 2)", b"(2, 9, 9)"), good.replace(b"<i2", b"<i8"),
                good[:60], npy(np.zeros((0, 2, 2), np.int16)), npy(np.zeros(3, np.int16)),
                good.replace(b"(2, 2, 2), }", b"(9**9**9,) }")):  # fmt: skip
        with pytest.raises(tar.DamagedShard):
            training_shards.decode(KEY, {**MEMBERS, "tokens.npy": bad})
