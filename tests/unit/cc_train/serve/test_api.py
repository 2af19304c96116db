"""The HTTP API for programs: what it answers is what its OpenAPI file says."""

from __future__ import annotations

import base64
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from cc_prep.errors import UserError
from cc_prep.media import images
from cc_train.pretrained import Captioner
from cc_train.serve import api, application
from cc_train.serve.caption_service import MAX_BEAMS, CaptionService
from cc_train.serve.server import Server
from tests.network_factory import Talkative

TOKEN = "a-token-0123456789"
NOISE = np.random.default_rng(0).integers(0, 256, (2, 20, 24, 3)).astype(np.uint8)
FILES = [images.encode_image(image, "png", 0) for image in NOISE]
PAIR = dict(zip(api.SIDES, (base64.b64encode(file).decode() for file in FILES), strict=True))
Answer = tuple[int, Any, dict[str, str]]


def served(token: str | None) -> Iterator[Server]:
    service = CaptionService(Captioner(Talkative(), Path()), "talkative")
    with Server(service, token=token) as one:
        threading.Thread(target=one.serve_forever, daemon=True).start()
        yield one
        one.shutdown()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    yield from served(None)


@pytest.fixture(scope="module")
def locked() -> Iterator[Server]:
    yield from served(TOKEN)


def ask(server: Server, path: str, body: Any = None, **headers: str) -> Answer:
    """Status, content and headers of an answer. body: bytes as they are, the rest as JSON."""
    kind = {} if body is None else {"Content-Type": "application/json"}
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(server.url + path, data, {**kind, **named})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read()), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read()), dict(error.headers)


def form(*parts: tuple[str, bytes, str | None]) -> tuple[bytes, str]:
    """A form of parts (name, content, name of a file), and its content type."""
    body = b""
    for name, content, file in parts:
        named = "" if file is None else f'; filename="{file}"'
        head = f'--line\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'
        body += head.encode() + content + b"\r\n"
    return body + b"--line--\r\n", "multipart/form-data; boundary=line"


BOTH = tuple((side, file, f"{side}.png") for side, file in zip(api.SIDES, FILES, strict=True))


@pytest.fixture(scope="module")
def described(server: Server) -> dict[str, Any]:
    """The OpenAPI file, as the server sends it."""
    status, document, _ = ask(server, "/v1/openapi.json")
    assert status == 200
    return document


def check(described: dict[str, Any], name: str, value: object) -> None:
    """Raises ValidationError for what is not as the file describes the schema of this name."""
    schema = {"$ref": f"#/components/schemas/{name}", "components": described["components"]}
    Draft202012Validator(schema).validate(value)


def test_the_file_describes_the_routes(described: dict[str, Any]) -> None:
    """Keeps away: a route that the file lacks, or one that is gone; bounds of other numbers."""
    methods = {path: set(of) for path, of in described["paths"].items()}
    posts = {path: {"post"} for path in application.API}
    assert methods == {**posts, application.HEALTH: {"get"}, "/v1/openapi.json": {"get"}}
    schemas = described["components"]["schemas"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    assert schemas["Beams"]["maximum"] == MAX_BEAMS
    assert schemas["Batch"]["properties"]["pairs"]["maxItems"] == api.MAX_PAIRS


@pytest.mark.parametrize("options", [{}, {"beams": 3}, {"mask": True}])
def test_json_and_a_form_have_one_answer(
    server: Server, described: dict[str, Any], options: dict[str, Any]
) -> None:
    """Keeps away: an answer that the file does not describe, and options that a form loses."""
    check(described, "Request", {**PAIR, **options})
    status, value, _ = ask(server, "/v1/caption", {**PAIR, **options})
    assert status == 200
    check(described, "Caption", value)
    texts = [(name, json.dumps(one).encode(), None) for name, one in options.items()]
    body, kind = form(*BOTH, *texts)
    assert ask(server, "/v1/caption", body, Content_Type=kind)[:2] == (200, value)
    assert len(value.get("beams", [])) == options.get("beams", 0)
    if "beams" not in options:
        assert value["caption"] == "the cube moved"
        assert value["boxes"] == [
            {"class": 1, "box": [0.25, 0.25, 0.5, 0.5], "area": 0.0625},
            {"class": 2, "box": [0.25, 0.5, 0.5, 0.625], "area": 0.0312},
        ]
    if options.get("mask"):
        mask = images.decode(base64.b64decode(value["mask"]), "mask")
        assert (mask[..., 0] == 1).sum() == 16


def test_a_batch_has_an_answer_for_each_pair(server: Server, described: dict[str, Any]) -> None:
    """Keeps away: a batch that is lost for one pair, and answers that belong to other pairs."""
    small = base64.b64encode(images.encode_image(NOISE[0][:18], "png", 0)).decode()
    pairs = [PAIR, {**PAIR, "after": small}, {"before": PAIR["before"]}, PAIR]
    status, value, _ = ask(server, "/v1/captions", {"pairs": pairs})
    assert status == 200
    check(described, "Captions", value)
    good, sizes, missing, last = value["captions"]
    assert good == last == ask(server, "/v1/caption", PAIR)[1]
    assert "24×20 px" in sizes["error"]
    assert missing["error"] == "no image after. Give before and after"


@pytest.mark.parametrize(
    ("path", "body", "line"),
    [
        ("/v1/caption", {**PAIR, "after": "§"}, "after is not base64"),
        ("/v1/caption", {**PAIR, "after": "AAAA"}, "the image after: no image in PNG"),
        ("/v1/caption", {"before": 1}, "no image before"),
        ("/v1/caption", {**PAIR, "beam": 3}, "'beam' is not known. Known: before, after, beams"),
        ("/v1/caption", {**PAIR, "beams": True}, "beams is no number of beams. Give 1 to 10"),
        ("/v1/caption", {**PAIR, "mask": 1}, "mask is not true or false"),
        ("/v1/caption", [PAIR], "no JSON object"),
        ("/v1/captions", {"pairs": []}, "no list of pairs. Give 1 to 32 of them"),
        ("/v1/captions", {"pairs": [{}] * 33}, "no list of pairs"),
        ("/v1/captions", {"pairs": PAIR}, "no list of pairs"),
    ],
)
def test_mistakes_are_one_line(
    server: Server, described: dict[str, Any], path: str, body: Any, line: str
) -> None:
    status, value, _ = ask(server, path, body)
    check(described, "Error", value)
    assert status == 400
    assert line in value["error"]
    assert "\n" not in value["error"]


@pytest.mark.parametrize(
    ("parts", "change", "line"),
    [
        ((*BOTH, BOTH[0]), lambda body: body, "the form has 'before' besides"),
        ((*BOTH, ("x", b"1", None)), lambda body: body, "the form has 'x' besides"),
        ((*BOTH, ("beams", b"many", None)), lambda body: body, "beams is no number of beams"),
        (BOTH, lambda body: body[:-40], "no whole form"),
        (BOTH, lambda body: b"no form", "no whole form"),
    ],
)
def test_a_wrong_form_is_one_line(
    server: Server,
    parts: Any,
    change: Any,
    line: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Keeps away: half of an image that is taken for a whole one, and the parser's own words."""
    body, kind = form(*parts)
    status, value, _ = ask(server, "/v1/caption", change(body), Content_Type=kind)
    assert (status, line in value["error"]) == (400, True), value
    status, value, _ = ask(server, "/v1/caption", body, Content_Type="multipart/form-data")
    assert "a form without a boundary" in value["error"]
    assert capfd.readouterr() == ("", "")


def test_a_token_is_asked_for(locked: Server, capfd: pytest.CaptureFixture[str]) -> None:
    """Keeps away: a page beside the API that needs no token, and a token that a log shows."""
    basic = base64.b64encode(f"anybody:{TOKEN}".encode()).decode()
    wrong = (None, f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", TOKEN, "Bearer", "Basic §", "Basic ")
    for path, body in (("/v1/caption", PAIR), ("/about", None), ("/v1/openapi.json", None)):
        for header in wrong:
            given = {} if header is None else {"Authorization": header.encode().decode("latin-1")}
            status, value, headers = ask(locked, path, body, **given)
            assert status == 401
            assert TOKEN not in json.dumps(value)
            scheme = "Bearer" if path.startswith("/v1/") else "Basic"
            assert headers["www-authenticate"] == scheme
        for header in (f"Bearer {TOKEN}", f"bearer {TOKEN}", f"Basic {basic}"):
            assert ask(locked, path, body, Authorization=header)[0] == 200
    assert ask(locked, "/health")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_health(server: Server, described: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a probe that calls a server dead while others wait for its threads."""
    busy, free = threading.Semaphore(0), threading.Event()

    def waits() -> dict[str, Any]:
        busy.release()
        assert free.wait(60)
        return {}

    monkeypatch.setattr(server.application, "about", waits)
    others = [threading.Thread(target=ask, args=(server, "/about")) for _ in range(3)]
    for one in others:
        one.start()
    for _ in range(application.MAX_WORKERS):
        assert busy.acquire(timeout=60)
    status, value, _ = ask(server, "/health")
    free.set()
    for one in others:
        one.join()
    assert status == 200
    check(described, "Health", value)
    assert value["captioner"] == "talkative"


@pytest.mark.parametrize("token", ["short", "ä" * 20, "", "a" * 16 + "\n"])
def test_a_short_token_is_refused(token: str) -> None:
    """Keeps away: a token that is guessed, and one that no header can carry."""
    service = CaptionService(Captioner(Talkative(), Path()), "talkative")
    with pytest.raises(UserError, match="the token is too short, or has other characters"):
        Server(service, token=token)


def test_a_batch_says_what_single_pairs_are_told() -> None:
    """Keeps away: "the two images are equal" of large images that differ in a few pixels."""
    captioner = Captioner.from_pretrained("captioner-mini", device="cpu")
    before = np.full((600, 900, 3), 90, np.uint8)
    after = before.copy()
    after[300, 450] = 94
    pair = {
        side: base64.b64encode(images.encode_image(one, "png", 0)).decode()
        for side, one in (("before", before), ("after", after))
    }
    one = api.caption(captioner, api.JSON, json.dumps(pair).encode())
    many = api.captions(captioner, api.JSON, json.dumps({"pairs": [pair]}).encode())
    assert many["captions"] == [one]
    assert "equal" not in one["caption"]
