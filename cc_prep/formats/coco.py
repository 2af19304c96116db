"""Reference captions in COCO's annotation format, which the official scripts read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def image_ids(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """The id of each sample by its JSON: the official one, or else its key.

    Keys for all if two samples have the same official id: pairs of several data sets, say.
    """
    official = [str(meta.get("image_id") or meta["key"]) for meta in facts]
    if not facts or Counter(official).most_common(1)[0][1] == 1:
        return official
    return [str(meta["key"]) for meta in facts]


def references(facts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """COCO's annotation format of samples by their JSON, those without captions left out.

    Kind and change type stand beside each image: `cc-train evaluate` scores by them.
    """
    with_captions = [meta for meta in facts if meta.get("captions")]
    names = image_ids(with_captions)
    return {
        "info": {"description": "made by the change captioning toolkit"},
        "licenses": [],
        "type": "captions",
        "images": [
            {
                "id": name,
                "filename": name,
                "kind": meta.get("kind"),
                "change_type": meta.get("change_type"),
            }
            for name, meta in zip(names, with_captions, strict=True)
        ],
        "annotations": [
            {"id": number, "image_id": name, "caption": caption}
            for number, (name, caption) in enumerate(
                (name, caption)
                for name, meta in zip(names, with_captions, strict=True)
                for caption in meta["captions"]
            )
        ],
    }
