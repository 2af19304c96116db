"""One HTML page on a training run: settings, curves, reconstructions, captions.

Everything is inside the file. Captions come from strangers: the template escapes all of them and
the page runs no script.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.formats.tar import DamagedShard
from cc_prep.inspect import pages
from cc_prep.inspect.pages import data_url
from cc_prep.storage import outputs
from cc_train import systems
from cc_train.data import shard_index
from cc_train.evaluation import evaluation, evaluation_files
from cc_train.evaluation.captions import metrics
from cc_train.evaluation.evaluation_files import TOTAL, ScoredPair, ScoresFile
from cc_train.evaluation.masks import segmentation
from cc_train.evaluation.rendered import faithfulness
from cc_train.report import curves, facts, legend
from cc_train.runs import portable_settings, run_folder
from cc_train.sharing import hub, model_card
from cc_train.training.metric_logger import PICTURES

CAPTIONS_A_GROUP, MISTAKES_A_GROUP = 8, 4
FOLDER = Path(__file__).parent  # of the templates


@dataclass(frozen=True)
class Shown:
    """A pair on the page.

    Attributes:
        images: Data URLs of before and after, where there are shards.
        exact, words, truth, unsaid: Of a pair whose facts are known: whether the caption is right,
            its words, what truly changed, and the names of the facts that are not said.
        heat: Before and after under where the captioner looked.
        heat_words: Each word, and after.
        imagined: The frames from before to after as the captioner imagines them.
        masked: Before and after under its mask, against the true one where that is known.
    """

    id: str
    caption: str
    references: tuple[str, ...]
    cider: float
    images: tuple[str, ...] = ()
    exact: bool = False
    words: tuple[facts.Word, ...] = ()
    truth: str = ""
    unsaid: tuple[str, ...] = ()
    heat: tuple[str, ...] = ()
    heat_words: tuple[tuple[str, str], ...] = ()
    imagined: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()


@dataclass(frozen=True)
class Group:
    """Pairs of an evaluation.

    Attributes:
        judged: Pairs whose facts are known; of these, exact captions are right.
    """

    name: str
    pairs: int
    judged: int
    exact: int
    examples: list[Shown]


def write(
    run: str, out: str | None, shards: Sequence[str] = (), evaluated_in: str | None = None
) -> str:
    """Writes the page of a run to `out`, or RUN/report.html, and returns where.

    Of a captioner that comes with the package, or from the hub: to NAME.report.html in the current
    folder.

    Args:
        shards: Those that were evaluated, for the images of pairs.
        evaluated_in: The folder that `cc-train evaluate` wrote; None for its default.

    Raises:
        UserError: If `run` is no run, that folder holds no evaluation, or a sample is damaged.
    """
    if out is not None:
        outputs.check_file(out)
    folder = hub.locate(run)
    evaluated = Path(evaluated_in or run_folder.default_evaluation(run))
    if evaluated_in is not None and not (evaluated / "scores.json").exists():
        raise UserError(f"{evaluated_in}: no scores of cc-train evaluate", "Evaluate first")
    settings = _read(folder / run_folder.SETTINGS, "Restore it, or train again")
    if not isinstance(settings, dict):
        if (folder / "scores.json").exists():
            raise UserError(f"{run}: an evaluation, and no run", f"Give RUN --evaluation {run}")
        raise UserError(f"{run}: no run", "Give the --out of a training")
    log = curves.read(folder)
    scores = _scores(evaluated / "scores.json")
    samples = _images(shards)
    groups, notes = _with_pictures(
        _groups(evaluated / evaluation.ITEMS, samples) if scores else [],
        samples,
        run,
        settings.get("system"),
    )
    pictures = _pictures(folder)
    page = (
        pages.environment(FOLDER)
        .get_template("page.html.j2")
        .render(
            title=f"{settings.get('system', 'training')}: {hub.name_of(run)}",
            curves=curves.draw(log),
            zeros=curves.zeros(log),
            width=curves.WIDTH,
            height=curves.HEIGHT,
            pictures=pictures,
            pictures_show=systems.get(str(settings.get("system"))).pictures if pictures else "",
            facts=facts.tables(scores.facts) if scores and scores.facts else None,
            scores=scores,
            **(_masks(scores) if scores else {}),
            measures=[m for m in metrics.SHOWN if scores and m in scores.groups[TOTAL].figures],
            ranked=evaluation.ranked(scores.groups) if scores else [],
            score_notes=evaluation.notes(scores) if scores else [],
            groups=groups,
            notes=[*_of_other_weights(folder, scores), *notes],
            settings=json.dumps(portable_settings.shown(settings), indent=1),
            words=_words(settings.get("text")),
            mask_colours=legend.VERDICTS,
            mistakes=MISTAKES_A_GROUP,
            word_side=legend.WORD_SIDE,
        )
    )
    target = out or _default(run, folder)
    storage.write_bytes(storage.named(target), page.encode("utf-8", "surrogatepass"))
    return target


def _of_other_weights(folder: Path, scores: ScoresFile | None) -> list[str]:
    """A note for scores of other weights than the best ones of a run; those of predictions in files
    name none.
    """
    if scores is None or scores.weights is None:
        return []
    if model_card.is_of_unrounded(scores):
        return ["The scores are of the weights before an export rounded these to float16."]
    try:
        model, _ = run_folder.best_model(folder)
    except UserError:  # a page needs no weights
        return []
    if scores.weights == storage.sha256(model):
        return []
    return ["The scores are of other weights than the best ones of this run: evaluate it again."]


def _default(run: str, folder: Path) -> str:
    """Where the page of a run is written, if its user does not say it."""
    return str(folder / "report.html") if Path(run).is_dir() else f"{Path(run).name}.report.html"


def _masks(scores: ScoresFile) -> dict[str, Any]:
    """The tables of how good masks are, and how well captions fit them, where they were scored."""
    tables: list[tuple[str, Sequence[str], list[tuple[str, list[str]]]]] = []
    masks = scores.masks
    if masks:
        tables.append(("masks", segmentation.COLUMNS, segmentation.rows(masks)))
    if scores.faithfulness:
        rows = faithfulness.rows(scores.faithfulness)
        tables.append(("caption and mask", faithfulness.COLUMNS, rows))
    return {"mask_tables": tables, "mask_summary": segmentation.summary(masks) if masks else ""}


def _groups(items: Path, images: Mapping[str, shard_index.Entry]) -> list[Group]:
    """The groups of an evaluation, with some pairs of each; an item counts for its last group.

    Raises:
        UserError: For a damaged file.
    """
    by_group: dict[str, list[ScoredPair]] = {}
    for row in evaluation_files.items(items):
        by_group.setdefault((row.groups or ["all"])[-1], []).append(row)
    groups = []
    for name, rows in sorted(by_group.items()):
        examples = [_example(row, images) for row in _chosen(rows)]
        judged = [row for row in rows if row.facts]
        exact = sum(bool(row.exact) for row in judged)
        groups.append(Group(name, len(rows), len(judged), exact, examples))
    return groups


def _chosen(rows: Sequence[ScoredPair]) -> list[ScoredPair]:
    """The rows of a group to show: first the worst, up to half of them, which say most.

    These have the lowest CIDEr; where facts are known, of the captions that are not exact. The
    others are spread evenly over all remaining rows.
    """
    worst = [row for row in rows if not (row.facts and row.exact)]
    worst = sorted(worst, key=_cider)[:MISTAKES_A_GROUP]
    shown = {row.id for row in worst}
    others = [row for row in rows if row.id not in shown]
    count = CAPTIONS_A_GROUP - len(worst)
    return [*worst, *others[:: max(1, len(others) // count)][:count]]


def _cider(row: ScoredPair) -> float:
    return row.scores.get("CIDEr", 0.0)


def _with_pictures(
    groups: list[Group], samples: Mapping[str, shard_index.Entry], run: str, system: Any
) -> tuple[list[Group], list[str]]:
    """The same, with where the captioner looked, what it masks and what it imagines, for systems
    that say it; and notes on pairs without these.
    """
    shown = [one for group in groups for one in group.examples if one.id in samples and one.images]
    notes: list[str] = []
    kind = systems.get(str(system)) if shown else None
    if kind and (kind.attention or kind.masks):
        groups, notes = _with_captions(groups, shown, samples, run)
    if kind and kind.imagines:
        groups = _with_imagined(groups, shown, samples, run)
    return groups, notes


def _with_captions(
    groups: list[Group], shown: list[Shown], samples: Mapping[str, shard_index.Entry], run: str
) -> tuple[list[Group], list[str]]:
    """The groups with heat and masks, and notes on samples that cannot be read, or their masks."""
    from cc_train.report import attention, overlays, pictures  # bring torch, other pages do without

    captioned = pictures.captioned(run, [samples[one.id] for one in shown])
    notes: list[str] = []

    def seen(one: Shown) -> Shown:
        sample, caption = captioned.samples.get(one.id, (None, None))
        if sample is None or caption is None or caption.text != one.caption:
            return one  # evaluated with other weights, or by beams
        try:
            masked = overlays.of_sample(sample, caption.mask) or ()
        except DamagedShard as error:
            notes.append(f"{one.id} is shown without its mask: {error}")
            masked = ()
        heat = attention.heat(sample, caption.attention)
        words = () if heat is None else heat.words
        return replace(
            one,
            masked=tuple(data_url(data, "jpeg") for data in masked),
            heat=()
            if heat is None
            else tuple(data_url(data, "jpeg") for data in heat.before_after),
            heat_words=tuple((word, data_url(data, "jpeg")) for word, data in words),
        )

    if captioned.reasons:
        notes.append(
            f"{len(captioned.reasons)} of {len(shown)} pairs are shown without what the captioner "
            f"sees in them: {captioned.reasons[0]}"
        )
    return _replaced(groups, seen), notes


def _with_imagined(
    groups: list[Group], shown: list[Shown], samples: Mapping[str, shard_index.Entry], run: str
) -> list[Group]:
    from cc_train.report import strips  # brings torch, which other pages do without

    frames = strips.of_samples(run, [samples[one.id] for one in shown])

    def with_frames(one: Shown) -> Shown:
        return replace(
            one, imagined=tuple(data_url(data, "jpeg") for data in frames.get(one.id, ()))
        )

    return _replaced(groups, with_frames)


def _replaced(groups: list[Group], seen: Callable[[Shown], Shown]) -> list[Group]:
    return [replace(group, examples=[seen(one) for one in group.examples]) for group in groups]


def _example(row: ScoredPair, images: Mapping[str, shard_index.Entry]) -> Shown:
    pictures: tuple[str, ...] = ()
    if row.id in images:
        entry = images[row.id]
        try:
            sample = entry.read()
        except DamagedShard as error:
            raise UserError(f"{entry.shard}: {error}", shard_index.ADVICE) from None
        before_after = (0, len(sample.tokens) - 1)
        pictures = tuple(
            data_url(sample.images[i], "jpeg") for i in before_after if i in sample.images
        )
    return Shown(
        row.id,
        row.caption,
        tuple(row.references),
        _cider(row),
        pictures,
        **_judged(row),
    )


def _judged(row: ScoredPair) -> dict[str, Any]:
    if row.facts is None:
        return {}
    return {
        "exact": bool(row.exact),
        "words": tuple(facts.words(row.caption, row.facts)),
        "truth": facts.sentence(row.facts),
        "unsaid": tuple(facts.unsaid(row.caption, row.facts)),
    }


def _scores(path: Path) -> ScoresFile | None:
    """What an evaluation found; None where there was none. Raises UserError for another file."""
    scores = _read(path, evaluation_files.REMEDY)
    if scores is None:
        return None
    if not (isinstance(scores, dict) and "groups" in scores):
        raise UserError(  # `evaluate --mask-predictions` writes a file of this name as well
            f"{path}: no scores of captions", "Evaluate the run itself: cc-train evaluate RUN"
        )
    try:
        return evaluation_files.checked(ScoresFile, scores)
    except ValueError as error:
        raise UserError(f"{path}: damaged ({error})", evaluation_files.REMEDY) from None


def _words(text: Any) -> int:
    """The number of words in a run's settings of its text; 0 where they do not say it."""
    count = text.get("count") if isinstance(text, dict) else None
    return count if isinstance(count, int) else 0


def _images(shards: Sequence[str]) -> dict[str, shard_index.Entry]:
    return {entry.key: entry for entry in shard_index.read(shards)} if shards else {}


def _pictures(folder: Path) -> list[tuple[int, str]]:
    """Step and data URL of the first, the middle and the last picture of a run."""
    steps = {int(p.stem): p for p in (folder / PICTURES).glob("*.png") if p.stem.isdecimal()}
    order = sorted(steps)
    shown = sorted({0, len(order) // 2, len(order) - 1}) if order else []
    return [(order[i], data_url(steps[order[i]].read_bytes(), "png")) for i in shown]


def _read(path: Path, remedy: str) -> Any:
    """A JSON file; None where there is none. Raises UserError."""
    if not path.exists():
        return None
    try:
        return storage.read_json(str(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error})", remedy) from None
