"""The rows of a zoo: what was measured, and the files that show it.

ZOO/<name>/row.yaml           what the row says of itself, see `ZooRow`
ZOO/<name>/scores.json        as `cc-train evaluate` wrote it, with its signature
ZOO/<name>/predictions.json   the captions, unless others published them without a licence
ZOO/<name>/settings.json, log.jsonl    of the run, where we captioned; an export has no log
ZOO/references/<digest>.json  references that may be handed on, by the digest of the signature
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import ValidationError

from cc_prep import settings, storage
from cc_prep.errors import UserError
from cc_prep.redaction import values_without_folders, without_folders
from cc_prep.settings import Section
from cc_train.evaluation import evaluation, evaluation_files, signature
from cc_train.evaluation.captions import coco, metrics
from cc_train.evaluation.evaluation_files import TOTAL, ScoresFile
from cc_train.evaluation.signature import Signature
from cc_train.runs import origin, portable_settings, run_folder
from cc_train.sharing import model_card

ROW, SCORES, PREDICTIONS, REFERENCES = "row.yaml", "scores.json", "predictions.json", "references"
LOG = "log.jsonl"
CHECKED = ("BLEU-4", "CIDEr")  # are computed again
ROUNDING = 1e-6  # of a score × 100, between processors
Kind = Literal["trained", "evaluated", "re-scored"]


class Weights(Section):
    """The weights of a row. place: where they are; None where they are not handed on."""

    sha256: str
    bytes: int
    place: str | None = None


class Captions(Section):
    """A file of captions that is not handed on. place: where its authors publish it."""

    place: str
    sha256: str


class ZooRow(Section):
    """The description of a row, from its YAML file.

    kind: `trained` by us, weights of others that we `evaluated`, or captions of others that we
    `re-scored`. dataset: the table that it is
    in; a name of published.yaml, or the title of other data. command: the commands that lead from
    raw files to the row. captions: None if they are beside the row.
    """

    system: str
    kind: Kind
    dataset: str
    command: str
    note: str = ""
    weights: Weights | None = None
    captions: Captions | None = None


@dataclass(frozen=True)
class Entry:
    """A row with its files. scores: the content of scores.json. checked: computed again now."""

    name: str
    row: ZooRow
    scores: Mapping[str, Any]
    files: tuple[str, ...]
    checked: bool

    @property
    def signature(self) -> Signature:
        """Signature of the scores."""
        return signature.parse(self.scores["signature"])


def add(
    zoo: Path,
    name: str,
    row: ZooRow,
    evaluated: Path,
    *,
    run: Path | None = None,
    weights: str | None = None,
    with_references: bool = False,
    captions: tuple[Path, str] | None = None,
    replace: bool = False,
) -> Path:
    """Writes a row and returns its folder.

    evaluated: a folder of `cc-train evaluate`. run: the training, for its settings, log and the
    digest of its weights. weights: where others find these. with_references: keep the references
    too. captions: the file that was scored and where it is published; then the row has its digest
    in place of the captions. replace: a row of this name gives way. Raises UserError where a file
    is missing or is not what was scored, the evaluation is not of the checkpoint of the run, the
    name is not that of a folder, or the zoo has it.
    """
    target = _target(zoo, name, replace)
    scores = _scores(evaluated / SCORES)
    shown = {"command": without_folders(row.command), "note": without_folders(row.note)}
    row = row.model_copy(update=shown)
    files: dict[str, Any] = {SCORES: values_without_folders(scores)}
    if captions is None:
        files[PREDICTIONS] = _json(evaluated / PREDICTIONS)
        scored = evaluated / PREDICTIONS
    else:
        scored, published = captions
        theirs = Captions(place=published, sha256=_sha256(scored))
        row = row.model_copy(update={"captions": theirs})
    rescored(scored, evaluated / coco.REFERENCES, scores, str(scored), CHECKED)
    if run is not None:
        about, files[run_folder.SETTINGS] = _of_run(run, scores, str(evaluated), weights)
        row = row.model_copy(update={"weights": about})
        if origin.IMPORTED in files[run_folder.SETTINGS]:
            row = row.model_copy(update={"kind": "evaluated"})
    references = (evaluated / coco.REFERENCES).read_bytes() if with_references else b""
    # Nothing is refused from here on. Under its final name a row is whole.
    staging = zoo / f".{name}.tmp"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    for file, content in files.items():
        storage.write_json(str(staging / file), content)
    if run is not None and (run / LOG).exists():
        storage.write_bytes(str(staging / LOG), (run / LOG).read_bytes())
    if with_references:
        path = zoo / REFERENCES / f"{_digest(signature.parse(scores['signature']))}.json"
        path.parent.mkdir(exist_ok=True)
        storage.write_bytes(str(path), references)
    text = yaml.safe_dump(row.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    storage.write_bytes(str(staging / ROW), text.encode())
    _rename(staging, target)
    return target


def _target(zoo: Path, name: str, replace: bool) -> Path:
    """The folder of a new row. Raises UserError, see `add`."""
    if Path(name).name != name or name.startswith("."):
        raise UserError(
            f"--name {name}: no name of a folder", "Give one without /, and no dot before it"
        )
    target = zoo / name
    if target.exists() and not (replace and (target / ROW).exists()):
        raise UserError(
            f"{target}: already exists", "Give another --name, remove it, or give --replace"
        )
    return target


def _of_run(
    run: Path, scores: Mapping[str, Any], evaluated: str, place: str | None
) -> tuple[Weights, Any]:
    """The weights and the settings of a run. Raises UserError unless the scores are of its best
    checkpoint as it is.
    """
    model, step = run_folder.best_model(run)
    scored = run_folder.scored_instead(run, step, scores)
    if scored is not None:
        raise UserError(
            f"{evaluated}: scores of {scored}, "
            f"and the best checkpoint of {run} is of step {step:,}",
            "Give --run what was evaluated, or evaluate the run again",
        )
    if model_card.UNROUNDED in scores:
        raise UserError(
            f"{evaluated}: scores of the weights before they were rounded to float16",
            f"Evaluate {run} itself, or give --run the training that was evaluated",
        )
    weights = Weights(sha256=storage.sha256(model), bytes=model.stat().st_size, place=place)
    path, remedy = run / run_folder.SETTINGS, "Give --run the --out of a training"
    settings = _json(path, remedy)
    if not isinstance(settings, dict):
        raise UserError(f"{path}: no settings", remedy)
    return weights, portable_settings.shown(settings)


def _rename(staging: Path, target: Path) -> None:
    """Gives a whole row its name, which an earlier one may have."""
    earlier = target.with_name(f".{target.name}.earlier")
    shutil.rmtree(earlier, ignore_errors=True)  # of a run that was killed here
    if target.exists():
        target.rename(earlier)
    staging.rename(target)
    shutil.rmtree(earlier, ignore_errors=True)


def read(zoo: Path) -> list[Entry]:
    """All rows of a zoo by name. Raises UserError for one that is damaged.

    Where the references are there, BLEU-4 and CIDEr are computed again from the captions; other
    figures than those of the row are an error.
    """
    if not zoo.is_dir():
        raise UserError(f"{zoo}: no such folder", "Make a row first: python -m tools.zoo add")
    return [_entry(path.parent) for path in sorted(zoo.glob(f"[!.]*/{ROW}"))]


def _entry(folder: Path) -> Entry:
    values = settings.parse((folder / ROW).read_text(encoding="utf-8"), str(folder / ROW))
    try:
        row = ZooRow.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{folder / ROW}: {where}: {first['msg']}", "Fix that entry") from None
    scores = _scores(folder / SCORES)
    files = tuple(sorted(p.name for p in folder.iterdir() if p.name != ROW))
    return Entry(folder.name, row, scores, files, _check(folder, scores))


def _check(folder: Path, scores: Mapping[str, Any]) -> bool:
    """Whether the references are there, and the captions have the scores against them."""
    path = _references(folder, scores)
    if not path.exists() or not (folder / PREDICTIONS).exists():
        return False
    rescored(folder / PREDICTIONS, path, scores, str(folder), CHECKED)
    return True


def check(zoo: Path, name: str, captions: Path, references: Path | None) -> Mapping[str, float]:
    """Scores the captions of a row again, from the file that others publish; the measures.

    references: None where the zoo has them. Raises UserError for another file, or other scores.
    """
    folder = zoo / name
    if not (folder / ROW).exists():
        raise UserError(f"{folder}: no row", "Give the name of a folder of the zoo")
    entry = _entry(folder)
    published = entry.row.captions
    if published is not None and _sha256(captions) != published.sha256:
        raise UserError(
            f"{captions}: not the file that was scored, SHA-256 {published.sha256[:16]}…",
            f"It is at {published.place}",
        )
    remedy = "Give the captions and the references that the row was scored with"
    if references is None:
        references = _references(folder, entry.scores)
        if not references.exists():
            raise UserError(
                f"{zoo} does not have the references of {name}",
                "Write them with cc-prep references, and name the file with --references",
            )
    total = entry.scores["groups"][TOTAL]
    measures = [name for name in metrics.ORDER if name in total]
    return rescored(captions, references, entry.scores, str(folder), measures, remedy)


def rescored(
    predictions: Path,
    references: Path,
    scores: Mapping[str, Any],
    what: str,
    measures: Sequence[str],
    remedy: str = "Evaluate them again, and add the row again",
) -> Mapping[str, float]:
    """The measures of captions, computed again, × 100; those that cannot be here are left out.

    scores: the content of scores.json. Raises UserError where the two differ; what: is named then.
    """
    items = coco.read_references(str(references))
    try:
        captions, items = coco.matched(
            coco.read_predictions([str(predictions)]),
            items,
            uncaptioned=coco.read_uncaptioned(str(references)),
        )
    except UserError as error:
        raise UserError(
            f"{what}: not the captions that were scored: {error.what}", remedy
        ) from None
    stored = signature.parse(scores["signature"])
    again = evaluation.evaluate(items, captions, measures, words=stored.words)
    different = again.signature.differences(stored)
    figures = again.groups[TOTAL].corpus
    for name, figure in figures.items():
        known = scores["groups"][TOTAL].get(name)
        if known is None or abs(figure - known) > ROUNDING * max(1.0, abs(figure)):
            different.append(f"{name} {figure:.2f} for {known}")
    if different:
        raise UserError(
            f"{what}: its captions do not have its scores: {', '.join(different)}", remedy
        )
    return figures


def _references(folder: Path, scores: Mapping[str, Any]) -> Path:
    """Path of a row's references in the zoo; the file need not exist."""
    return folder.parent / REFERENCES / f"{_digest(signature.parse(scores['signature']))}.json"


def _sha256(file: Path) -> str:
    if not file.is_file():
        raise UserError(f"{file}: no such file", "Give the file of captions that was scored")
    return storage.sha256(file)


def _digest(signed: Signature) -> str:
    return signed.parts["refs"].rpartition("-")[2]


def _scores(path: Path) -> Mapping[str, Any]:
    content = _json(path)
    try:
        scores = evaluation_files.checked(ScoresFile, content)
        missing = [name for name in CHECKED if name not in scores.groups[TOTAL].figures]
        if missing:
            raise ValueError(f"no {missing[0]}")
        if "refs" not in signature.parse(scores.signature).parts:
            raise ValueError("its references are not in it")
    except ValueError as error:
        raise UserError(
            f"{path}: no scores with a signature ({error})", evaluation_files.REMEDY
        ) from None
    as_written: Mapping[str, Any] = content
    return as_written


def _json(path: Path, remedy: str | None = None) -> Any:
    try:
        return storage.read_json(str(path))
    except FileNotFoundError:
        first = remedy or "Evaluate first: cc-train evaluate"
        raise UserError(f"{path}: no such file", first) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error})", remedy or evaluation_files.REMEDY) from None
