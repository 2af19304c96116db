"""Backbones of timm and transformers: the library's own features, on their grid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from cc_prep.errors import UserError
from cc_prep.manifest import Features
from cc_prep.models import library_backbones
from cc_prep.models.library_backbones import FAMILIES, LibraryBackbone
from cc_prep.weights import networks
from tests import weight_factory
from tests.weight_factory import write_clip

MEAN, STD = weight_factory.MEAN, weight_factory.STD
FOLDERS = list(weight_factory.BACKBONES)


def load(path: Path, layers: tuple[int, ...] = (-1,), **options: Any) -> LibraryBackbone:
    backbone, _ = networks.backbone("hf:", str(path), layers, **options)
    assert isinstance(backbone, LibraryBackbone)
    return backbone


def normalised(images: Tensor, mean: Any = MEAN, std: Any = STD) -> Tensor:
    return (images - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)


def theirs(network: Any, images: Tensor) -> Any:
    """What the library returns of images, with the inputs that its own processor makes."""
    from transformers.models.siglip2 import image_processing_pil_siglip2 as naflex

    pixels = normalised(images)
    if network.config.model_type == "siglip2_vision_model":
        side = network.config.patch_size
        patches = [naflex.convert_image_to_patches(one.numpy(), side) for one in pixels]
        grid = [pixels.shape[2] // side, pixels.shape[3] // side]
        return network(
            pixel_values=torch.stack([torch.from_numpy(one) for one in patches]),
            pixel_attention_mask=torch.ones(len(patches), len(patches[0]), dtype=torch.long),
            spatial_shapes=torch.tensor([grid] * len(patches)),
            output_hidden_states=True,
        )
    resized = {"interpolate_pos_encoding": True} if "vision" in network.config.model_type else {}
    return network(pixel_values=pixels, output_hidden_states=True, **resized)


@pytest.mark.parametrize("kind", FOLDERS)
@torch.no_grad()
def test_features_are_the_library_s_own(kind: str, tmp_path: Path) -> None:
    """Keeps away: register tokens among the patches, a transposed grid, other positions."""
    network = weight_factory.write_backbone(tmp_path, kind)
    side = network.config.patch_size
    images = torch.rand(2, 3, 3 * side, 5 * side)  # neither square nor of the size of training
    expected = theirs(network, images)

    def grid(tokens: Tensor) -> Tensor:
        return tokens[:, -15:].reshape(2, 3, 5, 32).permute(0, 3, 1, 2)

    backbone = load(tmp_path)
    assert backbone.name == f"hf:{kind}"
    assert (backbone.channels, backbone.multiple) == (32, side)
    assert torch.equal(backbone(images), grid(expected.last_hidden_state))
    both = load(tmp_path, (1, -2))(images)
    states = expected.hidden_states
    assert torch.equal(both, torch.cat([grid(states[1]), grid(states[-2])], 1))
    assert library_backbones.shape("hf:", str(tmp_path), (1, -2)) == (64, side)


@pytest.mark.parametrize("kind", FOLDERS)
@torch.no_grad()
def test_it_is_rebuilt_from_its_own_tensors_and_sizes(kind: str, tmp_path: Path) -> None:
    """Keeps away: a run that needs the folder; a config of strangers that fetches kernels."""
    weight_factory.write_backbone(tmp_path, kind)
    backbone = load(tmp_path, (0, -1), input_size=(64, 96) if kind != "dinov2" else (56, 84))
    config = json.loads(json.dumps(dict(backbone.config)))
    hostile = {"attn_implementation": "someone/kernels", "auto_map": {"AutoModel": "x.Y"}}
    again = library_backbones.rebuild(
        backbone.name, backbone.preprocessing, {**config, **hostile}, backbone.state_dict()
    )
    images = torch.rand(1, 3, 40, 50)
    assert torch.equal(again(images), backbone(images))
    with pytest.raises(RuntimeError):
        library_backbones.rebuild(backbone.name, backbone.preprocessing, config, {})


@torch.no_grad()
def test_a_folder_of_clip_with_texts_gives_its_vision_network(tmp_path: Path) -> None:
    from transformers import CLIPModel

    backbone = load(write_clip(tmp_path), (-1,))
    images = torch.rand(1, 3, 32, 32)
    pixels = normalised(images, backbone.preprocessing.mean, backbone.preprocessing.std)
    tokens = CLIPModel.from_pretrained(tmp_path).vision_model(pixels).last_hidden_state
    assert torch.equal(backbone(images), tokens[:, 1:].reshape(1, 4, 4, 32).permute(0, 3, 1, 2))


@torch.no_grad()
def test_images_are_normalised_as_the_folder_s_processor_does_it(tmp_path: Path) -> None:
    from transformers import AutoImageProcessor

    weight_factory.write_backbone(tmp_path, "dinov2")
    backbone = load(tmp_path)
    images = torch.randint(0, 256, (1, 3, 28, 42), dtype=torch.uint8)
    plain = {"do_resize": False, "do_center_crop": False, "return_tensors": "pt"}
    expected = AutoImageProcessor.from_pretrained(tmp_path)(images, **plain)["pixel_values"]
    torch.testing.assert_close((images / 255 - backbone.mean) / backbone.std, expected)


@torch.no_grad()
def test_images_are_resized_where_that_is_set(tmp_path: Path) -> None:
    weight_factory.write_backbone(tmp_path, "dinov2")
    backbone, plain = load(tmp_path, input_size=(28, 56)), load(tmp_path)
    images = torch.rand(1, 3, 50, 90)
    resized = F.interpolate(images, (28, 56), mode="bicubic", antialias=True).clamp(0, 1)
    assert backbone.multiple == 1
    assert torch.equal(backbone(images), plain(resized))


TIMM = {
    "test_vit": (-1, 1, 16),
    "test_resnet": (-2, 3, 16),
    "test_efficientnet": (-3, 2, 8),
    "test_convnext": (-2, 2, 16),
}


def timm_file(name: str, folder: Path) -> tuple[Any, str]:
    """A network of timm with random weights and its head, and a file of its tensors."""
    import timm

    with torch.random.fork_rng():
        torch.manual_seed(0)
        try:
            network = timm.create_model(name, pretrained=False, dynamic_img_size=True).eval()
        except TypeError:
            network = timm.create_model(name, pretrained=False).eval()
    save_file(network.state_dict(), folder / "model.safetensors")
    return network, str(folder / "model.safetensors")


@pytest.mark.parametrize("name", TIMM)
@torch.no_grad()
def test_features_of_timm_are_its_own(name: str, tmp_path: Path) -> None:
    network, file = timm_file(name, tmp_path)
    layer, index, stride = TIMM[name]
    backbone, _ = networks.backbone(f"timm:{name}", file, (layer,))
    assert isinstance(backbone, LibraryBackbone)
    images = torch.rand(2, 3, 64, 96)
    about = network.pretrained_cfg
    pixels = normalised(images, about["mean"], about["std"])
    *_, expected = network.forward_intermediates(pixels, indices=[layer], intermediates_only=True)
    assert torch.equal(backbone(images), expected)
    assert expected.shape[1:] == (backbone.channels, 64 // stride, 96 // stride)
    assert library_backbones.shape(f"timm:{name}", file, (layer,)) == (backbone.channels, stride)
    parameters = sum(map(torch.numel, backbone.parameters()))
    assert parameters < sum(map(torch.numel, network.parameters()))  # later layers are left out
    again = library_backbones.rebuild(
        backbone.name, backbone.preprocessing, {}, backbone.state_dict()
    )
    assert torch.equal(again(images), expected)
    if name != "test_vit":  # a layer has the same number, counted from either end
        same, _ = networks.backbone(f"timm:{name}", file, (index,))
        assert torch.equal(same(images), expected)


@torch.no_grad()
def test_layers_of_several_sizes_share_the_finest_grid(tmp_path: Path) -> None:
    network, file = timm_file("test_resnet", tmp_path)
    backbone, _ = networks.backbone("timm:test_resnet", file, (-2, -1))
    images = torch.rand(1, 3, 64, 64)
    about = network.pretrained_cfg
    pixels = normalised(images, about["mean"], about["std"])
    fine, coarse = network.forward_intermediates(pixels, [-2, -1], intermediates_only=True)
    doubled = coarse.repeat_interleave(2, 2).repeat_interleave(2, 3)
    assert torch.equal(backbone(images), torch.cat([fine, doubled], 1))
    assert isinstance(backbone, LibraryBackbone)
    assert backbone.multiple == 32


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    """Keeps away: a network that the hub would be asked for, and errors of a library."""
    _, file = timm_file("test_vit", tmp_path)

    def refused(match: str, name: str, path: str, *options: Any) -> None:
        with pytest.raises(UserError, match=match):
            networks.backbone(name, path, *options)

    refused("timm .* has no network hf-hub:x/resnet50", "timm:hf-hub:x/resnet50", file)
    refused("Did you mean.* resnet50", "timm:resnet5O", file)
    refused("Leave out what follows the dot", "timm:resnet50.nobody", file)
    refused("not the weights of timm:test_resnet", "timm:test_resnet", file)
    refused("neither a known name nor a file", "timm:test_vit", "nowhere.safetensors")
    refused("comes without weights.* timm publishes", "timm:test_vit", None)  # type: ignore[arg-type]
    refused("has no layer -99", "timm:test_vit", file, (-99,))
    refused("not divisible by 16", "timm:test_vit", file, (-1,), (40, 48))
    folder = tmp_path / "folder"
    weight_factory.write_backbone(folder, "dinov2")
    refused("has no layer 9", "hf:", str(folder), (9,))
    (folder / "preprocessor_config.json").unlink()
    refused("with|save_pretrained", "hf:", str(folder))
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    refused("of the type gpt2", "hf:", str(folder))
    refused("no folder with a config.json", "hf:", str(tmp_path / "none"))


def test_a_folder_names_the_backbone_and_its_weights() -> None:
    written = Features.model_validate({"backbone": "hf:models/dinov2", "input_size": 518})
    assert (written.backbone, written.weights) == ("hf:", "models/dinov2")
    assert written.size == (518, 518)
    assert Features(backbone="timm:resnet50", weights="w", input_size=[64, 96]).size == (64, 96)


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"backbone": "resnet"}, "timm:NAME and hf:FOLDER"),
        ({"backbone": "timm:resnet50"}, "needs them"),
        ({"backbone": "hf:x", "weights": "y"}, "leave out weights"),
        ({"backbone": "resnet101", "layers": [2]}, "timm:NAME and hf:FOLDER alone"),
        ({"backbone": "hf:x", "folder": "y"}, "not read from one"),
    ],
)
def test_settings_that_contradict_each_other(values: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Features.model_validate(values)


def test_every_family_is_tried() -> None:
    assert {kind for kind in FAMILIES if kind not in ("clip", "siglip", "siglip2")} == {*FOLDERS}
