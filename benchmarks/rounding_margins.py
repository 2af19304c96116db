"""How far the figures that tests ask for are from what rounding can do to them.

    python benchmarks/rounding_margins.py [--only contrast] [--samples 5] [--broken]

A network that is trained or that chooses words ends elsewhere where sums round otherwise, as on
another processor. So each figure is taken with other seeds, with last bits changed
(`lib/rounding.py`), and with each set of instructions that this processor has: those that it lacks
are the same as the widest one that it has. The functions are those that the tests call.

It fails if a value misses its threshold or is less than 3 standard deviations from it. With
--broken the pictures are shuffled in each training, which then must not reach its goal.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

import click
import numpy as np
import torch
from lib.rounding import OtherRounding

# The path of a program starts with its own folder, and the tests lie beside that.
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

ENOUGH = 3  # standard deviations
# Read when torch starts, so each one has a process of its own.
ENVIRONMENTS: dict[str, dict[str, str]] = {
    "one thread": {},
    "two threads": {"OMP_NUM_THREADS": "2"},
    "ATen default": {"ATEN_CPU_CAPABILITY": "default"},
    "ATen avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "oneDNN SSE41": {"DNNL_MAX_CPU_ISA": "SSE41"},
    "oneDNN AVX2": {"DNNL_MAX_CPU_ISA": "AVX2"},
    "oneDNN AVX512_CORE": {"DNNL_MAX_CPU_ISA": "AVX512_CORE"},
    "not AMD": {"ROUNDING_NOT_AMD": "1"},  # layers are torch's own there
}
PICTURES = ("frames", "altered", "tokens", "before_after", "features", "before", "after")


class Figure(NamedTuple):
    """What a test asks for.

    Attributes:
        take: The values by name, from a seed and a folder for files.
        kind: A goal is reached by `overfit`, and needs pictures; another training ends at the
            figure; or the network comes with the package, so that no seed makes another value.
    """

    take: Callable[[int, Path], dict[str, Value]]
    kind: Literal["goal", "training", "shipped"] = "training"


class Value(NamedTuple):
    """A figure and its threshold; `is_most`: it may be that at most, otherwise at least."""

    value: float
    threshold: float
    is_most: bool

    @property
    def holds(self) -> bool:
        return self.value <= self.threshold if self.is_most else self.value >= self.threshold


def figures() -> dict[str, Figure]:
    """All figures that hang on rounding, by the name of their test."""
    # By name, so that mypy does not take the tests for a part of this program.
    unit = "tests.unit.cc_train"
    shipped = import_module("tests.e2e.test_shipped_captioners")
    learnability = import_module(f"{unit}.systems.test_learnability")
    mllm = import_module(f"{unit}.systems.test_mllm_objective")
    pair = import_module(f"{unit}.systems.test_pair_objective")
    supervision = import_module(f"{unit}.systems.test_scorer_supervision")
    trainer = import_module(f"{unit}.training.test_trainer")

    def training(
        learn: Callable[..., Any],
        *arguments: Any,
        in_folder: bool = False,
        needs_pictures: bool = True,
    ) -> Figure:
        def take(seed: int, folder: Path) -> dict[str, Value]:
            steps, max_steps = learn(*[folder] * in_folder, *arguments, seed=seed)
            return {"steps": Value(steps, max_steps, is_most=True)}

        return Figure(take, "goal" if needs_pictures else "training")

    def of_shipped(values: Callable[[Path], dict[str, float]]) -> Figure:
        def take(_: int, folder: Path) -> dict[str, Value]:
            bounds = {**shipped.LEAST, **shipped.MOST}
            return {
                name: Value(value, bounds[name], name in shipped.MOST)
                for name, value in values(folder).items()
            }

        return Figure(take, "shipped")

    return {
        **{
            f"stage 1, {case[1]} of {case[0]}{', both ends' * case[2]}": training(
                learnability.learn_stage_1, *case
            )
            for case in learnability.STAGE_1
        },
        **{
            f"stage 2, {kind}": training(learnability.learn_stage_2, kind)
            for kind in learnability.KINDS
        },
        "stage 2, comparison": training(learnability.learn_comparison),
        "clip4idc, contrast": training(learnability.learn_contrast),
        "clip4idc, facts": training(learnability.learn_clip4idc_facts),
        **{f"pair, {way}": training(pair.learn, *pair.WAYS[way]) for way in pair.WAYS},
        "chain": training(import_module(f"{unit}.systems.test_chain_objective").learn),
        "scorer": training(import_module(f"{unit}.systems.test_scorer_objective").learn),
        **{
            f"mllm, attention of {case[0]}": training(mllm.learn_attention, *case, in_folder=True)
            for case in mllm.ATTENTION
        },
        **{
            f"mllm, captions of {family}": training(
                mllm.learn_captions, family, in_folder=True, needs_pictures=False
            )
            for family in mllm.FAMILIES
        },
        "mllm, captions said": training(mllm.learn_to_say, in_folder=True, needs_pictures=False),
        "scorer, looks": Figure(
            lambda seed, _: {
                "with": Value(supervision.looked_at(0.5, seed), 0.5, is_most=False),
                "without": Value(supervision.looked_at(0.0, seed), 0.5, is_most=True),
            }
        ),
        "vqgan": Figure(
            lambda seed, _: {"fall": Value(trainer.fall_of_loss(seed), 0.7, is_most=True)}
        ),
        "captioner-mini": of_shipped(shipped.captions_of_new_scenes),
        "procap-mini": of_shipped(partial(shipped.captions_of_new_scenes, name=shipped.PROCAP)),
        "captioner-mini, noise": of_shipped(shipped.confidence_of_noise),
        "chain-mini": of_shipped(shipped.masks_of_new_scenes),
        "captioner-multi": of_shipped(shipped.several_of_new_scenes),
    }


def shuffled(batch: Any, generator: torch.Generator) -> Any:
    """A batch whose pictures are mixed up, number by number."""
    if isinstance(batch, dict):
        return {
            name: value.flatten()[torch.randperm(value.numel(), generator=generator)].view_as(value)
            if name in PICTURES and isinstance(value, torch.Tensor)
            else shuffled(value, generator)
            for name, value in batch.items()
        }
    return batch


@contextlib.contextmanager
def without_pictures() -> Iterator[None]:
    """Trainings see noise, and are asked about the true pictures."""
    from tests import overfitting

    generator, overfit = torch.Generator().manual_seed(0), overfitting.overfit

    def blind(objective: Any, batches: Any, *arguments: Any, **options: Any) -> Any:
        mixed = (shuffled(batch, generator) for batch in batches)
        return overfit(objective, mixed, *arguments, **options)

    modules = [
        module
        for name, module in sys.modules.items()
        if name.startswith("tests.") and getattr(module, "overfit", None) is overfit
    ]
    for module in modules:
        module.overfit = blind  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in modules:
            module.overfit = overfit  # type: ignore[attr-defined]


def measure(only: str, settings: list[str], is_broken: bool) -> None:
    """Prints a line of JSON for each value. A setting is `seed N`, `bits N` or a name."""
    if "ROUNDING_NOT_AMD" in os.environ:
        from cc_prep.models import cpu

        cpu.has_onednn_on_amd = lambda: False  # type: ignore[assignment]
    chosen = {name: figure for name, figure in figures().items() if only in name}
    with tempfile.TemporaryDirectory() as folder:
        for setting in settings:
            kind, _, number = setting.partition(" ")
            seed = int(number) if kind == "seed" else 0
            for name, figure in chosen.items():
                if (is_broken and figure.kind != "goal") or (
                    kind == "seed" and figure.kind == "shipped"
                ):
                    continue
                bits = OtherRounding(int(number)) if kind == "bits" else contextlib.nullcontext()
                broken = without_pictures() if is_broken else contextlib.nullcontext()
                with bits, broken:
                    values = figure.take(seed, Path(folder))
                for part, value in values.items():
                    print(json.dumps([f"{name}: {part}", setting, *value]), flush=True)


def table(values: dict[str, dict[str, Value]]) -> bool:
    """Prints a row for each figure. Returns whether every margin is large enough."""
    is_enough = True
    print("| figure | threshold | values | mean ± sd | distance in sd |")
    print("| --- | --- | --- | --- | --- |")
    for name, taken in values.items():
        numbers = np.array([one.value for one in taken.values()])
        [*_, one] = taken.values()
        spread = float(numbers.std(ddof=1)) if len(numbers) > 1 else 0.0
        distance = abs(one.threshold - numbers.mean()) / spread if spread else np.inf
        missed = [setting for setting, value in taken.items() if not value.holds]
        is_enough &= not missed and distance >= ENOUGH
        shown = " ".join(f"{number:.3g}" for number in numbers)
        print(
            f"| {name} | {'≤' if one.is_most else '≥'} {one.threshold:g} | {shown} "
            f"| {numbers.mean():.3g} ± {spread:.2g} | {distance:.1f}"
            f"{' MISSED: ' + ', '.join(missed) if missed else ''} |"
        )
    return is_enough


@click.command()
@click.option("--only", default="", help="A part of the figures' names.")
@click.option("--samples", default=5, show_default=True, help="Seeds, and changes of last bits.")
@click.option("--broken", is_flag=True, help="No training may reach its goal.")
@click.option("--measure", "settings", hidden=True, help="For its own processes.")
def main(only: str, samples: int, broken: bool, settings: str | None) -> None:
    """Prints each figure's values and its distance from the threshold."""
    if settings is not None:
        measure(only, settings.split(","), broken)
        return
    many = [f"{kind} {n}" for kind in ("seed", "bits") for n in range(1, samples + 1)]
    runs = [(many, {}), *(([name], variables) for name, variables in ENVIRONMENTS.items())]
    values: dict[str, dict[str, Value]] = {}
    for names, variables in runs[1:2] if broken else runs:
        command = [sys.executable, __file__, "--only", only, "--measure", ",".join(names)]
        with subprocess.Popen(
            [*command, *["--broken"] * broken],
            env={"OMP_NUM_THREADS": "1", **os.environ, **variables},
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            for line in process.stdout or ():
                figure, setting, *value = json.loads(line)
                print(figure, setting, value, file=sys.stderr, flush=True)
                values.setdefault(figure, {})[setting] = Value(*value)
        if process.returncode:
            raise SystemExit(process.returncode)
    if not broken:
        raise SystemExit(not table(values))
    reached = [name for name, taken in values.items() if any(v.holds for v in taken.values())]
    print(f"{len(reached)} of {len(values)} trainings reach their goal without pictures")
    for name in reached:
        print(f"It says nothing: {name}")
    raise SystemExit(bool(reached))


if __name__ == "__main__":
    main()
