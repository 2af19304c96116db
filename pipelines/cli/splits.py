"""`cc-prep split`: splits for a data set that has none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from cc_prep.errors import JobFailed, UserError
from cc_prep.progress import progress_bar
from cc_prep.terminal import echo
from pipelines.cli.options import dataset_options
from pipelines.cli.printing import print_tree

if TYPE_CHECKING:
    from cc_prep.manifest import Manifest
    from cc_prep.records import ImagePair


@click.command()
@dataset_options
@click.option(
    "--shares",
    default="train=85,val=5,test=10",
    show_default=True,
    metavar="SPLIT=SHARE,…",
    help="Names of the splits and their relative sizes.",
)
@click.option(
    "--group",
    "column",
    metavar="COLUMN",
    help="A column of the table; pairs with the same value are put into one split.",
)
@click.option(
    "--group-by",
    "pattern",
    metavar="REGEX",
    help="A regular expression. Pairs whose `before` path has the same match (its first group, if "
    "it has groups) are put into one split. The path is relative to the root: before/site3-01.png.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Seed of the random division; the same seed gives the same splits.",
)
@click.option(
    "--distance",
    default="4",
    show_default=True,
    metavar="BITS|none",
    help="Pairs whose images differ in at most this many of the 64 bits of a perceptual hash are "
    "put into one split; none: images are not compared.",
)
@click.option(
    "--out",
    default="splits.json",
    show_default=True,
    metavar="FILE",
    help="The file that is written, relative to the root.",
)
@click.option(
    "--write",
    is_flag=True,
    help="Put the file and its splits into the manifest, which has to be a file of yours.",
)
def split(
    *,
    dataset: str,
    root: str | None,
    overrides: tuple[str, ...],
    shares: str,
    column: str | None,
    pattern: str | None,
    seed: int,
    distance: str,
    out: str,
    write: bool,
) -> None:
    """Divides the pairs of DATASET into splits.

    DATASET has none yet, and its layout is `table` or `folders`. Near-duplicate images are never
    put into two splits. --write puts the file that is written into the manifest; without it, name
    it there as `split_file`, and its splits as `splits`. Reports say how the splits were made.

    \b
    Example:
      cc-prep split mine --write --shares train=80,test=20 --group-by 'site(\\d+)'
    """
    from cc_prep import manifest, manifest_text, storage
    from cc_prep.datasets import splitting

    settings = manifest.load(dataset, [*overrides, "split_file=null"], root)
    if write and manifest.is_packaged(dataset):
        raise UserError(
            f"--write: {dataset} is a manifest of the package",
            f"Make one of yours: cc-prep init NAME --root {settings.root}",
        )
    pairs = _pairs_without_splits(dataset, settings)
    groups = _groups(settings, pairs, column, pattern)
    with progress_bar("hashing images") as progress:
        result = splitting.split(
            settings,
            pairs,
            _shares(shares),
            seed=seed,
            distance=_distance(distance),
            groups=groups,
            progress=progress,
        )
    grouped_by = column or pattern
    description = dict(result.about)
    if grouped_by:
        description |= {"grouped by": grouped_by, "without a group": len(pairs) - len(groups)}
    target = storage.resolve(settings.root, out)
    _check_no_other(target, result.splits)
    storage.write_json(target, {"about": description, "splits": result.splits})
    print_tree({name: value for name, value in description.items() if value is not None})
    with_pairs = [name for name, ids in result.splits.items() if ids]
    named = {"split_file": out, "splits": with_pairs, **_table(settings, pairs)}
    if write:
        text = manifest_text.with_values(manifest.text_of(dataset), named)
        storage.write_bytes(storage.named(settings.source), text.encode())
        echo(f"{target}; written into {settings.source}")
    else:
        echo(f"{target}; set in the manifest, in place of its own splits, or give --write:")
        for key, value in named.items():
            echo(f"  {key}: {manifest_text.flow(value)}")
    empty = [name for name, ids in result.splits.items() if not ids]
    if empty:
        echo(
            f"note: no pairs for {', '.join(empty)}: {result.about['clusters']} clusters are too "
            f"few for its share. Remove {target}, and give --shares with a larger one"
        )
    for fault in result.faults:
        echo(f"fault: {fault}")
    if result.faults:
        raise JobFailed(f"{dataset}: {len(result.faults)} images were not compared")


def _table(settings: Manifest, pairs: Sequence[ImagePair]) -> dict[str, Any]:
    """The manifest's `table` where its file or folder has the name of the one split until now."""
    from cc_prep.datasets.layouts.table import SPLIT

    values = settings.table.model_dump(exclude_defaults=True)
    old = pairs[0].split if pairs else ""
    named = {
        name: value.replace(SPLIT, old) if isinstance(value, str) else value
        for name, value in values.items()
    }
    return {} if named == values else {"table": named}


def _check_no_other(target: str, splits: dict[str, list[str]]) -> None:
    """Raises UserError if the file holds other splits: trainings may have used these."""
    from cc_prep import storage

    if not storage.exists(target):
        return
    try:
        earlier = storage.read_json(target)
    except ValueError:
        earlier = None
    if not isinstance(earlier, dict) or earlier.get("splits") != splits:
        raise UserError(f"{target}: holds another division", "Give another --out, or remove it")


def _pairs_without_splits(dataset: str, settings: Manifest) -> list[ImagePair]:
    """Every pair of a data set that comes without splits. Raises UserError for any other."""
    from cc_prep import datasets
    from cc_prep.datasets.layouts import folders, table

    every_pair = {"table": table.every_pair, "folders": folders.pairs_for_split_file}.get(
        settings.layout
    )
    if every_pair is None:
        raise UserError(
            f"{dataset}: {settings.layout} comes with its splits",
            "Use them as they are" + _or_change(settings),
        )
    datasets.reader(settings)
    pairs = every_pair(settings)
    datasets.check_inside(settings, pairs)
    if len({pair.split for pair in pairs}) > 1:
        raise UserError(f"{dataset} has splits already", _remedy(settings))
    return pairs


def _or_change(settings: Manifest) -> str:
    """How splits that come with the data are changed, where a row of a file names each pair's."""
    from cc_prep.datasets.layouts.levir_cc import SPLIT

    if settings.layout != "levir_cc" or settings.levir.captions is None:
        return ""
    folders = ", and move its images" if SPLIT in settings.levir.before else ""
    return f", or change the `split` of an image in {settings.levir.captions}{folders}"


def _remedy(settings: Manifest) -> str:
    """How the splits of a table or of folders are left out, so that its pairs can be divided."""
    from cc_prep.datasets.layouts.table import SPLIT

    if settings.layout == "folders":
        return "Put the pairs of all its folders into one"
    if SPLIT in settings.table.folder:  # images of one name lie in several of them
        return "Put the images of all splits into one folder, and let one table name them"
    if SPLIT in (settings.table.file or ""):
        return f"Let the manifest's table.file have * in place of {SPLIT}"
    return "To divide its pairs anew, do not read that column: --set table.columns.split=null"


def _shares(text: str) -> dict[str, float]:
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = part.strip().partition("=")
        try:
            share = float(number)
        except ValueError:
            share = 0.0
        if not re.fullmatch(r"[A-Za-z0-9_]+", name) or not 0 < share < float("inf"):
            raise UserError(
                f"--shares {text}: {part.strip()!r} is no name of a split with a number above 0",
                "Use, for example, --shares train=85,val=5,test=10, and leave out a split that is "
                "to be empty",
            )
        if name in shares:
            raise UserError(f"--shares {text}: {name} is named twice", "Name each split once")
        shares[name] = share
    return shares


def _distance(text: str) -> int | None:
    if text == "none":
        return None
    if not text.isdecimal() or int(text) > 64:
        raise UserError(f"--distance {text}", "Give 0 to 64 bits, or none")
    return int(text)


def _groups(
    settings: Manifest, pairs: list[ImagePair], column: str | None, pattern: str | None
) -> dict[str, str]:
    """The group of each pair by id; empty where pairs are not grouped. Raises UserError."""
    from cc_prep.datasets.layouts import table

    if column is not None and pattern is not None:
        raise UserError("--group and --group-by are both given", "Give one of them")
    if column is not None:
        if settings.layout != "table":
            raise UserError(f"--group {column}: {settings.layout} has no columns", "Use --group-by")
        return table.groups(settings, column)
    if pattern is None:
        return {}
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise UserError(f"--group-by {pattern}: {error}", "Give a regular expression") from None
    matches = {pair.id: expression.search(pair.before) for pair in pairs}
    missing = [pair.before for pair in pairs if matches[pair.id] is None]
    if missing:
        raise UserError(
            f"--group-by {pattern}: finds nothing in {len(missing)} paths, such as {missing[0]}",
            "Let it match the path of every image before, relative to the root",
        )
    return {id: m[1] if m.re.groups else m[0] for id, m in matches.items() if m is not None}
