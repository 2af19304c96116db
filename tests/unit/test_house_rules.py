"""The layout that ARCHITECTURE.md promises: imports go one way, `--help` and scoring are light."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections import Counter
from functools import cache
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


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def modules_of(path: Path) -> tuple[str, ...]:
    """All that a file imports anywhere, with the names that it takes of a module."""
    modules: list[str] = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom):
            modules += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
    return tuple(modules)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    forbidden = FORBIDDEN[path.relative_to(ROOT).parts[0]]
    assert not {name.split(".")[0] for name in modules_of(path)} & forbidden


ROOMS = sorted(path.parent.name for path in (ROOT / "cc_train" / "systems").glob("*/__init__.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_a_system_is_reached_through_the_table_alone(room: str) -> None:
    """Keeps away: evaluation, training or a command that knows one system by its name."""
    of_room = f"cc_train.systems.{room}"
    outside = [path for path in FILES if f"systems/{room}/" not in path.as_posix()]
    assert len(outside) < len(FILES), "the room is empty"
    for path in outside:
        assert not any(f"{name}.".startswith(f"{of_room}.") for name in modules_of(path)), path


SHARED = sorted(path.stem for path in (ROOT / "cc_train" / "systems").glob("[a-z]*.py"))


@pytest.mark.parametrize("module", SHARED)
def test_what_systems_share_is_theirs_alone(module: str) -> None:
    """Keeps away: evaluation, training or a command that knows captioners of pairs."""
    name = f"cc_train.systems.{module}"
    for path in FILES:
        if "cc_train/systems/" not in path.as_posix():
            assert name not in imports_at_the_top("", path), path


def imports_at_the_top(name: str, path: Path) -> set[str]:
    """Modules of ours, and the packages they lie in, that importing a module imports."""
    statements = list(tree_of(path).body)
    modules = set()
    for node in statements:
        if isinstance(node, ast.Try):
            statements += node.body
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    parts = (module.split(".") for module in modules)
    prefixes = {".".join(of[:i]) for of in parts for i in range(1, len(of) + 1)}
    return {prefix for prefix in prefixes if not f"{name}.".startswith(f"{prefix}.")}


def test_no_module_imports_itself_by_way_of_another() -> None:
    """Keeps away: `from cc_prep import manifest` that fails unless another module came first."""
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in FILES
    }
    graph = {name: imports_at_the_top(name, path) & paths.keys() for name, path in paths.items()}
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


def modules_after(statement: str) -> set[str]:
    code = f"{statement}; import sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.split())


QUICK = ["cc_prep", "pipelines.cli", "cc_train", "cc_train.cli", "cc_prep.records"]


@pytest.mark.parametrize("module", QUICK)
def test_quick_imports(module: str) -> None:
    """Keeps away: a --help that takes seconds because it imports torch or Ray."""
    assert not modules_after(f"import {module}") & {"torch", "ray", "cv2", "pandas", "pyarrow"}


def test_jobs_are_planned_without_ray_and_torch() -> None:
    """Keeps away: seconds until a job refuses what could be refused at once."""
    assert not modules_after("import pipelines.jobs") & {"torch", "ray", "pandas"}


# Modules of ours; scoring texts needs no network, image or data set.
OURS_AT_MOST = {"score": 40, "evaluate": 40}
SCORING = {
    "score": "from cc_train import score; score({'a': 'it moved'}, {'a': ['it has moved']})",
    "evaluate": "from cc_train.cli import cli; cli.main("
    "['evaluate', '--predictions', 'p.json', '--references', 'r.json'], standalone_mode=False)",
}


@pytest.mark.parametrize("way", SCORING)
def test_scoring_is_light(way: str, tmp_path: Path) -> None:
    """Keeps away: torch, OpenCV and the layouts of data sets, imported to compare two texts."""
    (tmp_path / "p.json").write_text('{"a": "it moved"}')
    (tmp_path / "r.json").write_text('{"a": ["it has moved"]}')
    code = f"{SCORING[way]}; import sys; print(*sys.modules, file=sys.stderr)"
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, cwd=tmp_path, env=environment,
    )  # fmt: skip
    modules = set(done.stderr.splitlines()[-1].split())
    assert not modules & {"torch", "cv2"}
    assert (
        len([name for name in modules if name.partition(".")[0] in PACKAGES]) <= OURS_AT_MOST[way]
    )


def test_unit_tests_mirror_the_packages() -> None:
    """Keeps away: a test that nobody finds beside the folder that it tests."""
    unit = ROOT / "tests/unit"
    folders = {path.parent.relative_to(unit) for path in unit.rglob("test_*.py")} - {Path()}
    assert {str(folder) for folder in folders if not (ROOT / folder).is_dir()} == set()


def test_no_two_test_files_share_a_name() -> None:
    """Keeps away: a file that pytest does not collect, since another one of its name came first."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
