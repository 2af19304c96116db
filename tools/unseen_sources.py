"""Photographs and cut-outs that a captioner of composed pairs was not trained on, as folders.

    python -m tools.unseen_sources out/photos-mini/pairs out/photos-mini/sources out/unseen

The first folder is that of `cc-prep composites`, which says what its test has, the second holds the
files, and the third gets links to those of the test.
"""

from __future__ import annotations

from pathlib import Path

import click

from cc_prep import storage
from cc_prep.composites.dataset import SOURCES_FILE


@click.command()
@click.argument("pairs", type=click.Path(exists=True, path_type=Path))
@click.argument("sources", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
def main(pairs: Path, sources: Path, out: Path) -> None:
    """Links the files of SOURCES that the test of PAIRS has into OUT."""
    listed = storage.read_json(str(pairs / SOURCES_FILE))
    objects = [path for paths in listed["objects"]["test"].values() for path in paths]
    for folder, paths in (("backgrounds", listed["backgrounds"]["test"]), ("objects", objects)):
        for path in paths:
            link = out / folder / path
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to((sources / folder / path).resolve())


if __name__ == "__main__":
    main()
