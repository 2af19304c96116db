"""The rule of all layers with attention: their heads divide their width."""

from __future__ import annotations

from pydantic import Field, model_validator

from cc_prep.settings import Conflict, Section


class AttentionSizes(Section):
    """Sizes of layers whose heads share their width evenly."""

    width: int = Field(ge=1)
    """Channels."""
    heads: int = Field(ge=1)
    """Attention heads."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> AttentionSizes:
        require_divisible(self.width, self.heads)
        return self


def require_divisible(
    width: int, heads: int, width_key: str = "width", heads_key: str = "heads"
) -> None:
    """Raises Conflict, which names the keys, for a width that the heads do not divide."""
    if width % heads:
        raise Conflict(
            f"{width_key} ({width}) is not divisible by {heads_key} ({heads})",
            "Change one of them",
        )
