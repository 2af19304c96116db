"""A model behind a server of chat completions, or behind Ollama's own door.

The key comes from the environment. It is sent to the named server alone (redirections are refused),
and is never in a message or a file.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cc_prep import settings
from cc_prep.errors import JobFailed, UserError
from cc_train.baselines import http_client, probe
from cc_train.baselines.answers import FILTERED, Answer
from cc_train.baselines.http_client import Endpoint, Filtered, Refused, Transient
from cc_train.baselines.pace import Pace
from cc_train.baselines.probe import Sight
from cc_train.baselines.questions import Question, Turn

# A model that thinks takes some thousand tokens before it answers; others end after a sentence.
GENERATION: Mapping[str, Any] = {"max_tokens": 4096, "temperature": 0}
MANY_TOKENS = 16384  # for models that think for long
KEY_VARIABLE = "OPENAI_API_KEY"
OURS = ("messages", "model", "n", "stream")  # keys of a request that the user does not set
MAX_BREAK = 60.0  # seconds between two tries, unless the server asks for more
MAX_WAIT = 900.0  # seconds; a server that asks for more is not waited for
AGAIN = "The same command resumes from here"


@dataclass(frozen=True)
class Patience:
    """tries: of one request. timeout: seconds without a byte after which a request has failed.
    pause: seconds after the first failure; doubled with each further one.
    """

    tries: int = 8
    timeout: float = 600.0  # a model that thinks sends nothing until it has its answer
    pause: float = 1.0


class Server:
    """A model by its name on a server.

    Args:
        generation: Keys of the request besides ours, as the server's documentation has them.
        say: Is told what is to be known of how the model sees two images, which is found out before
            the first question. Without it, that is not found out.
    """

    batch = 1  # a request is about one pair

    def __init__(
        self,
        endpoint: Endpoint,
        name: str,
        generation: Mapping[str, Any],
        pace: Pace,
        patience: Patience = Patience(),
        say: Callable[[str], None] | None = None,
    ) -> None:
        for key in OURS:
            if key in generation:
                remedy = "Use --model" if key == "model" else "Leave it out"
                raise UserError(f"--set {key}: reserved by this command", remedy)
        self.endpoint, self.name, self.generation = endpoint, name, dict(generation)
        self.pace, self.patience, self.say = pace, patience, say
        self._reached = False
        self._random = random.Random()
        self._looking = threading.Lock()

    @property
    def identity(self) -> dict[str, Any]:
        """What of the model decides an answer."""
        return {"model": self.name, "generation": self.generation}

    def answer(self, questions: Sequence[Question]) -> list[Answer]:
        """Answers to some questions, one request each. Raises UserError and JobFailed."""
        with self._looking:
            if self.say is not None:
                self._look(self.say)
                self.say = None
        return [self.ask(question.turns) for question in questions]

    def stop(self) -> None:
        """Sends no further request."""
        self.pace.stop()

    def ask(self, turns: Sequence[Turn]) -> Answer:
        """The answer to a chat: one request, which is repeated while its failure may pass.

        Args:
            turns: The chat, whose last turn is the user's. It may be text alone.

        Raises:
            UserError: The server refuses, or is not there.
            JobFailed: It fails again and again.
        """
        endpoint = self.endpoint
        body = endpoint.door.body(self.name, turns, self.generation)
        for tried in itertools.count(1):
            self.pace.wait()
            try:
                reply = http_client.post(endpoint, body, self.patience.timeout, self.name)
            except Transient as trouble:
                self._wait(trouble, tried)
                continue
            except Filtered:
                return Answer("", FILTERED)
            self._reached = True
            return parsed(reply, endpoint)
        raise AssertionError("unreachable")

    def _wait(self, trouble: Transient, tried: int) -> None:
        """Pauses all requests before the next try.

        Raises:
            UserError and JobFailed: For no further one.
        """
        if trouble.unreachable and not self._reached:
            raise UserError(f"{self.endpoint}: {trouble.what}", "Is the server there? See --url")
        self._reached = self._reached or not trouble.unreachable
        if tried >= self.patience.tries:
            what = f"{trouble.what}, {tried} times in a row"
            raise JobFailed(f"{self.endpoint}: {what}. {AGAIN}")
        named = trouble.retry_after or 0.0
        if named > MAX_WAIT:
            minutes = f"{named / 60:.0f} minutes"
            raise JobFailed(f"{self.endpoint}: {trouble.what}, asks to wait {minutes}. {AGAIN}")
        doubled = min(MAX_BREAK, self.patience.pause * 2 ** (tried - 1))
        # A server whose clock is wrong names a pause of 0.
        self.pace.pause(max(named, doubled * self._random.uniform(0.5, 1.0)))

    def _look(self, say: Callable[[str], None]) -> None:
        """Looks whether the model sees two images. If not, takes Ollama's own door if it helps.

        Raises:
            UserError: It does not see both, or the server refuses them.
        """
        sight, refusal = None, None
        try:
            sight = probe.look(self.ask)
        except Refused as error:
            refusal = error
        if sight is None or sight.misses_one:
            other = self._by_own_door()
            if other is not None:
                why = "refuses two images" if sight is None else "shows the model one image of two"
                say(f"{self.endpoint} {why}, so {other[0]} is asked in its place")
                self.endpoint, sight = other
        if sight is None:
            assert refusal is not None
            raise refusal
        if sight.misses_one:
            raise UserError(
                f"{self.endpoint}: {self.name} sees one of two images: it says {sight}",
                "Let the server take two images (see docs/baseline.md), or give another model; "
                "--no-probe leaves this check out",
            )
        if not sight.is_right:
            say(f"{self.name} may not see two images in their order: it says {sight}")

    def _by_own_door(self) -> tuple[Endpoint, Sight] | None:
        """Ollama's own door and what the model sees by it; None unless it is both images."""
        endpoint = self.endpoint.of_ollama
        if endpoint is None:
            return None
        patience = replace(self.patience, tries=2)  # most servers have no such door
        other = Server(endpoint, self.name, self.generation, self.pace, patience)
        try:
            sight = probe.look(other.ask)
        except (UserError, JobFailed):
            return None
        return None if sight.misses_one else (endpoint, sight)


def generation(overrides: Sequence[str]) -> dict[str, Any]:
    """The decoding parameters of a request, by `--set`. Raises UserError."""
    values: dict[str, Any] = dict(GENERATION)
    settings.override(values, overrides)
    return {name: value for name, value in values.items() if value is not None}


def parsed(reply: Any, endpoint: Endpoint) -> Answer:
    """The answer in a server's reply. Raises UserError for a reply of another form."""
    try:
        return endpoint.door.answer(reply)
    except (KeyError, IndexError, TypeError, AttributeError):
        raise UserError(
            f"{endpoint}: the reply holds no answer of a chat", http_client.REMEDY
        ) from None
