"""Fixtures that several tests share: golden vectors, a tiny rendered data set, a known video."""

from __future__ import annotations

import gc
import hashlib
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import cv2
import filelock
import hypothesis
import numpy as np
import pytest

from cc_prep.records import CHANGE
from tests import commands

# The nodes of the cluster test and the driver here have to agree; Ray reads it when imported.
os.environ.setdefault("RAY_AUTH_MODE", "token")
# A token of the tests' own: without one Ray makes one and writes it into the user's home.
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
# Ray starts its workers at nice 15: beside the other half of the suite they would starve.
os.environ.setdefault("RAY_worker_niceness", "0")
# The suite takes two files at a time on two cores: further threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Steps take two, as manifests have it. By default each one spins while it waits for the other one,
# and on two cores with two files at a time a training takes ten times the processor for that.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# A name in place of a folder would be looked up there, and wait. Read when the hub's own package is
# imported, so before any test file is; tests of the hub turn it off.
os.environ["HF_HUB_OFFLINE"] = "1"
# No test depends on how fast the machine is.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")
ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """All that is imported by now lives on, and the collector no longer looks through it.

    It took a third of the time of the imports, and half a second for each full collection after.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def digests(out: Path, job: str) -> dict[str, str]:
    """SHA-256 of each shard and table of a job, by its name."""
    files = [*out.glob(f"{job}/*.tar"), *out.glob(f"{job}/*.parquet")]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(files)}


def image_after(root: Path, meta: dict[str, Any]) -> Path:
    """An image that no other pair has."""
    if meta["kind"] == CHANGE:
        return root / f"sc_images/CLEVR_semantic_{meta['id']}.png"
    return root / f"nsc_images/CLEVR_nonsemantic_{meta['id']}.png"


def in_order(out: Path) -> list[Path]:
    """The shards of a job of sequences on `synth`, as such jobs make them one after the other."""
    from cc_prep import manifest

    splits = manifest.load("synth").splits
    return [file for split in splits for file in sorted(out.glob(f"sequences/{split}-*.tar"))]


def last_image(root: Path, out: Path) -> Path:
    """An image of the pair that a job of sequences makes last. out: of a job on the same data."""
    from cc_prep.formats import sequences

    [*_, pair] = sequences.read(str(in_order(out)[-1]))
    return image_after(root, pair.meta)


def golden(prefix: str) -> list[Path]:
    """Folders of golden vectors whose name begins so; GOLDEN_DIR may name others than ours."""
    folder = Path(os.environ.get("GOLDEN_DIR") or ROOT / "tests" / "golden")
    return sorted(path for path in folder.iterdir() if path.name.startswith(prefix))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """What a test sets, as each step does, is not for those after it: sums depend on it."""
    yield
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def cc_prep() -> Command:
    """Runs the real `cc-prep` in a process of its own."""

    def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "COLUMNS": "200", **options.pop("env", {})}  # type: ignore[dict-item]
        return subprocess.run(
            [str(BIN / "cc-prep"), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=300,
            env=environment,
            check=False,
            **options,  # type: ignore[call-overload]
        )

    return run


@pytest.fixture(scope="session")
def prepare() -> Command:
    """`cc-prep` and its workers in this process, without Ray: for what tests set out from.

    With `workers=2` two of them take the shards in turn, as two processes would.
    """

    def run(*arguments: object, workers: int = 1) -> subprocess.CompletedProcess[str]:
        with commands.without_ray(workers):
            return commands.cc_prep(*arguments)

    return run


def shared(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder of all processes of a run, which the first of them makes."""
    base = factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "scenes" / name
    root.parent.mkdir(exist_ok=True)
    with filelock.FileLock(f"{root}.lock"):
        if not root.exists():
            half = root.with_name(f"half-{name}")
            make(half)
            half.rename(root)
    return root


@pytest.fixture(scope="session")
def synth_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six rendered scenes with truth at 64 px; read only. All processes of a run share them."""
    from cc_prep.synth import dataset

    settings = dataset.Settings(seed=5, size=64, samples=4, truth=True)
    return shared(tmp_path_factory, "synth", lambda root: commands.render(root, 6, settings))


def render_new_scenes(root: Path) -> None:
    """Twelve scenes at 112 px that no training saw."""
    from cc_prep.synth import dataset

    commands.render(root, 12, dataset.Settings(seed=771, size=112, wording="plain"))


@pytest.fixture(scope="session")
def new_scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`render_new_scenes`; read only. All processes of a run share them."""
    return shared(tmp_path_factory, "new", render_new_scenes)


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for small weights, under names that each of them has alone."""
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="session")
def shards(
    tmp_path_factory: pytest.TempPathFactory, weights: Path, synth_root: Path, prepare: Command
) -> str:
    """The pattern of shards of all splits of six scenes, made with `weights`; read only."""
    from tests import run_factory

    return run_factory.build(
        tmp_path_factory.mktemp("stages") / "out", weights, synth_root, prepare
    )


@pytest.fixture(scope="session")
def video_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one video of 20 frames, frame i of brightness 10·i."""
    root = tmp_path_factory.mktemp("videos")
    write_video(root / "ramp.mp4", 20)
    return root


def write_video(path: Path, frames: int) -> None:
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"mp4v"), 10, (64, 48))
    for i in range(frames):
        writer.write(np.full((48, 64, 3), 10 * i, np.uint8))
    writer.release()
    assert path.stat().st_size > 0


@pytest.fixture(scope="session")
def rife_weights() -> dict[str, object]:
    """The real weights, fetched once a machine."""
    from cc_prep import weights

    return dict(weights.read_tensors(weights.locate("rife-v4.0").path))
