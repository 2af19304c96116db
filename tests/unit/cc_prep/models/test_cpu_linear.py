"""Linear layers through oneDNN and through torch's own are the same function."""

from __future__ import annotations

from copy import deepcopy
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cc_prep.models import cpu
from cc_prep.models.clip import Block
from cc_prep.models.cpu import Linear, Packed, linear, use_kernels


@pytest.fixture(params=[True, False], ids=["oneDNN", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Both ways, whatever this processor is; oneDNN's products are an Intel's as well."""
    monkeypatch.setattr(cpu, "has_onednn_on_amd", lambda: request.param)
    return bool(request.param)


def random_leaf(*shape: int, of: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(of)).requires_grad_()


@pytest.mark.parametrize("shape", [(5,), (1, 5), (4, 5), (2, 3, 5), (2, 0, 5), (2, 1, 3, 5)])
@pytest.mark.parametrize("biased", [True, False])
def test_it_is_a_linear_layer_with_its_gradients(
    way: bool, shape: tuple[int, ...], biased: bool
) -> None:
    x, weight = random_leaf(*shape), random_leaf(7, 5, of=1)
    inputs = (x, weight, random_leaf(7, of=2)) if biased else (x, weight)
    output, expected = linear(*inputs), F.linear(*inputs)
    assert output.shape == expected.shape
    assert torch.allclose(output, expected, atol=1e-5)
    seeds = random_leaf(*expected.shape, of=3).detach()
    for mine, theirs in zip(
        torch.autograd.grad(output, inputs, seeds), torch.autograd.grad(expected, inputs, seeds),
        strict=True,
    ):  # fmt: skip
        assert torch.allclose(mine, theirs, atol=1e-5)


@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 40))
def test_of_every_size(rows: int, channels: int, out: int) -> None:
    layer, x = Linear(channels, out), random_leaf(rows, channels).detach()
    with patch.object(cpu, "has_onednn_on_amd", return_value=True):
        output = layer(x)
    assert torch.allclose(output, F.linear(x, layer.weight, layer.bias), atol=1e-5)


@pytest.mark.parametrize("graded", [True, False])
def test_it_is_onednn_only_where_it_should_be(way: bool, graded: bool) -> None:
    x, weight = random_leaf(3, 5), random_leaf(7, 5, of=1)
    with patch.object(cpu, "_onednn", wraps=cpu._onednn) as onednn:
        with torch.set_grad_enabled(graded):
            output = linear(x, weight)
        assert onednn.call_count == way
        if graded:
            output.sum().backward()
            assert x.grad is not None
            assert weight.grad is not None
            assert torch.allclose(x.grad, weight.sum(0).expand(3, 5), atol=1e-5)
            assert torch.allclose(weight.grad, x.sum(0).expand(7, 5), atol=1e-5)
            assert onednn.call_count == 3 * way
        linear(x.double(), weight.double())
        with torch.autocast("cpu", torch.bfloat16):
            linear(x, weight)
        torch.compile(linear, backend="eager")(x, weight)
        assert onednn.call_count == (3 if graded else 1) * way


def test_parts_of_it_may_be_frozen_and_strided(way: bool) -> None:
    whole = random_leaf(21, 5)
    x = random_leaf(5, 4, of=1).T
    output = linear(x, whole[7:14].detach())
    assert torch.allclose(output, F.linear(x, whole[7:14]), atol=1e-5)
    output.square().sum().backward()
    assert whole.grad is None
    with torch.inference_mode():
        assert torch.equal(linear(x, whole[7:14]), output)


def test_its_output_can_be_written_over(way: bool) -> None:
    x, weight = random_leaf(3, 5), random_leaf(7, 5, of=1)
    linear(x, weight).mul_(2).sum().backward()
    (gradient,) = torch.autograd.grad((2 * F.linear(x, weight)).sum(), x)
    assert x.grad is not None
    assert torch.allclose(x.grad, gradient, atol=1e-5)


def test_autocast_and_other_kinds_of_numbers_are_torchs(way: bool) -> None:
    x, weight = random_leaf(3, 5), random_leaf(7, 5, of=1)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight).dtype == torch.bfloat16
    assert linear(x.double(), weight.double()).dtype == torch.float64
    assert torch.equal(linear(x.double(), weight.double()), F.linear(x.double(), weight.double()))


def test_names_and_weights_are_those_of_torchs_layer() -> None:
    torch.manual_seed(0)
    ours = Linear(3, 4)
    torch.manual_seed(0)
    assert {n: t.tolist() for n, t in ours.state_dict().items()} == {
        n: t.tolist() for n, t in torch.nn.Linear(3, 4).state_dict().items()
    }


@given(st.integers(0, 9), st.integers(1, 40), st.integers(1, 40), st.booleans())
def test_packed_it_is_the_same_layer(rows: int, channels: int, out: int, biased: bool) -> None:
    x, weight = random_leaf(rows, channels).detach(), random_leaf(channels, out, of=1).detach().T
    bias = random_leaf(out, of=2).detach() if biased else None
    with torch.inference_mode():
        assert torch.allclose(Packed(weight, bias)(x), F.linear(x, weight, bias), atol=1e-5)


def test_packed_it_is_onednn_only_where_it_should_be() -> None:
    x, weight = random_leaf(3, 5).detach(), random_leaf(7, 5, of=1)
    expected = F.linear(x, weight)
    packed, double = Packed(weight), Packed(weight.double())
    with patch.object(cpu, "has_onednn", return_value=False):
        plain = Packed(weight)
    with patch.object(cpu, "_onednn", wraps=cpu._onednn) as onednn, torch.no_grad():
        assert torch.equal(plain(x), expected)
        assert torch.allclose(double(x.double()), expected.double(), atol=1e-5)
        with torch.autocast("cpu", torch.bfloat16):
            assert packed(x).dtype == torch.bfloat16
        assert onednn.call_count == 0
        assert torch.allclose(packed(x), expected, atol=1e-5)
        assert onednn.call_count == 1


@pytest.mark.parametrize("only_infers", [True, False])
def test_a_network_with_kernels_is_the_same_network(only_infers: bool) -> None:
    torch.manual_seed(0)
    plain, x = Block(64), random_leaf(2, 5, 64).detach()
    with patch.object(cpu, "has_onednn_on_amd", return_value=True):
        other = use_kernels(deepcopy(plain), only_infers)
        copied = deepcopy(other)
        copied.mlp.c_fc.weight.data.zero_()
        with torch.inference_mode():
            assert torch.allclose(other(x), plain(x), atol=1e-5)
            assert torch.allclose(
                other.forward_rows((1, 3), x), plain.forward_rows((1, 3), x), atol=1e-5
            )
            assert not torch.allclose(copied(x), plain(x), atol=1e-5)
    assert other.state_dict().keys() == plain.state_dict().keys()
    assert (type(other.mlp.c_fc) is Linear) == (not only_infers)


def test_layers_that_do_not_learn_stay_torchs_own() -> None:
    """Keeps away: features of a frozen backbone that are not those of the shards."""
    frozen, learning = nn.Linear(3, 4).requires_grad_(False), nn.Linear(3, 4)
    with patch.object(cpu, "has_onednn_on_amd", return_value=True):
        use_kernels(nn.ModuleList((frozen, learning)))
    assert type(frozen) is nn.Linear
    assert type(learning) is Linear


def test_another_device_has_torchs_own() -> None:
    with patch.object(cpu, "has_onednn_on_amd", return_value=True):
        assert type(use_kernels(nn.Linear(3, 4, device="meta"))) is nn.Linear
