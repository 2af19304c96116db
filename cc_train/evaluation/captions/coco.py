"""Predictions and references as files, in the formats of the field.

Predictions are read as
    COCO's results           [{"image_id": …, "caption": …}]   (also CLIP4IDC's hyp_ep_*.json)
    results by images        [{"before": …, "after": …, "caption": …}]
    an object                {id: caption}, or pycocoevalcap's {id: [caption]}
    ProCap's                 {"results": {name: [{"sentence": …}]}}
    SCORER's                 a folder with sc_results.json and nsc_results.json
and written as COCO's results. References are COCO's annotations, or {id: [captions]}.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.formats import coco
from cc_prep.records import CHANGE as CHANGED
from cc_prep.records import NO_CHANGE, Facts

CHANGE, STILL = "semantic change", "no change"
PREDICTIONS, REFERENCES = "predictions.json", "references.json"
SCORER_FILES = ("sc_results.json", "nsc_results.json")
STILL_END = "_n"  # of the official ids of CLEVR-Change's distractors
PREFIXES = ("CLEVR_default_", "CLEVR_semantic_")
STILL_PREFIX = "CLEVR_nonsemantic_"  # of the image after of a distractor
STILL_ENDS = (STILL_END, "nc")  # by ids, and by ProCap's names
SHOWN = 40  # characters of a value in a message
FORMATS = 'Give [{"image_id": …, "caption": …}], {id: caption}, ProCap\'s or SCORER\'s results'


@dataclass(frozen=True)
class Item:
    """A pair with its references, and the groups besides `total` that it counts for.

    Attributes:
        image_id: Its id in the official reference file, where there is one.
        aliases: Other names that systems give it.
        facts: What truly changed, of a rendered pair.
        own: Its id in its data set (`pair`) and its two images (`before`, `after`), where it has no
            official id.
    """

    id: str
    references: tuple[str, ...]
    groups: tuple[str, ...] = ()
    image_id: str = ""
    aliases: tuple[str, ...] = ()
    facts: Facts | None = None
    own: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the pair in files."""
        return self.image_id or self.id

    @property
    def is_changed(self) -> bool:
        """Whether something changed, as far as its data set says."""
        return STILL not in self.groups


def items(metas: Sequence[Mapping[str, Any]]) -> list[Item]:
    """Items of samples by their JSON; those without captions have no references.

    Raises:
        UserError: For facts of another form than ours.
    """
    names = coco.image_ids(metas)
    return [_item(name, meta) for name, meta in zip(names, metas, strict=True)]


def _item(image_id: str, meta: Mapping[str, Any]) -> Item:
    still = meta.get("kind") == NO_CHANGE
    groups = [STILL if still else CHANGE] if meta.get("kind") else []
    if not still and meta.get("change_type"):
        groups.append(str(meta["change_type"]))
    references = tuple(map(str, meta.get("captions") or ()))
    own = coco.own_names(image_id, meta)
    by_own_id = [own["pair"]] if "pair" in own else []
    files = [str(meta[side]).rpartition("/")[2] for side in ("before", "after") if meta.get(side)]
    return Item(
        id=str(meta["key"]),
        references=references,
        groups=tuple(groups),
        image_id=image_id,
        aliases=(*aliases(image_id), "_".join(files), *by_own_id, _of_images(own)),
        facts=Facts.of_sample(meta),
        own=own,
    )


def _of_images(names: Mapping[str, Any]) -> str:
    """The id of a pair for which its data set gives none, made from the names of its two images."""
    both = [names.get(side) for side in ("before", "after")]
    return " ".join(map(str, both)) if all(both) else ""


def aliases(image_id: str) -> list[str]:
    """`256.png` → `256`; `000007.png_n` → `000007_n` and ProCap's `000007.pngnc`, `000007nc`."""
    base = image_id.removesuffix(STILL_END)
    still = base != image_id
    stem = base.rpartition(".")[0] or base
    theirs = "nc" if still else "c"
    return [stem + (STILL_END if still else ""), base + theirs, stem + theirs]


def check_apart(out: Path, paths: Sequence[str]) -> None:
    """Raises UserError for input files that an evaluation in `out` would replace.

    Args:
        paths: Of predictions and references, as `read_predictions` and `read_references` take them.
    """
    own = {(out / name).resolve() for name in (PREDICTIONS, REFERENCES, *SCORER_FILES)}
    for file in (Path(path, name) for path in paths for name in ("", *SCORER_FILES)):
        if file.resolve() in own and file.exists():
            raise UserError(f"{file}: the evaluation would replace it", "Give another --out")


def read_predictions(paths: Sequence[str]) -> dict[str, str]:
    """Captions by the ids that the files give. Raises UserError."""
    captions: dict[str, str] = {}
    for path in paths:
        files = [path]
        if Path(path).is_dir():
            files = [str(Path(path) / n) for n in SCORER_FILES if (Path(path) / n).exists()]
            if not files:
                raise UserError(f"{path}: neither {' nor '.join(SCORER_FILES)} in it", FORMATS)
        for file in files:
            for id, caption in _predictions(file):
                if id in captions:
                    raise UserError(f"{file}: {id} has two predictions", "Give one caption a pair")
                captions[id] = caption
    return captions


def _predictions(file: str) -> list[tuple[str, str]]:
    content = _json(file)
    if isinstance(content, dict) and isinstance(content.get("results"), dict):
        named = {name: _first_sentence(one) for name, one in content["results"].items()}
    elif isinstance(content, dict) and isinstance(content.get("annotations"), list):
        return _listed(content["annotations"], file)
    elif isinstance(content, dict):
        named = {name: _only(one) for name, one in content.items()}
    elif isinstance(content, list):
        return _listed(content, file)
    else:
        raise UserError(f"{file}: no predictions", FORMATS)
    for name, caption in named.items():
        _check_text(caption, f"{file}, id {name}")
    return [(_whole(name), _whole(caption)) for name, caption in named.items()]


def _listed(rows: Sequence[Any], file: str) -> list[tuple[str, str]]:
    """Ids and captions of a list. Raises UserError for a row that lacks one of them."""
    captions = []
    for number, row in enumerate(rows, 1):
        place = f"{file}, row {number}"
        if not isinstance(row, dict):
            raise UserError(f"{place}: {_shown(row)} in place of an id and a caption", FORMATS)
        id = row.get("image_id")
        if id is None:
            id = _of_images(row) or None
        if not isinstance(id, (str, int)):
            known = "no image_id" if id is None else f"the image_id {_shown(id)}, not a text"
            raise UserError(f"{place}: {known}", FORMATS)
        caption = _only(row.get("caption"))
        _check_text(caption, f"{place} (id {id})")
        captions.append((_whole(str(id)), _whole(caption)))
    return captions


def _check_text(caption: Any, place: str) -> None:
    """Raises UserError for what is no text in place of a caption."""
    if not isinstance(caption, str):
        found = "no caption" if caption is None else f"{_shown(caption)} in place of one caption"
        raise UserError(f"{place}: {found}", FORMATS)


def _shown(value: Any) -> str:
    """A value as JSON has it, in short."""
    text = _whole(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} …"


def _only(value: Any) -> Any:
    """The text in a list of one, or in its object, as pycocoevalcap takes captions."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value.get("caption") if isinstance(value, dict) else value


def _whole(text: str) -> str:
    """A text with ? for half a pair of surrogates, which JSON may hold and no file can.

    Raises:
        TypeError: For what is no text, such as null in place of a caption.
    """
    return str.encode(text, "utf-8", "replace").decode()


def _first_sentence(sentences: Any) -> Any:
    first = sentences[0] if isinstance(sentences, list) and sentences else None
    return first.get("sentence") if isinstance(first, dict) else None


def matched(
    predictions: Mapping[str, str],
    items: Sequence[Item],
    predicted_only: bool = False,
    uncaptioned: Sequence[Item] = (),
) -> tuple[dict[str, str], list[Item]]:
    """Predictions by the items' own ids, and the items that have a prediction.

    A name of a pair is its key, its official id, or an alias that no other pair has.

    Args:
        uncaptioned: Pairs without references, whose predictions are left out.

    Raises:
        UserError: For a prediction that belongs to no pair, for two predictions of one pair, and,
            unless `predicted_only`, for a pair without a prediction.
    """
    names, not_scored = _names(items), _names(uncaptioned)
    captions: dict[str, str] = {}
    unknown = []
    for name, caption in predictions.items():
        id = names.get(name) or names.get(without_prefix(name))
        if id is None and (name in not_scored or without_prefix(name) in not_scored):
            continue
        if id is None:
            unknown.append(name)
        elif id in captions:
            raise UserError(f"{name}: the pair {id} has two predictions", "Give one a pair")
        else:
            captions[id] = caption
    if unknown:
        raise UserError(
            f"{len(unknown)} predictions are of no pair of the references, such as {unknown[0]!r}",
            f"Ids there look like {_of_images(items[0].own) or items[0].name!r}",
        )
    predicted = [item for item in items if item.id in captions]
    if len(predicted) < len(items) and not predicted_only:
        missing = next(item for item in items if item.id not in captions)
        raise UserError(
            f"{len(items) - len(predicted)} of {len(items)} pairs have no prediction, such as "
            f"{missing.name!r}",
            "Predict for all, or score the others with --predicted-only, as COCO's script does",
        )
    return captions, predicted


def without_prefix(name: str) -> str:
    """The id of a pair, for the name of an image file in CLEVR-Change; other names are unchanged.

    `CLEVR_semantic_000001.png` → `000001.png`; `CLEVR_nonsemantic_000001.png` → `000001.png_n`.
    """
    if name.startswith(STILL_PREFIX):
        base = name.removeprefix(STILL_PREFIX)
        return base if base.endswith(STILL_ENDS) else base + STILL_END
    return next((name[len(p) :] for p in PREFIXES if name.startswith(p)), name)


def scene_of(name: str) -> str:
    """The part of a pair's official id, or of its key, that all pairs of its scene have.

    `000007.png_n` → `000007.png`; `clevr-test-7-no_change` and `clevr-test-7-change` →
    `clevr-test-7`. Any other name is a scene of its own.
    """
    for end in (STILL_END, f"-{NO_CHANGE}", f"-{CHANGED}"):
        name = name.removesuffix(end)
    return name


def _is_still(item: Item) -> bool:
    """Whether a pair is a distractor, by its reference file or its id."""
    return STILL in item.groups or without_prefix(item.name).endswith(STILL_END)


def _names(items: Sequence[Item]) -> dict[str, str]:
    sure = {name: item.id for item in items for name in (item.name, item.id)}
    several: dict[str, set[str]] = {}
    for item in items:
        for alias in item.aliases:
            several.setdefault(alias, set()).add(item.id)
    alone = {alias: next(iter(ids)) for alias, ids in several.items() if len(ids) == 1 and alias}
    return {**alone, **sure}


def read_references(path: str) -> list[Item]:
    """Items from COCO's annotation format, or a JSON object of lists. Raises UserError.

    The kind and the change type that `cc-prep references` adds to an image become groups.
    """
    captioned = [meta for meta in _referenced(path, _json(path)) if meta["captions"]]
    if not captioned:
        raise UserError(f"{path}: not one reference caption in it", "Give a captioned split")
    return items(captioned)


def read_uncaptioned(path: str) -> list[Item]:
    """The pairs without captions in a file of references. Raises UserError.

    They are in the list of `cc-prep references`, images without annotations, or empty lists.
    """
    content = _json(path)
    referenced = _referenced(path, content)
    uncaptioned = [meta for meta in referenced if not meta["captions"]]
    if "annotations" in content:
        listed = content.get(coco.WITHOUT_CAPTIONS, [])
        if not isinstance(listed, list) or not all(isinstance(id, str) for id in listed):
            raise UserError(
                f"{path}: {coco.WITHOUT_CAPTIONS} is no list of ids",
                "Run cc-prep references again",
            )
        there = {meta["key"] for meta in uncaptioned}
        uncaptioned += [{"key": id} for id in listed if id not in there]
    return items(uncaptioned)


def blank_references(path: str) -> list[str]:
    """The id of each blank caption in a file of references. Raises UserError.

    They are scored as the official scripts do, whose figures others report.
    """
    return [
        meta["key"]
        for meta in _referenced(path, _json(path))
        for caption in meta["captions"]
        if not caption.strip()
    ]


def _referenced(path: str, content: Any) -> list[dict[str, Any]]:
    """What a file of references says of each pair, as a sample's JSON. Raises UserError."""
    facts: dict[str, dict[str, Any]] = {}
    place = path
    try:
        if "annotations" in content:
            for number, image in enumerate(content.get("images", ()), 1):
                place = f"{path}, image {number}"
                known = {n: image.get(n) for n in ("kind", "change_type", "before", "after")}
                own = {"id": image.get("pair")}
                facts[_whole(str(image["id"]))] = {**known, **own, "captions": []}
            for number, row in enumerate(content["annotations"], 1):
                place = f"{path}, annotation {number}"
                fact = facts.setdefault(_whole(str(row["image_id"])), {"captions": []})
                fact["captions"].append(_whole(row["caption"]))
        else:
            for id, captions in content.items():
                place = f"{path}, id {id}"
                texts = [captions] if isinstance(captions, str) else captions
                facts[_whole(id)] = {"captions": [_whole(text) for text in texts]}
    except (TypeError, KeyError, AttributeError):
        raise UserError(
            f"{place}: no references",
            "Give COCO annotations, as cc-prep references NAME writes them, or {id: [captions]}",
        ) from None
    return [{"key": id, **fact} for id, fact in facts.items()]


def with_types(items: Sequence[Item], path: str) -> list[Item]:
    """The items with the groups of a type mapping, {type: [image ids]}.

    The mapping may call a pair by any name that `matched` takes. A changed pair that it does not
    have counts for all changed pairs and for no type.

    Raises:
        UserError: For a file that is no mapping, or that has none of the changed pairs.
    """
    mapping = _json(path)
    if not isinstance(mapping, dict) or not all(isinstance(v, list) for v in mapping.values()):
        raise UserError(f"{path}: no type mapping", "Give {type: [image ids]}")
    ids = _names(items)
    types = {
        ids.get(str(name)) or ids.get(without_prefix(str(name))): str(kind)
        for kind, names in mapping.items()
        for name in names
    }
    changed = [item for item in items if not _is_still(item)]
    if changed and not any(item.id in types for item in changed):
        raise UserError(
            f"{path}: no type of any changed pair of the references",
            f"Ids there look like {changed[0].name!r}",
        )
    by_type = {id: (CHANGE, kind) for id, kind in types.items()}
    return [
        replace(item, groups=(STILL,) if _is_still(item) else by_type.get(item.id, (CHANGE,)))
        for item in items
    ]


def write(out: Path, items: Sequence[Item], predictions: Mapping[str, str]) -> None:
    """Writes `predictions.json`, and SCORER's two files if the ids mark some pairs as distractors.

    Args:
        predictions: Captions by the items' own ids.
    """
    out.mkdir(parents=True, exist_ok=True)
    rows = [{"image_id": item.name, "caption": predictions[item.id], **item.own} for item in items]
    storage.write_json(str(out / PREDICTIONS), rows)
    changed: list[dict[str, str]] = []
    still: list[dict[str, str]] = []
    for row in rows:
        (still if without_prefix(row["image_id"]).endswith(STILL_END) else changed).append(row)
    for name in SCORER_FILES:  # of an evaluation before this one
        (out / name).unlink(missing_ok=True)
    if still:
        for name, part in zip(SCORER_FILES, (changed, still), strict=True):
            storage.write_json(str(out / name), part)


def write_references(path: Path, items: Sequence[Item]) -> None:
    """Writes the items' references in COCO's annotation format."""
    facts = [
        {
            **item.own,
            "id": item.own.get("pair"),
            "key": item.id,
            "image_id": item.image_id or None,
            "kind": None if not item.groups else "no_change" if STILL in item.groups else "change",
            "change_type": next((g for g in item.groups if g not in (CHANGE, STILL)), None),
            "captions": item.references,
        }
        for item in items
    ]
    storage.write_json(str(path), coco.references(facts))


def _json(path: str) -> Any:
    try:
        return storage.read_json(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file", "Check the path") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error})", "Give a JSON file") from None
