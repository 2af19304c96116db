"""Frames through CLIP4IDC and the VQGAN, and the networks found by name or file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from cc_prep.errors import RejectedPair, UserError
from cc_prep.models import clip
from cc_prep.steps.score import FrameScorer, choose_keyframes, normalize, penalties
from cc_prep.steps.tokenization import Tokenizer, indices_of
from cc_prep.weights import networks
from tests import weight_factory

FRAMES = np.random.default_rng(0).integers(0, 256, (5, 48, 64, 3), np.uint8)
CAPTIONS = ("the ball moved", "a red cube is gone", "😀 nothing")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    weights_folder = tmp_path_factory.mktemp("weights")
    weight_factory.settings(weights_folder)
    return weights_folder


@pytest.fixture(scope="module")
def scorer(folder: Path) -> FrameScorer:
    return FrameScorer(networks.clip4idc(str(folder / "clip4idc-test.safetensors"))[0])


def test_scores_are_the_plain_way_s(scorer: FrameScorer) -> None:
    """Each of the 2 F pairs through the whole network, each caption alone."""
    frame_scores = scorer(FRAMES, CAPTIONS)
    network = scorer.network
    images = normalize(FRAMES, network.config.resolution)
    with torch.inference_mode():
        for row, caption in enumerate(CAPTIONS):
            text = network.encode_text(torch.tensor(clip.tokenize([caption])))
            for frame in range(len(FRAMES)):
                for ends, scores in (
                    ((0, frame), frame_scores.bef_inter_sim),
                    ((frame, -1), frame_scores.inter_aft_sim),
                ):
                    tokens = [network.visual.encode_frames(images[[end]]) for end in ends]
                    pair = network.visual.encode_pairs(*tokens)
                    assert network.similarity(text, pair).item() == pytest.approx(
                        float(scores[row, frame]), abs=1e-4
                    )


def test_images_go_straight_to_a_square() -> None:
    from PIL import Image

    normalized = normalize(FRAMES[:1], 32)[0].permute(1, 2, 0).numpy()
    square = np.asarray(Image.fromarray(FRAMES[0]).resize((32, 32), Image.Resampling.BICUBIC))
    mean, std = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    assert np.allclose(normalized, (square / 255 - mean) / std, atol=1e-5)


def test_without_captions(scorer: FrameScorer) -> None:
    frame_scores = scorer(FRAMES, ())
    assert frame_scores.bef_inter_sim.shape == (0, 5)
    likeness = frame_scores.similarities()
    assert likeness.shape == (2, 1, 5)
    # Nothing is more like the before image than itself.
    assert likeness[0, 0].argmax() == 0
    assert likeness[1, 0].argmax() == 4
    assert choose_keyframes(penalties(*likeness), 2, "top")[0] == 0


def test_a_sequence_read_backwards_has_the_same_likeness(scorer: FrameScorer) -> None:
    there, back = scorer(FRAMES, ()), scorer(FRAMES[::-1], ())
    assert np.allclose(there.bef_inter_visual, back.inter_aft_visual[::-1], atol=1e-4)


def test_tokens_of_all_frames(folder: Path) -> None:
    network, _, unused = networks.vqgan(str(folder / "vqgan-test.safetensors"))
    tokenizer = Tokenizer(network)
    tokens = tokenizer(FRAMES)
    assert (tokens.shape, tokens.dtype, unused) == ((5, 12, 16), np.int16, [])
    assert 0 <= tokens.min() <= tokens.max() < weight_factory.CODES
    with torch.inference_mode():
        pixels = torch.tensor(FRAMES).permute(0, 3, 1, 2).float() / 255
        assert np.array_equal(indices_of(network, pixels).numpy(), tokens)
    assert tokenizer.reconstruct(tokens).shape == FRAMES.shape
    with pytest.raises(RejectedPair, match="47×48"):
        tokenizer(FRAMES[:, :, :47])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "no ddconfig"),
        ({"model": {"params": {"ddconfig": {"resolution": 64}}}}, "no ddconfig"),
        ({"ddconfig": {"resolution": 64, "attn_resolutions": 16}}, "a list of numbers"),
        ({"ddconfig": {"resolution": None, "attn_resolutions": []}}, "has to be a number"),
        (
            {"ddconfig": {"resolution": 64, "attn_resolutions": []}, "n_embed": 7},
            "n_embed is 7",
        ),
    ],
)
def test_a_configuration_must_fit(
    folder: Path, tmp_path: Path, config: object, message: str
) -> None:
    file = tmp_path / "model.yaml"
    file.write_text(json.dumps(config))
    with pytest.raises(UserError, match=message):
        networks.vqgan(str(folder / "vqgan-test.safetensors"), str(file))


def test_the_references_yaml_is_taken(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.yaml"
    file.write_text(
        "model:\n  target: taming.models.vqgan.VQModel\n  params:\n    n_embed: 64\n"
        "    embed_dim: 8\n    ddconfig:\n      resolution: 64\n      attn_resolutions: [16]\n"
    )
    network, _, _ = networks.vqgan(str(folder / "vqgan-test.safetensors"), None)
    assert network.config.attention == ()
    # 64 px halved twice is 16: attention where the file has no tensors for it.
    with pytest.raises(UserError, match="attn"):
        networks.vqgan(str(folder / "vqgan-test.safetensors"), str(file))


def test_yaml_that_builds_objects_is_refused(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.yaml"
    file.write_text(f"!!python/object/apply:os.system ['touch {tmp_path}/ran']")
    with pytest.raises(UserError):
        networks.vqgan(str(folder / "vqgan-test.safetensors"), str(file))
    assert not (tmp_path / "ran").exists()


def test_foreign_weights_are_named(folder: Path) -> None:
    with pytest.raises(UserError, match=r"vqgan-test\.safetensors"):
        networks.clip4idc(str(folder / "vqgan-test.safetensors"))
    with pytest.raises(UserError, match=r"clip4idc-test\.safetensors"):
        networks.vqgan(str(folder / "clip4idc-test.safetensors"))
    with pytest.raises(UserError, match="cannot see one image alone"):
        networks.clip4idc(str(folder / "clip4idc-test.safetensors"), 3)
