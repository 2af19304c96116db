"""VFIformer's attention across scales: our way against the formulas as they are written.

    python benchmarks/bench_vfiformer.py [--repeats 7]

Written out, every window's coarse keys and values are projected anew, four times each token, and
attention is a product, a softmax and a product. The attention of a shifted block at the first level
of a 128 px image, with random weights and one thread; both results agree, which is asserted. The
two take turns in one process, which keeps freed memory. A whole midpoint, most of it convolutions
and other linear layers, takes about as long either way.
"""

from __future__ import annotations

import click
import torch
import torch.nn.functional as F
from lib.measuring import report, turns
from torch import Tensor

from cc_prep.devices import keep_freed_memory
from cc_prep.models.vfiformer import attention
from cc_prep.models.vfiformer.attention import CrossScaleAttention, Masks
from cc_prep.models.vfiformer.network import VARIANTS

SIDE = 128


@click.command()
@click.option("--repeats", default=7, show_default=True)
@torch.inference_mode()
def main(repeats: int) -> None:
    """Measures seconds of both networks' attention."""
    keep_freed_memory()
    torch.set_num_threads(1)
    ratios = {}
    for method, config in VARIANTS.items():
        torch.manual_seed(0)
        module = CrossScaleAttention(config.width, config.window, config.heads)
        x = torch.randn(1, SIDE, SIDE, config.width)
        windows = attention.windows_of(x, config.window)
        masks = Masks.of(SIDE, SIDE, config.window, x.device)
        assert torch.allclose(module(windows, x, masks), written_out(module, windows, x, masks),
                              atol=1e-4)  # fmt: skip
        seconds = turns(
            {
                "ours": lambda: module(windows, x, masks),  # noqa: B023
                "written out": lambda: written_out(module, windows, x, masks),  # noqa: B023
            },
            repeats,
        )
        ratios[method] = seconds["written out"] / seconds["ours"]
        print(
            f"{method}: ours {seconds['ours']:.3f} s, written out "
            f"{seconds['written out']:.3f} s: × {ratios[method]:.2f}"
        )
    report("vfiformer", {"threads": 1, "ratios": ratios})


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """`attention.attend` of one map with the weights written out."""
    scores = q * q.shape[-1] ** -0.5 @ k.mT + bias + mask[:, None]
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def written_out(module: CrossScaleAttention, windows: Tensor, x: Tensor, masks: Masks) -> Tensor:
    """What the module does, with the coarse windows projected."""
    q, k, v = attention.split_heads(module.qkv(windows), 3, module.heads)
    bias = attention.bias_of(module.relative_position_bias_table_x, module.window)
    own = attend(q, k, v, bias, masks.own)
    tokens = attention.coarse_windows_of(attention.half_size(x), module.window)
    k, v = attention.split_heads(module.kv(tokens), 2, module.heads)
    bias = attention.bias_of(module.relative_position_bias_table_y, module.window)
    coarse = attend(q, k, v, bias, masks.coarse)
    merged = F.leaky_relu(module.merge1(torch.cat((own, coarse), -1)), attention.SLOPE)
    result: Tensor = module.proj(module.merge2(merged) + own)
    return result


if __name__ == "__main__":
    main()
