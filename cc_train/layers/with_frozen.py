"""A module that uses a frozen one which others own."""

from __future__ import annotations

from typing import Any

from torch import nn


class WithFrozen(nn.Module):
    """A module that takes a frozen one along when it is moved or cast.

    The frozen module is no submodule: neither `state_dict` nor `parameters` has its tensors. None
    stands for no frozen module.
    """

    _frozen: nn.Module | None

    def use_frozen(self, name: str, module: nn.Module | None) -> None:
        """Sets the attribute `name`, which the class declares, to the frozen module."""
        for attribute in (name, "_frozen"):
            object.__setattr__(self, attribute, module)  # a plain assignment makes a submodule

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        if self._frozen is not None:
            self._frozen._apply(fn, recurse)
        return super()._apply(fn, recurse)
