"""The layout that ARCHITECTURE.md promises: one-way imports, short files, short functions."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGES = ("cc_prep", "pipelines", "cc_train")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
FORBIDDEN = {
    "cc_prep": {"pipelines", "cc_train", "ray", "click"},
    "pipelines": {"cc_train"},
    "cc_train": {"pipelines", "ray"},
}


def imported(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_house_rules(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    package = path.relative_to(ROOT).parts[0]
    assert not imported(tree) & FORBIDDEN[package]
    if package == "cc_prep":
        assert "ray" not in imported(tree)
    assert text.count("\n") <= 400
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, f"{node.name} is too long"


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("*.py")), ids=lambda p: p.stem)
def test_test_files_are_short(path: Path) -> None:
    assert path.read_text().count("\n") <= 400


def modules_after(statement: str) -> set[str]:
    code = f"{statement}; import sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["cc_prep", "pipelines.cli", "cc_train.cli", "cc_prep.records"])
def test_quick_imports(module: str) -> None:
    """Keeps away: a --help that takes seconds because it imports torch or Ray."""
    assert not modules_after(f"import {module}") & {"torch", "ray", "cv2", "pandas", "pyarrow"}


def test_documents_name_only_files_that_are_there() -> None:
    """Keeps away: docs that lie after a move."""
    for document in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/formats.md"):
        text = (ROOT / document).read_text()
        for name in re.findall(
            r"`((?:cc_prep|pipelines|cc_train|docs|tests|benchmarks)/[\w./-]+)`", text
        ):
            assert (ROOT / name).exists(), f"{document}: {name}"


def test_architecture_is_short() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 40
