"""Variants of one system on rendered scenes: `command` makes a program of a plan."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import yaml

from cc_prep import manifest, storage
from cc_train.runs import run_folder
from lib import tables, trainings
from lib.lab import Lab, path_of_results
from lib.results import Results, digest, stored
from lib.trainings import run, sets

CONFIG = "pairs"
NamedPaths = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Scenes:
    """Rendered scenes: count of a seed, of whose splits train and val are used to train.

    fresh: count and seed of others, on all of which captioners are evaluated; None: on the split
    test of the first. findings: jobs of cc-prep whose output the shards hold as well.
    """

    count: int = 1300
    seed: int = 8
    fresh: tuple[int, int] | None = (200, 996)
    findings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The plan of a comparison.

    system: of the trainings. variants: their settings by name. figures: the table's columns.
    start: the captioner of the package that every training starts from. backbone: of the features.
    validations: of each training, the last one after its last step. results: the file. mark: where
    a page has the table.
    """

    system: str
    steps: int
    variants: Mapping[str, Sequence[str]]
    figures: Sequence[str]
    results: str
    mark: str
    scenes: Scenes = Scenes()
    backbone: str = "efficientnet-lite0-x2"
    start: str | None = None
    validations: int = 2


class Comparison(Lab[str]):
    """The variants of a plan, by their names, and captioners beside them."""

    def __init__(self, folder: Path, results: Path, plan: Plan) -> None:
        super().__init__(folder, results)
        self.plan, self._is_prepared = plan, False
        scenes, known = plan.scenes, yaml.safe_load(manifest.text_of(CONFIG))
        features = {**known["features"], "backbone": plan.backbone}
        of_manifest = [features, known["image_size"], known["train"][plan.system],
                       *(known.get(job) for job in scenes.findings)]  # fmt: skip
        of_scenes = [scenes.count, scenes.seed, *(scenes.fresh or ()), *scenes.findings]
        start = [] if plan.start is None else [plan.start, _shipped_weights(plan.start)]
        self._conditions = digest([of_manifest, *of_scenes, plan.steps, *start])

    def name(self, variant: str) -> str:
        return variant

    def conditions(self, variant: str) -> str:
        return self._conditions

    def counts(self, line: Mapping[str, Any], variant: str) -> bool:
        """Whether the variant had the same settings."""
        return bool(line.get("settings") == [*self.plan.variants[variant]])

    def prepare(self, variants: Sequence[str] = ()) -> None:
        """All variants have the same. Shards of other settings are refused."""
        if self._is_prepared:
            return
        scenes = self.plan.scenes
        self._make("scenes", scenes.count, scenes.seed)
        if scenes.fresh is not None:
            self._make("fresh", *scenes.fresh)
        self._is_prepared = True

    def _make(self, name: str, count: int, seed: int) -> None:
        root, out = self.folder / name, self.folder / f"{name}-pairs"
        trainings.render(root, count, seed)
        for job in (*self.plan.scenes.findings, "build"):
            run("cc-prep", job, CONFIG, "--root", root, "--out", out,
                *sets(f"features.backbone={self.plan.backbone}"))  # fmt: skip

    def train(self, variant: str, seed: int) -> Path:
        plan, settings = self.plan, self.plan.variants[variant]
        name = digest([*settings], 8)
        folder = self.folder / "runs" / f"{name}-{self._conditions}-{seed}"
        shards = self.folder / "scenes-pairs/shards"
        validate = f"loop.validate_every={max(1, plan.steps // plan.validations)}"
        start = () if plan.start is None else ("--init", plan.start)
        run("cc-train", plan.system, "--config", CONFIG, "--out", folder, "--steps", plan.steps,
            "--shards", shards / "train-*.tar", "--valid", shards / "val-*.tar",
            *sets("loop.threads=1", f"loop.seed={seed}", validate),
            *start, *sets(*settings))  # fmt: skip
        return folder

    def test_shards(self, variant: str = "") -> Path:
        if self.plan.scenes.fresh is not None:
            return self.folder / "fresh-pairs/shards/*.tar"
        return self.folder / "scenes-pairs/shards/test-*.tar"

    def notes(self, variant: str, run: Path) -> dict[str, Any]:
        best = max(validation["CIDEr"] for validation in trainings.validations(run))
        return {"validation CIDEr": best, "settings": [*self.plan.variants[variant]]}

    def beside(self) -> Results:
        """The results of captioners beside the variants, by name; their seed is 0."""
        return {
            line["training"]: {int(line["seed"]): line}
            for line in stored(self.results)
            if "beside" in line and line["conditions"] == self._conditions and self._is_todays(line)
        }

    def _is_todays(self, line: Mapping[str, Any]) -> bool:
        """Whether the captioner or evaluation of a line beside the variants is the one of today.

        Of a captioner its weights tell, as far as it comes with the package. Of an evaluation the
        figures do; one that is not there any more cannot have changed.
        """
        path = line["beside"]
        if "weights" in line:
            return bool(line["weights"] == _shipped_weights(path))
        if not trainings.scores_file(Path(path)).is_file():
            return True
        today = trainings.figures(trainings.scores_of(Path(path)))
        return all(line.get(name) == figure for name, figure in today.items())

    def is_known(self, name: str, path: str) -> bool:
        """Whether this captioner or evaluation, as it is today, has a result under this name."""
        return any(line["beside"] == path for line in self.beside().get(name, {}).values())

    def add_beside(self, captioners: NamedPaths) -> None:
        """Evaluates captioners that have no result yet as if they were variants."""
        missing = [(name, path) for name, path in captioners if not self.is_known(name, path)]
        if missing:
            self.prepare()
        for name, path in missing:
            weights = _shipped_weights(path)
            out = self.folder / "evaluations" / f"{name} {weights[:8]}".strip().replace(" ", "-")
            scores = trainings.evaluate(path, out, self.test_shards())
            self.add(name, self._conditions, 0, scores, {"beside": path, "weights": weights})

    def add_scored(self, evaluations: NamedPaths) -> None:
        """Adds the figures of evaluations that our command made elsewhere, such as a zoo's row.

        Ends the program unless they are of the same references as those of this comparison.
        """
        for name, path in evaluations:
            if not self.is_known(name, path):
                scores = trainings.scores_of(Path(path))
                self._require_same_references(path, scores)
                self.add(name, self._conditions, 0, scores, {"beside": path})

    def _require_same_references(self, path: str, scores: Mapping[str, Any]) -> None:
        own = {
            _references(trainings.scores_of(scores_file.parent))
            for pattern in ("runs/*/evaluation/scores.json", "evaluations/*/scores.json")
            for scores_file in self.folder.glob(pattern)
        }
        if not own:
            sys.exit(f"--scored {path}: {self.folder} has no evaluation to compare it with: "
                     "evaluate a captioner there with --beside, or train a variant")  # fmt: skip
        if own != {_references(scores)}:
            sys.exit(f"--scored {path}: its references are {_references(scores)}, and those of "
                     f"{self.folder} {', '.join(sorted(own))}")  # fmt: skip

    def table(self) -> str:
        """Means over the seeds with 95 % intervals (Student's t)."""
        rows = {**self.known(self.plan.variants), **self.beside()}
        return tables.table_of(rows, self.plan.figures)


def _shipped_weights(path: str) -> str:
    """SHA-256 of the weights of a captioner of the package; empty for any other run."""
    if not run_folder.is_shipped(path):
        return ""
    return storage.sha256(run_folder.weights_file(Path(path)))


def _references(scores: Mapping[str, Any]) -> str:
    """The part of a signature that says which references were used."""
    parts = str(scores["signature"]).split("|")
    return next(part for part in parts if part.startswith("refs:"))


def command(plan: Plan) -> click.Command:
    """The program of a comparison."""

    def named(context: click.Context, option: click.Parameter, values: Any) -> NamedPaths:
        paths = [tuple(value.partition("=")[::2]) for value in values]
        for name, path in paths:
            if not (name and path) or name in plan.variants:
                raise click.BadParameter(f"{option.metavar}, where no variant has this NAME")
            if option.name == "scored" and not trainings.scores_file(Path(path)).is_file():
                raise click.BadParameter(f"{path} holds no scores of cc-train evaluate")
        return paths

    @click.command()
    @click.option("--out", required=True, help="For scenes, shards and trainings.")
    @click.option("--seeds", type=click.IntRange(0), default=3, show_default=True)
    @click.option("--jobs", type=click.IntRange(1), default=1, show_default=True,
                  help="Trainings at once, a thread each.")  # fmt: skip
    @click.option("--variant", "variants", multiple=True, type=click.Choice([*plan.variants]))
    @click.option(
        "--steps", type=click.IntRange(1), help=f"Of a trial; the comparison's are {plan.steps}."
    )
    @click.option("--beside", multiple=True, metavar="NAME=RUN", callback=named,
                  help="Another captioner.")  # fmt: skip
    @click.option("--scored", multiple=True, metavar="NAME=EVALUATION", callback=named,
                  help="An evaluation of one.")  # fmt: skip
    @click.option("--results", help=f"Default: {plan.results}; of a trial, OUT/trial.jsonl.")
    @click.option("--docs", help="A page whose table is replaced; not by a trial.")
    def main(
        *,
        out: str,
        seeds: int,
        jobs: int,
        variants: tuple[str, ...],
        steps: int | None,
        beside: NamedPaths,
        scored: NamedPaths,
        results: str | None,
        docs: str | None,
    ) -> None:
        """Trains the variants without a result, and writes the table."""
        trial = steps is not None
        file = path_of_results(results, out, plan.results, trial)
        lab = Comparison(
            Path(out), file, replace(plan, steps=plan.steps if steps is None else steps)
        )
        lab.add_beside(beside)
        lab.work(variants or [*plan.variants], seeds, jobs)
        lab.add_scored(scored)
        print(lab.table())
        if docs and trial:
            print(f"\n{docs} stays as it is: --steps makes this a trial")
        elif docs:
            tables.replace(Path(docs), plan.mark, lab.table())

    return main
