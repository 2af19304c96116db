"""Two images that a model of a server captions: the command, lists, and the page."""

from __future__ import annotations

import base64
import json
import threading
import urllib.request
from pathlib import Path

import cv2
import numpy as np
import pytest

from cc_prep.errors import JobFailed, UserError
from cc_train import doubt
from cc_train.baselines import prompts
from cc_train.baselines.captioner import MAX_SIDE, ChatCaptioner
from cc_train.serve.caption_service import ChatService
from cc_train.serve.server import Server
from tests.commands import Done, cc_train
from tests.server_factory import KEY, MODEL, ChatServer, Said, Trouble


@pytest.fixture
def greys(tmp_path: Path) -> list[str]:
    """Files of images of grey 3, 5, 7 and a file that is no image."""
    paths = [tmp_path / f"{grey}.png" for grey in (3, 5, 7)]
    for grey, path in zip((3, 5, 7), paths, strict=True):
        cv2.imwrite(str(path), np.full((32, 40, 3), grey, np.uint8))
    (tmp_path / "none.png").write_bytes(b"no image")
    return [*map(str, paths), str(tmp_path / "none.png")]


def caption(chat: ChatServer, *more: object) -> Done:
    return cc_train("caption", "--url", chat.address, "--model", MODEL, *more)


def test_two_images_get_the_models_sentence(chat: ChatServer, greys: list[str]) -> None:
    """Keeps away: another question than the baseline's, or images in the wrong order."""
    chat.answer = lambda a, b: f"**Answer:** from {a:.0f} to {b:.0f}."
    done = caption(chat, greys[1], greys[0])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "from 5 to 3.\n"
    [body] = chat.bodies
    texts = [part["text"] for part in body["messages"][0]["content"] if part["type"] == "text"]
    assert texts == list(prompts.of(None).to_json().values())
    assert chat.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert len(chat.probes) == 2
    done = caption(chat, "--prompt", "What?", "--set", "max_tokens=9", "--json", *greys[:2])
    row = {"before": greys[0], "after": greys[1], "caption": "from 3 to 5."}
    assert json.loads(done.stdout) == row
    assert chat.bodies[1]["messages"][0]["content"][-1]["text"] == "What?"
    assert chat.bodies[1]["max_tokens"] == 9


def test_a_list_goes_on_after_a_pair_that_cannot_be_read(
    chat: ChatServer, greys: list[str], tmp_path: Path
) -> None:
    """Keeps away: a list that ends at one file, equal images that are sent, and a thousand requests
    to a server that refuses all.
    """
    pairs = [(greys[0], greys[1]), (greys[0], greys[3]), (greys[1], greys[1]), (greys[1], greys[2])]
    listed = tmp_path / "pairs.jsonl"
    listed.write_text("".join(json.dumps({"before": a, "after": b}) + "\n" for a, b in pairs))
    done = caption(chat, "--pairs", listed)
    assert done.returncode == 1
    said = [line.split("\t")[2] for line in done.stdout.splitlines()]
    assert said == ["from 3 to 5", doubt.EQUAL, "from 5 to 7"]
    assert "none.png" in done.stderr
    assert len(chat.bodies) == 2
    chat.troubles = [Trouble(401)]
    done = caption(chat, "--pairs", listed)
    assert (done.returncode, len(chat.bodies)) == (2, 3)


def test_large_images_are_shrunk(chat: ChatServer) -> None:
    """Keeps away: requests of tens of megabytes, and images of which both sides are changed."""

    large = np.zeros((2 * MAX_SIDE, 300, 3), np.uint8)
    ChatCaptioner(chat.address, MODEL)(large, large + 9)
    part = chat.bodies[-1]["messages"][0]["content"][1]["image_url"]["url"]
    data = base64.b64decode(part.partition(",")[2])
    decoded = cv2.imdecode(np.frombuffer(data, np.uint8), 1)
    assert decoded.shape == (MAX_SIDE, 150, 3)


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (Said("", "A car?", ended="length"), "was cut off before it began. Add --set max_tokens="),
        (Said(""), "is empty, and ended with 'stop'"),
    ],
)
def test_no_answer_is_an_error(chat: ChatServer, said: Said, line: str) -> None:
    """Keeps away: an empty line where the model thought for too long."""
    chat.answer = lambda *_: said
    with pytest.raises(JobFailed, match=line):
        ChatCaptioner(chat.address, MODEL)(
            *np.stack([np.full((32, 32, 3), n, np.uint8) for n in (1, 2)])
        )


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["captioner-mini", "a.png", "b.png", "--url", "http://h/v1", "--model", "m"],
         "RUN, --shards, --beams, --device, --tile, --mask and --overlay are not of --url"),
        (["a.png", "b.png", "--url", "http://h/v1", "--model", "m", "--beams", "2"], "--beams"),
        (["a.png", "b.png", "--url", "http://h/v1"], "--url without --model"),
        (["a.png", "b.png", "--model", "m"], "are of a server. Give --url too"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together(options: list[str], line: str) -> None:
    """Keeps away: an option that has no effect."""
    done = cc_train("caption", *options)
    assert done.returncode == 2
    assert line in done.stderr


def test_the_page_asks_it(chat: ChatServer, greys: list[str]) -> None:
    """Keeps away: a page that does not say where the images go, or shows a fault of the server as
    one of its own.
    """
    service = ChatService(ChatCaptioner(chat.address, MODEL))
    assert service.about()["sends_to"] == f"{chat.address}/chat/completions"
    sent = [
        {"name": "x.png", "data": base64.b64encode(Path(path).read_bytes()).decode()}
        for path in greys[:2]
    ]
    with Server(service) as page:
        threading.Thread(target=page.serve_forever, daemon=True).start()
        request = urllib.request.Request(
            f"{page.url}/caption",
            json.dumps({"before": sent[0], "after": sent[1], "beams": 5}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            value = json.loads(reply.read())
        page.shutdown()
    assert (value["caption"], value["confidence"], value["beams"]) == ("from 3 to 5", None, [])
    chat.answer = lambda *_: ""
    with pytest.raises(UserError, match=r"the answer of seer is empty.*Try again"):
        service.caption(np.zeros((32, 32, 3), np.uint8), np.ones((32, 32, 3), np.uint8), 1)
