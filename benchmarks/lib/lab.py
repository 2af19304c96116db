"""Variants of a captioner, trained with several seeds: each training is done once, and its figures
are a line in a file of results.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeVar

from lib import trainings
from lib.results import Results, append, stored

Variant = TypeVar("Variant")


class Lab(ABC, Generic[Variant]):
    """Trains variants that have no result yet. A subclass defines variants and their data.

    folder: for scenes, shards and runs. results: the file; its lines count only under the same
    conditions.
    """

    def __init__(self, folder: Path, results: Path) -> None:
        self.folder, self.results = folder, results
        self._writing = Lock()

    @abstractmethod
    def name(self, variant: Variant) -> str:
        """Name of its trainings in the results. Variants of one name are one training."""

    @abstractmethod
    def conditions(self, variant: Variant) -> str:
        """Digest of the settings that its results depend on, besides the variant and the seed.

        The weights of the preparation, the code and the processor are not in it.
        """

    @abstractmethod
    def prepare(self, variants: Sequence[Variant]) -> None:
        """Makes the scenes and shards that these variants are trained on, if they are missing."""

    @abstractmethod
    def train(self, variant: Variant, seed: int) -> Path:
        """Trains it, or resumes its run; returns the folder of the run."""

    @abstractmethod
    def test_shards(self, variant: Variant) -> Path:
        """The shards that it is evaluated on; `*` matches any name."""

    @abstractmethod
    def notes(self, variant: Variant, run: Path) -> dict[str, Any]:
        """Further entries of its line, besides figures and minutes."""

    def counts(self, line: Mapping[str, Any], variant: Variant) -> bool:
        """Whether a stored line of its name and conditions is a result of it."""
        return True

    def known(self, variants: Iterable[Variant]) -> Results:
        """The results by name and seed, empty for a name without any. The last line counts."""
        lines, results = stored(self.results), Results()
        for variant in variants:
            conditions = self.conditions(variant)
            results[self.name(variant)] = {
                int(line["seed"]): line
                for line in lines
                if line["training"] == self.name(variant)
                and line["conditions"] == conditions
                and self.counts(line, variant)
            }
        return results

    def without_result(self, variants: Iterable[Variant], seed: int) -> list[Variant]:
        """The variants without a result for a seed, one for each distinct training."""
        by_name = {self.name(variant): variant for variant in variants}
        known = self.known(by_name.values())
        return [variant for name, variant in by_name.items() if seed not in known[name]]

    def work(self, variants: Sequence[Variant], seeds: int, jobs: int) -> None:
        """Trains all variants that lack a result for the seeds 0 … seeds - 1, `jobs` at a time.

        Where one training fails, those that have not begun do not begin.
        """
        missing = [
            (variant, seed)
            for seed in range(seeds)
            for variant in self.without_result(variants, seed)
        ]
        count = seeds * len({self.name(variant) for variant in variants})
        print(f"{count - len(missing)} of {count} trainings have results in {self.results}")
        if not missing:
            return
        self.prepare([variant for variant, _ in missing])
        with ThreadPoolExecutor(jobs) as pool:
            try:
                for future in as_completed([pool.submit(self.result, *one) for one in missing]):
                    future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def result(self, variant: Variant, seed: int) -> None:
        """Trains a variant with a seed and adds its figures to the results.

        Their minutes are those of the training, and of an interrupted one those of its last part.
        """
        began = time.monotonic()
        run = self.train(variant, seed)
        minutes = round((time.monotonic() - began) / 60, 1)
        scores = trainings.evaluate(run, run / "evaluation", self.test_shards(variant))
        notes = {"minutes": minutes, **self.notes(variant, run)}
        self.add(self.name(variant), self.conditions(variant), seed, scores, notes)

    def add(
        self, name: str, conditions: str, seed: int, scores: dict[str, Any], notes: dict[str, Any]
    ) -> None:
        """Adds a line with the figures of an evaluation."""
        line = {"training": name, "conditions": conditions, "seed": seed}
        with self._writing:
            append(self.results, {**line, **trainings.figures(scores), **notes})


def path_of_results(results: str | None, out: str, published: str, trial: bool) -> Path:
    """The file of --results: by default the published one, for a trial one in its own folder."""
    return Path(results or (f"{out}/trial.jsonl" if trial else published))
