"""What makes ProCap's captions right: ablations on rendered scenes, with several seeds.

    python benchmarks/ablation.py --out out/ablation [--table stages] [--seeds 3] [--jobs 1]
        [--results FILE] [--docs benchmarks/results/notes/ablation.md]

Renders scenes and builds shards where OUT has none, trains what has no result yet, evaluates on the
test split and writes tables and curves. Everything can be stopped and resumed. RESULTS
has a line of JSON for each training that is done under the same conditions: the manifest (of a
captioner without stage 1 not that of stage 1), the number of scenes and of steps. It is meant to be
kept in the repository, since the trainings take many hours on two cores. With another file and
another OUT everything is trained again; a manifest with other steps needs another OUT too, since
cc-train resumes runs of fewer steps and refuses all other changes. Stage 1 is trained on
scenes of its own, so that all captioners see the same pairs.

With --share or --steps it is a trial: folders of its own below OUT, its results in OUT unless
--results names a file, and no page is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import click
import yaml
from lib import curves, tables
from lib.ablation_rows import FEATURES, TABLES, Row, Stage1
from lib.lab import Lab, path_of_results
from lib.results import Results, digest
from lib.trainings import render, run, sets

from cc_prep import manifest
from cc_prep.console import on_stderr
from cc_train import configs
from cc_train.systems.procap.stage1 import Settings

CONFIG = "synth_features"
FIGURES = ("exact", "told apart", "type", "color", "shape", "CIDEr")
RESULTS = "benchmarks/results/ablation.jsonl"
PICTURES = "docs/images"
# The frames in between are for stage 1 alone, so fewer scenes have them.
SCENES, FRAME_SCENES = 4000, 1000
# In the digests of the stored results. Where the data lies by default changes no training.
ROOT = "${SYNTH_FEATURES_ROOT:-data/synth_features}"
# Stage 2 sees half of the scenes mirrored.
BUILD, STAGE2 = ("features.mirrored=true",), ("mirror=0.5",)


@click.command()
@click.option("--out", required=True, help="For scenes, shards and trainings.")
@click.option(
    "--table", "tables_asked", multiple=True, type=click.Choice([*TABLES]), help="Default: all."
)
@click.option("--row", "names", multiple=True, help="Trains these rows alone, by their names.")
@click.option("--seeds", type=click.IntRange(0), default=3, show_default=True)
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True,
              help="Trainings at once, a thread each.")  # fmt: skip
@click.option("--share", type=click.IntRange(1, 100), default=100, show_default=True,
              help="Of the scenes, in %.")  # fmt: skip
@click.option("--steps", type=click.IntRange(1), help="Of either stage; default: the manifest's.")
@click.option("--results", help=f"Default: {RESULTS}; of a trial, OUT/trial.jsonl.")
@click.option("--docs", help="A page whose tables and pictures are replaced; not by a trial.")
def main(
    *,
    out: str,
    tables_asked: tuple[str, ...],
    names: tuple[str, ...],
    seeds: int,
    jobs: int,
    share: int,
    steps: int | None,
    results: str | None,
    docs: str | None,
) -> None:
    """Trains what has no result yet, and writes the tables."""
    rows = [row for table in tables_asked or TABLES for row in TABLES[table]]
    if unknown := {*names} - {row.name for row in rows}:
        raise click.UsageError(f"--row: no table has {', '.join(sorted(unknown))}")
    rows = [row for row in rows if not names or row.name in names]
    trial = share != 100 or steps is not None
    lab = Ablation(Path(out), share, steps, path_of_results(results, out, RESULTS, trial))
    lab.work(rows, seeds, jobs)
    known = lab.known(row for table in TABLES.values() for row in table)
    for table in tables_asked or TABLES:
        if sum(bool(known[row.training]) for row in TABLES[table]) < 2:
            continue  # one row compares nothing
        text = table_of(table, known)
        print(f"\n{table}\n{text}")
        if docs and not trial:
            tables.replace(Path(docs), f"ablation {table}", text)
            draw(table, known, Path(PICTURES) / f"ablation-{table}.png")
    if docs and trial:
        print(f"\n{docs} stays as it is: --share or --steps makes this a trial")


def table_of(table: str, known: Results) -> str:
    """A table, and the paper's CIDEr where it has any."""
    rows = {row.name: known[row.training] for row in TABLES[table]}
    papers = {row.name: f"{row.paper}" for row in TABLES[table] if row.paper is not None}
    return tables.table_of(rows, FIGURES, {"paper's CIDEr": papers} if papers else {})


def draw(table: str, known: Results, path: Path) -> None:
    """A picture of the validations of a table's rows."""
    rows = {
        row.name: [line["curve"] for line in known[row.training].values()] for row in TABLES[table]
    }
    curves.draw(rows, path)


class Ablation(Lab[Row]):
    """The rows of the tables.

    share: of the scenes, in %. steps: of either stage, None for the manifest's. Both are in the
    folders' names where they are not the usual, since a training that is started with other steps
    than before goes on with the same run.
    """

    def __init__(self, folder: Path, share: int, steps: int | None, results: Path) -> None:
        super().__init__(folder if share == 100 else folder / f"share-{share}", results)
        self.share, self.steps = share, steps
        self.runs = self.folder / ("runs" if steps is None else f"runs-of-{steps}-steps")
        self.first_stage: dict[str, Lock] = {}

    def name(self, variant: Row) -> str:
        return variant.training

    def conditions(self, variant: Row) -> str:
        """Digest of the settings; a change of manifest, scenes or steps drops older results."""
        known = loaded_manifest()
        stage1 = known["train"]["stage1"]
        content = [known["features"], known["image_size"], known["train"]["stage2"],
                   stage1["frames"], stage1["network"],
                   SCENES, BUILD, STAGE2, self.share, self.steps]  # fmt: skip
        if variant.stage1 is not None:
            content += [{**known, "root": ROOT}, FRAME_SCENES]
        return digest(content)

    def pairs(self, backbone: str) -> Path:
        """Folder in which the pairs of stage 2 are built, with the features of a backbone."""
        return self.folder / ("pairs" if backbone == FEATURES else f"pairs-{backbone}")

    def prepare(self, variants: Sequence[Row]) -> None:
        scenes, frames = (max(40, n * self.share // 100) for n in (SCENES, FRAME_SCENES))
        render(self.folder / "scenes", scenes, 2000)
        for backbone in sorted({row.backbone for row in variants}):
            run("cc-prep", "build", "pairs", "--root", self.folder / "scenes",
                "--out", self.pairs(backbone), *sets(*BUILD, f"features.backbone={backbone}")
                )  # fmt: skip
        for process in sorted({row.stage1.process for row in variants if row.stage1 is not None}):
            # True frames take five times as long to render; the ends are the same without them.
            truth = process == "truth"
            root = self.folder / ("process-truth" if truth else "process")
            render(root, frames, 2001, *(["--truth"] if truth else []))
            run("cc-prep", "build", CONFIG, "--root", root, "--out", self.folder / process,
                *sets(f"interpolate.method={process}"))  # fmt: skip

    def train(self, variant: Row, seed: int) -> Path:
        """Both stages; the folder of stage 2."""
        settings = [f"queries.k={variant.k}", *STAGE2, *variant.settings]
        options = self._from_nothing()
        if variant.stage1 is not None:
            options = ["--init", self._stage1(variant.stage1, seed)]
        folder = self.runs / f"stage2-{variant.training}-{seed}"
        pairs = self.pairs(variant.backbone)
        return self._train("stage2", folder, pairs, seed, [*options, *sets(*settings)])

    def test_shards(self, variant: Row) -> Path:
        return self.pairs(variant.backbone) / "shards/test-*.tar"

    def notes(self, variant: Row, run: Path) -> dict[str, Any]:
        return {"name": f"{variant.table}: {variant.name}", "curve": curves.curve_of(run)}

    def _stage1(self, stage1: Stage1, seed: int) -> Path:
        """The run of a stage 1, which the rows that start from it share."""
        name = Row("", "", stage1=stage1).training
        folder = self.runs / f"stage1-{name}-{seed}"
        with self.first_stage.setdefault(f"{name}-{seed}", Lock()):
            self._train(
                "stage1", folder, self.folder / stage1.process, seed, sets(*stage1.settings)
            )
        return folder

    @staticmethod
    def _from_nothing() -> list[object]:
        """Stage 2 without stage 1 sees the same, with an encoder of the same sizes."""
        stage1 = configs.load(Settings, "stage1", CONFIG, [], on_stderr())
        network = stage1.network.model_dump_json()
        return sets("vqgan=vqgan-mini", f"frames={stage1.frames}", f"network={network}")

    def _train(
        self, stage: str, folder: Path, build: Path, seed: int, options: list[object]
    ) -> Path:
        """Trains a stage with the manifest's settings, or resumes; the folder of the run."""
        shards = build / "shards"
        run("cc-train", stage, "--config", CONFIG, "--out", folder,
            "--shards", shards / "train-*.tar", "--valid", shards / "val-*.tar",
            *sets("loop.threads=1", f"loop.seed={seed}"), *options,
            *(["--steps", self.steps] if self.steps else []))  # fmt: skip
        return folder


@cache
def loaded_manifest() -> Any:
    """The settings of the ablation's manifest."""
    return yaml.safe_load(manifest.text_of(CONFIG))


if __name__ == "__main__":
    main()
