"""Does imagining pay where labels are few? Stage 1 on many scenes without labels, stage 2 on few.

    python benchmarks/imagining.py --out out/imagining [--labels 64 --labels 96]... [--arm NAME]...
        [--seeds 3] [--jobs 1] [--steps N] [--results FILE] [--docs docs/imagining.md]

Renders scenes and builds shards where OUT has none, trains what has no result yet, evaluates on
scenes that nobody trained or chose on, and prints the table. It can be stopped and resumed. RESULTS
has a line of JSON for each training under the same conditions.

Scenes, features and sizes are those of procap-mini, whose stage 1, on 1,900 scenes without labels,
is taken from the package: one training for all seeds. The stage 1 of masked tokens and order is
trained for each seed. A labelled scene has captions and the facts of its renderer; each of three
seeds has other labelled scenes. No checkpoint is chosen: each captioner is that of its last step.
With --steps it is a trial: so many steps of each stage, folders of its own, its results in OUT
unless --results names a file, and no page is written.
"""

from __future__ import annotations

import json
import shutil
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
from lib.trainings import render, run, sets
from safetensors.torch import save_file

from cc_prep import manifest, storage
from cc_train.layers.frozen_backbone import FILE
from cc_train.runs import checkpoints, stored_run
from cc_train.sharing import hub

CONFIG = "procap_mini"
PACKAGED, ENCODER = "procap-mini", "intermediate_generator."
RESULTS = "benchmarks/results/imagining.jsonl"
MARK = "imagining labels"
FIGURES = ("exact", "told apart", "type", "color")
# (scenes, seed) of each set: those that procap-mini learned from, and new ones.
SCENES = {"scenes": (2000, 11), "test": (500, 49)}
SHARD = 32  # scenes
LABELS = (64, 96, 192, 480)
SETS = 3  # of labelled scenes that have none in common: 1,440 of 1,700
STEPS1, STEPS2 = 1500, 800
# The losses and masks of the paper, but for `align`: the scenes without labels have no captions.
MASKED = (
    "losses.msm=7", "losses.consistency=0.5", "losses.local=0",
    "masks={random: 0.7, full: 0.1, box_masked: 0.1, box_visible: 0.1, interior: 0}",
)  # fmt: skip
# The decoder learns from few scenes, and from nothing: the comparison of no captioner of pairs.
STAGE2 = (
    "init_pair=null", "freeze=false", "pairs_per_scene=1", "validation_split.pairs=20",
    "loop.batch_size=12", "loop.learning_rate=0.001",
)  # fmt: skip
# Of an encoder that no stage 1 trained, and of one that it did.
ENCODER_RATES = ("encoder_lr_scale=1", "encoder_lr_scale=0.5")
UNLABELLED = ("train-*", "test-*")


@dataclass(frozen=True)
class Arm:
    """What comes before the labelled scenes.

    Attributes:
        stage1: Settings of stage 1 beside those of procap-mini, whose own is not trained again;
            None starts from nothing.
        longer: Stage 2 also has the steps that the others have in stage 1.
        k: Frames that stage 2 imagines.
    """

    stage1: tuple[str, ...] | None = None
    longer: bool = False
    k: int = 0


ARMS = {
    "no stage 1": Arm(),
    "no stage 1, as many steps in all": Arm(longer=True),
    "stage 1 of masked tokens and order": Arm(MASKED),
    "stage 1 of procap-mini": Arm(()),
    "stage 1 of procap-mini, 2 frames imagined": Arm((), k=2),
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


def write_stage1_of_package(folder: Path) -> None:
    """Writes a run of stage 1 with procap-mini's encoder, which its stage 2 did not train."""
    captioner = stored_run.read(hub.locate(PACKAGED), "stage2")
    assert captioner.settings["freeze"]
    encoder = {
        name.removeprefix(ENCODER): tensor
        for name, tensor in captioner.tensors.items()
        if name.startswith(ENCODER)
    }
    settings = {
        **captioner.settings, "system": "stage1", "frames": "features", "files": [FILE],
        "network": manifest.load(CONFIG).train["stage1"]["network"],
    }  # fmt: skip
    with storage.write_folder(folder) as new:
        save_file(encoder, new / checkpoints.MODEL, {"settings": json.dumps(settings)})
        shutil.copyfile(captioner.folder / FILE, new / FILE)


class Imagining(Lab[Row]):
    """The rows of the table. steps: of either stage, None for the usual."""

    def __init__(self, folder: Path, steps: int | None, results: Path) -> None:
        super().__init__(folder, results)
        self.steps1, self.steps2 = (STEPS1, STEPS2) if steps is None else (steps, steps)
        self.runs = folder / ("runs" if steps is None else f"runs-of-{steps}-steps")
        self.packaged = folder / "stage1-of-procap-mini"
        self.first_stage: dict[Path, Lock] = {}

    def name(self, variant: Row) -> str:
        return _name(variant)

    def conditions(self, variant: Row) -> str:
        """Digest of the settings; a change of manifest, scenes or steps drops older results."""
        known: Any = yaml.safe_load(manifest.text_of(CONFIG))
        arm = ARMS[variant.arm]
        labelled = [SHARD, SETS, LABELS[-1]]
        content = [known, SCENES, labelled, STAGE2, ENCODER_RATES, arm.k, self._steps(arm)]
        if arm.stage1 == ():
            content.append(stored_run.read(hub.locate(PACKAGED)).settings["init"]["sha256"])
        elif arm.stage1 is not None:
            content += [UNLABELLED, arm.stage1, self.steps1]
        return digest(content)

    def prepare(self, variants: Sequence[Row]) -> None:
        if not (self.packaged / checkpoints.MODEL).exists():
            write_stage1_of_package(self.packaged)
        for name, (count, seed) in SCENES.items():
            render(self.folder / name, count, seed)
            run("cc-prep", "build", CONFIG, "--root", self.folder / name,
                "--out", self.folder / f"pairs-{name}", *sets(f"name={name}"))  # fmt: skip

    def train(self, variant: Row, seed: int) -> Path:
        """Both stages; the folder of stage 2."""
        arm = ARMS[variant.arm]
        network = manifest.load(CONFIG).train["stage1"]["network"]
        options = sets("vqgan=vqgan-mini-f8", "frames=features", f"network={json.dumps(network)}",
                       ENCODER_RATES[0])  # fmt: skip
        if arm.stage1 is not None:
            run_of_stage1 = self._stage1(arm.stage1, seed) if arm.stage1 else self.packaged
            options = ["--init", run_of_stage1, *sets(ENCODER_RATES[1])]
        count = variant.labels // SHARD
        first = seed % SETS * max(LABELS) // SHARD
        labelled = [f"train-{number:06d}" for number in range(first, first + count)]
        made = digest([variant.arm, variant.labels, self.conditions(variant)])
        folder = self.runs / f"stage2-{made}-{seed}"
        steps = self._steps(arm)
        self._train("stage2", folder, labelled, seed, steps,
                    [*options, *sets(*STAGE2, f"queries.k={arm.k}",
                                     f"loop.validate_every={steps}")])  # fmt: skip
        return folder

    def test_shards(self, variant: Row) -> Path:
        return self.folder / "pairs-test/shards/*.tar"

    def notes(self, variant: Row, run: Path) -> dict[str, Any]:
        return {}

    def _steps(self, arm: Arm) -> int:
        """Steps of stage 2."""
        return self.steps2 + (self.steps1 if arm.longer else 0)

    def _stage1(self, settings: tuple[str, ...], seed: int) -> Path:
        """The run of a stage 1, which the rows that start from it share."""
        known: Any = yaml.safe_load(manifest.text_of(CONFIG))
        made = digest([known, SCENES, UNLABELLED, settings, self.steps1])
        folder = self.runs / f"stage1-{made}-{seed}"
        with self.first_stage.setdefault(folder, Lock()):
            self._train("stage1", folder, UNLABELLED, seed, self.steps1,
                        sets(*settings))  # fmt: skip
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
