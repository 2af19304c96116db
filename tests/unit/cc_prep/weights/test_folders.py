"""Models of transformers in folders: what is told of one that cannot be loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from cc_prep.errors import UserError
from cc_prep.weights import folders
from cc_train.baselines import local
from cc_train.systems.mllm import loading


class Large:
    """A class of transformers whose model is larger than memory."""

    @staticmethod
    def from_pretrained(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes")


def test_too_little_memory_is_no_damage(tmp_path: Path) -> None:
    """Keeps away: "Give a folder that transformers reads" for a folder that is whole."""
    with pytest.raises(UserError, match=r"memory does not suffice for it .*Take a smaller model"):
        folders.pretrained(Large, tmp_path)


@pytest.mark.parametrize("kind", ["training", "baseline"])
def test_code_in_a_folder_is_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Keeps away: transformers' question whether to run it, to which a pipe may answer yes."""
    code = tmp_path / "evil"
    code.mkdir()
    classes = {"AutoConfig": "evil.EvilConfig", "AutoProcessor": "evil.EvilProcessor"}
    config = {"model_type": "evil", "auto_map": classes}
    (code / "config.json").write_text(json.dumps(config))
    (code / "evil.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\n"
        "from transformers import PretrainedConfig\n"
        "class EvilConfig(PretrainedConfig):\n    model_type = 'evil'\n"
        "class EvilProcessor:\n    pass\n"
    )
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(UserError, match=r"contains custom code|Unrecognized processing class"):
        loading.read_config(code) if kind == "training" else local._load(code, torch.float32)
    assert not (tmp_path / "ran").exists()
