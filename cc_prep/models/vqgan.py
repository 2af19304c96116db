"""VQGAN: an image to a grid of codebook indices and back (taming-transformers' `VQModel`).

Module names follow its checkpoints, so their tensors load by name. The positions of attention
layers are read from the keys of a checkpoint: the reference's `attn_resolutions: [16]` at 224 px
names a resolution that never occurs, so a checkpoint made at 256 px silently loses 50 tensors under
it. Whoever wants just that gives the configuration, and the unused names are printed.
Source: Esser et al., "Taming Transformers for High-Resolution Image Synthesis", CVPR 2021.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from cc_prep.errors import UserError
from cc_prep.settings import Section

GROUPS, EPS = 32, 1e-6
CODES_AT_ONCE = 4096
LARGE_SIDE = 48  # px of images for which other convolutions pay
REMEDY = "Give a checkpoint of taming-transformers, weights of cc-train vqgan, or vqgan-mini"


class Config(Section):
    """Sizes of a VQGAN; the defaults are the reference's."""

    channels: int = Field(128, ge=32, multiple_of=32)
    """Channels at full size."""
    multipliers: tuple[int, ...] = Field((1, 1, 2, 2, 4), strict=False, min_length=1)
    """Channels of each level in units of `channels`; each level but the last halves the size."""
    blocks: int = Field(2, ge=1)
    """Residual blocks of a level."""
    latent: int = Field(256, ge=1)
    """Channels of the encoder's output."""
    codes: int = Field(1024, ge=2, le=32768)
    """Codes of the codebook."""
    code_width: int = Field(256, ge=1)
    """Channels of a code."""
    attention: tuple[int, ...] = Field((), strict=False)
    """Levels that have attention, from 0 at full size; the middle always has."""

    @property
    def factor(self) -> int:
        """Pixels a token, along a side."""
        return int(2 ** (len(self.multipliers) - 1))

    @classmethod
    def of(
        cls, shapes: Mapping[str, tuple[int, ...]], ddconfig: Mapping[str, Any] | None = None
    ) -> Config:
        """Read off a checkpoint's shapes, its attention as `ddconfig` has it if that is given; the
        bounds of the keys, which are those of new trainings, do not count.

        Raises:
            KeyError: For what is no VQGAN.
        """
        base = shapes["encoder.conv_in.weight"][0]
        levels = _count(shapes, "encoder.down.")
        blocks = _count(shapes, "encoder.down.0.block.")
        outs = [shapes[f"encoder.down.{i}.block.0.conv2.weight"][0] for i in range(levels)]
        attention = [i for i in range(levels) if f"encoder.down.{i}.attn.0.q.weight" in shapes]
        if ddconfig is not None:
            size, resolutions = int(ddconfig["resolution"]), ddconfig["attn_resolutions"]
            attention = [i for i in range(levels) if size // 2**i in resolutions]
        codes, code_width = shapes["quantize.embedding.weight"]
        return cls.model_construct(
            channels=base,
            multipliers=tuple(out // base for out in outs),
            blocks=blocks,
            latent=shapes["encoder.conv_out.weight"][0],
            codes=codes,
            code_width=code_width,
            attention=tuple(attention),
        )


class VQGAN(nn.Module):
    """Encoder, codebook, decoder.

    Images are [N, 3, H, W] in [0, 1], their sides multiples of `config.factor`.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.encoder, self.decoder = Encoder(config), Decoder(config)
        self.quantize = Codebook(config.codes, config.code_width)
        self.quant_conv = nn.Conv2d(config.latent, config.code_width, 1)
        self.post_quant_conv = nn.Conv2d(config.code_width, config.latent, 1)

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Tensor], ddconfig: Mapping[str, Any] | None = None
    ) -> tuple[VQGAN, list[str]]:
        """A network with a checkpoint's tensors, and the names in it that were not used.

        Args:
            ddconfig: The reference's configuration, to drop the attention that it drops (ProCap's
                published tokens were made so). Without it every attention in the file is used. The
                training's `loss.*` is not counted among the unused.

        Raises:
            UserError: For what is no VQGAN.
        """
        own = {name: t.float() for name, t in tensors.items() if not name.startswith("loss.")}
        try:
            network = cls(Config.of({n: tuple(t.shape) for n, t in own.items()}, ddconfig))
        except (KeyError, ValueError) as error:
            reason = f"these are no VQGAN weights: no {error.args[0]} in them"
            raise UserError(reason, REMEDY) from None
        expected = network.state_dict()
        for name, tensor in expected.items():
            if name not in own:
                raise UserError(f"these are no VQGAN weights: no {name} in them", REMEDY)
            if own[name].shape != tensor.shape:
                raise UserError(
                    f"these are no VQGAN weights: {name} is {tuple(own[name].shape)}, "
                    f"not {tuple(tensor.shape)}",
                    REMEDY,
                )
        network.load_state_dict({name: own[name] for name in expected})
        return network.eval(), sorted(own.keys() - expected.keys())

    def features(self, images: Tensor) -> Tensor:
        """Encoder output before `quant_conv`, [N, latent, h, w]; of 2x − 1, as it was trained."""
        out: Tensor = self.encoder(2 * images - 1)
        return out

    def indices(self, features: Tensor) -> Tensor:
        """Codebook indices, int64 [N, h, w], of what `features` gives."""
        return self.quantize.nearest(self.quant_conv(features))

    def vectors(self, indices: Tensor) -> Tensor:
        """Indices [N, h, w] → the decoder's input, [N, latent, h, w]."""
        out: Tensor = self.post_quant_conv(self.quantize.embedding(indices).permute(0, 3, 1, 2))
        return out

    def decode(self, vectors: Tensor) -> Tensor:
        """What `vectors` gives → images [N, 3, H, W] in [0, 1]."""
        out: Tensor = self.decoder(vectors)
        return (out.clamp(-1, 1) + 1) / 2


class Codebook(nn.Module):
    """The code vectors."""

    def __init__(self, codes: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(codes, width)
        nn.init.uniform_(self.embedding.weight, -1 / codes, 1 / codes)

    def nearest(self, vectors: Tensor) -> Tensor:
        """Index of the nearest code by squared distance: [N, C, h, w] → int64 [N, h, w].

        Goes through the positions in slices, so the full distance matrix is never in memory. In
        float32 also under autocast: rounded distances would choose other codes.
        """
        n, c, h, w = vectors.shape
        flat = vectors.permute(0, 2, 3, 1).reshape(-1, c).float()
        codes = self.embedding.weight.float()
        with torch.autocast(vectors.device.type, enabled=False):
            # |v|² is the same for all codes of a position, so it does not decide.
            squares = codes.square().sum(1)
            parts = flat.split(CODES_AT_ONCE)
            nearest = [(squares - 2 * part @ codes.T).argmin(1) for part in parts]
        return torch.cat(nearest).view(n, h, w)


class Level(nn.Module):
    """Residual blocks of one size, each with its attention where the level has it.

    Encoder and decoder add the module that leads on to the next size.
    """

    def __init__(self, channels: int, out: int, blocks: int, attention: bool) -> None:
        super().__init__()
        widths = [channels, *[out] * blocks]
        self.block = nn.ModuleList(ResidualBlock(widths[i], out) for i in range(blocks))
        self.attn = nn.ModuleList(AttentionBlock(out) for _ in range(blocks if attention else 0))

    def forward(self, x: Tensor) -> Tensor:
        for number, block in enumerate(self.block):
            x = block(x)
            if len(self.attn):
                x = self.attn[number](x)
        for name in ("downsample", "upsample"):
            if name in self._modules:
                x = self.get_submodule(name)(x)
        return x


class Encoder(nn.Module):
    """Images in [−1, 1] → features [N, latent, h, w]."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        widths = [config.channels * m for m in (1, *config.multipliers)]
        last = len(config.multipliers) - 1
        self.conv_in = nn.Conv2d(3, config.channels, 3, padding=1)
        self.down = nn.ModuleList()
        for i in range(last + 1):
            level = Level(widths[i], widths[i + 1], config.blocks, i in config.attention)
            if i < last:
                level.add_module("downsample", Downsample(widths[i + 1]))
            self.down.append(level)
        self.mid = Middle(widths[-1])
        self.norm_out = norm(widths[-1])
        self.conv_out = nn.Conv2d(widths[-1], config.latent, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_in(x)
        for level in self.down:
            x = level(x)
        out: Tensor = self.conv_out(swish(self.norm_out(self.mid(x))))
        return out


class Decoder(nn.Module):
    """Features [N, latent, h, w] → images in about [−1, 1]."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        widths = [config.channels * m for m in config.multipliers]
        self.conv_in = nn.Conv2d(config.latent, widths[-1], 3, padding=1)
        self.mid = Middle(widths[-1])
        self.up = nn.ModuleList()
        for i, width in enumerate(widths):
            coarser = widths[min(i + 1, len(widths) - 1)]
            level = Level(coarser, width, config.blocks + 1, i in config.attention)
            if i > 0:
                level.add_module("upsample", Upsample(width))
            self.up.append(level)
        self.norm_out = norm(widths[0])
        self.conv_out = nn.Conv2d(widths[0], 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mid(self.conv_in(x))
        for level in reversed(self.up):
            x = level(x)
        out: Tensor = self.conv_out(swish(self.norm_out(x)))
        return out


class Middle(nn.Module):
    """Residual, attention, residual at the coarsest size."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.block_1 = ResidualBlock(channels, channels)
        self.attn_1 = AttentionBlock(channels)
        self.block_2 = ResidualBlock(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.block_2(self.attn_1(self.block_1(x)))
        return out


class Convolution3x3(nn.Conv2d):
    """A 3×3 convolution that keeps the size: [N, channels, H, W] → [N, out, H, W].

    Attributes:
        of_large_images: A kernel for large float32 images on a thread of their own, if there is
            one: of input, weights, bias and padding.
    """

    of_large_images: Callable[..., Tensor] | None = None

    def __init__(self, channels: int, out: int) -> None:
        super().__init__(channels, out, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        if self.of_large_images is None or not _is_large_and_alone(x):
            return super().forward(x)
        return self.of_large_images(x, self.weight, self.bias, 1)


class ResidualBlock(nn.Module):
    """Norm, swish, convolution, twice, around a shortcut."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = norm(channels), norm(out)
        self.conv1 = Convolution3x3(channels, out)
        self.conv2 = Convolution3x3(out, out)
        self.nin_shortcut = nn.Conv2d(channels, out, 1) if channels != out else None

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(swish(self.norm1(x)))
        h = self.conv2(swish(self.norm2(h)))
        out: Tensor = h + (x if self.nin_shortcut is None else self.nin_shortcut(x))
        return out


class AttentionBlock(nn.Module):
    """Single-head self-attention over all positions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = norm(channels)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(channels, channels, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        query, key, value = (
            layer(h).flatten(2).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        mixed = F.scaled_dot_product_attention(query, key, value)  # [N, h·w, C]
        out: Tensor = x + self.proj_out(mixed.transpose(1, 2).reshape(x.shape))
        return out


class Downsample(nn.Module):
    """Half the size: a zero row and column right and bottom, then a stride-2 convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(F.pad(x, (0, 1, 0, 1)))
        return out


class Upsample(nn.Module):
    """Twice the size by nearest neighbour, then a convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = Convolution3x3(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return out


def _is_large_and_alone(x: Tensor) -> bool:
    """Whether another kernel may take an input; what follows operations knows torch's own alone."""
    return (
        not torch.compiler.is_compiling()  # first: the others would break its graph
        and min(x.shape[2:]) >= LARGE_SIDE
        and x.is_cpu
        and x.dtype == torch.float32
        and torch.get_num_threads() == 1
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not is_in_torch_dispatch_mode()
    )


def swish(x: Tensor) -> Tensor:
    """x · sigmoid(x), written over `x` where no gradient needs it."""
    return F.silu(x, inplace=not torch.is_grad_enabled())


def norm(channels: int) -> nn.GroupNorm:
    """Group normalisation as the reference has it."""
    return nn.GroupNorm(GROUPS, channels, eps=EPS)


def _count(names: Iterable[str], prefix: str) -> int:
    """Number of numbered modules below `prefix`."""
    return len({n[len(prefix) :].split(".")[0] for n in names if n.startswith(prefix)})
