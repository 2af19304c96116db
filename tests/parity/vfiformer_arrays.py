"""What happens inside a VFIformer on two images, under the names of its golden vectors.

Of features the first four channels, as [N, 4, H, W]; of windows the first four of every token.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cc_prep.models.vfiformer import attention
from cc_prep.models.vfiformer.attention import HIDDEN, Masks, relative_position_index
from cc_prep.models.vfiformer.network import VFIformer

CHANNELS = 4
OUTPUTS = {
    **{f"ctx{i}": f"refinenet.conv{i}" for i in range(1, 5)},
    "fuse": "fuse_block",
    "s0": "transformer.conv_first",
    "level0_tokens_after_embed_norm": "transformer.patch_embed",
    **{f"down{i}": f"transformer.conv_after_body{i}" for i in range(3)},
    **{f"up{i}": f"transformer.conv_up{i}" for i in range(3)},
    "last1": "transformer.conv_last1",
    "refine_output": "transformer",
    "level2_group1_block1_attn_out": "transformer.layers2.1.residual_group.blocks.1.attn",
}
TOKENS = ("level0_tokens", "level0_group", "level1_group", "level2_group", "level3_group")
ATTENTION = OUTPUTS["level2_group1_block1_attn_out"]


def arrays(
    network: VFIformer, before: Tensor, after: Tensor, flow: Tensor | None = None
) -> dict[str, np.ndarray]:
    """All of them by name, for images [1, 3, H, W] whose sides divide by 64."""
    calls: dict[str, list[tuple[Any, Any]]] = defaultdict(list)

    def record(name: str) -> Callable[..., None]:
        return lambda module, inputs, output: calls[name].append((inputs, output))

    hooks = [m.register_forward_hook(record(name)) for name, m in network.named_modules()]
    with torch.inference_mode():
        middle, used_flow = network.middle(before, after, flow)
    for hook in hooks:
        hook.remove()
    tensors = {name: calls[module][0][1] for name, module in OUTPUTS.items()}
    tensors |= _blocks(calls) | _flows(calls) | _mixed(network, calls) | _windows(network, calls)
    tensors |= {"pred": middle, "flow": used_flow, "img0": before, "img1": after}
    return {name: _first_channels(name, tensor) for name, tensor in tensors.items()}


Calls = dict[str, list[tuple[Any, Any]]]


def _blocks(calls: Calls) -> dict[str, Tensor]:
    """Outputs of the transformer's groups and blocks."""
    tensors = {}
    for level in range(4):
        for group in range(2):
            name, module = f"level{level}_group{group}", f"transformer.layers{level}.{group}"
            tensors[name] = calls[module][0][1]
            for block in range(3):
                outputs = calls.get(f"{module}.residual_group.blocks.{block}")
                if outputs:
                    tensors[f"{name}_block{block}"] = outputs[0][1]
    return tensors


def _flows(calls: Calls) -> dict[str, Tensor]:
    """Estimates and refinements of the flow, where the network made it itself."""
    tensors = {}
    total = torch.zeros(())
    for number in range(3):
        for _, output in calls.get(f"flownet.block{number}", []):
            total = total + output
            tensors[f"F{number + 1}"] = total
    for level, scale in ((4, "1_8"), (3, "1_4"), (2, "1_2")):
        for _, output in calls.get(f"refinenet.rf_block{level}", []):
            tensors[f"refine{level}_flow_{scale}"] = output
    if "refinenet.rf_block4" in calls:
        inner = {"occl": "occl_convs", "motion0": "motion_convs"}
        for name, module in inner.items():
            tensors[f"refine4_{name}"] = calls[f"refinenet.rf_block4.{module}"][0][1]
        tensors["refine4_occl"] = torch.sigmoid(tensors["refine4_occl"])
        tensors["refine4_corr0"] = calls["refinenet.rf_block4.corr_convs"][0][0][0]
    return tensors


def _mixed(network: VFIformer, calls: Calls) -> dict[str, Tensor]:
    """Warped images and context, and what the frame is mixed of."""
    images = calls["fuse_block"][0][0][0]
    tensors = {"warped0": images[:, 6:9], "warped1": images[:, 9:12]}
    result = calls["transformer"][0][1]
    mask = torch.sigmoid(result[:, 3:])
    tensors |= {"mask": mask, "residual": 2 * torch.sigmoid(result[:, :3]) - 1}
    tensors["merged"] = tensors["warped0"] * mask + tensors["warped1"] * (1 - mask)
    joined = [f"transformer.conv_after_body{i}" for i in range(3)] + ["transformer.conv_up0"]
    for level, module in enumerate(joined):
        width, context = network.config.width, network.config.contexts[level]
        x = calls[module][0][0][0]
        tensors[f"warpctx0_{level}"] = x[:, width : width + context]
        tensors[f"warpctx1_{level}"] = x[:, width + context :]
    return tensors


def _windows(network: VFIformer, calls: Calls) -> dict[str, Tensor]:
    """The windows of a shifted block across scales, its masks, and the offsets' numbers."""
    windows, x, masks = calls[ATTENTION][0][0]
    window = network.config.window
    assert isinstance(masks, Masks)
    assert masks.own.min() == HIDDEN
    return {
        "level2_group1_block1_qwin": windows,
        "level2_group1_block1_kwin_down": attention.coarse_windows_of(
            attention.half_size(x), window
        ),
        "attn_mask_x_level2": masks.own,
        "attn_mask_y_level2": masks.coarse,
        "relative_position_index": relative_position_index(window),
    }


def _first_channels(name: str, x: Tensor) -> np.ndarray:
    if name.startswith(TOKENS) and x.ndim == 4:
        x = x.permute(0, 3, 1, 2)
    if name.endswith(("qwin", "kwin_down", "attn_out")):
        x = x[..., :CHANNELS]
    elif x.ndim == 4 and name != "refine4_corr0":
        x = x[:, :CHANNELS]
    return x.numpy()
