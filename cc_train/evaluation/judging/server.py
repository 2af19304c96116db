"""The judge: a language model behind an OpenAI-compatible server, asked in words alone."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Mapping
from typing import Any

from cc_prep.errors import JobFailed, UserError
from cc_train.baselines import http_client
from cc_train.baselines.answers import FILTERED, STOPPED, Answer
from cc_train.baselines.http_client import Endpoint, Filtered, Transient
from cc_train.baselines.pace import Pace

GENERATION: Mapping[str, Any] = {"max_tokens": 4096, "temperature": 0}
OURS = ("messages", "model", "n", "stream")  # keys of a request that the user does not set
TRIES = 8
TIMEOUT = 300.0  # seconds without a byte: a judge that thinks sends none for long
MAX_BREAK = 60.0  # seconds between two tries, unless the server asks for more
MAX_WAIT = 900.0  # seconds; a server that asks for more is not waited for
MAX_REASON = 100  # characters of why an answer ended
AGAIN = "The same command resumes from here"
_OPTION = re.compile(r"--(url|set|key-variable)\b")


class Judge:
    """A judge by its name on a server.

    Args:
        generation: Keys of the request besides ours, as the server's documentation has them.
        pause: Seconds after a first failure; doubled with each further one.
    """

    def __init__(
        self, endpoint: Endpoint, model: str, generation: Mapping[str, Any], pause: float = 1.0
    ) -> None:
        for key in OURS:
            if key in generation:
                raise UserError(f"--judge-set {key}: reserved by this command", "Leave it out")
        self.endpoint, self.model, self.generation = endpoint, model, dict(generation)
        self.pace, self.pause = Pace(), pause
        self._reached = False
        self._random = random.Random()

    @property
    def identity(self) -> dict[str, Any]:
        """What of the judge decides an answer."""
        return {"model": self.model, "generation": self.generation}

    def answer(self, prompt: str) -> Answer:
        """The answer to a question. Raises UserError and JobFailed."""
        messages = [{"role": "user", "content": prompt}]
        body = {"model": self.model, "messages": messages, **self.generation}
        for tried in itertools.count(1):
            self.pace.wait()
            try:
                reply = http_client.post(self.endpoint, body, TIMEOUT, self.model)
            except Transient as trouble:
                self._wait(trouble, tried)
                continue
            except Filtered:
                return Answer("", FILTERED)
            except UserError as error:
                raise of_judge(error) from None
            self._reached = True
            return self._answer(reply)
        raise AssertionError("unreachable")

    def stop(self) -> None:
        """Sends no further request."""
        self.pace.stop()

    def _answer(self, reply: Any) -> Answer:
        try:
            choice = reply["choices"][0]
            content = choice["message"].get("content")
            if isinstance(content, list):
                content = "".join(part["text"] for part in content if part.get("type") == "text")
            if content is None or isinstance(content, str):
                ended = choice.get("finish_reason")
                ended = ended[:MAX_REASON] if isinstance(ended, str) and ended else STOPPED
                return Answer(_storable(content or ""), _storable(ended))
        except (KeyError, IndexError, TypeError, AttributeError):
            pass
        error = f"{self.endpoint}: the reply holds no chat completion"
        raise of_judge(UserError(error, http_client.REMEDY))

    def _wait(self, trouble: Transient, tried: int) -> None:
        """Pauses all requests before the next try.

        Raises:
            UserError and JobFailed: For no further one.
        """
        if trouble.unreachable and not self._reached:
            remedy = "Is the server there? See --judge-url"
            raise UserError(f"{self.endpoint}: {trouble.what}", remedy)
        self._reached = self._reached or not trouble.unreachable
        if tried >= TRIES:
            raise JobFailed(f"{self.endpoint}: {trouble.what}, {tried} times in a row. {AGAIN}")
        named = trouble.retry_after or 0.0
        if named > MAX_WAIT:
            what = f"{trouble.what}, asks to wait {named / 60:.0f} minutes"
            raise JobFailed(f"{self.endpoint}: {what}. {AGAIN}")
        doubled = min(MAX_BREAK, self.pause * 2 ** (tried - 1))
        # A server whose clock is wrong names a pause of 0.
        self.pace.pause(max(named, doubled * self._random.uniform(0.5, 1.0)))


def of_judge(error: UserError) -> UserError:
    """An error of the client, which names the options of `cc-train baseline`."""
    what, remedy = (_OPTION.sub(r"--judge-\1", text) for text in (error.what, error.remedy))
    return UserError(what, remedy)


def endpoint(url: str, key_variable: str) -> Endpoint:
    """The endpoint of `--judge-url` and `--judge-key-variable`. Raises UserError."""
    try:
        return Endpoint.of(url, key_variable)
    except UserError as error:
        raise of_judge(error) from None


def _storable(text: str) -> str:
    """A text that a file can hold: JSON may have half a pair of surrogates."""
    return text.encode("utf-8", "replace").decode()
