"""A captioner, or anybody's predictions, against the references of a split.

DIR/predictions.json   [{image_id, caption}], COCO's results format
DIR/references.json    COCO's annotation format
DIR/scores.json        corpus scores of every group, what was left out, the conventions
DIR/items.jsonl        a line a pair: caption, references, scores
DIR/table.md           the corpus scores as a table
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.records import NO_CHANGE
from cc_train.captions import scorer
from cc_train.captions.scorer import Scores

TOTAL, CHANGE, STILL = "total", "semantic change", "no change"


@dataclass(frozen=True)
class Item:
    """A pair with its references, and the groups besides `total` that it counts for."""

    id: str
    references: tuple[str, ...]
    groups: tuple[str, ...] = ()


@dataclass
class Evaluation:
    """Scores of all items and of each group; swapped: of the captions of (after, before)."""

    groups: dict[str, Scores] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    swapped: dict[str, Any] | None = None

    def figures(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "groups": {
                name: {"pairs": self.counts[name], **scores.corpus}
                for name, scores in self.groups.items()
            },
            "left_out": self.groups[TOTAL].left_out,
            "conventions": scorer.CONVENTIONS,
            "swapped": self.swapped,
        }


def item_of(key: str, meta: Mapping[str, Any]) -> Item:
    """An item of a training shard's sample."""
    still = meta.get("kind") == NO_CHANGE
    groups = [STILL if still else CHANGE]
    if not still and meta.get("change_type"):
        groups.append(str(meta["change_type"]))
    return Item(key, tuple(str(c) for c in meta.get("captions") or ()), tuple(groups))


def evaluate(
    items: Sequence[Item],
    predictions: Mapping[str, str],
    measures: Sequence[str] = scorer.ORDER,
) -> Evaluation:
    """Scores of predictions by id, of all and of each group that is not all. Raises UserError."""
    references = {item.id: item.references for item in items}
    tokens = scorer.tokenised(references, predictions)
    found = Evaluation()
    groups: dict[str, set[str]] = {TOTAL: set(references)}
    for item in items:
        for name in item.groups:
            groups.setdefault(name, set()).add(item.id)
    kept = {n: groups[n] for n in ranked(groups) if n == TOTAL or groups[n] != groups[TOTAL]}
    found.groups = scorer.score_groups(tokens, kept, measures)
    found.counts = {name: len(ids) for name, ids in kept.items()}
    return found


def ranked(groups: Iterable[str]) -> list[str]:
    """Names of groups in the order in which they are shown."""
    first = [TOTAL, CHANGE, STILL]
    return sorted(groups, key=lambda n: (first.index(n) if n in first else len(first), n))


def swap_check(
    items: Sequence[Item], said: Mapping[str, str], swapped: Mapping[str, str]
) -> dict[str, Any]:
    """How the captions of changed pairs answer to (after, before) in place of (before, after).

    same: the share that stays word for word: a captioner that looks at the order says that what was
    added is gone. cider: of the swapped captions against the references of the true order, which
    should fall.
    """
    changed = [item for item in items if STILL not in item.groups]
    if not changed:
        return {}
    references = {item.id: item.references for item in changed}
    same = [said[item.id] == swapped[item.id] for item in changed]
    both = (
        scorer.cider(references, {item.id: captions[item.id] for item in changed})
        for captions in (said, swapped)
    )
    return {
        "pairs": len(changed),
        "same": sum(same) / len(same),
        **dict(zip(("CIDEr", "CIDEr of the swapped"), both, strict=True)),
    }


def write(
    out: Path, found: Evaluation, items: Sequence[Item], predictions: Mapping[str, str]
) -> None:
    """Writes all files of an evaluation."""
    out.mkdir(parents=True, exist_ok=True)
    write_predictions(out, predictions)
    references: dict[str, Any] = {
        "images": [{"id": item.id} for item in items],
        "annotations": [
            {"id": number, "image_id": item.id, "caption": caption}
            for number, (item, caption) in enumerate((i, c) for i in items for c in i.references)
        ],
    }
    storage.write_json(str(out / "references.json"), references)
    storage.write_json(str(out / "scores.json"), found.figures())
    each = found.groups[TOTAL].items
    lines = [
        json.dumps(
            {
                "id": item.id,
                "caption": predictions[item.id],
                "references": item.references,
                "groups": item.groups,
                "scores": {name: round(value, 4) for name, value in each[item.id].items()},
            },
            ensure_ascii=False,
        )
        for item in items
    ]
    storage.write_bytes(str(out / "items.jsonl"), ("\n".join(lines) + "\n").encode())
    storage.write_bytes(str(out / "table.md"), table(found).encode())


def write_predictions(out: Path, predictions: Mapping[str, str]) -> None:
    """COCO's results format."""
    rows = [{"image_id": id, "caption": said} for id, said in sorted(predictions.items())]
    out.mkdir(parents=True, exist_ok=True)
    storage.write_json(str(out / "predictions.json"), rows)


def table(found: Evaluation) -> str:
    """The corpus scores in Markdown."""
    names = list(found.groups[TOTAL].corpus)
    lines = ["| | pairs | " + " | ".join(names) + " |", "|---" * (len(names) + 2) + "|"]
    for group, scores in found.groups.items():
        values = " | ".join(f"{scores.corpus[name]:.2f}" for name in names)
        lines.append(f"| {group} | {found.counts[group]:,} | {values} |")
    for name, reason in found.groups[TOTAL].left_out.items():
        lines.append(f"\n{name} is left out: {reason}.")
    if found.swapped:
        swapped = found.swapped
        lines.append(
            f"\nSwapped, (after, before): {100 * swapped['same']:.1f} % of the captions of changed "
            f"pairs stay the same; CIDEr {swapped['CIDEr']:.2f} in order, "
            f"{swapped['CIDEr of the swapped']:.2f} swapped."
        )
    lines.append(f"\n{scorer.CONVENTIONS[0].upper()}{scorer.CONVENTIONS[1:]}.")
    return "\n".join(lines) + "\n"


def read_predictions(place: str) -> dict[str, str]:
    """Captions by id from COCO's results format or a JSON object. Raises UserError."""
    found = _json(place)
    if isinstance(found, dict):
        rows = list(found.items())
    elif isinstance(found, list):
        rows = [
            (r.get("image_id"), r.get("caption")) if isinstance(r, dict) else (None, None)
            for r in found
        ]
    else:
        rows = [(None, None)]
    if not all(isinstance(id, (str, int)) and isinstance(said, str) for id, said in rows):
        raise UserError(
            f"{place}: no predictions", 'Give [{"image_id": …, "caption": …}] or {id: caption}'
        )
    captions = {str(id): said for id, said in rows}
    if len(captions) < len(rows):
        raise UserError(f"{place}: an id is in it twice", "Give one caption a pair")
    return captions


def _row(one: Any) -> tuple[Any, Any]:
    return (one.get("image_id"), one.get("caption")) if isinstance(one, dict) else (None, None)


def read_references(place: str) -> list[Item]:
    """Items from COCO's annotation format, or a JSON object of lists. Raises UserError."""
    found = _json(place)
    captions: dict[str, list[str]] = {}
    try:
        if "annotations" in found:
            for row in found["annotations"]:
                captions.setdefault(str(row["image_id"]), []).append(str(row["caption"]))
        else:
            captions = {
                id: [said] if isinstance(said, str) else list(map(str, said))
                for id, said in found.items()
            }
    except (TypeError, KeyError, AttributeError):
        raise UserError(
            f"{place}: no references", "Give COCO annotations or {id: [captions]}"
        ) from None
    return [Item(id, tuple(said)) for id, said in captions.items()]


def _json(place: str) -> Any:
    try:
        return storage.read_json(place)
    except (OSError, ValueError) as error:
        raise UserError(f"{place}: {error}", "Give a JSON file") from None
