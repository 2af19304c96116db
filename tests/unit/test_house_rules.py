"""The layout that ARCHITECTURE.md promises: one-way imports, short files, short functions."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGES = ("cc_prep", "pipelines", "cc_train")
MIRRORED = ("cc_prep", "pipelines")  # folder by folder; of cc_train the tests stand side by side
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
BESIDE = sorted(
    path for folder in ("tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")
)
MOST_UNNAMED = 6  # arguments by position, without self
VAGUE = {"found", "said", "told", "kept", "made", "given", "dice", "wanted"}
NOUNLESS = ("Of ", "Those ", "Whose ")
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


def long_functions(tree: ast.AST) -> list[str]:
    """The names of functions of more than 60 lines."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions = (node for node in ast.walk(tree) if isinstance(node, kinds))
    return [node.name for node in functions if node.end_lineno - node.lineno >= 60]


def test_long_functions_are_seen() -> None:
    """Keeps away: a check that sees plain functions alone."""
    body = "  pass\n" * 59
    texts = (f"def a():\n{body}", f"def b():\n{body}  pass", f"async def c():\n{body}  pass")
    assert [long_functions(ast.parse(text)) for text in texts] == [[], ["b"], ["c"]]


def vague_locals(tree: ast.AST) -> list[str]:
    """Parameters and locals whose names say what was done to a value, not what it is."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    functions = (node for node in ast.walk(tree) if isinstance(node, kinds))
    nodes = [node for function in functions for node in ast.walk(function)]
    names = {node.arg for node in nodes if isinstance(node, ast.arg)}
    names |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return sorted(names & VAGUE)


def test_vague_locals_are_seen() -> None:
    """Keeps away: a check that sees nothing, or that forbids the fields of a class."""
    text = "def a(found):\n  for kept in found:\n    told: int = 1\n  return lambda made: made"
    assert vague_locals(ast.parse(text)) == ["found", "kept", "made", "told"]
    assert vague_locals(ast.parse("class Losses:\n  dice: float = 1.0\n")) == []


def unnamed_arguments(tree: ast.AST) -> list[str]:
    """Functions that take, and makings of objects that give, too many arguments without a name."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            own = [one for one in node.args.posonlyargs + node.args.args if one.arg != "self"]
            if len(own) > MOST_UNNAMED:
                names.append(node.name)
        elif isinstance(node, ast.Call) and len(node.args) > MOST_UNNAMED:
            name = ast.unparse(node.func).rpartition(".")[2]
            names += [name] if name[0].isupper() else []  # a class, whose fields define no function
    return names


def test_unnamed_arguments_are_seen() -> None:
    """Keeps away: `Done(name, 5, digest, 4, 10, "", 1.5)`, whose review takes its definition."""
    text = "def a(b, c, d, e, f, g{}): pass\nclass A:\n  def h(self, b, c, d, e, f, g): pass\n"
    assert unnamed_arguments(ast.parse(text.format("") + "A(1, 2, 3, 4, 5, 6, h=7)")) == []
    assert unnamed_arguments(ast.parse(text.format(", *, h"))) == []
    assert unnamed_arguments(ast.parse(text.format(", h") + "x.A(1, 2, 3, 4, 5, 6, 7)")) == [
        "a",
        "A",
    ]


def nounless_docstrings(tree: ast.AST) -> list[str]:
    """Docstrings that make sense only after the function's name, such as "Of the next word"."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = (ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds))
    return [text.splitlines()[0] for text in texts if text.startswith(NOUNLESS)]


def test_nounless_docstrings_are_seen() -> None:
    """Keeps away: a check that sees nothing, or that forbids "Offsets"."""
    text = '"""Of a module."""\nclass A:\n  """Offsets."""\n  def b(self):\n    """Those of b."""\n'
    assert nounless_docstrings(ast.parse(text)) == ["Of a module.", "Those of b."]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_house_rules(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    package = path.relative_to(ROOT).parts[0]
    assert not imported(tree) & FORBIDDEN[package]
    assert text.count("\n") <= 400
    assert long_functions(tree) == []
    assert vague_locals(tree) == []
    assert nounless_docstrings(tree) == []
    assert unnamed_arguments(tree) == []


ROOMS = sorted(path.parent.name for path in (ROOT / "cc_train" / "systems").glob("*/__init__.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_a_system_is_reached_through_the_table_alone(room: str) -> None:
    """Keeps away: evaluation, training or a command that knows one system by its name."""
    of_room = f"cc_train.systems.{room}"
    outside = [path for path in FILES if f"systems/{room}/" not in path.as_posix()]
    assert len(outside) < len(FILES), "the room is empty"
    for path in outside:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                modules = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            else:
                continue
            assert not any(f"{name}.".startswith(f"{of_room}.") for name in modules), path


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
    statements = list(ast.parse(path.read_text()).body)
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


@pytest.mark.parametrize("path", BESIDE, ids=lambda p: str(p.relative_to(ROOT)))
def test_tests_and_benchmarks_are_short(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert text.count("\n") <= 400
    assert long_functions(tree) == []
    assert vague_locals(tree) == []
    assert nounless_docstrings(tree) == []
    if path.is_relative_to(ROOT / "benchmarks"):
        assert unnamed_arguments(tree) == []


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


def test_architecture_is_short() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 40


def test_no_folder_holds_many_modules() -> None:
    """Keeps away: a folder in which nobody finds anything."""
    counts = Counter(path.parent for path in FILES if path.name != "__init__.py")
    unit = ROOT / "tests/unit"
    counts.update(path.parent for name in MIRRORED for path in (unit / name).rglob("*.py"))
    assert {folder: count for folder, count in counts.items() if count > 14} == {}


def test_unit_tests_mirror_the_packages() -> None:
    """Keeps away: a test that nobody finds beside the folder that it tests."""
    unit = ROOT / "tests/unit"
    folders = {path.parent.relative_to(unit) for path in unit.rglob("test_*.py")} - {Path()}
    assert {str(folder) for folder in folders if not (ROOT / folder).is_dir()} == set()


def test_no_two_test_files_share_a_name() -> None:
    """Keeps away: a file that pytest does not collect, since another one of its name came first."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
