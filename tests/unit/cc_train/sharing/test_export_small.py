"""What an exported captioner takes on a disk, and what its confidence may be fitted on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from cc_prep.errors import UserError
from cc_train.calibration import Calibration
from cc_train.captioner import EncoderDecoder, Inputs
from cc_train.data import shard_index
from cc_train.evaluation import calibrating
from cc_train.layers import frozen_backbone
from cc_train.runs.stored_run import Run
from cc_train.sharing import export
from cc_train.sharing.export import Details
from cc_train.sharing.model_card import Measured
from cc_train.text import Vocabulary
from tests import shard_factory
from tests.network_factory import Talkative


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


@pytest.mark.parametrize(
    ("known", "line"),
    [({"step": 1}, "scores of step 1,"), ({}, "scores of no known step,")],
)
def test_scores_of_unknown_weights_are_not_exported(
    tmp_path: Path, known: dict[str, int], line: str
) -> None:
    """Keeps away: a card with scores of another checkpoint, or of somebody's predictions."""
    folder = tmp_path / "run/evaluation"
    folder.mkdir(parents=True)
    run = Run(tmp_path / "run", "pair", {}, {}, 2)
    out = tmp_path / "out"
    out.mkdir()
    (out / "model.safetensors").write_bytes(b"exported weights")
    captioner = EncoderDecoder(Inputs((8, 8)), Vocabulary.of(["a"], 1), 4)
    (folder / "table.md").write_text("left by what was stopped")
    assert export._measured(run, captioner, out, Details()) == Measured()
    assert [file.name for file in out.iterdir()] == ["model.safetensors"]
    scores = {"groups": {"total": {"pairs": 2, "CIDEr": 1.0}}, "signature": "refs:2-ab", **known}
    scores |= {"conventions": "", "left_out": {}}
    (folder / "scores.json").write_text(json.dumps(scores))
    item = {"id": "a", "caption": "a", "references": ["a"], "groups": []}
    item |= {"scores": {"CIDEr": 1.0}}
    (folder / "items.jsonl").write_text((json.dumps(item) + "\n") * 2)
    with pytest.raises(UserError, match=f"{line} and the best checkpoint is .* 2. Evaluate again"):
        export._captioner(run, tmp_path / "exported", Details(calibrate=("never read",)))
    assert not (tmp_path / "exported").exists()
    (folder / "scores.json").write_text(json.dumps({**scores, "step": 2}))
    assert export._measured(run, captioner, out, Details()).measures
    exported = json.loads((out / "evaluation/scores.json").read_text())
    assert exported["step"] == 0
    assert exported["weights"] == hashlib.sha256(b"exported weights").hexdigest()


def test_a_link_to_what_is_measured_on_is_not_calibrated_on(tmp_path: Path) -> None:
    """Keeps away: a calibration error of the very pairs that the calibration was fitted on."""
    shards, _ = shard_factory.write_tokens(tmp_path / "a", 2)
    other, _ = shard_factory.write_tokens(tmp_path / "b", 2, images=True)
    (tmp_path / "link.tar").symlink_to(tmp_path / "a/train-000000.tar")
    (tmp_path / "copy.tar").write_bytes((tmp_path / "a/train-000000.tar").read_bytes())
    measured = shard_index.read([shards])
    for same in ("link.tar", "copy.tar"):
        with pytest.raises(UserError, match=r"^the pair set-train-000000-change is in --shards"):
            export._check_other_pairs(measured, shard_index.read([str(tmp_path / same)]))
    # Other images may have the same keys: those of rendered scenes are numbers.
    export._check_other_pairs(measured, shard_index.read([other]))


def test_what_is_trained_on_and_calibrated_on_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keeps away: a confidence that is too high, since the captions of training pairs are right
    more often.
    """
    shards, _ = shard_factory.write_tokens(tmp_path / "a", 2)
    keys = [entry.key for entry in shard_index.read([shards])]
    run, details = Run(tmp_path, "pair", {}, {}, 1), Details(calibrate=[shards])
    captioner = EncoderDecoder(Inputs((8, 8)), Vocabulary.of(["a"], 1), 4)
    monkeypatch.setattr(calibrating, "fit", lambda captioner, shards: Calibration(1.0, 0.0))
    fit = Calibration(1.0, 0.0).to_json()
    (tmp_path / "training_keys.txt").write_text("other\n")
    assert export._calibration(run, captioner, details) == fit
    (tmp_path / "training_keys.txt").write_text("\n".join(["other", *keys[:3]]) + "\n")
    assert export._calibration(run, captioner, details) == {**fit, "pairs": 4, "trained_on": 3}
    assert capsys.readouterr().err.count("3 of the 4 pairs that it was calibrated on have the") == 1


@pytest.mark.parametrize(
    ("trained_on", "words"),
    [
        (["other"], "On 2 pairs that training did not see."),
        (["b", "c"], "On 2 pairs. 1 of these 2 pairs have the keys of pairs that it was trained"),
        (None, "On 2 pairs. The run does not say whether it was trained on them."),
    ],
)
def test_the_card_of_a_network_is_of_what_was_measured_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained_on: list[str] | None, words: str
) -> None:
    """Keeps away: training pairs counted over more pairs than were measured, beside "did not see";
    parameters that the file does not hold; --data that vanishes.
    """
    if trained_on is not None:
        (tmp_path / "training_keys.txt").write_text("\n".join(trained_on) + "\n")
    rows = {"rows": torch.arange(2, dtype=torch.int32)}
    recipe = SimpleNamespace(
        compact=lambda tensors: {"table": tensors["table"][:2], **rows},
        card=lambda file, samples: {
            "about": "A network.", "measured_on": "On 2 pairs", "keys": ["a", "b"],
            "measures": {}, "remarks": "",
        },
    )  # fmt: skip
    monkeypatch.setattr(export, "read_index", lambda shards: [])
    run = Run(tmp_path, "clip4idc", {}, {"table": torch.ones(8, 3)}, 1)
    details = Details(shards=["x.tar"], data="our scenes")
    file, path = export._network(run, recipe, tmp_path / "small", details)
    card = path.read_text()
    assert words in card
    assert ("did not see" in card) == ("did not see" in words)
    assert "| parameters | 6 |" in card
    assert "| data | our scenes |" in card
    assert load_file(file)["table"].shape == (2, 3)


def test_what_shows_no_confidence_is_not_calibrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a card that promises a confidence which no caption of a language model has."""
    monkeypatch.setattr(calibrating, "fit", lambda captioner, shards: pytest.fail("was scored"))
    run = Run(tmp_path, "mllm", {}, {}, 1)
    with pytest.raises(UserError, match=r"a captioner of mllm shows no confidence\. Leave out"):
        export._calibration(run, Talkative(), Details(calibrate=["none.tar"]))
