"""Reference captions in COCO's annotation format, which the official scripts read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

WITHOUT_CAPTIONS = "without_captions"


def image_ids(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """The id of each sample by its JSON: the official one, or else its key.

    Keys for all if two samples have the same official id: pairs of several data sets, say.
    """
    official = [str(meta.get("image_id") or meta["key"]) for meta in facts]
    if not facts or Counter(official).most_common(1)[0][1] == 1:
        return official
    return [str(meta["key"]) for meta in facts]


def own_names(name: str, meta: Mapping[str, Any]) -> dict[str, str]:
    """The pair's id in its data set and its two images, where its name is no official id.

    Keys are cut and hold digests: of a key alone nobody could tell whose images it means. Images
    outside the data set's root are not named: the files that hold these names are handed on.
    """
    if name != meta["key"]:
        return {}
    names = {"pair": meta.get("id"), "before": meta.get("before"), "after": meta.get("after")}
    inside = {what: str(value) for what, value in names.items() if value}
    return {what: value for what, value in inside.items() if not _is_outside(value)}


def _is_outside(reference: str) -> bool:
    return "://" in reference or reference.startswith(("/", "../")) or reference[1:3] == ":\\"


def references(facts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """COCO's annotation format of samples by their JSON.

    Kind and change type are added to each image: `cc-train evaluate` scores by them. So do the
    names of an own pair, which predictions may go by. The ids of
    samples without captions are in a list of their own, since the official scripts fail on an image
    without annotations.
    """
    metas = list(facts)
    with_captions = [meta for meta in metas if meta.get("captions")]
    names = image_ids(with_captions)
    named = zip(image_ids(metas), metas, strict=True)
    uncaptioned = [name for name, meta in named if not meta.get("captions")]
    return {
        "info": {"description": "made by the change captioning toolkit"},
        "licenses": [],
        "type": "captions",
        **({WITHOUT_CAPTIONS: uncaptioned} if uncaptioned else {}),
        "images": [
            {
                "id": name,
                "filename": name,
                "kind": meta.get("kind"),
                "change_type": meta.get("change_type"),
                **own_names(name, meta),
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
