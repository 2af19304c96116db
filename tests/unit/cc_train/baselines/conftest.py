"""A server of chat completions for the tests of this folder, and its key in the environment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server_factory import KEY, ChatServer, serving


@pytest.fixture
def chat() -> Iterator[ChatServer]:
    with serving(ChatServer()) as chat:
        yield chat


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
