"""A copy of the tree in which mutants are tried: the checkout itself is never changed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


class Scratch:
    """The copy, and the warm process that runs tests in it.

    libraries: that it loads; none for all that tests of the project need.
    """

    def __init__(self, folder: Path, libraries: Sequence[str] = ()) -> None:
        self.folder = folder
        environment = {
            **os.environ,
            "PYTHONPATH": str(folder),
            # A mutant may have the size and the second of the module whose .pyc it would take.
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",  # as in tests/conftest.py, before torch is loaded
        }
        self.server = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "warm.py"), *libraries],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, tests: Sequence[str], seconds: float) -> dict[str, Any]:
        """How these test files end in the copy; see `tests.mutants.warm`."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps({"tests": list(tests), "seconds": seconds}) + "\n")
        self.server.stdin.flush()
        answer: dict[str, Any] = json.loads(self.server.stdout.readline())
        return answer

    @contextlib.contextmanager
    def mutated(self, module: str, source: str) -> Iterator[None]:
        """The copy has another text in that module for a while."""
        path = self.folder / module
        original = path.read_text()
        path.write_text(source)
        try:
            yield
        finally:
            path.write_text(original)


@contextlib.contextmanager
def scratch(root: Path) -> Iterator[Scratch]:
    """A copy of all files that git tracks or would track, removed at the end."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=root, capture_output=True, text=True, check=True).stdout
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for name in filter(None, listed.split("\0")):
            if (root / name).is_file():
                (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(root / name, Path(folder) / name)
        copy = Scratch(Path(folder))
        try:
            yield copy
        finally:
            assert copy.server.stdin is not None
            copy.server.stdin.close()
            copy.server.wait()
