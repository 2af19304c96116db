"""A model of a local folder: two images in a chat, words, and folders that are none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from cc_prep.errors import UserError
from cc_prep.weights import folders as weights_folders
from cc_train.baselines import local, prompts
from cc_train.baselines.local import Generation, Local
from cc_train.baselines.questions import Example, Question
from tests import vlm_factory, weight_factory

FAMILIES = ("smolvlm", "qwen2_5_vl")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    path = tmp_path_factory.mktemp("models")
    return {name: vlm_factory.save_chat(path, name) for name in FAMILIES}


def question(seed: int, size: tuple[int, int] = (64, 80), prompt: str | None = None) -> Question:
    rng = np.random.default_rng(seed)
    noise = [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for _ in range(2)]
    before, after = (bytes(cv2.imencode(".png", image)[1]) for image in noise)
    return Question(str(seed), before, after, prompts.of("spot", prompt))


def model(folder: Path, batch: int = 1, **generation: object) -> Local:
    settings = Generation(**{"max_new_tokens": 8, **generation})
    return Local(folder, settings, "cpu", "auto", batch)


@pytest.mark.parametrize("name", FAMILIES)
def test_words_depend_on_both_images_and_their_order(folders: dict[str, Path], name: str) -> None:
    """Keeps away: a second image that is dropped in silence, and pairs in the wrong order."""
    asked = model(folders[name])
    one, other = question(1), question(2)
    pairs = [
        one,
        Question("swapped", one.after, one.before, one.wording),
        Question("after", one.before, other.after, one.wording),
        Question("before", other.before, one.after, one.wording),
    ]
    scores = [_scores(asked, pair) for pair in pairs]
    for changed in scores[1:]:
        assert (changed - scores[0]).abs().max() > 1e-4
    assert torch.equal(_scores(asked, one), scores[0])
    assert "<" not in asked.answer([one])[0].text.replace("<unk>", "")


def _scores(asked: Local, pair: Question) -> torch.Tensor:
    """Logits of the first word of an answer."""
    with torch.inference_mode():
        logits = asked.model(**asked._encoded([local.chat(pair)])).logits
    return logits[0, -1]


@pytest.mark.parametrize("name", FAMILIES)
def test_examples_are_read(folders: dict[str, Path], name: str) -> None:
    """Keeps away: examples whose images or captions a chat template drops."""
    asked = model(folders[name])
    one, other = question(1), question(2)
    example = Example("e", other.before, other.after, "a car left")
    shown = [
        replace(one, examples=(example,)),
        replace(one, examples=(replace(example, caption="a bus came"),)),
        replace(one, examples=(replace(example, after=one.after),)),
    ]
    scores = [_scores(asked, pair) for pair in (one, *shown)]
    for number, score in enumerate(scores):
        for former in scores[:number]:
            assert (score - former).abs().max() > 1e-4
    assert asked.answer(shown[:1])


@pytest.mark.parametrize("name", FAMILIES)
def test_a_batch_gives_the_answers_of_its_questions(folders: dict[str, Path], name: str) -> None:
    """Keeps away: padding that a model reads, and answers that change places."""
    asked = model(folders[name], 3)
    questions = [question(1), question(2, (80, 64)), question(3, prompt="What changed? " * 5)]
    alone = [asked.answer([one])[0] for one in questions]
    assert asked.answer(questions) == alone
    assert len({answer.text for answer in alone}) == 3


def test_an_answer_that_was_cut_is_known(folders: dict[str, Path]) -> None:
    asked = model(folders["qwen2_5_vl"])
    answer = asked.answer([question(1)])[0]
    assert answer.ended == "length"
    first = asked.processor.tokenizer(answer.text, add_special_tokens=False).input_ids[0]
    asked.model.generation_config.eos_token_id = first
    assert asked.answer([question(1)])[0].ended == "stop"


def test_beams_and_what_the_folder_says_of_sampling(folders: dict[str, Path]) -> None:
    """Keeps away: a folder's generation_config that makes answers random, or is followed."""
    asked = model(folders["smolvlm"])
    plain = asked.answer([question(1)])
    asked.model.generation_config.update(do_sample=True, temperature=9.0, top_k=3, num_beams=2)
    assert [asked.answer([question(1)]) for _ in range(3)] == [plain] * 3
    assert model(folders["smolvlm"], num_beams=3).identity["generation"]["num_beams"] == 3


def test_the_digest_is_of_what_is_in_the_folder(folders: dict[str, Path], tmp_path: Path) -> None:
    """Keeps away: stored answers of other weights, or of another chat, in a folder of one name."""
    copy = Path(shutil.copytree(folders["qwen2_5_vl"], tmp_path / "copy"))
    whole = model(copy).weights
    assert whole == model(folders["qwen2_5_vl"]).weights == weights_folders.digest(copy)
    (copy / "README.md").write_text("notes")
    assert weights_folders.digest(copy) == whole
    template = copy / "chat_template.jinja"
    template.write_text(template.read_text() + " ")
    other = weights_folders.digest(copy)
    with (copy / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    assert len({whole, other, weights_folders.digest(copy)}) == 3


def test_an_old_transformers_and_smolvlm_are_one_line(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: transformers' own error on Python 3.10, after the weights were read."""
    monkeypatch.setattr(weights_folders, "version", lambda name: "5.20.2")
    with pytest.raises(UserError, match=r"groups of 14 tokens.*Install transformers 5\.21"):
        model(folders["smolvlm"])
    assert model(folders["qwen2_5_vl"]).answer([question(1)])


def without_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()


def without_images(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'][-1]['text'] }}")


def one_image(folder: Path) -> None:
    path = folder / "chat_template.jinja"
    template = path.read_text().replace("for c in m['content']", "for c in m['content'][:2]")
    path.write_text(template)


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def pickled(folder: Path) -> None:
    """Keeps away: a checkpoint that is unpickled."""
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def broken_off(folder: Path) -> None:
    """Keeps away: safetensors' own error, whose type no other error has."""
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def without_a_tensor(folder: Path) -> None:
    """Keeps away: answers of a model that is random in part, of which transformers only warns."""
    weight_factory.lose_tensor(folder, "q_proj")


def other_sizes(folder: Path) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["text_config"]["intermediate_size"] = 80
    path.write_text(json.dumps(config))


def text_only(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": "llama"}))


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (without_template, "its processor has no chat template"),
        (without_images, "two images"),
        (one_image, "two images"),
        (without_weights, "no model that takes images and text"),
        (pickled, "no model that takes images and text"),
        (broken_off, "no model that takes images and text"),
        (without_a_tensor, "of its Qwen2_5_VLForConditionalGeneration is not there"),
        (other_sizes, "no model that takes images and text"),
        (text_only, "no model that takes images and text"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_folders_that_do_not_do(
    folders: dict[str, Path], tmp_path: Path, damage: Callable[[Path], None], line: str
) -> None:
    """Keeps away: a traceback from inside transformers, or captions of one image."""
    folder = Path(shutil.copytree(folders["qwen2_5_vl"], tmp_path / "model"))
    damage(folder)
    with pytest.raises(UserError, match=line):
        model(folder).answer([question(1)])


def test_what_is_no_folder_of_a_model(tmp_path: Path) -> None:
    """Keeps away: a name that is looked up in a hub, which hangs without a network."""
    with pytest.raises(UserError, match=r"--model owner/name: no such folder"):
        local.require_folder("owner/name")
    with pytest.raises(UserError, match=r"no config.json in it"):
        local.require_folder(str(tmp_path))
