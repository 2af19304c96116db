"""Requests to a server: their form, and what becomes of each trouble."""

from __future__ import annotations

import contextlib
import email.utils
import errno
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
import pytest

from cc_prep.errors import JobFailed, UserError
from cc_train.baselines import doors, http_client, prompts, server
from cc_train.baselines.answers import Answer
from cc_train.baselines.http_client import Endpoint, Transient, retry_after
from cc_train.baselines.pace import Pace
from cc_train.baselines.questions import Question
from cc_train.baselines.server import Patience, Server
from tests.server_factory import KEY, MODEL, ChatServer, Said, Trouble, serving

VARIABLE = "A_KEY_OF_TESTS"


def image(grey: int) -> bytes:
    return bytes(cv2.imencode(".png", np.full((8, 8), grey, np.uint8))[1])


QUESTION = Question("k", image(7), image(9), prompts.of("spot"))


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, KEY)


def model(chat: ChatServer | None, url: str = "", **options: Any) -> Server:
    """A server's model that pauses for milliseconds where it is not told how long."""
    name, tries = options.pop("name", MODEL), options.pop("tries", 4)
    seconds = options.pop("seconds", 5)
    endpoint = Endpoint.of(url or (chat.address if chat else ""), VARIABLE)
    generation = options.pop("generation", server.GENERATION)
    return Server(endpoint, name, generation, Pace(), Patience(tries, seconds, 0.001), **options)


def test_a_question_is_a_chat_with_two_images(chat: ChatServer) -> None:
    """Keeps away: images in the wrong order, or a question without its prompt or settings."""
    generation = {"max_tokens": 30, "seed": 1}
    assert model(chat, generation=generation).answer([QUESTION]) == [Answer("from 7 to 9", "stop")]
    [body] = chat.bodies
    texts = [part["text"] for part in body["messages"][0]["content"] if part["type"] == "text"]
    assert texts == list(QUESTION.wording.to_json().values())
    assert {key: body[key] for key in body if key != "messages"} == {"model": MODEL, **generation}
    assert chat.headers[0]["Authorization"] == f"Bearer {KEY}"


def test_text_lies_between_the_images(chat: ChatServer) -> None:
    """Keeps away: two images in a row, of which some servers show the model one alone."""
    model(chat, say=print).answer([QUESTION])
    assert len(chat.probes) == 2
    for body in (*chat.probes, *chat.bodies):
        kinds = [part["type"] for part in body["messages"][0]["content"]]
        assert kinds == ["text", "image_url", "text", "image_url", "text"]


def test_a_model_that_sees_both_images_is_asked(chat: ChatServer) -> None:
    """Keeps away: a note about each good model, and a probe before each question."""
    said: list[str] = []
    asked = model(chat, say=said.append)
    assert [one.text for one in asked.answer([QUESTION, QUESTION])] == ["from 7 to 9"] * 2
    asked.answer([QUESTION])
    assert (said, len(chat.probes), len(chat.bodies)) == ([], 2, 3)


def _last(images: list[np.ndarray]) -> list[np.ndarray]:
    return images[-1:]


def test_a_model_that_sees_one_image_is_refused(chat: ChatServer) -> None:
    """Keeps away: captions that are guesses, paid for and scored, since a server drops an image."""
    chat.sight = _last
    with pytest.raises(
        UserError, match="seer sees one of two images: it says of red and blue"
    ) as e:
        model(chat, say=print).answer([QUESTION])
    assert "--no-probe" in e.value.remedy
    assert not chat.bodies
    assert model(chat).answer([QUESTION])  # without the probe


def test_a_model_that_mixes_up_the_order_gets_a_note(chat: ChatServer) -> None:
    """Keeps away: appeared in place of disappeared, in all captions, without a word about it."""
    chat.sight = lambda images: images[::-1]
    said: list[str] = []
    model(chat, say=said.append).answer([QUESTION])
    assert said == [
        "seer may not see two images in their order: it says of red and blue “The colors are blue "
        "and red.”, and of blue and red “The colors are red and blue.”"
    ]


@pytest.mark.parametrize("drops", [True, False])
def test_ollamas_own_door_is_tried(chat: ChatServer, drops: bool) -> None:
    """Keeps away: Ollama's models that see one image, or refuse a turn of an image alone."""
    chat.own_door = True
    if drops:
        chat.sight = _last
    else:
        chat.refusal = Trouble(400, body={"error": {"message": "a message needs text"}})
    said: list[str] = []
    asked = model(chat, say=said.append, generation={"max_tokens": 9, "think": False, "top_k": 3})
    assert asked.answer([QUESTION]) == [Answer("from 7 to 9")]
    own = chat.address.replace("/v1", "/api/chat")
    assert str(asked.endpoint) == own
    [line] = said
    why = "shows the model one image of two" if drops else "refuses two images"
    assert line == f"{chat.address}/chat/completions {why}, so {own} is asked in its place"
    [body] = chat.bodies
    [message] = body["messages"]
    assert message["content"].startswith("The image before: image 1\nThe image after: image 2\n")
    assert (body["think"], body["options"]) == (False, {"num_predict": 9, "top_k": 3})


def test_a_refusal_that_no_door_helps_against_is_shown(chat: ChatServer) -> None:
    """Keeps away: the words of a door that is not there, in place of the server's own."""
    chat.refusal = Trouble(400, body={"error": {"message": "temperature is not supported"}})
    with pytest.raises(UserError, match="temperature is not supported") as caught:
        model(chat, say=print).answer([QUESTION])
    assert "--set temperature=null" in caught.value.remedy


def test_ollamas_own_door_is_named_by_its_address(chat: ChatServer) -> None:
    """Keeps away: /chat/completions behind an address that has it not."""
    chat.own_door = True
    url = chat.address.replace("/v1", "/api/chat")
    said = Said("", "a car left", "thinking", "length")
    chat.answer = lambda *_: said
    assert model(chat, url).answer([QUESTION]) == [Answer("", "length", "a car left")]
    assert set(chat.requests) == {"/api/chat"}


def test_without_a_key_none_is_sent(chat: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    model(chat).answer([QUESTION])
    assert "Authorization" not in chat.headers[0]


PASSING = [
    Trouble(429, {"Retry-After": "0"}),
    Trouble(500),
    Trouble(503, {"Retry-After": "soon"}),
    Trouble(200, body={"error": {"code": 502, "message": "the provider is busy"}}),
    Trouble(broken=True),
]


def test_what_may_pass_is_tried_again(chat: ChatServer) -> None:
    """Keeps away: a run of hours that ends at the first full queue of a provider."""
    chat.troubles = list(PASSING)
    assert model(chat, tries=6).answer([QUESTION])[0].text == "from 7 to 9"
    assert len(chat.bodies) == 6


def test_what_does_not_pass_ends_the_run(chat: ChatServer) -> None:
    chat.troubles = list(PASSING)
    with pytest.raises(JobFailed, match=r"the connection broke off .*, 5 times in a row"):
        model(chat, tries=5).answer([QUESTION])
    assert len(chat.bodies) == 5


def test_the_servers_pause_is_kept(chat: ChatServer) -> None:
    """Keeps away: requests during a pause that the server asked for, which lengthen it."""
    chat.troubles = [Trouble(429, {"Retry-After": "0.3"})]
    start = time.monotonic()
    model(chat).answer([QUESTION])
    assert time.monotonic() - start >= 0.3


def test_a_pause_of_hours_ends_the_run(chat: ChatServer) -> None:
    chat.troubles = [Trouble(429, {"Retry-After": "7200"})]
    with pytest.raises(JobFailed, match="asks to wait 120 minutes"):
        model(chat).answer([QUESTION])


@pytest.mark.parametrize("code", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_what_may_pass_is_asked_again(code: int) -> None:
    """Keeps away: a run of a night that ends at a gateway's moment of weakness."""
    endpoint = Endpoint.of("http://localhost:1/v1", "NONE")
    assert isinstance(http_client._refused(endpoint, code, "", None, MODEL), Transient)
    assert isinstance(http_client._refused(endpoint, code + 40, "", None, MODEL), UserError)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ECONNRESET, "reset by peer"), "reset by peer"),
        (OSError("odd"), "odd"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_a_reason_has_words(error: Exception, reason: str) -> None:
    assert http_client._reason(error) == reason


def test_pauses_grow_up_to_a_minute() -> None:
    """Keeps away: a busy server that is asked without a break, or not asked for hours."""
    pauses: list[float] = []

    class Told(Pace):
        def pause(self, seconds: float) -> None:
            pauses.append(seconds)

    endpoint = Endpoint.of("http://localhost:1/v1", "NONE")
    asked = Server(endpoint, MODEL, {}, Told(), Patience(tries=9, pause=2.0))
    for tried in range(1, 9):
        asked._wait(Transient("busy"), tried)
    for seconds, longest in zip(pauses, (2, 4, 8, 16, 32, 60, 60, 60), strict=True):
        assert longest / 2 <= seconds <= longest
    asked._wait(Transient("busy", retry_after=70.0), 1)
    assert pauses[-1] == 70
    by_itself = Server(endpoint, MODEL, {}, Told())
    pauses.clear()
    for tried in range(1, by_itself.patience.tries):
        by_itself._wait(Transient("busy"), tried)
    assert sum(pauses) >= 60, "a server has a minute to start again"
    with pytest.raises(JobFailed, match="busy, 9 times in a row"):
        asked._wait(Transient("busy"), 9)


def test_pauses_that_a_header_names() -> None:
    later = email.utils.formatdate(time.time() + 90, usegmt=True)
    earlier = email.utils.formatdate(time.time() - 90, usegmt=True)
    assert [retry_after(text) for text in ("3.5", "0.2")] == [3.5, 0.2]
    assert retry_after("-1") == retry_after(earlier) == 0
    assert 80 < (retry_after(later) or 0) <= 91
    assert [retry_after(text) for text in (None, "", "soon", "inf", "nan")] == [None] * 5


@pytest.mark.parametrize(
    ("trouble", "line"),
    [
        (Trouble(401), r"not allowed \(HTTP 401\). Check the key in A_KEY_OF_TESTS"),
        (Trouble(403), r"not allowed \(HTTP 403\)"),
        (Trouble(404), r"not there \(HTTP 404\). Check --url, .* has a model 'seer'"),
        (Trouble(429, body={"error": {"code": "insufficient_quota", "message": "Pay"}}),
         "the account is used up"),
        (Trouble(400, body={"error": {"message": f"no images\nwith {KEY}"}}),
         r"refused \(HTTP 400: no images with …\)"),
        (Trouble(413, body=b"<html>"), r"refused \(HTTP 413: <html>\)"),
        (Trouble(200, body={"error": {"code": 399, "message": "no"}}), r"refused \(HTTP 400: no\)"),
        (Trouble(200, body={"error": {"code": 600, "message": "no"}}), r"refused \(HTTP 400: no\)"),
        (Trouble(307, {"Location": "http://127.0.0.1:1/v1"}), r"leads elsewhere \(HTTP 307\)"),
        (Trouble(302, {"Location": "http://127.0.0.1:1/v1"}), r"leads elsewhere \(HTTP 302\)"),
        (Trouble(400, body=["odd", 3]), r'refused \(HTTP 400: \["odd", 3\]\)'),
        (Trouble(200, body=b"<html>"), "the reply is no JSON"),
        (Trouble(200, body={"error": {"message": "no such option"}}), "no such option"),
        (Trouble(200, body={"error": "no such option"}), "no such option"),
        (Trouble(200, body={"error": {"code": 401}}), "Check the key"),
        (Trouble(200, body={"choices": []}), "the reply holds no answer of a chat"),
        (Trouble(200, body={"choices": [{"message": {"content": 3}}]}), "no answer of a chat"),
    ],
    ids=lambda value: str(value.status) if isinstance(value, Trouble) else "",
)  # fmt: skip
def test_a_users_mistake_gets_a_line_and_one_request(
    chat: ChatServer, trouble: Trouble, line: str
) -> None:
    """Keeps away: retries of what never passes, and a key in a message or sent elsewhere."""
    chat.troubles = [trouble]
    with pytest.raises(UserError, match=line) as caught:
        model(chat).answer([QUESTION])
    assert len(chat.bodies) == 1
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("before", [0, 285, 295, 299])
def test_a_key_is_blackened_before_a_text_is_cut(chat: ChatServer, before: int) -> None:
    """Keeps away: the first half of a key at the end of a long message."""
    chat.troubles = [Trouble(400, body={"error": {"message": "x" * before + KEY + " no"}})]
    with pytest.raises(UserError, match="HTTP 400") as caught:
        model(chat).answer([QUESTION])
    assert KEY[:4] not in str(caught.value)


def test_a_pause_of_none_does_not_use_up_the_tries(chat: ChatServer) -> None:
    """Keeps away: eight tries within a moment where a server's clock is wrong."""
    chat.troubles = [Trouble(429, {"Retry-After": "0"}), Trouble(429, {"Retry-After": "0"})]
    endpoint = Endpoint.of(chat.address, VARIABLE)
    asked = Server(endpoint, MODEL, {}, Pace(), Patience(tries=3, timeout=5, pause=0.2))
    start = time.monotonic()
    asked.answer([QUESTION])
    assert time.monotonic() - start >= (0.2 + 0.4) / 2


def test_a_missing_key_is_asked_for(chat: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    chat.troubles = [Trouble(401)]
    with pytest.raises(UserError, match="It wants a key: set A_KEY_OF_TESTS"):
        model(chat).answer([QUESTION])


def test_no_route_is_said_at_once() -> None:
    """Keeps away: minutes of retries where an address is mistyped."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(UserError, match=rf"127.0.0.1:{port}/v1/chat/completions: cannot be reach"):
        model(None, f"http://127.0.0.1:{port}/v1").answer([QUESTION])


def test_a_server_that_was_there_is_waited_for() -> None:
    """Keeps away: a run that ends because the server was started anew meanwhile."""
    with serving(ChatServer()) as chat:
        asked = model(chat, tries=3)
        asked.answer([QUESTION])
    with pytest.raises(JobFailed, match=r"cannot be reached .*, 3 times in a row"):
        asked.answer([QUESTION])


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8000", "ftp://a/v1", "http://", "http://a:b/v1", "http://[/v1",
     "http://a/b c?token=t", "http://a/\x01?token=t", "http://a/ü?token=t"],
)  # fmt: skip
def test_addresses_that_are_none(url: str) -> None:
    """Keeps away: urllib's traceback or message, which holds the query, and retries of a typo."""
    with pytest.raises(UserError, match="no address of a server") as caught:
        Endpoint.of(url, VARIABLE)
    assert "token" not in str(caught.value)


def test_an_endpoint_shows_no_secret() -> None:
    """Keeps away: a key in baseline.json, in a message or in a traceback."""
    endpoint = Endpoint.of("https://host/openai/v1/?api-version=1&token=t", VARIABLE)
    assert endpoint.url == "https://host/openai/v1/chat/completions?api-version=1&token=t"
    assert str(endpoint) == "https://host/openai/v1/chat/completions"
    assert KEY not in repr(endpoint)
    assert str(Endpoint.of(str(endpoint), VARIABLE)) == str(endpoint)
    with pytest.raises(UserError, match=r"^--url holds a name or a password"):
        Endpoint.of("https://me:secret@host/v1", VARIABLE)


@pytest.mark.parametrize("key", ["sk-\nsecret", "schlüssel"])
def test_a_key_that_no_header_carries_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """Keeps away: http.client's error, which prints the header with the key."""
    monkeypatch.setenv(VARIABLE, key)
    with pytest.raises(UserError, match="holds no key") as caught:
        Endpoint.of("http://host/v1", VARIABLE)
    assert key not in str(caught.value)


def test_refusals_and_parts_are_answers() -> None:
    def reply(content: Any) -> Any:
        return {"choices": [{"message": {"content": content}, "finish_reason": "length"}]}

    parts = [{"type": "text", "text": "a "}, {"type": "other"}, {"type": "text", "text": "b"}]
    assert doors.Completions().answer(reply(parts)) == Answer("a b", "length")
    assert doors.Completions().answer(reply(None)) == Answer("", "length")


def test_a_question_that_is_filtered_ends_no_run(chat: ChatServer) -> None:
    """Keeps away: a run that never gets past one image that a provider's filter dislikes."""
    chat.troubles = [Trouble(400, body={"error": {"code": "content_filter", "message": "no"}})]
    answers = model(chat).answer([QUESTION, QUESTION])
    assert answers == [Answer("", "content_filter"), Answer("from 7 to 9")]


def test_thoughts_are_kept_apart() -> None:
    """Keeps away: thoughts of one server that are an answer, and of another that are lost."""
    for field in ("reasoning_content", "reasoning", "thinking"):
        message = {"content": "a car", field: "a \ud83d bus?"}
        reply = {"choices": [{"message": message, "finish_reason": "stop"}]}
        assert doors.Completions().answer(reply) == Answer("a car", "stop", "a ? bus?")


@pytest.mark.parametrize(
    ("status", "words", "remedy"),
    [
        (400, "'max_tokens' is not supported. Use 'max_completion_tokens' instead.",
         "--set max_completion_tokens=4096"),
        (400, "'max_tokens' or 'max_completion_tokens' is too large: 4096", "max_tokens=1000"),
        (400, "At most 1 image(s) may be provided in one request.", "--limit-mm-per-prompt"),
        (500, "image input is not supported - hint: you may need the mmproj", "--mmproj"),
        (500, "this model only supports one image while more than one", "/api/chat"),
        (400, "Unsupported value: 'temperature' does not support 0", "--set temperature=null"),
        (422, "no", "--set changes what is sent"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_helps(chat: ChatServer, status: int, words: str, remedy: str) -> None:
    """Keeps away: HTTP 400 without a way out, and one that is asked again and again as HTTP 500."""
    chat.troubles = [Trouble(status, body={"error": {"message": words}})]
    with pytest.raises(UserError) as caught:
        model(chat).answer([QUESTION])
    assert f"refused (HTTP {status}: {words})" in caught.value.what
    assert remedy in caught.value.remedy
    assert len(chat.bodies) == 1


def test_what_a_server_said_before_it_was_given_up_is_told(chat: ChatServer) -> None:
    """Keeps away: a bare HTTP 500 after minutes, whose cause the server had named."""
    chat.troubles = [Trouble(500, body={"error": "\x1b[31mno memory"})] * 2
    with pytest.raises(JobFailed, match=r"HTTP 500: .*no memory, 2 times in a row"):
        model(chat, tries=2).answer([QUESTION])


def test_half_a_pair_of_surrogates_is_replaced(chat: ChatServer) -> None:
    """Keeps away: an answer that no file can hold, which ends the run after all questions."""
    message = {"message": {"content": "a \ud83d car"}}
    chat.troubles = [Trouble(200, body={"choices": [message]})]
    assert model(chat).answer([QUESTION]) == [Answer("a ? car")]


def test_each_answer_is_given_by_itself(chat: ChatServer) -> None:
    """Keeps away: a paid answer that a killed run has not stored, as it waited for another one."""
    assert model(chat).batch == 1


def test_a_model_answers_without_chance_unless_it_is_asked_to() -> None:
    """Keeps away: figures that no second run meets."""
    assert server.generation([])["temperature"] == 0
    assert "temperature" not in server.generation(["temperature=null"])


def test_keys_of_ours_are_not_set(chat: ChatServer) -> None:
    with pytest.raises(UserError, match=r"--set stream: reserved by this command\. Leave it out"):
        model(chat, generation={"stream": True})
    with pytest.raises(UserError, match=r"--set model: reserved by this command\. Use --model"):
        model(chat, generation={"model": "other"})


def test_a_pause_holds_for_all_threads(chat: ChatServer) -> None:
    """Keeps away: other threads that go on sending while the server has asked for a pause."""
    chat.troubles = [Trouble(429, {"Retry-After": "9"})]
    seconds, waiting, over = 0.0, threading.Semaphore(0), threading.Event()

    def sleep(_: float) -> None:
        waiting.release()
        over.wait(60)

    asked = model(chat)
    asked.pace = Pace(clock=lambda: seconds, sleep=sleep)
    threads = [threading.Thread(target=asked.answer, args=([QUESTION],)) for _ in range(2)]
    for thread in threads:
        thread.start()
        assert waiting.acquire(timeout=60), "a request was sent in the pause"
    assert len(chat.bodies) == 1
    seconds = 9.0
    over.set()
    for thread in threads:
        thread.join(60)
    assert len(chat.bodies) == 3
    assert chat.seen.total() == 2


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@contextlib.contextmanager
def replying(first: bytes, again: bytes = b"", pause: float = 0.0) -> Iterator[str]:
    """A server that sends bytes, and others again and again, until nobody takes them, for 20 s."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        over = threading.Event()

        def serve() -> None:
            until = time.monotonic() + 20
            with contextlib.suppress(OSError):
                while not over.is_set():
                    connection, _ = listening.accept()
                    request = connection.makefile("rb")
                    with connection, request, contextlib.suppress(OSError):
                        for line in iter(request.readline, b"\r\n"):
                            if line.lower().startswith(b"content-length:"):
                                length = int(line.split()[1])
                        request.read(length)
                        connection.sendall(first)
                        while again and time.monotonic() < until and not over.wait(pause):
                            connection.sendall(again)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        finally:
            over.set()
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (HEAD + b"\r\n", b" " * 100_000),
        (CHUNKED, b"5\r\nhello\r\n" * 1000),
        (CHUNKED + b"-1\r\n", b"x" * 100_000),  # http.client reads such a chunk to its end
        (HEAD + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n", b"x" * 100_000),
        (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"x" * 100_000),
    ],
)
def test_a_reply_without_an_end_is_bounded(
    monkeypatch: pytest.MonkeyPatch, first: bytes, again: bytes
) -> None:
    """Keeps away: the memory that a server fills which never stops sending."""
    monkeypatch.setattr(http_client, "MAX_BYTES", 1_000_000)
    tracemalloc.start()
    try:
        with replying(first, again) as url, pytest.raises(UserError, match=r"1 MB|HTTP 400"):
            model(None, url, tries=1).answer([QUESTION])
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (HEAD + b"\r\n", b" "),
        (HEAD + b"X: ", b"y"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
)
def test_a_reply_that_comes_byte_by_byte_is_ended(
    monkeypatch: pytest.MonkeyPatch, first: bytes, again: bytes
) -> None:
    """Keeps away: a run that hangs, since each byte begins the time anew."""
    monkeypatch.setattr(http_client, "MAX_SECONDS", 0.3)
    begun = time.monotonic()
    with replying(first, again, 0.02) as url, pytest.raises(JobFailed, match="broke off"):
        model(None, url, tries=1, seconds=0.2).answer([QUESTION])
    assert time.monotonic() - begun < 10


def test_a_server_may_take_as_long_as_timeout_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a slow model that is cut off after ten minutes, whatever --timeout allows."""
    monkeypatch.setattr(http_client, "MAX_SECONDS", 0.1)
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n"
    with replying(reply, b'{"a": 1}', 0.5) as url:
        assert http_client.post(Endpoint.of(url, VARIABLE), {}, 10, MODEL) == {"a": 1}


@pytest.mark.parametrize(
    ("reply", "line"),
    [
        (HEAD + b"X: " + b"y" * 100_000 + b"\r\n\r\n{}", "broke off"),
        (HEAD + b"X: y\r\n" * 1000 + b"\r\n{}", "broke off"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "broke off"),
        (b"SSH-2.0\r\n", "broke off"),
        (CHUNKED + b"-5\r\n", "broke off"),
        (HEAD + b"\r\n" + b"[" * 200_000, "no JSON"),
        (HEAD + b"\r\n" + b"9" * 5000, "no JSON"),
        (HEAD + b'\r\n{"error": {"code": 1%s}}' % (b"0" * 400), r"refused \(HTTP 400"),
        (HEAD + b'\r\n{"error": {"message": "\\ud800"}}', r"HTTP 400: \?"),
        (b"HTTP/1.1 503 x\r\nRetry-After: Fri, 31 Dec 9999 23:59:59 -2359\r\n\r\n", "minutes|503"),
    ],
)
def test_odd_replies_are_one_line(reply: bytes, line: str) -> None:
    """Keeps away: a traceback for what a server of nobody knows whom replies."""
    with replying(reply) as url, pytest.raises((UserError, JobFailed), match=line) as caught:
        model(None, url, tries=2).answer([QUESTION])
    str(caught.value).encode()
    assert len(str(caught.value)) < 1000


def test_odd_reasons_of_an_end_are_stored_all_the_same() -> None:
    """Keeps away: a reason of 10 MB in each stored answer, or one that no file can hold."""
    for reason, ended in (("\ud800", "?"), ("x" * 1000, "x" * 100), ({"a": []}, "stop")):
        reply = {"choices": [{"message": {"content": "a"}, "finish_reason": reason}]}
        assert doors.Completions().answer(reply) == Answer("a", ended)
