"""The documentation: links lead somewhere, files that it names exist, every page is listed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cc_prep import datasets, manifest
from cc_prep.steps import interpolate
from tests import dataset_factory, shard_factory
from tests.conftest import ROOT

DOCUMENTS = sorted(
    [ROOT / "manifests/README.md", *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
)
FOLDERS = (
    ".ci", "benchmarks", "cc_prep", "cc_train", "deploy",
    "docs", "manifests", "pipelines", "tests", "tools", "zoo",
)  # fmt: skip
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
PLACEHOLDER = re.compile(r"\b[A-Z]{3,}\b|[<>…{}$%]")


def broken_links(document: Path) -> list[str]:
    """The targets of relative links in a document that lead to no file or no heading."""
    text, folder = document.read_text("utf-8"), document.parent
    prose = CODE.sub("", FENCED.sub("", text))
    broken = []
    for target in LINK.findall(prose):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = folder / path if path else document
        if not file.exists() or (anchor and anchor not in anchors(file.read_text("utf-8"))):
            broken.append(target)
    return broken


def anchors(text: str) -> set[str]:
    """The anchors of the headings, as mkdocs and GitHub make them from plain words."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", text), re.MULTILINE)
    words = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"\s+", "-", heading) for heading in words}


def missing_files(text: str, root: Path) -> list[str]:
    """Paths in backticks below one of FOLDERS that do not exist; a `*` has to match something."""
    words = [word.strip(".,:;'\"()") for span in CODE.findall(text) for word in span.split()]
    paths = [word for word in words if word.startswith(tuple(f"{f}/" for f in FOLDERS))]
    return [
        path
        for path in paths
        if not PLACEHOLDER.search(path) and not any(root.glob(path.rstrip("/")))
    ]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_paths_exist(document: Path) -> None:
    """Keeps away: documentation that points to a page, heading or file that was moved."""
    assert broken_links(document) == []
    assert missing_files(document.read_text("utf-8"), ROOT) == []


def test_pages_that_the_code_names_are_there() -> None:
    """Keeps away: a message or a help text that sends a user to a page which does not exist."""
    named = {
        (page, path.name)
        for package in ("cc_prep", "cc_train", "pipelines")
        for path in (ROOT / package).rglob("*.py")
        for page in re.findall(r"docs/[\w/-]+\.md", path.read_text("utf-8"))
    }
    assert ("docs/training.md", "settings.py") in named
    assert [one for one in sorted(named) if not (ROOT / one[0]).exists()] == []


def test_every_page_is_listed() -> None:
    """Keeps away: a page that no reader finds, in the repository or in the built site."""
    index = (ROOT / "docs/index.md").read_text("utf-8")
    site = (ROOT / "mkdocs.yml").read_text("utf-8")
    for page in DOCUMENTS:
        name = page.relative_to(ROOT).as_posix()
        assert f": {name}\n" in site, name
        if name.startswith("docs/") and name != "docs/index.md":
            assert f"({name.removeprefix('docs/')})" in index, name


def test_broken_links_are_seen(tmp_path: Path) -> None:
    """Keeps away: a check that passes because its patterns match nothing."""
    (tmp_path / "b.md").write_text("# One heading\n\n## `code` and more\n")
    (tmp_path / "good.md").write_text(
        "# A\n[b](b.md) [c](b.md#one-heading) [d](#a) [e](b.md#code-and-more) `[x](no.md)`"
    )
    (tmp_path / "bad.md").write_text("[b](c.md) ![p](no.png) [c](b.md#two) [d](#b)")
    assert broken_links(tmp_path / "good.md") == []
    assert broken_links(tmp_path / "bad.md") == ["c.md", "no.png", "b.md#two", "#b"]


def test_missing_files_are_seen(tmp_path: Path) -> None:
    """Keeps away: a check that passes because its patterns match nothing."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.md").write_text("")
    text = "`docs/a.md` `docs/` `python docs/b.md` `docs/*.md` `docs/*.py` `docs/NAME.md` docs/c.md"
    assert missing_files(text, tmp_path) == ["docs/b.md", "docs/*.py"]


def code_blocks(page: str, language: str = "python") -> list[str]:
    text = (ROOT / page).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_reader_of_the_page_on_data_sets_works(tmp_path: Path) -> None:
    """Keeps away: instructions for a new data set that no longer fit the code."""
    reader, miniature = code_blocks("docs/contributing/data-set.md")
    names: dict[str, Any] = {}
    exec(reader, names)
    helpers = {"image": dataset_factory.image, "write": dataset_factory.write, "Path": Path}
    namespace: dict[str, Any] = {**helpers, "Manifest": object, "manifest": LevirInstead}
    exec(miniature, namespace)
    settings = namespace["rooms"](tmp_path)
    assert set(datasets.Reader.__annotations__) <= names.keys()
    assert all(names["parts"](str(tmp_path)).values())
    assert names["faults"](settings) == []
    kinds = [(pair.before, pair.kind) for pair in names["pairs"](settings, "train")]
    assert kinds == [("old/0000.png", "change"), ("old/0001.png", "no_change")]


class LevirInstead:
    """`manifest` as the page's code sees it: its layout is not registered here."""

    @staticmethod
    def load(_: str, root: str) -> manifest.Manifest:
        return manifest.load("levir", root=root)


def test_the_interpolator_of_the_page_works() -> None:
    """Keeps away: instructions for a new interpolator that no longer fit the code."""
    [code] = code_blocks("docs/contributing/interpolator.md")
    names = {"np": np, "times": interpolate.times}
    exec(code, names)
    before, after = np.zeros((2, 4, 4, 3), np.uint8), np.full((2, 4, 4, 3), 9, np.uint8)
    frames = names["Hold"]().interpolate_batch(before, after, 2)
    assert frames.shape == (2, 5, 4, 4, 3)
    assert [int(frame.max()) for frame in frames[0]] == [0, 0, 9, 9, 9]


def test_the_loader_of_the_page_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keeps away: a page whose code no longer runs."""
    shard_factory.write_greys(tmp_path / "out/mine/shards", 5)
    code = code_blocks("docs/api/python.md")[1]
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("<Captioner captioner-mini:")
    assert len(lines) == int(first.split()[-1]) == 5
