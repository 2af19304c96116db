"""Where a local Ray has its sockets."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest

from cc_prep.errors import UserError
from pipelines.cluster import session
from pipelines.cluster.session import MAX_FOLDER_BYTES, SOCKET, temporary_folder


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.delenv("TMPDIR", raising=False)


@pytest.mark.parametrize("name", ["RAY_TMPDIR", "TMPDIR"])
def test_a_path_that_is_just_short_enough_is_left_to_ray(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        place = Path(short) / ("x" * (MAX_FOLDER_BYTES - len(short) - 1))
        sockets = place / SOCKET
        sockets.parent.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as unix:
            unix.bind(str(sockets))  # the kernel takes it
        with socket.socket(socket.AF_UNIX) as unix, pytest.raises(OSError, match="too long"):
            unix.bind(f"{sockets}x")
        monkeypatch.setenv(name, str(place))
        with temporary_folder() as folder:
            assert folder is None


def test_a_long_tmpdir_gets_a_short_private_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: no job at all under a scheduler whose TMPDIR is long, "the same command tries
    again"."""
    monkeypatch.setenv("TMPDIR", "/scratch/" + "é" * (MAX_FOLDER_BYTES // 2))
    with temporary_folder() as folder:
        assert folder is not None
        assert len(folder) < MAX_FOLDER_BYTES
        private = Path(folder).parent
        assert private.stat().st_mode & 0o777 == 0o700
        Path(folder).mkdir(0o777)
    assert not private.exists()


def test_where_there_is_no_short_place_the_remedy_says_how_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = "/" + "x" * MAX_FOLDER_BYTES
    monkeypatch.setenv("TMPDIR", place)

    def refuse(**options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(session.tempfile, "TemporaryDirectory", refuse)
    with pytest.raises(
        UserError, match=r"too long .* Permission denied\. Set RAY_TMPDIR .* at most"
    ):
        temporary_folder().__enter__()
    monkeypatch.setenv("RAY_TMPDIR", place)
    with pytest.raises(
        UserError, match=f"RAY_TMPDIR={place} is too long .* at most {MAX_FOLDER_BYTES} "
    ):
        temporary_folder().__enter__()
