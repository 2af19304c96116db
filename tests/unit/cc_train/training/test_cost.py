"""The cost of a training, counted on a few items."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cc_prep.models.cpu import Linear, image_by_image
from cc_train.training import cost
from cc_train.training.objective import Objective
from cc_train.training.settings import Loop
from tests import shard_factory
from tests.commands import cc_train


class Products(Objective):
    """A frozen convolution and a product; pairwise: also all items of a step with each other."""

    def __init__(self, pairwise: bool = False) -> None:
        super().__init__(nn.ModuleDict({"product": Linear(8, 4, bias=False)}))
        self.pairwise = pairwise

    def groups(self, phase: str) -> list[dict[str, Any]]:
        return []

    def losses(
        self, phase: str, batch: Any, step: int, denominators: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        frozen = nn.Conv2d(3, 8, 1, bias=False)
        seen = image_by_image(frozen, torch.ones(len(batch), 3, 1, 1)).flatten(1)
        out = self.network["product"](seen)
        return {"total": (out @ out.mT).sum() if self.pairwise else out.sum()}

    def validate(self, network: nn.Module) -> tuple[dict[str, float], None]:
        return {}, None


def test_operations_of_all_threads_and_kernels_are_counted() -> None:
    """Keeps away: an estimate without the frozen networks, whose images have threads of their own,
    or without the products of the CPU's own kernels."""
    found = cost.count(Products(), torch.ones(5), 5)
    convolution, product = 2 * 5 * 3 * 8, 2 * 5 * 8 * 4
    backward = product  # of the weights alone: no gradient flows into what is frozen
    assert sum(found.flop.values()) == convolution + product + backward
    assert found.seconds > 0


def test_losses_over_all_pairs_of_items_grow_with_the_square() -> None:
    counts = [cost.count(Products(pairwise=True), torch.ones(n), n) for n in (2, 4)]
    whole = cost.count(Products(pairwise=True), torch.ones(64), 64)
    scaled = sum(cost.of_step(counts, 64).values())
    assert scaled == pytest.approx(sum(whole.flop.values()), rel=1e-6)


def test_operations_that_torch_gives_to_two_modules_count_once() -> None:
    """Keeps away: the losses of all pairs with all pairs, which such modules hid of SCORER's."""

    class Counter:
        def __init__(self, total: int) -> None:
            self.total = total

        def get_flop_counts(self) -> dict[str, dict[str, int]]:
            return {"Global": {"mm": self.total}, "A": {"mm": 8}, "B": {"mm": 7}, "B.c": {"mm": 5}}

    counter: Any = Counter(10)
    parts = cost._by_part(counter)
    assert sum(parts.values()) == pytest.approx(10)
    assert parts["A"] / parts["B"] == pytest.approx(8 / 7)
    # 1 · n + 2 · n² operations, of which a part holds but the first.
    counts = [cost.Count(n, {"A": float(n), "other": 2.0 * n * n}, 1.0, 0) for n in (1, 3)]
    assert sum(cost.of_step(counts, 10).values()) == pytest.approx(10 + 200)


def test_steps_and_hours() -> None:
    objective = Products()
    found = cost.Count(2, {"Encoder": 3e12, "other": 1e12}, 6.0, 10**9)
    loop = Loop(steps=1000, batch_size=16)
    text = cost.table([found], objective, loop, 4000)
    assert "1,000 of 16 items, 4 epochs of 4,000" in text
    assert "32 TFLOP (Encoder 24, other 8)" in text
    assert "8 GB of activations" in text
    assert "CPU: 13 h" in text, "6 s for 2 items"
    assert "A100: float32 46 min, TF32 8.5 min, bfloat16 4.3 min" in text


def test_a_dry_run_trains_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shards, vqgan = shard_factory.write_tokens(tmp_path / "shards", 6)
    sizes = ("network={width: 64, layers: 1, text_length: 4}", f"vqgan={vqgan}", "keyframes.k=1")
    options = [part for one in sizes for part in ("--set", one)]
    done = cc_train("stage1", "--dry-run", "--shards", shards, *options)
    assert done.returncode == 0, done.stderr
    assert "200,000 of 8 items" in done.stdout
    assert "TFLOP" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["shards"]
