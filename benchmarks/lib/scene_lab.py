"""One system's variants on rendered scenes: scenes, shards, trainings with seeds, their figures."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import yaml

from cc_prep import manifest
from lib.trainings import Results, append, figures, read, run, sets

CONFIG = "pairs"
SCENES, SEED = 1300, 8
FRESH, FRESH_SEED = 200, 996
WRITING = Lock()


@dataclass(frozen=True)
class Plan:
    """What is compared. system: of the trainings. variants: their settings by name. options:
    further ones of every training.
    """

    system: str
    steps: int
    variants: Mapping[str, Sequence[str]]
    options: Sequence[str] = field(default=())


class Lab:
    """The folder of a comparison: scenes, shards and trainings."""

    def __init__(self, folder: Path, results: Path, plan: Plan) -> None:
        self.folder, self.results, self.plan = folder, results, plan
        known = yaml.safe_load(manifest.text_of(CONFIG))
        of_manifest = [known["features"], known["image_size"], known["train"][plan.system]]
        content = [of_manifest, SCENES, SEED, FRESH, FRESH_SEED, plan.steps, *plan.options]
        self.conditions = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]

    def work(
        self, seeds: int, jobs: int, variants: Sequence[str], beside: Sequence[tuple[str, str]]
    ) -> None:
        """Trains what has no result yet, `jobs` at once, and evaluates captioners beside them."""
        known = self.known()
        missing = [
            (variant, seed)
            for seed in range(seeds)
            for variant in variants or self.plan.variants
            if seed not in known.get(variant, {})
        ]
        others = [(name, place) for name, place in beside if not self.is_known(name, place)]
        if missing or others:
            self.prepare()
        for name, place in others:
            self._keep(name, 0, place, {"beside": place})
        with ThreadPoolExecutor(jobs) as pool:
            try:
                for future in [pool.submit(self.train, *one) for one in missing]:
                    future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def known(self) -> Results:
        """The results by name and seed."""
        return read(self.results, self.conditions, self.plan.variants)

    def is_known(self, name: str, place: str) -> bool:
        """Whether there is a result of this captioner or evaluation under this name."""
        results = self.known().get(name, {}).values()
        return any(result["beside"] == place for result in results if "beside" in result)

    def prepare(self) -> None:
        """Scenes and shards, where they are not there yet. Shards of other settings are refused."""
        for name, count, seed in (("scenes", SCENES, SEED), ("fresh", FRESH, FRESH_SEED)):
            run("cc-prep", "synth", self.folder / name, "--scenes", count, "--seed", seed,
                "--size", 112, "--wording", "plain")  # fmt: skip
            run("cc-prep", "build", CONFIG, "--root", self.folder / name,
                "--out", self.folder / f"{name}-pairs")  # fmt: skip

    def train(self, variant: str, seed: int) -> None:
        """Trains a variant with a seed and adds its figures to the results."""
        began, plan = time.monotonic(), self.plan
        name = hashlib.sha256(json.dumps([*plan.variants[variant]]).encode()).hexdigest()[:8]
        folder = self.folder / "runs" / f"{name}-{self.conditions}-{seed}"
        shards = self.folder / "scenes-pairs/shards"
        run("cc-train", plan.system, "--config", CONFIG, "--out", folder, "--steps", plan.steps,
            "--shards", shards / "train-*.tar", "--valid", shards / "val-*.tar", *plan.options,
            *sets("loop.threads=1", f"loop.seed={seed}", f"loop.validate_every={plan.steps // 2}",
                  *plan.variants[variant]))  # fmt: skip
        minutes = round((time.monotonic() - began) / 60, 1)
        best = max(line["CIDEr"] for line in _log(folder) if "right_exact" in line)
        more = {"settings": [*plan.variants[variant]]}
        self._keep(variant, seed, folder, {**more, "validation CIDEr": best, "minutes": minutes})

    def add_scored(self, name: str, folder: str) -> None:
        """Adds the figures of an evaluation by the same command, such as that of a row of the zoo.

        Ends the program unless it is of the same references as those of this comparison.
        """
        scores = _scores(Path(folder))
        own = [_scores(place.parent) for place in self.folder.glob("evaluations/*/scores.json")]
        references = {_references(one) for one in own}
        if references != {_references(scores)}:
            sys.exit(f"{folder}: scored against {_references(scores)}, not {references}")
        self._append(name, 0, scores, {"beside": folder})

    def _keep(self, name: str, seed: int, place: object, more: dict[str, Any]) -> None:
        evaluation = self.folder / "evaluations" / f"{name.replace(' ', '-')}-{seed}"
        run("cc-train", "evaluate", place, "--out", evaluation,
            "--shards", self.folder / "fresh-pairs/shards/*.tar")  # fmt: skip
        self._append(name, seed, _scores(evaluation), more)

    def _append(
        self, name: str, seed: int, scores: dict[str, Any], more: Mapping[str, Any]
    ) -> None:
        line = {"training": name, "conditions": self.conditions, "seed": seed, **figures(scores)}
        with WRITING:
            append(self.results, {**line, **more})


def _scores(evaluation: Path) -> dict[str, Any]:
    scores: dict[str, Any] = json.loads((evaluation / "scores.json").read_text())
    return scores


def _references(scores: Mapping[str, Any]) -> str:
    """The part of a signature that says which references were used."""
    parts = str(scores["signature"]).split("|")
    return next(part for part in parts if part.startswith("refs:"))


def _log(run_folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_folder / "log.jsonl").read_text().splitlines()]
