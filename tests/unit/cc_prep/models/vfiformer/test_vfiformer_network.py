"""VFIformer beyond its golden vectors: sizes, batches, padding, precision, foreign weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from cc_prep.errors import UserError
from cc_prep.manifest import Interpolate
from cc_prep.models.rife import warp
from cc_prep.models.vfiformer.attention import relative_position_index
from cc_prep.models.vfiformer.flow import correlation, unit
from cc_prep.models.vfiformer.network import VARIANTS, VFIformer
from cc_prep.steps import interpolate

TINY = {"width": 8, "flow_widths": (8, 8, 8), "contexts": (4, 6, 8, 10)}
METHODS = sorted(VARIANTS)


@pytest.fixture(autouse=True)
def small_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both variants, with few channels."""
    for method in METHODS:
        monkeypatch.setitem(VARIANTS, method, replace(VARIANTS[method], **TINY))


def network(method: str = "vfiformer", padding_mode: str = "zeros") -> VFIformer:
    torch.manual_seed(0)
    model = VFIformer(VARIANTS[method], padding_mode).eval()
    for name, parameter in model.named_parameters():
        if name.endswith(("conv1.weight", "flow_head.2.weight")):  # or hardly anything moves
            parameter.data *= 20
    return model


def tensors(method: str) -> dict[str, torch.Tensor]:
    """As a published checkpoint holds them, with what depends on the size of the images."""
    index = relative_position_index(VARIANTS[method].window)
    block = "transformer.layers0.0.residual_group.blocks.1"
    return {
        **network(method).state_dict(),
        f"{block}.attn.relative_position_index": index,
        f"{block}.attn_mask": torch.zeros(9, 4, 4),
        "transformer.layers0.1.residual_group.blocks.1.attn_mask_x": torch.zeros(9, 4, 4),
    }


def images(seed: int, height: int = 40, width: int = 70) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, 8, 12, generator=generator)
    wide = torch.nn.functional.interpolate(coarse, (height, width + 6), mode="bicubic")
    wide = wide.clamp(0, 1)
    return wide[..., :-6].contiguous(), wide[..., 6:].contiguous()


@pytest.mark.parametrize("method", METHODS)
@torch.inference_mode()
def test_any_size(method: str) -> None:
    for size in ((64, 64), (1, 65), (63, 33)):
        before, after = images(0, *size)
        middle = network(method)(before, after)
        assert middle.shape == before.shape
        assert 0 <= middle.min() <= middle.max() <= 1


@torch.inference_mode()
def test_images_lie_in_the_middle_of_their_padding() -> None:
    """Keeps away: padding at one side, as RIFE's is, and grey borders instead of black ones."""
    before, after = images(1, 61, 64)
    padded = [torch.nn.functional.pad(image, (0, 0, 1, 2)) for image in (before, after)]
    assert torch.equal(network()(before, after), network()(*padded)[..., 1:62, :])
    padded = [torch.cat((x[..., :1, :], x, x[..., -1:, :], x[..., -1:, :]), 2)
              for x in (before, after)]  # fmt: skip
    replicated = network(padding_mode="replicate")(before, after)
    assert torch.equal(replicated, network()(*padded)[..., 1:62, :])


@torch.inference_mode()
def test_a_given_flow_takes_the_place_of_the_network_s() -> None:
    before, after = images(2, 64, 64)
    own, flow = network().middle(before, after)
    assert flow.abs().max() > 0.5
    assert torch.allclose(network()(before, after, flow), own, atol=1e-6)
    assert not torch.allclose(network()(before, after, -flow), own, atol=1e-3)


@torch.inference_mode()
def test_a_batch_is_its_pairs() -> None:
    """Keeps away: windows or masks of one image used for another."""
    pairs = [images(seed) for seed in (3, 4)]
    together = network()(*(torch.cat(side) for side in zip(*pairs, strict=True)))
    alone = torch.cat([network()(*pair) for pair in pairs])
    assert torch.allclose(together, alone, atol=1e-5)


@torch.inference_mode()
def test_correlation_is_that_of_warped_neighbourhoods() -> None:
    """Keeps away: neighbours in another order, beyond the border anything but nothing."""
    torch.manual_seed(1)
    features, other = torch.randn(2, 1, 5, 6, 7)
    flow = 3 * torch.randn(1, 2, 6, 7)
    patches = torch.nn.functional.unfold(features, 3, padding=1).view(1, 45, 6, 7)
    warped = warp(patches, flow).view(1, 5, 9, 6, 7)
    expected = (unit(other)[:, :, None] * unit(warped)).sum(1)
    ours = correlation(unit(other), features, flow, warp(features, flow))
    assert torch.allclose(ours, expected, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_frames_of_the_method(method: str) -> None:
    """Keeps away: ends that are not the images, colours in another order, frames that depend on
    what went through the network before."""
    interpolator = interpolate.make(Interpolate(method=method), tensors(method), "cpu")
    before, after = (
        (255 * image).permute(0, 2, 3, 1).byte().numpy() for image in images(5, 20, 30)
    )
    frames = interpolator.interpolate_batch(before, after, 2)
    assert frames.shape == (1, 5, 20, 30, 3)
    assert np.array_equal(frames[:, 0], before)
    assert np.array_equal(frames[:, -1], after)
    assert np.array_equal(interpolator.interpolate_batch(before, after, 1)[0, 1], frames[0, 2])
    with torch.inference_mode():
        ends = (torch.tensor(x[..., ::-1].copy()).permute(0, 3, 1, 2) / 255
                for x in (before, after))  # fmt: skip
        middle = network(method)(*ends)[0].permute(1, 2, 0).numpy()[..., ::-1]
    assert np.abs(frames[0, 2] - 255 * middle).max() < 0.51


def test_half_precision_is_close() -> None:
    before, after = ((255 * x).permute(0, 2, 3, 1).byte().numpy() for x in images(6, 30, 40))
    exact, half = (
        interpolate.make(
            Interpolate(method="vfiformer", precision=precision), tensors("vfiformer"), "cpu"
        ).interpolate_batch(before, after, 1)
        for precision in ("float32", "bfloat16")
    )
    assert 0 < np.abs(exact.astype(int) - half).mean() < 2


def test_foreign_weights_are_refused_by_name() -> None:
    """Keeps away: a checkpoint that loads in part, or of another network, in silence."""
    whole = tensors("vfiformer")
    index = "transformer.layers0.0.residual_group.blocks.1.attn.relative_position_index"
    wrong = {
        r"no flownet\.block0\.conv0\.0\.0\.weight in them": {},
        r"no transformer\.norm\.bias in them": {
            name: tensor for name, tensor in whole.items() if name != "transformer.norm.bias"
        },
        r"fuse_block\.0\.bias is \(3,\), not \(48,\)": {
            **whole, "fuse_block.0.bias": torch.zeros(3)
        },
        r"it has no extra\.weight": {**whole, "extra.weight": torch.zeros(3)},
        r"it has no transformer\.layers0.*position_index": {**whole, index: whole[index].T},
        r"no refinenet\.rf_block1\..*\. Set interpolate\.weights to the net_220": tensors(
            "vfiformer-small"
        ),
    }  # fmt: skip
    for message, weights in wrong.items():
        with pytest.raises(UserError, match=f"these are no VFIformer weights: .*{message}"):
            interpolate.make(Interpolate(method="vfiformer"), weights, "cpu")


def test_published_counts_of_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: layers that the public network has not, or a page that tells a wrong cost."""
    published_at_224 = {"vfiformer": 634e9, "vfiformer-small": 417e9}  # docs/interpolation.md
    monkeypatch.undo()
    for method in METHODS:
        with torch.device("meta"):
            full, side = VFIformer(VARIANTS[method]), torch.empty(1, 3, 64, 64)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            full.middle(side, side)
        published = published_at_224[method] * (64 / 256) ** 2  # 224 px are padded to 256
        assert 0.95 < counter.get_total_flops() / published <= 1.001
