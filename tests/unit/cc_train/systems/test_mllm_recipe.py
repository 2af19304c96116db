"""From a folder of a model and training shards to a captioner that all commands know."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from cc_prep.errors import UserError
from cc_prep.formats import training_shards
from cc_prep.media.images import encode_image
from cc_prep.storage import sha256
from cc_train import configs, loading, start
from cc_train.data import found_entities, shard_index
from cc_train.evaluation.predict import predict
from cc_train.layers.frozen_backbone import BackboneSpec
from cc_train.report import pictures
from cc_train.runs import checkpoints, run_folder, stored_run
from cc_train.sharing import export
from cc_train.systems.mllm import batches, recipe
from cc_train.systems.mllm.grid_features import Connector, GridConnector
from cc_train.training.task import TrainingRequest
from tests import vlm_factory, weight_factory
from tests.shard_factory import npy

SIDE, CHANNELS, GRID = 16, 8, 4
CAPTIONS = {"change": "the red cube moved to the left", "nochange": "there is no change"}
QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four scenes of noise with masks, entities and features of a VQGAN; read only."""
    path = tmp_path_factory.mktemp("shards")
    backbone = weight_factory.write_vqgan(path / "vqgan.safetensors")
    rng = np.random.default_rng(0)
    with training_shards.write_shard(str(path / "train-000000.tar")) as (writer, written):
        for scene in range(4):
            for kind, caption in CAPTIONS.items():
                meta = {
                    "frames": 2, "height": SIDE, "width": SIDE, "kind": kind,
                    "captions": [caption], "entities": [["red cube", 0.9], ["sphere", 0.5]],
                    "features": {"backbone": "vqgan", "sha256": sha256(backbone),
                                 "frames": [0, 1]},
                    **({"mask_classes": ["change"]} if kind == "change" else {}),
                }  # fmt: skip
                values = rng.normal(3, 2, (2, CHANNELS, GRID, GRID)).astype(np.float16)
                members = {
                    "json": json.dumps(meta).encode(),
                    "tokens.npy": npy(np.zeros((2, 0, 0), np.int16)),
                    "scores.npy": npy(np.zeros((2, 0, 2), np.float32)),
                    "features.npy": npy(values),
                }
                if kind == "change":
                    mask = np.zeros((SIDE, SIDE), np.uint8)
                    mask[:8, :8] = 1
                    members["mask.png"] = encode_image(mask, "png", 90)
                for frame in range(2):
                    noise = rng.integers(0, 256, (SIDE, SIDE, 3)).astype(np.uint8)
                    members[f"f{frame:02}.jpg"] = encode_image(noise, "jpg", 90)
                writer.add(f"set-train-{scene:06d}-{kind}", members)
    training_shards.write_index(str(path), {"train-000000": written.index})
    return path


def settings(folder: Path, family: str, shards: Path, steps: int = 2, **more: Any) -> Any:
    values: dict[str, Any] = {
        "model": {"weights": str(vlm_factory.save(folder, family))},
        "attention": {"masks": "truth"},
        "connector": {"width": 16, "grid": 2},
        "generation": {"max_new_tokens": 12, "repetition_penalty": 1.0},
        "validation_split": {"share": 0.25},
        "loop": {"steps": steps, "epochs": None, "batch_size": 2, "learning_rate": 1e-2,
                 "warmup_steps": 0, "validate_every": 1, "checkpoint_every": 1, "log_every": 1},
    }  # fmt: skip
    if family == "lm":
        values["model"] |= {"backbone_weights": str(shards / "vqgan.safetensors")}
        values["lora"] = {"vision": 0, "bridge": 0}
    for section, changes in more.items():
        values[section] = {**values.get(section, {}), **changes}
    return recipe.Settings.model_validate(values)


def request(shards: Path, run: Path) -> TrainingRequest:
    return TrainingRequest([str(shards / "train-*.tar")], [], run, console=QUIET)


@pytest.mark.parametrize("family", ["smolvlm", "instructblip", "lm"])
def test_a_run_resumes_and_holds_adapters_alone(
    folder: Path, shards: Path, tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a resumed run that differs; gigabytes of a frozen model in each checkpoint; a
    captioner that evaluation does not know; folders of this machine in what is exported."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for run, steps in ((parts, 1), (parts, 2), (whole, 2)):
        start.train("mllm", settings(folder, family, shards, steps), request(shards, run))
    one, other = (checkpoints.read(run, 2).training for run in (whole, parts))
    assert one.keys() == other.keys()
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    network = {name for name in one if name.startswith("network.")}
    trained = ("lora_", ".connector.")
    assert network
    assert all(any(mark in name for mark in trained) for name in network)
    captioner: Any = loading.load(whole)
    assert captioner.inputs.entities == 1
    entries = shard_index.read([str(shards / "train-*.tar")])
    spoken = {sample.key: one for sample, one in predict(captioner, entries[:2])}
    assert set(spoken) == {entry.key for entry in entries[:2]}
    for caption in spoken.values():
        assert caption.score is not None
        assert caption.attention is not None
        side = 4 if family == "instructblip" else 2  # of patches, where tokens have no places
        assert caption.attention.maps.shape == (len(caption.attention.words), side, side)
    height, width = captioner.inputs.size
    images = torch.zeros(1, 2, height, width, 3, dtype=torch.uint8)
    assert len(captioner.caption(images, beams=2)[0].beams) == 2
    export.save(whole, tmp_path / "packed")
    assert f"{folder}/" not in (tmp_path / "packed/settings.json").read_text()
    monkeypatch.setenv("CC_TRAIN_MLLM_WEIGHTS", str(vlm_factory.save(folder, family)))
    packed: Any = loading.load(tmp_path / "packed")
    (original,), (again,) = captioner.caption(images), packed.caption(images)
    assert again.score == pytest.approx(original.score, abs=0.1)  # its adapters are in float16
    captioned = pictures.captioned(str(whole), entries[:2])
    assert set(captioned.samples) == {entry.key for entry in entries[:2]}


def test_a_run_of_pasted_pictures(folder: Path, shards: Path, tmp_path: Path) -> None:
    """Keeps away: a captioner that is loaded with two pictures after a training with one."""
    chosen = settings(folder, "smolvlm", shards, 1, model={"images": "pasted"})
    start.train("mllm", chosen, request(shards, tmp_path / "run"))
    captioner: Any = loading.load(tmp_path / "run")
    assert captioner.inputs.size == (56, 28)
    entries = shard_index.read([str(shards / "train-*.tar")])
    ((_, caption),) = predict(captioner, entries[:1])
    assert caption.attention.maps.shape[1:] == (2, 1)
    with pytest.raises(UserError, match="family lm"):
        start.train("mllm", settings(folder, "lm", shards, model={"images": "pasted"}),
                    request(shards, tmp_path / "none"))  # fmt: skip


def test_entities_that_were_found_are_asked_about(
    folder: Path, shards: Path, tmp_path: Path
) -> None:
    """Keeps away: evaluation without the entities that training named."""
    start.train("mllm", settings(folder, "smolvlm", shards, 1), request(shards, tmp_path))
    captioner: Any = loading.load(tmp_path)
    entries = shard_index.read([str(shards / "train-*.tar")])
    asked: list[Any] = []
    plain = captioner.prompt_tokenizer.question
    captioner.prompt_tokenizer.question = lambda names=(): (
        asked.append(list(names)),
        plain(names),
    )[1]
    list(predict(captioner, entries[:2]))
    assert asked == [["red cube"], ["red cube"]]


def test_entities_are_dropped_by_their_share_and_masks_by_their_size(
    folder: Path, shards: Path
) -> None:
    """Keeps away: prompts that never lack entities; masks that mark everything and say nothing."""
    one = vlm_factory.captioner(folder, "smolvlm")
    control = batches.AttentionControl(masks="truth")
    make = batches.MllmBatches(
        one.prompt_tokenizer, (56, 56), control, batches.Entities(k=2), (4, 4)
    )
    entries = shard_index.read([str(shards / "train-*.tar")])
    samples = [entries[0].read(), entries[1].read()]
    kinds = [sample.meta["kind"] for sample in samples]
    batch = make(samples, list(np.random.default_rng(0).spawn(2)))
    assert batch["has_mask"].tolist() == [kind == "change" for kind in kinds]
    assert batch["before_after"].shape == (2, 2, 56, 56, 3)
    large = batches.AttentionControl(masks="truth", largest_share=0.2)
    make = batches.MllmBatches(one.prompt_tokenizer, (56, 56), large, batches.Entities(), (4, 4))
    assert not make(samples, list(np.random.default_rng(0).spawn(2)))["has_mask"].any()
    drawn = [make._names(samples[0], rng) for rng in np.random.default_rng(0).spawn(400)]
    dropped = sum(not names for names in drawn)
    assert 30 < dropped < 95  # 0.15 of 400
    assert next(name for name in drawn if name) == ["red cube"]
    make_batch = batches.MllmBatches(
        one.prompt_tokenizer, (56, 56), batches.AttentionControl(), batches.Entities(), (4, 4)
    )
    assert not make_batch(samples, list(np.random.default_rng(0).spawn(2)))["has_mask"].any()
    assert samples[0].change() is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": {"weights": None}}, "no model is named"),
        ({"model": {"weights": "/nowhere"}}, r"/nowhere: no folder of a model \(config.json"),
        ({"model": {"family": "gpt"}}, r"no family is named gpt; the attention modules of .*"),
        ({"model": {"checkpointing": "reentrant"}}, "attention read in such a layer has no grad"),
        ({"model": {"image_size": 64}}, "this model takes images of 56 px"),
        ({"loop": {"ema_decay": 0.9}}, "a running average would hold the whole model twice"),
        ({"prompt": {"text": "x <image>"}}, "a prompt has 9 places for images, where 2 images"),
        ({"lora": {"vision": 0, "bridge": 0, "language": 0}}, "nothing is to be trained"),
        ({"generation": {"min_new_tokens": 13}}, "min_new_tokens=13 is more than .*tokens=12"),
        ({"attention": {"masks": "found"}}, "no masks of found changes. .* run cc-prep changes"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_a_line(
    folder: Path, shards: Path, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    """Keeps away: a traceback of transformers, or a training of something else."""
    if "lora" in changes:
        changes = {**changes, "attention": {"where": "none"}}
    with pytest.raises(UserError, match=words) as raised:
        start.train("mllm", settings(folder, "smolvlm", shards, **changes),
                    request(shards, tmp_path))  # fmt: skip
    assert "\n" not in str(raised.value)


def test_another_model_than_the_run_was_trained_with_is_refused(
    folder: Path, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: adapters on weights that they were not trained for; a run that does not find its
    model after a move."""
    start.train("mllm", settings(folder, "smolvlm", shards, 1), request(shards, tmp_path / "run"))
    other = vlm_factory.save(tmp_path, "smolvlm")
    monkeypatch.setenv("CC_TRAIN_MLLM_WEIGHTS", str(other))
    assert loading.load(tmp_path / "run")
    values = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(values | {"pad_token_id": 1}))
    with pytest.raises(UserError, match=r"another model than .* was trained with"):
        loading.load(tmp_path / "run")


@pytest.mark.parametrize("name", ["synth", "pairs"])
def test_shards_of_make_mllm_are_enough_for_its_settings(name: str, shards: Path) -> None:
    """Keeps away: a target whose settings ask for what its own shards do not hold."""
    chosen = configs.load(recipe.Settings, "mllm", name, [], QUIET)
    assert chosen.model.weights == "smollm2-135m"
    entries = [e for e in shard_index.read([str(shards / "*.tar")]) if e.kind == "nochange"]
    recipe._require_findings(chosen, entries)
    with pytest.raises(UserError, match="no masks of found changes"):
        recipe._require_findings(recipe.Settings(), entries)


@pytest.mark.parametrize("name", ["spot", "edit", "levir"])
def test_manifests_of_real_images_have_davirs_settings(name: str) -> None:
    """Keeps away: a reproduction whose ranks, rate, weight or decoding nobody published."""
    chosen = configs.load(recipe.Settings, "mllm", name, [], QUIET)
    ranks = chosen.lora.ranks()
    assert (ranks, chosen.lora.alpha) == ({"vision": 4, "bridge": 4, "language": 8}, 2)
    loop = chosen.loop
    assert (loop.epochs, loop.batch_size, loop.learning_rate) == (20, 16, 1e-5)
    assert (chosen.attention.where, chosen.attention.weight) == ("vision", 0.1)
    assert chosen.attention.masks == "found"
    assert (chosen.entity.source, chosen.entity.k) == ("retrieved", 1)
    decoding = chosen.generation  # FINER-MLLM's, since DAVIR does not say it
    assert (decoding.min_new_tokens, decoding.max_new_tokens) == (5, 50)
    assert decoding.repetition_penalty == 1.5


def test_a_converted_file_is_known_by_itself(folder: Path, tmp_path: Path) -> None:
    """Keeps away: a run that is refused after an update of transformers, which writes the same
    model in other words."""
    from cc_train.systems.mllm import loading

    path = vlm_factory.save(tmp_path, "lm")
    (path / loading.SOURCE).write_text("digest of the file")
    (path / "generation_config.json").write_text('{"transformers_version": "6"}')
    assert loading.fingerprint(path) == "digest of the file"


def test_shards_without_entities_are_refused(
    folder: Path, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a run that says it has entity prompts, and never had one."""
    monkeypatch.setattr(found_entities, "entities", lambda sample, count: [])
    with pytest.raises(UserError, match=r"hold no entities.*entity\.source=none"):
        start.train("mllm", settings(folder, "smolvlm", shards), request(shards, tmp_path))


@pytest.mark.parametrize("damage", [{"mask_png": b"x"}, {"meta": {"entities": [5]}}])
def test_what_is_damaged_in_a_sample_is_told_in_a_line(
    shards: Path, monkeypatch: pytest.MonkeyPatch, damage: dict[str, Any]
) -> None:
    """Keeps away: a traceback before the first step, for one byte of one mask."""
    entries = shard_index.read([str(shards / "train-*.tar")])
    plain = shard_index.Entry.read

    def damaged(entry: shard_index.Entry) -> training_shards.TrainingSample:
        sample = plain(entry)
        meta = {**sample.meta, **damage.get("meta", {})}
        return dataclasses.replace(sample, **{**damage, "meta": meta})

    monkeypatch.setattr(shard_index.Entry, "read", damaged)
    chosen = recipe.Settings(attention=batches.AttentionControl(masks="truth"))
    with pytest.raises(UserError, match=r"^set-train-.*Give shards that `cc-prep build` wrote"):
        recipe._require_findings(chosen, entries)


def test_heads_of_a_connector_share_its_width() -> None:
    """Keeps away: a traceback in the first step, after the model was loaded."""
    with pytest.raises(ValueError, match=r"width .16. is not divisible by heads .3."):
        Connector(width=16, heads=3)


def test_a_connector_starts_from_a_pair_captioner(folder: Path, shards: Path) -> None:
    """Keeps away: a connector that begins anew although a run was named; one of other features."""
    mini = stored_run.read(run_folder.locate("captioner-mini"))
    spec = BackboneSpec.of_json(mini.settings["backbone"])
    one = TrainingRequest([], [], Path("none"), Path("captioner-mini"), console=QUIET)
    connector, chosen = GridConnector(Connector(), spec.grid, 48, 1.0), recipe.Settings()
    recipe._init_connector(connector, chosen, [], spec, one)
    for name in ("mean", "adapter.0.weight", "cross.query.weight", "facts.bias"):
        assert torch.equal(connector.state_dict()[name], mini.tensors[f"encoder.{name}"])
    narrow = GridConnector(Connector(width=64), spec.grid, 48, 1.0)
    with pytest.raises(
        UserError, match=r"has an encoder of other sizes .* Set connector\.width=128"
    ):
        recipe._init_connector(narrow, chosen, [], spec, one)
    other = recipe.Settings(connector=Connector(heads=2))
    with pytest.raises(UserError, match=r"encoder\.heads=4, .* connector\.heads=4"):
        recipe._init_connector(connector, other, [], spec, one)
    with pytest.raises(
        UserError, match=r"was trained on features of .* these shards hold those of"
    ):
        recipe._init_connector(connector, chosen, [], dataclasses.replace(spec, sha256="0"), one)
    request = TrainingRequest(["none.tar"], [], Path("none"), Path("x"), console=QUIET)
    with pytest.raises(UserError, match="--init: only the connector of a language model"):
        # Before anything large is read.
        start.train("mllm", settings(folder, "smolvlm", shards), request)


def test_another_fine_tune_of_the_same_shape_is_another_model(folder: Path, tmp_path: Path) -> None:
    """Keeps away: adapters on weights, or prompts, that they were not trained with."""
    from cc_train.systems.mllm import loading

    prints = {loading.fingerprint(vlm_factory.save(folder, "lm"))}
    other = vlm_factory.save(tmp_path, "lm", seed=1)
    prints.add(loading.fingerprint(other))
    (other / "chat_template.jinja").write_text("{{ messages }}")
    prints.add(loading.fingerprint(other))
    assert len(prints) == 3


def test_damaged_weights_are_told_in_a_line(tmp_path: Path) -> None:
    """Keeps away: a traceback for a download that broke off."""
    from cc_train.systems.mllm import loading

    loading.require()
    path = vlm_factory.save(tmp_path, "lm")
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(UserError, match="Give a folder that transformers reads"):
        loading.read(path, None)
    (tmp_path / "mine.gguf").write_bytes(b"GGUF")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC_PREP_CACHE", str(tmp_path / "fresh"))
        with pytest.raises(UserError, match=r"mine\.gguf: .*Give a GGUF file"):
            loading.path_of(str(tmp_path / "mine.gguf"))
    assert list((tmp_path / "fresh" / "weights").iterdir()) == []


def test_a_model_without_a_tensor_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Keeps away: adapters on layers that transformers draws anew, other ones at each start."""
    from cc_train.systems.mllm import loading

    loading.require()
    path = vlm_factory.save(tmp_path, "lm")
    name = weight_factory.lose_tensor(path, "q_proj")
    with pytest.raises(UserError, match=f"{name} of its LlamaForCausalLM is not there"):
        loading.read(path, None)
    assert "newly initialized" not in capfd.readouterr().err


def test_without_transformers_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: an ImportError for who installed the package without the extra."""
    import sys

    from cc_train.systems.mllm import loading

    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r"needs transformers and peft .*'\.\[mllm\]'"):
        loading.require()
