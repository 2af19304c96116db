"""A frozen module moves along with the module that uses it, and is no part of it."""

from __future__ import annotations

import copy

import torch
from torch import nn

from cc_train.layers.with_frozen import WithFrozen


class Trained(WithFrozen):
    backbone: nn.Linear | None

    def __init__(self, backbone: nn.Linear | None) -> None:
        super().__init__()
        self.use_frozen("backbone", backbone)
        self.head = nn.Linear(1, 1, bias=False)


def test_a_frozen_module_is_cast_along_and_is_no_part() -> None:
    """Keeps away: backbones in checkpoints, and backbones that stay behind on the CPU."""
    network = Trained(nn.Linear(2, 2)).to(torch.float64)
    assert network.backbone is not None
    assert network.backbone.weight.dtype == torch.float64
    assert list(network.state_dict()) == [name for name, _ in network.named_parameters()]
    assert list(network.state_dict()) == ["head.weight"]


def test_a_copy_casts_its_own_frozen_module() -> None:
    """Keeps away: the running average of a network that moves the backbone of the original."""
    network = Trained(nn.Linear(2, 2))
    other = copy.deepcopy(network).to(torch.float64)
    assert other.backbone is not None
    assert network.backbone is not None
    assert other.backbone.weight.dtype == torch.float64
    assert network.backbone.weight.dtype == torch.float32


def test_a_module_without_a_frozen_one_is_cast_alone() -> None:
    network = Trained(None).to(torch.float64)
    assert network.backbone is None
    assert network.head.weight.dtype == torch.float64
