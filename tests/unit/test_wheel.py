"""What the wheel holds besides modules. `make wheel` builds one and tries it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NOT_SHIPPED = {"manifests/README.md"}  # a page of the documentation


def test_every_file_of_the_packages_is_in_the_wheel() -> None:
    """Keeps away: a template, page or weight that works in the checkout alone."""
    tracked = subprocess.run(
        ["git", "ls-files", "cc_prep", "cc_train", "pipelines", "manifests"],
        capture_output=True, text=True, check=False, cwd=ROOT,
    ).stdout.split()  # fmt: skip
    if not tracked:
        pytest.fail("git lists no files: the suite runs in a checkout")
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    shipped = {
        path.relative_to(ROOT).as_posix()
        for package, patterns in tool["package-data"].items()
        for pattern in patterns
        for path in (ROOT / package).glob(pattern)
    }
    data = {name for name in tracked if not name.endswith(".py")} - NOT_SHIPPED
    assert {name for name in data if Path(ROOT / name).exists()} - shipped == set()


def test_every_package_is_found() -> None:
    """Keeps away: a new folder of modules without __init__.py, which the wheel leaves out."""
    for package in ("cc_prep", "cc_train", "pipelines"):
        for module in (ROOT / package).rglob("*.py"):
            assert (module.parent / "__init__.py").exists(), module
