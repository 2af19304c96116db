"""Measures by networks, with small random networks that are made here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from cc_prep.errors import UserError
from cc_train import score
from cc_train.cli import cli
from cc_train.data import shard_index
from cc_train.evaluation import signature
from cc_train.evaluation.captions import learned
from tests import shard_factory, weight_factory

WORDS = ["a", "red", "cube", "moved", "ball", "is", "gone", "the", "nothing", "changed"]
REFERENCES = {"a": ["the red cube moved", "a ball is gone"], "b": ["nothing changed"]}
CAPTIONS = {"a": "a ball is gone", "b": "the ball moved"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT of two layers, whose tokens are averaged."""
    from transformers import BertConfig, BertModel, BertTokenizer

    path = tmp_path_factory.mktemp("networks") / "tiny"
    torch.manual_seed(0)
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    BertTokenizer(vocab={token: n for n, token in enumerate(tokens)}).save_pretrained(path)
    config = BertConfig(
        vocab_size=len(tokens), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=16, initializer_range=0.5,
    )  # fmt: skip
    BertModel(config, add_pooling_layer=False).save_pretrained(path)
    return path


def values(option: str, captions: dict[str, str] = CAPTIONS) -> dict[str, float]:
    (measure,) = learned.named([option])
    (found,) = measure.score({id: REFERENCES[id] for id in captions}, captions).values()
    return found


def hidden(folder: Path, text: str, layer: int = 2) -> torch.Tensor:
    """The vectors of a text alone, [tokens, 16], of length 1."""
    from transformers import AutoModel, AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    network = AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        states = network(**tokens, output_hidden_states=True).hidden_states[layer][0]
    return torch.as_tensor(states)


@pytest.mark.parametrize("name", ["Similarity", "BERTScore"])
def test_the_best_reference_counts(folder: Path, name: str) -> None:
    """Keeps away: the first reference, or padding of the batch in the mean."""
    found = values(f"{name}={folder}")
    assert found["a"] == pytest.approx(1, abs=1e-5)
    assert found["b"] < 0.999
    assert found["b"] == pytest.approx(
        values(f"{name}={folder}", {"b": CAPTIONS["b"]})["b"], abs=1e-5
    )
    assert values(f"{name}={folder}", {"b": " "}) == {"b": 0}


def test_similarity_is_the_cosine_of_means(folder: Path, tmp_path: Path) -> None:
    """Keeps away: the vector of the first token, where the folder says that all are averaged."""
    ours, theirs = (hidden(folder, text) for text in (CAPTIONS["b"], *REFERENCES["b"]))
    cosine = torch.cosine_similarity(ours.mean(0), theirs.mean(0), dim=0)
    assert values(f"Similarity={folder}")["b"] == pytest.approx(float(cosine), abs=1e-5)
    other = tmp_path / "first"
    shutil.copytree(folder, other)
    (other / "1_Pooling").mkdir()
    pooling = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (other / "1_Pooling/config.json").write_text(json.dumps(pooling))
    cosine = torch.cosine_similarity(ours[0], theirs[0], dim=0)
    assert values(f"Similarity={other}")["b"] == pytest.approx(float(cosine), abs=1e-5)


def test_bert_score_matches_each_word(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: another layer, or first and last tokens that count as words."""
    monkeypatch.setitem(learned.LAYERS, ("bert", 2), 1)
    ours, theirs = (
        torch.nn.functional.normalize(hidden(folder, text, 1), dim=-1)
        for text in (CAPTIONS["b"], *REFERENCES["b"])
    )
    cosines = ours @ theirs.T
    precision, recall = cosines.max(1).values[1:-1].mean(), cosines.max(0).values[1:-1].mean()
    expected = float(2 * precision * recall / (precision + recall))
    assert values(f"BERTScore={folder}")["b"] == pytest.approx(expected, abs=1e-5)


def test_scores_name_the_network(folder: Path) -> None:
    """Keeps away: figures of two networks that look comparable."""
    scores = score(CAPTIONS, REFERENCES, measures=["BLEU-1"], learned=[f"bertscore={folder}"])
    parts = signature.parse(scores.signature).parts
    assert parts["BERTScore"].startswith("tiny@")
    assert parts["BERTScore"].endswith(",layer=2,f1")
    assert scores.corpus["BERTScore"] == pytest.approx(
        sum(item["BERTScore"] for item in scores.items.values()) / 2
    )


def test_evaluate_shows_them(folder: Path, tmp_path: Path) -> None:
    """Keeps away: a measure that compare and the report do not know."""
    for name, content in (("p.json", CAPTIONS), ("r.json", REFERENCES)):
        (tmp_path / name).write_text(json.dumps(content))
    done = CliRunner().invoke(
        cli,
        ["evaluate", "--predictions", f"{tmp_path}/p.json", "--references", f"{tmp_path}/r.json",
         "--metric", f"Similarity={folder}", "--out", f"{tmp_path}/out"],
        catch_exceptions=False,
    )  # fmt: skip
    assert "Similarity" in done.output
    assert (
        "|Similarity:tiny@" in json.loads((tmp_path / "out/scores.json").read_text())["signature"]
    )
    compared = CliRunner().invoke(cli, ["compare", f"{tmp_path}/out"], catch_exceptions=False)
    assert "Similarity" in compared.output


def test_clip_score_compares_the_second_image(tmp_path: Path) -> None:
    """Keeps away: the image before, a cosine without its factor, the first of the references."""
    from transformers import CLIPModel, CLIPProcessor

    clip = weight_factory.write_clip(tmp_path / "clip")
    entries = shard_index.read([shard_factory.write_greys(tmp_path, 3)])
    keys = [entry.key for entry in entries]
    captions = dict(zip(keys, ("a red cube", "a blue car", ""), strict=True))
    references = {key: ["a photo of a green ball", "a red cube"] for key in keys}
    (measure,) = learned.named([f"CLIPScore={clip}"], "cpu", entries)
    found = measure.score(references, captions)
    model, processor = CLIPModel.from_pretrained(clip), CLIPProcessor.from_pretrained(clip)
    texts = [f"A photo depicts {text}" for text in (*references[keys[1]], *captions.values())][:4]
    tokens = processor(
        text=texts, images=[entry.read().image(1) for entry in entries], return_tensors="pt",
        padding=True,
    )  # fmt: skip
    with torch.inference_mode():
        output = model(**tokens)
    words, images = output.text_embeds, output.image_embeds
    for number, key in enumerate(keys[:2]):
        expected = 2.5 * max(float(words[2 + number] @ images[number]), 0)
        nearest = max(float((words[2 + number] @ words[:2].T).max()), 0)
        assert found["CLIPScore"][key] == pytest.approx(expected, abs=1e-5)
        mean = 2 * expected * nearest / (expected + nearest) if expected else 0
        assert found["RefCLIPScore"][key] == pytest.approx(mean, abs=1e-5)
    assert max(found["CLIPScore"].values()) > 0
    assert found["CLIPScore"][keys[2]] == found["RefCLIPScore"][keys[2]] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["rouge"], "no metric is named rouge"),
        (["BERTScore"], "BERTScore needs a folder of weights"),
        (["CLIPScore={folder}"], "CLIPScore needs the images of the pairs"),
        (["Similarity={folder}", "similarity={folder}"], "Similarity is asked for twice"),
        (["Similarity={folder}/nothing"], "no folder with a config.json of transformers in it"),
        (["BERTScore={broken}"], "broken: "),
        (["Similarity={dense}"], "its sentences are embedded by Dense"),
    ],
)
def test_what_cannot_be_scored_is_told(
    folder: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    """Keeps away: a traceback of transformers, after an hour of captions."""
    for name in ("broken", "dense"):
        shutil.copytree(folder, tmp_path / name)
    (tmp_path / "broken/model.safetensors").write_bytes(b"no tensors")
    modules = [{"type": "sentence_transformers.models.Dense"}]
    (tmp_path / "dense/modules.json").write_text(json.dumps(modules))
    places = {"folder": folder, "broken": tmp_path / "broken", "dense": tmp_path / "dense"}
    with pytest.raises(UserError, match=message):
        learned.named([option.format(**places) for option in options])
