"""Does imagining pay where labels are few? Stage 1 on many scenes without labels, stage 2 on few.

    python benchmarks/imagining.py --out out/imagining [--labels 50 --labels 100]... [--arm NAME]...
        [--seeds 3] [--jobs 1] [--steps N] [--results FILE] [--docs docs/imagining.md]

Renders scenes and builds shards where OUT has none, trains what has no result yet, evaluates on
scenes that nobody trained or chose on, and prints the table. It can be stopped and resumed. RESULTS
has a line of JSON for each training under the same conditions, with what the gate said of its stage
1. Labelled scenes are others for each of three seeds, and stage 1
sees them too, without labels. No
checkpoint is chosen: each captioner is that of its last step. With --steps it is a trial: so many
steps of each stage, folders of its own, its results in OUT unless --results names a file, and no
page is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import click
import yaml
from lib import tables
from lib.lab import Lab, path_of_results
from lib.results import Results, digest
from lib.trainings import render, run, sets, validations

from cc_prep import manifest

CONFIG = "synth_features"
RESULTS = "benchmarks/results/imagining.jsonl"
MARK = "imagining labels"
FIGURES = ("exact", "told apart", "type", "color", "shape", "CIDEr")
# (scenes, seed) of each set.
SCENES = {"scenes": (2000, 48), "test": (500, 49)}
SHARD = 50  # scenes
LABELS = (50, 100, 200, 500)
SETS = 3  # of labelled scenes that have none in common: 1,500 of 1,700
# 14 x 14 places: on the 7 x 7 of vqgan-mini no stage 1 passed the gate.
BUILD = (
    "tokenize.weights=vqgan-mini-f8", "features.backbone=efficientnet-lite0-x2",
    "interpolate.depth=1", "keyframes.k=1",
    "keyframes.strategy=uniform", "keyframes.images=keyframes", "score.weights=none",
    "features.frames=keyframes", f"shards.pairs_per_shard={2 * SHARD}",
)  # fmt: skip
STEPS1, STEPS2 = 2000, 400
NETWORK = {"width": 128, "layers": 4, "position_std": 0.02, "sinusoidal_init": "true",
           "mimetic": "true"}  # fmt: skip
# Nobody has captions of the scenes without labels, so `align` cannot be learned from them.
STAGE1 = ("keyframes.strategy=uniform", "text=none", "losses.align=0", "probe_labels=50")
PUBLISHED = ("keyframes.k=1", "loop.batch_size=8")
LOCAL = ("keyframes.k=0", "losses.msm=0", "losses.consistency=0", "losses.local=1",
         "loop.batch_size=12")  # fmt: skip
STAGE2 = ("queries.k=0", "comparison.skip=true", "pairs_per_scene=1", "validation_split.pairs=20")


@dataclass(frozen=True)
class Arm:
    """What comes before the labelled scenes.

    Attributes:
        stage1: Settings of stage 1; None starts from nothing.
        longer: Stage 2 also has the steps that the others have in stage 1.
    """

    stage1: tuple[str, ...] | None = None
    longer: bool = False


ARMS = {
    "no stage 1": Arm(),
    "no stage 1, as many steps in all": Arm(longer=True),
    "stage 1 as published": Arm(PUBLISHED),
    "stage 1 by local consistency": Arm(LOCAL),
}


@dataclass(frozen=True)
class Row:
    """A captioner: one of ARMS, and the number of its labelled scenes."""

    arm: str
    labels: int


@click.command()
@click.option("--out", required=True, help="For scenes, shards and trainings.")
@click.option("--labels", multiple=True, type=click.Choice([*map(str, LABELS)]),
              help="Trains these rows alone.")  # fmt: skip
@click.option("--arm", "arms", multiple=True, type=click.Choice([*ARMS]), help="The same.")
@click.option("--seeds", type=click.IntRange(0), default=3, show_default=True)
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True,
              help="Trainings at once, a thread each.")  # fmt: skip
@click.option("--steps", type=click.IntRange(1), help="Of either stage, for a trial.")
@click.option("--results", help=f"Default: {RESULTS}; of a trial, OUT/trial.jsonl.")
@click.option("--docs", help="A page whose table is replaced; not by a trial.")
def main(
    *,
    out: str,
    labels: tuple[str, ...],
    arms: tuple[str, ...],
    seeds: int,
    jobs: int,
    steps: int | None,
    results: str | None,
    docs: str | None,
) -> None:
    """Trains what has no result yet, and prints the table."""
    rows = [Row(arm, count) for count in LABELS for arm in ARMS]
    asked = [
        row for row in rows
        if (not labels or str(row.labels) in labels) and (not arms or row.arm in arms)
    ]  # fmt: skip
    trial = steps is not None
    lab = Imagining(Path(out), steps, path_of_results(results, out, RESULTS, trial))
    lab.work(asked, seeds, jobs)
    text = table_of(rows, lab.known(rows))
    print(f"\n{text}")
    if docs and not trial:
        tables.replace(Path(docs), MARK, text)


def table_of(rows: Sequence[Row], known: Results) -> str:
    """The rows that have results."""
    titled = {f"{row.labels} labelled scenes, {row.arm}": known[_name(row)] for row in rows}
    return tables.table_of({title: lines for title, lines in titled.items() if lines}, FIGURES)


def _name(row: Row) -> str:
    return f"{row.labels}, {row.arm}"


class Imagining(Lab[Row]):
    """The rows of the table. steps: of either stage, None for the usual."""

    def __init__(self, folder: Path, steps: int | None, results: Path) -> None:
        super().__init__(folder, results)
        self.steps1, self.steps2 = (STEPS1, STEPS2) if steps is None else (steps, steps)
        self.runs = folder / ("runs" if steps is None else f"runs-of-{steps}-steps")
        self.first_stage: dict[Path, Lock] = {}

    def name(self, variant: Row) -> str:
        return _name(variant)

    def conditions(self, variant: Row) -> str:
        """Digest of the settings; a change of manifest, scenes or steps drops older results."""
        known: Any = yaml.safe_load(manifest.text_of(CONFIG))
        arm = ARMS[variant.arm]
        content = [known["features"], known["image_size"], known["train"]["stage2"], SCENES, SHARD,
                   BUILD, NETWORK, STAGE2, self._steps(arm)]  # fmt: skip
        if arm.stage1 is not None:
            content += [known["train"]["stage1"], STAGE1, arm.stage1, self.steps1]
        return digest(content)

    def prepare(self, variants: Sequence[Row]) -> None:
        for name, (count, seed) in SCENES.items():
            render(self.folder / name, count, seed)
            run("cc-prep", "build", CONFIG, "--root", self.folder / name,
                "--out", self.folder / f"pairs-{name}", *sets(*BUILD))  # fmt: skip

    def train(self, variant: Row, seed: int) -> Path:
        """Both stages; the folder of stage 2."""
        arm = ARMS[variant.arm]
        network = "{" + ", ".join(f"{key}: {value}" for key, value in NETWORK.items()) + "}"
        options = sets("vqgan=vqgan-mini-f8", "frames=features", f"network={network}")
        if arm.stage1 is not None:
            options = ["--init", self._stage1(arm.stage1, seed)]
        count = variant.labels // SHARD
        first = seed % SETS * max(LABELS) // SHARD
        labelled = [f"train-{number:06d}" for number in range(first, first + count)]
        folder = self.runs / f"stage2-{digest([variant.arm, variant.labels])}-{seed}"
        steps = self._steps(arm)
        self._train("stage2", folder, labelled, seed, steps,
                    [*options, *sets(*STAGE2, f"loop.validate_every={steps}")])  # fmt: skip
        return folder

    def test_shards(self, variant: Row) -> Path:
        return self.folder / "pairs-test/shards/*.tar"

    def notes(self, variant: Row, run: Path) -> dict[str, Any]:
        arm, seed = ARMS[variant.arm], int(run.name.rpartition("-")[2])
        if arm.stage1 is None:
            return {}
        last = validations(self._stage1_folder(arm.stage1, seed))[-1]
        return {"gate": {name: value for name, value in last.items() if "probe" in name}}

    def _steps(self, arm: Arm) -> int:
        """Steps of stage 2."""
        return self.steps2 + (self.steps1 if arm.longer else 0)

    def _stage1_folder(self, settings: tuple[str, ...], seed: int) -> Path:
        return self.runs / f"stage1-{digest(settings)}-{seed}"

    def _stage1(self, settings: tuple[str, ...], seed: int) -> Path:
        """The run of a stage 1, which the rows that start from it share."""
        folder = self._stage1_folder(settings, seed)
        network = [f"network.{key}={value}" for key, value in NETWORK.items()]
        with self.first_stage.setdefault(folder, Lock()):
            self._train("stage1", folder, ["train-*"], seed, self.steps1,
                        sets(*network, *STAGE1, *settings, f"loop.validate_every={self.steps1}")
                        )  # fmt: skip
        return folder

    def _train(
        self, stage: str, folder: Path, shards: Sequence[str], seed: int, steps: int,
        options: list[object],
    ) -> None:  # fmt: skip
        """Trains a stage with the manifest's settings, or resumes."""
        build = self.folder / "pairs-scenes/shards"
        patterns = [part for name in shards for part in ("--shards", build / f"{name}.tar")]
        run("cc-train", stage, "--config", CONFIG, "--out", folder, *patterns,
            "--valid", build / "val-*.tar", *options,
            *sets("loop.threads=1", f"loop.seed={seed}", "loop.checkpoint_every=100"),
            "--steps", steps)  # fmt: skip


if __name__ == "__main__":
    main()
