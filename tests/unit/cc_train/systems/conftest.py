"""Fixtures that the tests of several systems share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `vlm_factory.save` puts its models, so that each is made once; read only."""
    return tmp_path_factory.mktemp("models")
