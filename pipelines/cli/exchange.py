"""The commands that write a data set, and not a job's output, in the format of another program."""

from __future__ import annotations

import click

from cc_prep.progress import progress_bar
from cc_prep.terminal import echo
from cc_prep.words import counted
from pipelines.cli.options import dataset_options, splits_option

out_option = click.option("--out", required=True, metavar="DIR", help="The new folder.")
question_option = click.option(
    "--question",
    metavar="TEXT",
    help="What is asked about the two images; default: what changed, in one sentence.",
)


@click.command("coco")
@dataset_options
@splits_option
@out_option
def coco(
    dataset: str, root: str | None, overrides: tuple[str, ...], splits: tuple[str, ...], out: str
) -> None:
    """Writes DATASET's masks as polygons in COCO's format.

    DIR holds instances.json and the images of the pairs.

    \b
    Example:
      cc-prep export coco levir_mci --split test --out levir-coco
    """
    from cc_prep import manifest
    from cc_prep.datasets import exports

    settings = manifest.load(dataset, overrides, root)
    with progress_bar("exporting") as progress:
        count, left_out = exports.coco(settings, splits or settings.splits, out, progress)
    echo(f"{counted(count, 'pair')} in {out}")
    if left_out:
        echo(f"{counted(left_out, 'changed pair')} without a mask left out", err=True)


@click.command("fiftyone")
@dataset_options
@splits_option
@out_option
def fiftyone(
    dataset: str, root: str | None, overrides: tuple[str, ...], splits: tuple[str, ...], out: str
) -> None:
    """Writes DATASET as groups of samples for FiftyOne.

    DIR holds samples.json, the images of the pairs and their masks. In Python:
    fiftyone.Dataset.from_json("DIR/samples.json").

    \b
    Example:
      cc-prep export fiftyone levir_mci --split test --out levir-fiftyone
    """
    from cc_prep import manifest
    from cc_prep.datasets import exports

    settings = manifest.load(dataset, overrides, root)
    with progress_bar("exporting") as progress:
        count = exports.fiftyone(settings, splits or settings.splits, out, progress)
    echo(f"{counted(count, 'pair')} in {out}")


@click.command("ms-swift")
@dataset_options
@splits_option
@question_option
@out_option
def ms_swift(
    dataset: str,
    root: str | None,
    overrides: tuple[str, ...],
    splits: tuple[str, ...],
    question: str | None,
    out: str,
) -> None:
    """Writes DATASET as questions and answers for ms-swift.

    DIR holds a JSONL file for each split, and the images of the pairs.

    \b
    Example:
      cc-prep export ms-swift levir --out levir-swift
      swift sft --model … --dataset levir-swift/train.jsonl
    """
    from cc_prep import manifest
    from cc_prep.datasets import exports

    settings, asked = manifest.load(dataset, overrides, root), question or exports.QUESTION
    with progress_bar("exporting") as progress:
        count = exports.ms_swift(settings, splits or settings.splits, out, asked, progress)
    echo(f"{counted(count, 'answer')} in {out}")


@click.command("lmms-eval")
@dataset_options
@click.option("--split", default="test", show_default=True, help="The split that is asked.")
@question_option
@out_option
def lmms_eval(
    dataset: str,
    root: str | None,
    overrides: tuple[str, ...],
    split: str,
    question: str | None,
    out: str,
) -> None:
    """Writes a split of DATASET as a task of lmms-eval.

    DIR holds the task, its data, and the images of the pairs. Captions are scored by
    `cc_train.score`, so the toolkit has to be installed beside lmms-eval.

    \b
    Example:
      cc-prep export lmms-eval levir --out levir-task
      lmms-eval --include_path levir-task --tasks levir_test --model …
    """
    from cc_prep import manifest
    from cc_prep.datasets import exports

    settings, asked = manifest.load(dataset, overrides, root), question or exports.QUESTION
    with progress_bar("exporting") as progress:
        count = exports.lmms_eval(settings, split, out, asked, progress)
    echo(f"{counted(count, 'pair')} in {out}: task {settings.name}_{split}")


COMMANDS = (coco, fiftyone, ms_swift, lmms_eval)
