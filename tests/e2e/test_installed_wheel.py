"""A new user's first steps: the wheel in a new virtual environment, outside the checkout.

`make wheel` tries more of the documentation in the same way, and with --download in an environment
that shares nothing with this one.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT
from tests.try_wheel import Tried, try_first_steps

PACKAGES = ("cc_prep", "cc_train", "pipelines", "manifests")
FILES = ("pyproject.toml", "README.md", "LICENSE")
BUILD = """
import sys
from setuptools import build_meta
build_meta.build_wheel(sys.argv[1], {"--build-option": "--compression=stored"})
"""


def build(path: Path) -> Path:
    """The wheel of the working tree, built from a copy: a build leaves its folders behind."""
    source = path / "source"
    for package in PACKAGES:
        no_cache = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, source / package, ignore=no_cache)
    for file in FILES:
        shutil.copyfile(ROOT / file, source / file)
    # What `pip wheel` calls, which starts four more processes for it, and compresses.
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(path)],
        cwd=source, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [wheel] = path.glob("*.whl")
    return wheel


def test_first_steps_from_the_wheel(tmp_path: Path) -> None:
    """Keeps away: what works in the checkout alone, such as a file that the wheel lacks, an import
    from tests, or a path relative to the repository.
    """
    path = tmp_path / "new"
    path.mkdir()
    try_first_steps(Tried(path, build(tmp_path), download=False))
