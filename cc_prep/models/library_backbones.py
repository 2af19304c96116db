"""Backbones of two libraries: any of timm's networks, and vision transformers of transformers.

Images [N, 3, H, W] in [0, 1] become features [N, C, h, w]. Their code is that of the installed
library. Their weights are tensors of a local file or folder: nothing is downloaded, and nothing in
a file runs.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cc_prep import extras, storage
from cc_prep.errors import UserError, first_line
from cc_prep.manifest import HF, TIMM
from cc_prep.records import Preprocessing
from cc_prep.weights import Located, folders, locate, read_tensors

# transformers' class of the vision network in a folder, by the `model_type` of its config.json. A
# network is recorded by the `model_type` of that class, such as `hf:siglip_vision_model`.
FAMILIES = {
    "clip": "CLIPVisionModel",
    "clip_vision_model": "CLIPVisionModel",
    "siglip": "SiglipVisionModel",  # also SigLIP 2 of a fixed size
    "siglip_vision_model": "SiglipVisionModel",
    "siglip2": "Siglip2VisionModel",  # SigLIP 2 NaFlex, of any size
    "siglip2_vision_model": "Siglip2VisionModel",
    "dinov2": "Dinov2Model",
    "dinov2_with_registers": "Dinov2WithRegistersModel",
    "dinov3_vit": "DINOv3ViTModel",
}
# Given to every model: a config may name another one, which would be fetched from the hub.
ATTENTION = "sdpa"
# Settings of a config that follow from the others.
DERIVED = {"stage_names", "out_features", "out_indices"}
FOLDER_REMEDY = "Give a folder as save_pretrained writes it, with the image processor's"


class LibraryBackbone(nn.Module):
    """A network of a library with its preprocessing; layers of several sizes share one grid.

    Attributes:
        name: How shards and runs record it, such as `timm:resnet50.a1_in1k` or `hf:dinov2`.
        channels: Number of channels of the features, C.
        stride: Side of a cell of the grid, in px of the image that the network sees.
        multiple: What an image's sides must be multiples of, in px.
        config: Settings from which `rebuild` makes the network again; none for timm's.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        name: str,
        network: nn.Module,
        preprocessing: Preprocessing,
        channels: int,
        strides: Sequence[int],
        config: Mapping[str, Any],
    ) -> None:
        super().__init__()
        size, coarsest = preprocessing.input_size, max(strides)
        if size is not None and any(side % coarsest for side in size):
            raise UserError(
                f"features.input_size: {size[0]} × {size[1]} px are not divisible by {coarsest} "
                f"px, as {name} needs it",
                f"Set features.input_size to multiples of {coarsest}",
            )
        self.name, self.preprocessing, self.config = name, preprocessing, config
        self.channels, self.stride = channels, min(strides)
        self.multiple = coarsest if size is None else 1
        self.network = network.requires_grad_(False)
        self.register_buffer("mean", torch.tensor(preprocessing.mean).view(3, 1, 1), False)
        self.register_buffer("std", torch.tensor(preprocessing.std).view(3, 1, 1), False)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        if self.preprocessing.input_size is not None:
            size = self.preprocessing.input_size
            images = F.interpolate(images, size, mode="bicubic", antialias=True)
            images = images.clamp(0, 1)  # bicubic values overshoot at edges
        maps = self.maps((images - self.mean) / self.std)
        grid = max((features.shape[2:] for features in maps), key=max)
        return torch.cat([F.interpolate(features, grid) for features in maps], dim=1)

    def maps(self, pixels: Tensor) -> Sequence[Tensor]:
        """Features [N, C, h, w] of each layer of the preprocessing, of normalised images."""
        raise NotImplementedError


class TimmBackbone(LibraryBackbone):
    """What `forward_intermediates` of a network of timm returns, without its final norm."""

    def __init__(self, name: str, network: Any, preprocessing: Preprocessing) -> None:
        layers = [*preprocessing.layers]
        if not hasattr(network, "forward_intermediates"):
            raise UserError(f"{name} has no forward_intermediates in timm", "Take another network")
        known = network.feature_info
        info = [dict(layer) for layer in getattr(known, "info", known)]
        _check_layers(name, layers, -len(info), len(info))
        chosen = [info[layer] for layer in layers]
        # Layers after the last of these take no part, and would only be shipped.
        indices = network.prune_intermediate_layers(layers, prune_norm=True, prune_head=True)
        super().__init__(
            name,
            network,
            preprocessing,
            sum(layer["num_chs"] for layer in chosen),
            [layer["reduction"] for layer in chosen],
            {},
        )
        self.indices: list[int] = indices

    def maps(self, pixels: Tensor) -> Sequence[Tensor]:
        network: Any = self.network
        maps: list[Tensor] = network.forward_intermediates(
            pixels, indices=self.indices, intermediates_only=True
        )
        return maps


class TransformersBackbone(LibraryBackbone):
    """The tokens of the patches in a vision transformer of transformers, on their grid.

    Layer -1 is the library's `last_hidden_state`, another number an index of its `hidden_states`.
    The position embeddings are resized to the image, as the library does it.
    """

    def __init__(self, network: Any, preprocessing: Preprocessing) -> None:
        config = network.config
        name, blocks = f"{HF}{config.model_type}", config.num_hidden_layers
        _check_layers(name, preprocessing.layers, -blocks - 1, blocks + 1)
        self.kind = config.model_type
        super().__init__(
            name,
            network,
            preprocessing,
            config.hidden_size * len(preprocessing.layers),
            [config.patch_size],
            {key: getattr(config, key) for key in _settings(type(config))},
        )

    def maps(self, pixels: Tensor) -> Sequence[Tensor]:
        rows, columns = (side // self.stride for side in pixels.shape[2:])
        inputs: dict[str, Any] = {"pixel_values": pixels}
        if self.kind == "siglip2_vision_model":
            inputs = self._patches(pixels, rows, columns)
        elif self.kind in ("clip_vision_model", "siglip_vision_model"):
            inputs["interpolate_pos_encoding"] = True
        layers = self.preprocessing.layers
        output = self.network(**inputs, output_hidden_states=layers != (-1,))
        maps = []
        for layer in layers:
            tokens = output.last_hidden_state if layer == -1 else output.hidden_states[layer]
            patches = tokens[:, -rows * columns :]  # class and register tokens come first
            maps.append(patches.transpose(1, 2).unflatten(2, (rows, columns)))
        return maps

    def _patches(self, pixels: Tensor, rows: int, columns: int) -> dict[str, Tensor]:
        """What SigLIP 2 NaFlex takes in place of images: patches, and how many there are."""
        count, side = len(pixels), self.stride
        cells = pixels.unflatten(3, (columns, side)).unflatten(2, (rows, side))
        patches = cells.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        shape = torch.tensor([[rows, columns]], device=pixels.device).expand(count, -1)
        mask = torch.ones(patches.shape[:2], dtype=torch.long, device=pixels.device)
        return {"pixel_values": patches, "pixel_attention_mask": mask, "spatial_shapes": shape}


def of_library(name: str) -> bool:
    """Whether a backbone of this name is one of a library."""
    return name.startswith((TIMM, HF))


def load(
    name: str, path: str, layers: tuple[int, ...], input_size: tuple[int, int] | None
) -> tuple[LibraryBackbone, Located]:
    """A backbone with its weights.

    Args:
        name: `timm:` and a name of timm's, or `hf:` and anything.
        path: Of timm's network a file of its tensors, else a folder of transformers.
        layers: See `Preprocessing`.
        input_size: Height and width to which images are resized, in px; None leaves them.

    Raises:
        UserError: There is no such network, file or layer, or the library is not installed.
    """
    if name.startswith(HF):
        return _load_folder(path, layers, input_size)
    located = locate(path)
    network, input_size = _timm_network(name, input_size)
    of_head = network.pretrained_cfg["classifier"] or ()
    of_head = (of_head,) if isinstance(of_head, str) else of_head
    prefixes = tuple(f"{part}." for part in of_head)
    tensors = {n: t for n, t in read_tensors(located.path).items() if not n.startswith(prefixes)}
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        raise UserError(
            f"{located.path}: not the weights of {name}: {str(error).splitlines()[1].strip()}",
            "Give the file that timm publishes for it, model.safetensors",
        ) from None
    about = network.pretrained_cfg
    preprocessing = Preprocessing(
        layers=layers, input_size=input_size, mean=about["mean"], std=about["std"]
    )
    return TimmBackbone(name, network, preprocessing), located


def rebuild(
    name: str,
    preprocessing: Preprocessing,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
) -> LibraryBackbone:
    """A backbone from its own `state_dict`, as a run holds it.

    Args:
        name: As the backbone has it.
        preprocessing: That of the backbone.
        config: That of the backbone; what is not of the network's sizes is ignored.
        tensors: Its `state_dict`.

    Raises:
        RuntimeError: The tensors are of another network.
        UserError: No network of this name or these settings is known here.
    """
    backbone: LibraryBackbone
    if name.startswith(TIMM):
        backbone = TimmBackbone(name, _timm_network(name)[0], preprocessing)
    else:
        extras.require("transformers", f"the backbone {name}", "hf")
        make = _class(name.removeprefix(HF), name)
        kind = make.config_class
        try:
            network = make._from_config(
                kind(**{key: config[key] for key in _settings(kind) if key in config}),
                attn_implementation=ATTENTION,
                dtype=torch.float32,
            )
        except (*folders.UNREADABLE, TypeError, AttributeError) as error:
            raise UserError(
                f"no {name} can be made of its settings ({first_line(error)})",
                "Restore the run, or train again",
            ) from None
        backbone = TransformersBackbone(network, preprocessing)
    backbone.load_state_dict(dict(tensors))
    return backbone


def shape(name: str, path: str, layers: Sequence[int]) -> tuple[int, int]:
    """Channels of the features, and px of the side of a cell; reads no weights. Raises UserError.

    Args:
        name: See `load`.
        path: See `load`.
        layers: See `Preprocessing`.
    """
    plain = Preprocessing(layers=tuple(layers), input_size=None, mean=(0, 0, 0), std=(1, 1, 1))
    with torch.device("meta"):
        if name.startswith(TIMM):
            backbone: LibraryBackbone = TimmBackbone(name, _timm_network(name)[0], plain)
        else:
            make, folder = _class_of_folder(path)
            config = make.config_class.from_pretrained(folder, **folders.LOCAL)
            network = make._from_config(config, attn_implementation=ATTENTION)
            backbone = TransformersBackbone(network, plain)
    return backbone.channels, backbone.stride


def _timm_network(
    name: str, input_size: tuple[int, int] | None = None
) -> tuple[Any, tuple[int, int] | None]:
    """A network of timm's without weights and head, and the size of its images.

    The size is `input_size`, or the only one that the network takes.
    """
    extras.require("timm", f"the backbone {name}", "timm")
    import timm

    plain = name.removeprefix(TIMM)
    if not timm.is_model(plain):  # also of a model of the hub, which `create_model` would fetch
        near = difflib.get_close_matches(plain.split(".")[0], timm.list_models(), 3)
        raise UserError(
            f"timm {timm.__version__} has no network {plain}",
            f"Did you mean {', '.join(near)}?" if near else "Take a name of timm.list_models()",
        )
    options: dict[str, Any] = {"pretrained": False, "num_classes": 0}
    try:
        network = timm.create_model(plain, **options, dynamic_img_size=True)
    except RuntimeError as error:  # of a tag that it does not have
        raise UserError(f"{name}: {first_line(error)}", "Leave out what follows the dot") from None
    except TypeError:  # a network without position embeddings, or of one size
        network = timm.create_model(plain, **options)
        if network.pretrained_cfg["fixed_input_size"]:
            _, height, width = network.pretrained_cfg["input_size"]
            if input_size not in (None, (height, width)):
                raise UserError(
                    f"{name} takes images of {height} × {width} px alone",
                    "Leave out features.input_size: they are resized to that",
                ) from None
            input_size = (height, width)
    return network, input_size


def _load_folder(
    path: str, layers: tuple[int, ...], input_size: tuple[int, int] | None
) -> tuple[LibraryBackbone, Located]:
    make, folder = _class_of_folder(path)
    from transformers import AutoImageProcessor

    try:
        network = folders.pretrained(
            make, folder, dtype=torch.float32, attn_implementation=ATTENTION
        )
        processor = AutoImageProcessor.from_pretrained(folder, **folders.LOCAL)
    except folders.UNREADABLE as error:
        raise UserError(
            f"{folder}: no {make.__name__} can be loaded ({first_line(error)})", FOLDER_REMEDY
        ) from None
    if not processor.do_rescale or abs(processor.rescale_factor * 255 - 1) > 1e-6:
        raise UserError(f"{folder}: its images are not in [0, 1]", "Take another model")
    normal = processor.do_normalize
    preprocessing = Preprocessing(
        layers=layers,
        input_size=input_size,
        mean=tuple(processor.image_mean if normal else (0, 0, 0)),
        std=tuple(processor.image_std if normal else (1, 1, 1)),
    )
    return TransformersBackbone(network, preprocessing), folders.identify(path)


def _class_of_folder(path: str) -> tuple[Any, Path]:
    """transformers' class of the vision network in a folder, and the folder. Raises UserError."""
    extras.require("transformers", "features.backbone hf:FOLDER", "hf")
    return _class(folders.read_model_type(path, FOLDER_REMEDY), path), Path(storage.with_home(path))


def _class(model_type: str, source: str) -> Any:
    import transformers

    if model_type not in FAMILIES:
        raise UserError(
            f"{source}: a model of the type {model_type}, of which no features are known",
            f"Known types: {', '.join(FAMILIES)}",
        )
    return getattr(transformers, FAMILIES[model_type])


def _settings(config_class: Any) -> set[str]:
    """The names of a configuration's own settings: sizes of the network, and no more."""
    from transformers import PreTrainedConfig

    return {*config_class().to_dict()} - {*PreTrainedConfig().to_dict()} - DERIVED - {"model_type"}


def _check_layers(name: str, layers: Sequence[int], lowest: int, end: int) -> None:
    outside = [layer for layer in layers if not lowest <= layer < end]
    if outside:
        raise UserError(
            f"features.layers: {name} has no layer {outside[0]}",
            f"Its layers are 0 to {end - 1}, or -1 to {lowest} from the last",
        )
