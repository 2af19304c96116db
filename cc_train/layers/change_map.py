"""Where each of several changes is: a map of types over the places of both images.

A change is at the place of its object's centre, before and after. A found place then tells the
attributes of the object and, by pointing at it in the other image, what became of it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from cc_prep.settings import Section
from cc_train.data.supervision import FactVocabulary

NONE_BIAS = 6.0  # of the type `none` at the start: nearly all places are unchanged


class ChangeMapSettings(Section):
    """A head that finds several changes in a pair."""

    layers: int = Field(2, ge=1)
    """Layers of attention over all places."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout in them."""
    min_mass: float = Field(0.5, gt=0, lt=1)
    """How much of a change must be seen in 3 × 3 places for it to be said."""


class ChangeMaps(NamedTuple):
    """What is seen at the N places of P pairs.

    Attributes:
        before, after: Logits of the type of change of the object whose centre is there in the first
            and in the second image, [P, N, types].
        tokens: What the rest is read from, [P, N, D].
    """

    before: Tensor
    after: Tensor
    tokens: Tensor


class ChangeMap(nn.Module):
    """Reads several changes from the differences between images.

    Args:
        width: D, the channels of the differences.
        heads: Of the attention.
        vocabulary: Types, attributes, and which of these get new values.
    """

    def __init__(
        self, width: int, heads: int, settings: ChangeMapSettings, vocabulary: FactVocabulary
    ) -> None:
        super().__init__()
        self.settings, self.vocabulary = settings, vocabulary
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width,
                heads,
                2 * width,
                settings.dropout,
                "gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(settings.layers)
        )
        self.norm = nn.LayerNorm(width)
        self.before, self.after = (nn.Linear(width, len(vocabulary.types)) for _ in range(2))
        for head in (self.before, self.after):
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)
            head.bias.data[0] = NONE_BIAS
        self.attributes = nn.Linear(width, sum(vocabulary.attribute_classes))
        self.new = nn.Linear(width, sum(len(vocabulary.attributes[n]) for n in vocabulary.new))
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, differences: Tensor, positions: Tensor) -> ChangeMaps:
        """The maps.

        Args:
            differences: [P, N, D].
            positions: Of the places, [N, D].
        """
        tokens = differences + positions
        for layer in self.layers:
            tokens = layer(tokens)
        tokens = self.norm(tokens)
        return ChangeMaps(self.before(tokens).float(), self.after(tokens).float(), tokens)

    def counterparts(self, tokens: Tensor, images: Tensor, positions: Tensor) -> Tensor:
        """Logits [K, N] of where the objects at K places are in other images.

        Args:
            tokens: Of the places, [K, D].
            images: The other image of each, adapted features [K, N, D].
        """
        keys = self.key(images + positions)
        scale: float = tokens.shape[-1] ** -0.5
        return torch.einsum("kd,knd->kn", self.query(tokens), keys).float() * scale

    def new_values(self, tokens: Tensor, look: Tensor) -> Tensor:
        """Logits of the new values of objects, [K, new].

        Args:
            tokens: Of their places, [K, D].
            look: Logits of the attributes of their counterparts, [K, attributes].
        """
        parts = look.split(self.vocabulary.attribute_classes, dim=1)
        looks = dict(zip(self.vocabulary.attributes, parts, strict=True))
        out: Tensor = self.new(tokens) + torch.cat([looks[n] for n in self.vocabulary.new], dim=1)
        return out.float()


class Found(NamedTuple):
    """A change that a map shows.

    Attributes:
        type: Its class.
        place: (u, v), each 0 to 1.
        weights: Of the places that show it, [N], with the sum 1.
        mass: How much of it is seen, about 0 to 1.
    """

    type: int
    place: tuple[float, float]
    weights: Tensor
    mass: float


def peaks(chances: Tensor, grid: tuple[int, int], min_mass: float) -> tuple[list[Found], float]:
    """The changes that a map shows, and the largest mass that is left.

    An object's centre near the border of two places is half at each, so 3 × 3 places are summed up;
    two neighbouring objects have two units of mass, each of which is taken once.

    Args:
        chances: Of each type but `none`, [N, types]; `none` is column 0 and 0.
        grid: Rows and columns.
    """
    rows, columns = grid
    left = chances.unflatten(0, grid).clone()  # [rows, columns, types]
    found: list[Found] = []
    while True:
        mass = left.sum(2)
        around = F.avg_pool2d(mass[None, None], 3, 1, 1, divisor_override=1)[0, 0]
        best = int((around + 1e-3 * mass).argmax())
        row, column = divmod(best, columns)
        if around[row, column] < min_mass:
            return found, float(around[row, column])
        window = torch.zeros_like(mass)
        rows_at = slice(max(0, row - 1), row + 2)
        columns_at = slice(max(0, column - 1), column + 2)
        window[rows_at, columns_at] = mass[rows_at, columns_at]
        taken = _unit(window.flatten()).view_as(window)
        kinds = (left * (taken / mass.clamp(min=1e-9))[..., None]).sum((0, 1))
        weights = taken / taken.sum()
        v, u = (
            float((weights * (torch.arange(n) + 0.5).view(shape) / n).sum())
            for n, shape in ((rows, (-1, 1)), (columns, (1, -1)))
        )
        found.append(
            Found(int(kinds.argmax()), (u, v), weights.flatten(), min(1.0, float(kinds.max())))
        )
        left = left * (1 - taken / mass.clamp(min=1e-9))[..., None]


def _unit(mass: Tensor) -> Tensor:
    """Up to one unit of mass [N], from the largest on."""
    ordered, order = mass.sort(descending=True)
    before = ordered.cumsum(0) - ordered
    taken = torch.minimum(ordered, (1 - before).clamp(min=0))
    return torch.zeros_like(mass).scatter(0, order, taken)
