"""ResNet-101 takes torchvision's checkpoint: names, shapes, the stride in the 3×3 filter."""

from __future__ import annotations

import pytest
import torch

from cc_prep.errors import UserError
from cc_prep.models.resnet import CHANNELS, ResNet101


def test_third_stage_of_a_torchvision_checkpoint() -> None:
    """The last stage and the classifier, which the file holds too, are left alone."""
    torch.manual_seed(0)
    tensors = ResNet101().state_dict()
    assert len(tensors) == 6 + (3 + 4 + 23) * 18 + 3 * 6
    for name, shape in {
        "conv1.weight": (64, 3, 7, 7),
        "layer1.0.downsample.0.weight": (256, 64, 1, 1),
        "layer2.0.conv1.weight": (128, 256, 1, 1),
        "layer3.0.conv2.weight": (256, 256, 3, 3),
        "layer3.22.bn3.running_var": (1024,),
        "layer3.0.downsample.1.weight": (1024,),
    }.items():
        assert tuple(tensors[name].shape) == shape
    others = {"layer4.0.conv1.weight": torch.zeros(1), "fc.bias": torch.zeros(1000)}
    network = ResNet101.from_tensors({**tensors, **others})
    features = network(torch.rand(2, 3, 64, 96))
    assert features.shape == (2, CHANNELS, 4, 6)
    assert not any(parameter.requires_grad for parameter in network.parameters())


def test_the_stride_is_in_the_filter() -> None:
    """Keeps away: Caffe's variant, whose stride is in the first 1×1 convolution."""
    block = ResNet101().get_submodule("layer2.0")
    assert (block.conv1.stride, block.conv2.stride) == ((1, 1), (2, 2))


def test_images_are_normalised_as_imagenet_s() -> None:
    network = ResNet101().eval()
    seen: list[torch.Tensor] = []
    network.conv1.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    network(torch.tensor((0.485, 0.456, 0.406)).view(1, 3, 1, 1).expand(1, 3, 32, 32))
    assert seen[0].abs().max() < 1e-6


def test_other_weights_are_refused() -> None:
    with pytest.raises(UserError, match="ResNet-101"):
        ResNet101.from_tensors({"a": torch.zeros(1)})
