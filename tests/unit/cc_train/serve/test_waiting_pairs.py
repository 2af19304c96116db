"""Which pairs of --pairs still wait for captions."""

from __future__ import annotations

import base64
import http.client
import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cc_prep import storage
from cc_prep.media import images
from cc_train.pretrained import Captioner
from cc_train.serve import application
from cc_train.serve.caption_service import CaptionService
from cc_train.serve.collection import Collection
from cc_train.serve.pixels import Pixels
from cc_train.serve.server import Server
from cc_train.serve.waiting import Waiting, names
from tests.network_factory import Talkative


def test_waiting_pairs_have_different_names() -> None:
    """Keeps away: two pairs of different folders of which the second overwrites the first."""
    paths = ["a/x_before.png", "b/x_before.png", "c/my scene.png", "c/__.png", "x.png", "x-2.png"]
    assert names([(path, "") for path in paths]) == [
        "x", "x-2", "my_scene", "pair", "x-3", "x-2-2",
    ]  # fmt: skip
    assert names([("a/x.png", "")], {"x", "x-2"}) == ["x-3"]


@pytest.mark.parametrize("codec", ["png", "tiff", "jpg and png"])
def test_a_pair_waits_until_its_images_are_collected(tmp_path: Path, codec: str) -> None:
    """Keeps away: pairs of a second folder that are never offered, since the files of the first one
    have the same names; and captioned pairs that are offered again under other numbers.
    """
    collection = Collection(tmp_path / "own")
    endings = {"jpg and png": ("jpg", "png")}.get(codec, (codec, codec))
    pairs = []
    for folder in range(3):
        seeds = (2 * folder, 2 * folder + 1)
        pair = [
            tmp_path / f"{folder}/{seed % 2}/0001.{end}"
            for seed, end in zip(seeds, endings, strict=True)
        ]
        for path, seed in zip(pair, seeds, strict=True):
            path.parent.mkdir(parents=True)
            noise = np.random.default_rng(seed).integers(0, 256, (20, 20, 3)).astype(np.uint8)
            Image.fromarray(noise).save(path)
        pairs.append((str(pair[0]), str(pair[1])))

    def collect(id: str, pair: tuple[str, str]) -> None:
        collection.put(id, *(application.image(path)[0] for path in pair), ["x"], "train", "change")

    collect("0001", pairs[0])
    assert Waiting(pairs).left(collection) == [
        {"number": 1, "id": "0001-2"}, {"number": 2, "id": "0001-3"},
    ]  # fmt: skip
    waiting = Waiting(pairs[::-1])
    assert [one["number"] for one in waiting.left(collection)] == [0, 1]
    collect("renamed" if codec == "png" else "0001-3", pairs[2])
    assert [one["number"] for one in waiting.left(collection)] == [1]
    swapped = Waiting([pairs[1], pairs[0][::-1]])  # as the page's button does it before a save
    if codec == "png":
        assert [one["number"] for one in swapped.left(collection)] == [0]
    # Keeps away: a pair that is never offered, since another one has its images exchanged.
    both_orders = Waiting([pairs[0], pairs[0][::-1]])
    assert [one["number"] for one in both_orders.left(collection)] == [1]
    (tmp_path / "1/1/0001").with_suffix(f".{endings[1]}").unlink()  # is said when it is loaded
    assert [one["number"] for one in waiting.left(collection)] == [1]


def test_a_converted_pair_does_not_wait_whatever_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a pair that is offered again at the next start since it was saved under another
    name; and a start that decodes all converted pairs each time."""
    pairs = []
    for number in range(3):
        pair = (str(tmp_path / f"{number}_before.tiff"), str(tmp_path / f"{number}_after.tiff"))
        for seed, path in enumerate(pair, 2 * number):
            noise = np.random.default_rng(seed).integers(0, 256, (20, 20, 3)).astype(np.uint8)
            Image.fromarray(noise).save(path)
        pairs.append(pair)
    service = CaptionService(Captioner(Talkative(), Path()), "x")
    collection = Collection(tmp_path / "own")
    with Server(service, (), pairs, collection) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        about = {"captions": ["x"], "split": "train", "kind": "change"}
        for number, id in ((0, "mine"), (1, "1")):
            both = {
                side: {"name": side, "data": base64.b64encode(application.image(path)[0]).decode()}
                for side, path in zip(("before", "after"), pairs[number], strict=True)
            }
            connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1])
            content = json.dumps({**both, **about, "id": id, "number": number})
            connection.request("POST", "/pairs", content, {"Content-Type": "application/json"})
            assert connection.getresponse().status == 200
            connection.close()
        assert server.application.about()["queue"] == [{"number": 2, "id": "2"}]
        server.shutdown()

    def left() -> list[int]:
        return [one["number"] for one in Waiting(pairs).left(Collection(tmp_path / "own"))]

    assert left() == [2]
    decoded: list[str] = []
    read = images.read
    monkeypatch.setattr(images, "read", lambda path: decoded.append(path) or read(path))
    assert left() == [2]
    assert decoded == []
    renamed = collection.get("mine")
    files = [(tmp_path / "own" / path).read_bytes() for path in (renamed.before, renamed.after)]
    collection.put("other", *files, ["y"], "test", "change", replaces="mine")
    assert left() == [2]
    (tmp_path / "own" / ".pixels.json").write_text("{")  # damaged: compared by names alone
    assert left() == [0, 2]
    Path(pairs[2][0]).unlink()
    assert left() == [0, 2]
    collection.remove("1")
    assert left() == [0, 1, 2]


def test_a_pair_of_addresses_is_known_by_its_pixels_in_its_own_format(tmp_path: Path) -> None:
    """Keeps away: a captioned pair that is offered again at every look at the page."""
    pair = ("memory://waiting/a_before.jpg", "memory://waiting/a_after.jpg")
    for seed, path in enumerate(pair):
        noise = np.random.default_rng(seed).integers(0, 256, (20, 20, 3)).astype(np.uint8)
        storage.write_bytes(path, images.encode_image(noise, "jpg", 95))
    collection = Collection(tmp_path / "own")
    waiting = Waiting([pair])
    assert len(waiting.left(collection)) == 1
    collection.put("mine", *map(storage.read_bytes, pair), ["x"], "train", "change")
    waiting.saved(0, collection)
    assert waiting.left(collection) == []


def test_a_cache_of_pixels_that_is_not_read_counts_as_empty(tmp_path: Path) -> None:
    """Keeps away: a page that does not start, for what stands in the place of its cache."""
    assert Pixels(tmp_path).known("a.png") is None


def test_odd_files_and_addresses_of_a_list_wait_like_others(tmp_path: Path) -> None:
    """Keeps away: a page that does not start for one odd address of a list, or waits for ever for
    a pipe in the place of an image."""
    pipe = tmp_path / "a.png"
    os.mkfifo(pipe)
    odd = [(str(pipe), str(pipe)), ("s3://", "sftp://h/x"), ("reference://a::b", "http://[::1")]
    collection = Collection(tmp_path / "own")
    image = images.encode_image(np.full((20, 20, 3), 9, np.uint8), "png", 0)
    collection.put("mine", image, image, ["x"], "train", "no_change")
    assert len(Waiting(odd).left(collection)) == 3
