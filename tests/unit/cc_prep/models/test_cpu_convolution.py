"""Convolutions through NNPACK give what torch's own give; images side by side, what each alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cc_prep.models import cpu
from cc_prep.models.cpu import image_by_image, use_kernels
from cc_prep.models.vqgan import Convolution3x3

SIZE = (64, 60)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def layer() -> Convolution3x3:
    torch.manual_seed(0)
    return use_kernels(Convolution3x3(64, 72))


@pytest.fixture
def calls(layer: Convolution3x3) -> list[tuple[int, ...]]:
    """Shapes that go through NNPACK from now on."""
    seen: list[tuple[int, ...]] = []
    own = layer.of_large_images
    assert (own is not None) == torch._nnpack_available()

    def spy(x: Tensor, *rest: object) -> Tensor:
        assert own is not None
        seen.append(tuple(x.shape))
        return own(x, *rest)

    layer.of_large_images = own and spy
    return seen


def images(count: int, channels: int = 64) -> Tensor:
    return torch.randn(count, channels, *SIZE, generator=torch.Generator().manual_seed(1))


def through_nnpack(*shapes: tuple[int, ...]) -> list[tuple[int, ...]]:
    """What NNPACK is to get, where this torch and this processor have it."""
    return list(shapes) if torch._nnpack_available() else []


def exact(layer: Convolution3x3, x: Tensor) -> Tensor:
    assert layer.bias is not None
    return F.conv2d(x.double(), layer.weight.double(), layer.bias.double(), padding=1)


def test_large_images_go_through_nnpack_and_come_out_right(
    layer: Convolution3x3, calls: list[tuple[int, ...]]
) -> None:
    output = image_by_image(layer, images(3))
    assert calls == through_nnpack(*[(1, 64, *SIZE)] * 3)
    expected = exact(layer, images(3))
    assert output.shape == expected.shape
    assert (output - expected).abs().max() < 2e-4 * expected.abs().mean()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_an_image_is_the_same_in_every_company(layer: Convolution3x3, threads: int) -> None:
    torch.set_num_threads(threads)
    together = image_by_image(layer, images(5))
    assert torch.get_num_threads() == threads
    for place in (0, 4):
        torch.set_num_threads(4 - threads)
        assert torch.equal(image_by_image(layer, images(5)[[place]])[0], together[place])


def test_an_image_has_one_thread() -> None:
    torch.set_num_threads(2)
    output = image_by_image(lambda x: x[:, 0, 0, 0] + torch.get_num_threads(), images(4))
    assert torch.equal(output, images(4)[:, 0, 0, 0] + 1)


def test_layouts_do_not_matter(layer: Convolution3x3) -> None:
    last = images(2).contiguous(memory_format=torch.channels_last)
    assert torch.equal(image_by_image(layer, last), image_by_image(layer, images(2)))


def test_elsewhere_it_is_torchs_convolution(
    layer: Convolution3x3, calls: list[tuple[int, ...]]
) -> None:
    torch.set_num_threads(2)
    direct = layer(images(2))
    direct.sum().backward()
    assert layer.weight.grad is not None
    assert torch.allclose(direct.double(), exact(layer, images(2)), atol=1e-5)
    with torch.no_grad():
        assert torch.equal(layer(images(2)), direct)
    small, narrow = images(2)[..., :40], use_kernels(Convolution3x3(32, 8))
    assert narrow.of_large_images is None
    assert torch.allclose(image_by_image(layer, small).double(), exact(layer, small), atol=1e-5)
    assert image_by_image(narrow, images(2, 32)).shape == (2, 8, *SIZE)
    assert calls == []


def test_a_thread_has_its_callers_autocast_and_no_gradients(
    layer: Convolution3x3, calls: list[tuple[int, ...]]
) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        output = image_by_image(layer, images(2))
        assert torch.equal(output, torch.cat([layer(one) for one in images(2).split(1)]))
    assert output.dtype == torch.bfloat16
    assert not output.requires_grad
    assert calls == []
    assert not image_by_image(layer, images(2)).requires_grad


def test_torch_compile_takes_it(layer: Convolution3x3, calls: list[tuple[int, ...]]) -> None:
    output = torch.compile(lambda x: image_by_image(layer, x) + 1, backend="eager")(images(2))
    assert not output.requires_grad
    assert torch.allclose(output.double() - 1, exact(layer, images(2)), atol=1e-5)
    assert calls == []


def test_what_goes_wrong_in_a_thread_is_told(layer: Convolution3x3) -> None:
    with pytest.raises(RuntimeError, match="channels"):
        image_by_image(layer, images(2, channels=8))


def test_a_forked_process_has_threads_of_its_own(layer: Convolution3x3) -> None:
    torch.set_num_threads(1)  # OpenMP's own do not live on in a fork
    here = image_by_image(layer, images(2))
    child = os.fork()
    if not child:
        signal.alarm(30)  # a fork that hangs ends, and not with 0
        os._exit(0 if torch.equal(image_by_image(layer, images(2)), here) else 1)
    assert os.waitpid(child, 0)[1] == 0


class Gpu:
    """Images on no device at all, and a network there that holds only so many of them."""

    def __init__(self, most: int) -> None:
        self.most, self.sizes = most, list[int]()

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(images))
        if len(images) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return images[:, :1]


@pytest.mark.parametrize(
    ("side", "most", "sizes"),
    [
        (224, 9, [9]),
        (224, 4, [9, 5, 3, 3, 3]),
        (1024, 9, [4, 4, 1]),
        (4000, 1, [1] * 9),
    ],
)
def test_on_a_gpu_images_go_through_in_chunks(side: int, most: int, sizes: list[int]) -> None:
    """Keeps away: a pair of large photographs that is rejected, though each frame fits alone."""
    network = Gpu(most)
    result = cpu.image_by_image(network, torch.empty(9, 3, side, side, device="meta"))
    assert result.shape == (9, 1, side, side)
    assert network.sizes == sizes


def test_a_network_that_enlarges_has_fewer_at_once() -> None:
    """Keeps away: a decoder whose small input hides how large its images are."""
    network = Gpu(9)
    cpu.image_by_image(network, torch.empty(9, 3, 64, 64, device="meta"), 16)
    assert network.sizes == [4, 4, 1]


def test_an_image_too_large_alone_is_an_error() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        cpu.image_by_image(Gpu(0), torch.empty(3, 3, 64, 64, device="meta"))


def test_a_torch_without_nnpack_has_its_own_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: an AttributeError in every tokenising, once torch drops a private name."""
    monkeypatch.delattr(torch, "_nnpack_available")
    cpu._nnpack.cache_clear()
    assert use_kernels(Convolution3x3(64, 72)).of_large_images is None
    cpu._nnpack.cache_clear()
