"""The hours that the trainings of the manifests take on a GPU, by their FLOPs: a table.

    python benchmarks/training_hours.py [--folder out/hours] [MANIFEST…]

Of each training, a micro-batch of one item (SCORER: of three, too, since its losses grow with the
square) goes forward and back through the networks of the paper's sizes, with random weights, on
miniature shards of 224 px; its FLOPs are counted and multiplied (`cc-train SYSTEM --dry-run`). The
numbers of training items are those of the data sets. Without a MANIFEST those of manifests/paper/;
docs/procap.md has `clevr spot edit` too. Takes minutes of two quiet cores, and 5 GB.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from lib.reference import codec
from rich.console import Console
from safetensors.torch import save_file

from cc_prep import manifest as manifest_files
from cc_prep import storage
from cc_prep.formats import training_shards
from cc_prep.media.images import encode_image
from cc_train import configs, start, systems
from cc_train.training import cost
from cc_train.training.task import TrainingRequest

MANIFESTS = tuple(f"paper/{name}" for name in (
    "procap_clevr", "procap_spot", "procap_edit",
    "scorer_clevr", "scorer_clevr_dc", "scorer_spot", "scorer_edit",
))  # fmt: skip
# Items of the training splits: scenes of CLEVR-Change, which have two pairs each, else pairs.
ITEMS = {"clevr": 33_830, "clevr_dc": 40_800, "spot": 8_566, "edit": 3_061}
SIDE, GRID, FRAMES, SCENES = 224, 14, 9, 8
GPU = "H100 or H200 (SXM)"
QUIET = Console(quiet=True)


@click.command()
@click.argument("manifests", nargs=-1)
@click.option("--folder", default="out/hours", show_default=True, type=click.Path(path_type=Path))
def main(manifests: tuple[str, ...], folder: Path) -> None:
    """Prints a row for each training."""
    start.FEW_ITEMS = (1, 3)
    print("| manifest | training | steps × items | epochs | TFLOP a step | H100, float32 | TF32 |")
    print("|---|---|---|---|---|---|---|")
    vqgan, backbone = weights(folder)
    counted: dict[str, Any] = {}
    for manifest in manifests or MANIFESTS:
        trained = manifest_files.load(manifest).train
        for system in [one for one in ("stage1", "stage2", "scorer") if one in trained]:
            overrides = [f"backbone_weights={backbone}" if system == "scorer" else f"vqgan={vqgan}"]
            if system == "stage2":  # what it else takes over from its stage 1
                sizes = trained["stage1"]["network"]
                overrides += ["frames=pixels", *(f"network.{n}={v}" for n, v in sizes.items())]
            recipe: Any = systems.recipe(system)
            settings = configs.load(recipe.Settings, system, manifest, overrides, QUIET)
            print(row(manifest, system, settings, folder, counted), flush=True)


def row(manifest: str, system: str, settings: Any, folder: Path, counted: dict[str, Any]) -> str:
    """A line of the table. The same networks are counted once."""
    name = Path(manifest).name.removeprefix("procap_").removeprefix("scorer_")  # of the data set
    kinds = ("change", "no_change") if name == "clevr" else ("change",)
    networks = json.dumps([kinds, settings.model_dump(mode="json", exclude={"loop"})])
    if networks not in counted:
        shards = write(folder, kinds, scored=system != "scorer")
        request = TrainingRequest([shards], [], folder / "run", None, console=QUIET)
        counted[networks] = start.counted(system, settings, request)[1]
    loop = settings.loop
    items = loop.global_batch_size or loop.batch_size
    loop = loop.split_over(items // loop.batch_size).with_resolved_epochs(
        ITEMS[name], items // loop.batch_size
    )
    flop = sum(cost.of_step(counted[networks], items).values())
    hours = [f"{cost.seconds_of(flop, GPU, one) * loop.steps / 3600:.2g} h"
             for one in ("float32", "TF32")]  # fmt: skip
    epochs = loop.steps * items / ITEMS[name]
    return (
        f"| `{manifest}` | {system} | {loop.steps:,} × {items} | {epochs:.3g} "
        f"| {flop / 1e12:.3g} | {' | '.join(hours)} |"
    )


def weights(folder: Path) -> tuple[Path, Path]:
    """Random weights of the VQGAN of 1,024 codes, and of ResNet-101."""
    from cc_prep.models.resnet import ResNet101

    folder.mkdir(parents=True, exist_ok=True)
    vqgan, backbone = folder / "vqgan.safetensors", folder / "resnet101.pth"
    if not vqgan.exists():
        network = codec()
        tensors = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
        save_file(tensors, vqgan)
    if not backbone.exists():
        torch.manual_seed(0)
        torch.save(ResNet101().state_dict(), backbone)
    return vqgan, backbone


def write(folder: Path, kinds: Sequence[str], scored: bool) -> str:
    """Shards of noise with the shapes of the paper's; their pattern.

    Args:
        scored: They hold images of all frames, and no features.
    """
    vqgan, backbone = folder / "vqgan.safetensors", folder / "resnet101.pth"
    folder = folder / f"shards-{len(kinds)}-{scored}"
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    with training_shards.write_shard(str(folder / "train-000000.tar")) as (writer, written):
        for number in range(SCENES):
            for kind in kinds:
                meta = {
                    "dataset": "clevr", "split": "train", "id": str(number), "kind": kind,
                    "frames": FRAMES, "height": SIDE, "width": SIDE,
                    "captions": [f"the large cube of number {n} moved to the left" for n in "123"],
                    "tokenizer": "vqgan", "tokenizer_sha256": storage.sha256(vqgan),
                    "scored_by": "captions",
                }  # fmt: skip
                members = dict[str, bytes]()
                if not scored:
                    meta["features"] = {"backbone": "resnet101", "frames": [0, FRAMES - 1],
                                        "sha256": storage.sha256(backbone)}  # fmt: skip
                    features = rng.normal(0, 1, (2, 1024, GRID, GRID)).astype(np.float32)
                    members["features.npy"] = npy(features)
                tokens = rng.integers(0, 1024, (FRAMES, GRID, GRID)).astype(np.int16)
                members |= {
                    "tokens.npy": npy(tokens),
                    "scores.npy": npy(rng.uniform(0, 1, (2, 1, FRAMES)).astype(np.float32)),
                }
                if scored:
                    noise = rng.integers(0, 256, (FRAMES, SIDE, SIDE, 3)).astype(np.uint8)
                    for frame, image in enumerate(noise):
                        members[f"f{frame:02}.jpg"] = encode_image(image, "jpg", 90)
                own = {"json": json.dumps(meta).encode(), **members}
                writer.add(f"clevr-train-{number:06d}-{kind}", own)
    training_shards.write_index(str(folder), {"train-000000": written.index})
    return str(folder / "train-*.tar")


def npy(array: np.ndarray) -> bytes:
    """The bytes of a .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(array), allow_pickle=False)
    return buffer.getvalue()


if __name__ == "__main__":
    main()
