"""Our optimiser takes the same steps as the one that ProCap was trained with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from cc_train.training.optim import BertAdam, lr_multiplier
from tests.conftest import golden

FOLDERS = golden("bert_adam")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f.name)
def test_same_trace(folder: Path) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    with np.load(folder / "io.npz") as arrays:
        params, grads = torch.from_numpy(arrays["params"]), torch.from_numpy(arrays["grads"])
    decaying, plain = (torch.nn.Parameter(t.clone()) for t in (params[0, :7], params[0, 7:]))
    groups = [
        {"params": [decaying], "weight_decay": 0.01, "lr": 2e-3, "base": 2e-3},
        {"params": [plain], "weight_decay": 0.0, "lr": 5e-3, "base": 5e-3},
    ]
    optimiser = BertAdam(groups, lr=1.0, betas=tuple(meta["betas"]), eps=meta["eps"])
    warmup = round(meta["warmup"] * meta["t_total"])
    for step, gradient in enumerate(grads):
        decaying.grad, plain.grad = gradient[:7].clone(), gradient[7:].clone()
        for group in optimiser.param_groups:
            share = lr_multiplier(step, meta["t_total"], warmup, 0.0, "linear")
            group["lr"] = group["base"] * share
        optimiser.step()
        updated = torch.cat((decaying, plain)).detach()
        torch.testing.assert_close(updated, params[step + 1], atol=1e-6, rtol=1e-5)


def test_there_are_golden_vectors() -> None:
    assert FOLDERS
