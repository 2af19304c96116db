"""The captioner that a folder holds, and folders that hold none."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import save_file

from cc_prep.errors import UserError
from cc_train import captioner, loading


def packed(folder: Path, settings: dict[str, object]) -> Path:
    folder.mkdir()
    metadata = {"settings": json.dumps(settings)}
    save_file({"weight": torch.zeros(1)}, folder / "model.safetensors", metadata=metadata)
    return folder


def test_load_refuses_what_is_no_captioner(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint of a run"):
        loading.load(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no system is named nothing"):
        loading.load(packed(tmp_path / "a", {"system": "nothing"}))
    with pytest.raises(UserError, match="a run of vqgan is no captioner"):
        loading.load(packed(tmp_path / "b", {"system": "vqgan"}))
    for number, files in enumerate((["../secret"], ["/etc/passwd"], ["."], "x", [5])):
        with pytest.raises(UserError, match="name files elsewhere"):
            loading.load(packed(tmp_path / f"f{number}", {"system": "vqgan", "files": files}))
    metadata = {"settings": "[1]"}
    save_file({"a": torch.zeros(1)}, tmp_path / "b/model.safetensors", metadata=metadata)
    with pytest.raises(UserError, match=r"damaged .its settings are no object"):
        loading.load(tmp_path / "b")
    (tmp_path / "b/model.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match="damaged"):
        loading.load(tmp_path / "b")


@pytest.mark.parametrize("module", [captioner, loading])
def test_imports_stand_at_the_top(module: ModuleType) -> None:
    """Keeps away: what a captioner is, which knows runs, systems and the hub behind its back."""
    tree = ast.parse(Path(str(module.__file__)).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [node for node in imports if node not in tree.body] == []
