"""Settings of a run as others get them: without folders of the machine of its training.

A folder there names users and projects, and means nothing on another machine. All texts of settings
that do not have the role PLACE, such as prompts, stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from cc_prep.redaction import last_part, values_without_folders
from cc_prep.settings import Role, keys
from cc_train import systems


@cache
def place_names() -> frozenset[str]:
    """The keys, at any depth, by which runs of any system name files, as one may hold the settings
    of another; `tokenizer` is no setting, but recorded of the shards.
    """
    sections = (systems.recipe(name).Settings for name in systems.names())
    places = (key for section in sections for key in keys(section, role=Role.PLACE))
    return frozenset({"tokenizer", *(key.rpartition(".")[2] for key in places)})


def portable(settings: Any) -> Any:
    """The settings, as JSON, with each path cut to its last part, relative ones too.

    Names stay, and so do addresses such as `s3://bucket/w.pt`.
    """
    if isinstance(settings, (list, tuple)):
        return [portable(one) for one in settings]
    if not isinstance(settings, Mapping):
        return settings
    return {
        key: last_part(value)
        if key in place_names() and isinstance(value, str)
        else portable(value)
        for key, value in settings.items()
    }


def shown(settings: Mapping[str, Any]) -> Any:
    """The settings as cards, pages and rows of the zoo show them: also without the absolute paths
    of any other key."""
    return values_without_folders(portable(settings))
