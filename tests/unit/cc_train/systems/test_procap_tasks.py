"""What both stages make of their settings: how long an epoch is, and whose switches count."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from cc_prep.settings import build
from cc_train.systems.procap import stage1, stage2
from cc_train.training.task import Request, Task
from tests import token_shards

SCENES = 6
NETWORK = {"width": 64, "layers": 1, "text_length": 4}


def prepared(folder: Path, system: str, init: Path | None = None, **values: object) -> Task:
    """The task of a stage on shards of six scenes of two pairs, one of which is held out."""
    shards, vqgan = token_shards.write(folder, SCENES)
    recipe = {"stage1": stage1, "stage2": stage2}[system]
    loop = {"batch_size": 2, "device": "cpu", "epochs": 1}
    own = {"loop": loop, "vqgan": str(vqgan), **values}
    settings = build(recipe.Settings, own, "test", "docs")  # type: ignore[attr-defined]
    request = Request([shards], [], folder / system, init, console=Console(quiet=True))
    task: Task = recipe.prepare(settings, request)  # type: ignore[attr-defined]
    return task


@pytest.mark.parametrize(("pair_scenes", "items"), [(False, 2 * (SCENES - 1)), (True, SCENES - 1)])
@pytest.mark.parametrize("system", ["stage1", "stage2"])
def test_an_epoch_has_as_many_items_as_the_stream(
    tmp_path: Path, system: str, pair_scenes: bool, items: int
) -> None:
    """Keeps away: pairs that are counted where both of a scene are one item: twice the steps."""
    stream = {"pair_scenes": pair_scenes}
    task = prepared(tmp_path, system, network=NETWORK, stream=stream)
    assert task.items == items
