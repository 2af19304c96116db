"""A card says what the folders of a run and of its scores say, and no more."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cc_prep.errors import UserError
from cc_train.runs.stored_run import Run
from cc_train.sharing import model_card

SAID = {"signature": "refs:2-ab", "conventions": "", "left_out": {}}
ITEM = {
    "id": "a", "caption": "a", "references": ["a"], "groups": [], "scores": {"CIDEr": 1.0},
}  # fmt: skip


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({"beams": 1}, "On 2 pairs, greedy captions."),
        ({"beams": 5}, "On 2 pairs, captions of 5 beams."),
        ({}, "On 2 pairs."),
    ],
)
def test_a_card_says_how_captions_were_decoded(
    tmp_path: Path, known: dict[str, int], words: str
) -> None:
    """Keeps away: "greedy captions" of scores that do not say how their captions were decoded."""
    scores = {"groups": {"total": {"pairs": 2, "CIDEr": 1.0}}, **SAID, **known}
    (tmp_path / "scores.json").write_text(json.dumps(scores))
    (tmp_path / "items.jsonl").write_text((json.dumps(ITEM) + "\n") * 2)
    assert model_card.measured(tmp_path).on == words
    scores["groups"]["total"]["CIDEr"] = float("nan")
    (tmp_path / "scores.json").write_text(json.dumps(scores))
    with pytest.raises(UserError, match=r"damaged \(groups\.total\.CIDEr: .* Evaluate again"):
        model_card.measured(tmp_path)
    scores["groups"]["total"]["CIDEr"] = 1.0
    (tmp_path / "scores.json").write_text(json.dumps(scores))
    without = {**ITEM, "scores": {}}
    for lines in ([ITEM], [ITEM, without], []):
        (tmp_path / "items.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
        with pytest.raises(UserError, match=r"damaged .* Evaluate again"):
            model_card.measured(tmp_path)


def test_one_scene_has_no_interval(tmp_path: Path) -> None:
    """Keeps away: "50.00 (50.00 … 50.00)" of two pairs of one scene, since scenes are drawn."""
    scores = {"groups": {"total": {"pairs": 2, "CIDEr": 50.0}}, **SAID}
    (tmp_path / "scores.json").write_text(json.dumps(scores))
    for names, expected in ((("s-1-change", "s-1-no_change"), "50.00"),
                            (("s-1-change", "s-2-change"), "50.00 (0.00 … 100.00)")):  # fmt: skip
        items = [{**ITEM, "id": name, "scores": {"CIDEr": 100.0 * i}}
                 for i, name in enumerate(names)]  # fmt: skip
        (tmp_path / "items.jsonl").write_text("".join(json.dumps(one) + "\n" for one in items))
        assert model_card.measured(tmp_path).measures["CIDEr"] == expected


def test_statistics_are_not_called_parameters(tmp_path: Path) -> None:
    """Keeps away: the means of channels, counted as if they were learned."""
    assert "holds 3 numbers as float16: parameters and statistics." in card(tmp_path, "pair")


LOOP = {"steps": 1000, "batch_size": 4, "global_batch_size": 32}


def card(folder: Path, system: str, **settings: Any) -> str:
    """The card of a packed captioner with these settings."""
    (folder / "model.safetensors").write_bytes(b"weights")
    run = Run(folder, system, {"loop": LOOP, **settings}, {"w": torch.zeros(3)}, 0)
    return model_card.of_captioner(run, folder, "mine", model_card.Measured(), None, None)


def test_a_step_has_the_pairs_of_all_processes(tmp_path: Path) -> None:
    """Keeps away: a batch that depends on how many GPUs shared it."""
    assert "the best of 1,000 steps of 32" in card(tmp_path, "pair")


def test_others_weights_are_not_ours(tmp_path: Path) -> None:
    """Keeps away: a card by which we trained what was imported, for steps that nobody took."""
    text = card(tmp_path, "scorer", imported={"file": "best.pt", "sha256": "ab" * 32}, init=None)
    assert "Others trained it: its weights are those of their file `best.pt`" in text
    assert "It was trained by" not in text
    assert "1,000" not in text
    assert "random weights" not in text


def test_a_card_names_data_sets_and_limits_in_whole_sentences(tmp_path: Path) -> None:
    """Keeps away: "500 pairs of pairs (test)", and a test split that it was trained on."""
    start = {"name": "captioner-mini", "place": "ab", "sha256": "ab" * 32}
    run = Run(tmp_path, "pair", {"loop": LOOP, "init": start}, {"w": torch.zeros(3)}, 0)
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    scores = {"groups": {"total": {"pairs": 2, "CIDEr": 1.0}}, **SAID}
    (tmp_path / "scores.json").write_text(json.dumps(scores))
    (tmp_path / "items.jsonl").write_text((json.dumps(ITEM) + "\n") * 2)
    entries: Any = [SimpleNamespace(dataset="pairs", split=split) for split in ("test", "val")]
    measured = model_card.measured(tmp_path, entries)
    assert measured.on == "On 2 pairs of the data set `pairs` (test, val)."
    text = model_card.of_captioner(run, tmp_path, "mine", measured, "mit", "our scenes")
    start_in_words = "It was trained on our scenes, starting from the weights of captioner-mini."
    assert f"- {start_in_words} For images unlike" in text
    assert "\n## Licence\n\n`mit`\n" in text
    text = model_card.of_captioner(run, tmp_path, "mine", measured, None, None)
    assert "- For images unlike its training data" in text


def test_a_card_names_no_folder_of_its_machine(tmp_path: Path) -> None:
    """Keeps away: the name of a user and of a project in what is published."""
    path = Path.home() / "secret-project/words.json"
    assert "secret-project" not in card(tmp_path, "pair", vocabulary=str(path))
    relative = "secret-project/words.json"
    for nested in ({"vocabulary": relative}, {"model": {"backbone_weights": relative}}):
        assert "secret-project" not in card(tmp_path, "pair", **nested)


def test_a_card_names_the_language_model_that_it_needs(tmp_path: Path) -> None:
    """Keeps away: a folder that only its author can load, with a vocabulary that it lacks."""
    base = {"family": "lm", "fingerprint": "cd" * 32}
    text = card(tmp_path, "mllm", base=base, model={"weights": "/models/SmolLM2-135M"})
    assert "| language model | `SmolLM2-135M` (family lm, fingerprint `cdcd" in text
    assert "not among the files: set `CC_TRAIN_MLLM_WEIGHTS` to its folder |" in text
    known = card(tmp_path, "mllm", base=base, model={"weights": "smollm2-135m"})
    assert "| language model | `smollm2-135m` (" in known
    assert "CC_TRAIN_MLLM_WEIGHTS" not in known
    assert "| language model | not named (" in card(
        tmp_path, "mllm", base=base, model={"weights": None}
    )
    assert "vocabulary" not in text
    assert "vocabulary" in card(tmp_path, "pair", text={"count": 7})


def test_a_card_says_that_its_confidence_was_fitted_on_training_pairs(tmp_path: Path) -> None:
    """Keeps away: a confidence that is too high, on a card that promises the chance."""
    fit = {"slope": 1.0, "offset": 0.0, "ood_threshold": None}
    assert "was calibrated on have the keys" not in card(tmp_path, "pair", calibration=fit)
    text = card(tmp_path, "pair", calibration={**fit, "pairs": 8, "trained_on": 2})
    assert "2 of the 8 pairs that it was calibrated on have the keys of pairs that it was" in text


def test_a_card_says_over_which_pairs_its_shares_are(tmp_path: Path) -> None:
    """Keeps away: "200 of the pairs changed" of rendered pairs among others that changed too."""
    share = {"share": 0.5, "low": 0.1, "high": 0.9}
    part = {"pairs": 2, "right": 1, "wrong": 1, "not said": 0, **share}
    facts: Any = {
        "told apart": share,
        "changed pairs": part, "unchanged pairs": {**part, "pairs": 1},
        "shares": {}, "exact by type": {}, "confusion": {},
    }  # fmt: skip
    for pairs, words in (
        (3, "On 3 pairs. 2 of the pairs changed; the shares"),
        (5, "On 5 pairs. 3 of the pairs have known facts. 2 of these changed; the shares"),
    ):
        groups = {"total": {"pairs": pairs, "CIDEr": 1.0}}
        scores = {"groups": groups, "facts": facts, **SAID}
        (tmp_path / "scores.json").write_text(json.dumps(scores))
        (tmp_path / "items.jsonl").write_text((json.dumps(ITEM) + "\n") * pairs)
        assert model_card.measured(tmp_path).on.startswith(words)
    facts["changes"] = {"precision": 0.9, "recall": 0.8, "F1": 0.847}
    (tmp_path / "scores.json").write_text(json.dumps(scores))
    values = model_card.measured(tmp_path).measures
    assert values["recall of changes"] == "80.0 %"
    assert values["F1 of changes"] == "84.7 %"


def test_scores_take_the_place_of_those_in_a_card() -> None:
    """Keeps away: a card with two sections of scores, and one of somebody's own that loses text."""
    scores = model_card.Measured("On 2 pairs.", {"CIDEr": "1.00"}, "refs")
    old = "# mine\n\n## How good it is\n\nOld.\n\n## Licence\n\nmit\n"
    new = model_card.with_scores(old, scores)
    assert new.startswith("# mine\n\n## How good it is\n\nOn 2 pairs. Brackets")
    assert new.endswith("Signature of the scores: `refs`\n\n## Licence\n\nmit\n")
    assert "Old." not in new
    own = model_card.with_scores("# my own\n", scores)
    assert own.startswith("# my own\n\n## How good it is\n\nOn 2 pairs.")
    assert model_card.with_scores(own, scores) == own
