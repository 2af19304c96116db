"""What an exported captioner takes on a disk."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from cc_train.layers import frozen_backbone
from cc_train.sharing import export


def test_a_backbones_file_is_halved_and_others_are_copied(tmp_path: Path) -> None:
    """Keeps away: a frozen backbone that takes more than all that was learned; counters in half."""
    source = tmp_path / frozen_backbone.FILE
    tensors = {"weight": torch.randn(64, 64), "num_batches_tracked": torch.tensor(70_001)}
    save_file(tensors, source)
    (tmp_path / "vocabulary.json").write_text("[]")
    out = tmp_path / "out"
    out.mkdir()
    for name in (frozen_backbone.FILE, "vocabulary.json"):
        export._copy_small(tmp_path / name, out / name)
    small = load_file(out / frozen_backbone.FILE)
    assert small["weight"].dtype == torch.float16
    assert torch.allclose(small["weight"].float(), tensors["weight"], atol=1e-2)
    assert small["num_batches_tracked"] == 70_001
    assert (out / "vocabulary.json").read_text() == "[]"
