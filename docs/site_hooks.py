"""Hooks of mkdocs: the site has the layout of the repository, not that of `docs/` alone.

A relative link such as `../manifests/clevr.yaml` then leads to the same file in the repository and
in the site. Used by `mkdocs.yml`.
"""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PUBLISHED = (
    "*.md",
    "LICENSE",
    "CITATION.cff",
    "docs/**/*.md",
    "docs/*.json",
    "docs/*.ipynb",
    "docs/site.css",
    "docs/sortable.js",
    "docs/images/*",
    "zoo/*/*.json*",
    "manifests/README.md",
    "manifests/*.yaml",
    "cc_prep/assets/*.md",
    "cc_train/evaluation/published.yaml",
    "cc_train/evaluation/protocols.yaml",
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replaces the files of `docs/` by the published files of the repository."""
    root = Path(config.config_file_path).parent
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    paths = sorted({path for pattern in PUBLISHED for path in root.glob(pattern)})
    for path in paths:
        relative = path.relative_to(root).as_posix()
        files.append(File(relative, str(root), config.site_dir, config.use_directory_urls))
    return files
