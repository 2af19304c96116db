"""How often a judge errs, on captions whose truth is known: `cc-train judge-check`.

OUT/judge_check.json   the judge, and its errors by form of question and kind of caption
OUT/judge_answers/     every answer word for word
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from cc_prep import __version__, storage
from cc_prep.errors import UserError
from cc_prep.records import Facts
from cc_train.baselines.answers import Answers
from cc_train.evaluation.evaluation_files import JudgeCheck, JudgeError, Record, checked
from cc_train.evaluation.judging import asking, forms, scores, truths
from cc_train.evaluation.judging.asking import Asked, Model
from cc_train.evaluation.judging.forms import Subject
from cc_train.evaluation.judging.protocols import OURS, Protocol
from cc_train.evaluation.judging.scores import Errors
from cc_train.evaluation.judging.truths import Known

FILE, ANSWERS = "judge_check.json", "judge_answers"
ORDER = (*truths.KINDS, truths.REVERSED, truths.SAME)  # of kinds
REMEDY = "Run cc-train judge-check with this judge"
SAME = ("model", "generation", "protocol", "words")  # of a judge and of the one that was checked


def run(
    model: Model,
    protocol: Protocol,
    pairs: Mapping[str, Facts],
    folder: Path,
    console: Console,
    *,
    threads: int = 1,
    seed: int = 0,
) -> JudgeCheck:
    """Asks a judge about captions of pairs, and writes and returns its errors.

    Args:
        pairs: Facts by the names of the pairs.
        seed: Of the captions.

    Raises:
        UserError and JobFailed: The server refuses or fails, or no answer can be read.
    """
    known = truths.known(pairs, seed)
    subjects = {subject.id: one for one in known for subject in _subjects(one, protocol)}
    listed = [subject for one in known for subject in _subjects(one, protocol)]
    asked = asking.ask(
        model, Answers(folder / ANSWERS), protocol, listed, console, threads=threads, patient=True
    )
    names = sorted({one.form.name for one in asked})
    result = JudgeCheck(
        **model.identity,
        **protocol.identity(names),
        pairs=len(pairs),
        errors=errors(asked, subjects),
        agreement=scores.agreement(asked),
        answers=len(asked),
        broken=_broken(asked),
        version=__version__,
    )
    storage.write_json(str(folder / FILE), result.to_json())
    return result


def _subjects(known: Known, protocol: Protocol) -> list[Subject]:
    """What is asked about a caption: against the list, by our protocol also against sentences.

    Their ids end in the kind, and differ by what they are judged against.
    """
    unchanged = known.facts.type == truths.UNCHANGED
    lists = truths.differences(known.facts)
    ids = f"{known.pair}/{known.kind}"
    references = known.references
    against_list = Subject(f"{ids}/list", known.caption, references, lists, unchanged)
    if protocol.name != OURS or unchanged:
        return [against_list]
    subjects = [against_list, Subject(f"{ids}/sentences", known.caption, references)]
    for kind, swapped in known.swapped.items():
        subjects.append(Subject(f"{ids}/{kind}", known.caption, references, lists, swapped=swapped))
    return subjects


def errors(asked: Sequence[Asked], known: Mapping[str, Known]) -> Errors:
    """By form and kind the share of captions that a judge errs about, with Wilson's 95 % interval.

    A caption with two answers that can be read counts as their mean. One of which none can be
    read is counted in `unread` alone.

    Args:
        known: The caption behind each subject's id.
    """
    rated = _right_rates(asked, known)
    by_caption: dict[tuple[str, str, str], list[float | None]] = {}
    for one in asked:
        caption = known[one.subject.id]
        kind = caption.kind
        if one.form.name == forms.REVERSAL:
            kind = one.subject.id.rpartition("/")[2]
        elif one.subject.swapped is not None:
            continue  # asked for the sake of the reversal
        if one.form.name == forms.C3 and kind in (truths.RIGHT, truths.QUIET):
            continue
        rate = rated.get(caption.pair)
        is_unread = one.broken or (one.form.name == forms.C3 and rate is None)
        error = None if is_unread else float(_is_error(one, kind, rate))
        by_caption.setdefault((one.form.name, kind, one.subject.id), []).append(error)
    shares: dict[str, dict[str, list[float | None]]] = {}
    for (form, kind, _), listed in by_caption.items():
        read = [error for error in listed if error is not None]
        mean = sum(read) / len(read) if read else None
        shares.setdefault(form, {}).setdefault(kind, []).append(mean)
    return {
        form: {kind: _error(kinds[kind]) for kind in ORDER if kind in kinds}
        for form, kinds in sorted(shares.items())
    }


def _error(listed: Sequence[float | None]) -> JudgeError:
    read = [error for error in listed if error is not None]
    unread = len(listed) - len(read)
    return JudgeError.of(sum(read), len(read), captions=len(read), unread=unread)


def _right_rates(asked: Sequence[Asked], known: Mapping[str, Known]) -> dict[str, float]:
    """The mean final rating of the right caption of each pair, by C3-Bench's form."""
    rates: dict[str, list[int]] = {}
    for one in asked:
        if one.form.name == forms.C3 and one.broken is None:
            caption = known[one.subject.id]
            if caption.kind in (truths.RIGHT, truths.QUIET):
                rates.setdefault(caption.pair, []).append(one.said[forms.FINAL])
    return {pair: sum(listed) / len(listed) for pair, listed in rates.items()}


def _is_error(one: Asked, kind: str, right_rate: float | None) -> bool:
    """Whether what a judge says of a caption of a kind is wrong."""
    said, form = one.said, one.form.name
    right = kind in (truths.RIGHT, truths.MORE)
    if form == forms.CLAIM:
        return bool(said["change"] != ("yes" if kind == truths.ALARM else "no"))
    if form == forms.REVERSAL:
        return bool(said["reverse"] != ("yes" if kind == truths.REVERSED else "no"))
    if form == forms.MATCHING:
        invents = kind not in (truths.RIGHT, truths.NOTHING)
        return (bool(said[0]), said[1] > 0) != (right, invents)
    if form == forms.GRADING:
        if kind == truths.MORE:
            return bool(said["hallucination"] != "some")
        if kind == truths.RIGHT:
            return (said["correctness"], said["hallucination"]) != ("right", "none")
        return bool(said["correctness"] == "right")
    if form == forms.DIFFSPOT:
        found, invented = said
        return bool(invented == (kind == truths.QUIET) if one.subject.unchanged else found != right)
    # A rating has no truth but the order: the pair's right caption has to be rated higher.
    assert right_rate is not None
    return bool(one.said[forms.FINAL] >= right_rate)


def _broken(asked: Sequence[Asked]) -> dict[str, int]:
    reasons = [one.broken for one in asked if one.broken]
    return {reason: reasons.count(reason) for reason in sorted(set(reasons))}


def table(result: JudgeCheck) -> str:
    """A check in Markdown."""
    lines = []
    for form, kinds in result.errors.items():
        lines += [f"| {form}: caption | captions | error, % | 95 % | not read |", "|---" * 5 + "|"]
        for kind, one in kinds.items():
            interval = f"{100 * one.low:.1f} … {100 * one.high:.1f}"
            cells = f"{100 * one.share:.1f} | {interval}" if one.captions else " | "
            lines.append(f"| {kind} | {one.captions:,} | {cells} | {one.unread:,} |")
        lines.append("")
    notes = [*scores.notes_on_answers(result), *scores.notes_on_words(result)]
    return "\n".join([*lines, *notes]) + "\n"


def read(folder: str) -> JudgeCheck:
    """What `judge-check` wrote into a folder. Raises UserError."""
    path = storage.join(folder, FILE)
    try:
        return checked(JudgeCheck, storage.read_json(path))
    except FileNotFoundError:
        raise UserError(f"{folder}: no {FILE} in it", REMEDY) from None
    except (ValueError, RecursionError):
        raise UserError(f"{path}: damaged", REMEDY) from None


def measured(folder: str, record: Record, names: Sequence[str]) -> Errors:
    """The errors of the judge of a record in the forms that it is asked, from a folder.

    Raises:
        UserError: The folder is of another judge, or of other questions.
    """
    content = read(folder)
    for key in SAME:
        theirs, ours = getattr(content, key), getattr(record, key)
        if theirs != ours:
            raise UserError(
                f"{folder}: is of another judge ({key}: {theirs!r} for {ours!r})", REMEDY
            )
    other = [n for n in names if n in content.prompts and content.prompts[n] != record.prompts[n]]
    if other:
        raise UserError(f"{folder}: the questions were others ({other[0]})", REMEDY)
    errors = content.errors
    return {
        name: {kind: errors[name][kind] for kind in ORDER if kind in errors[name]}
        for name in names
        if name in errors
    }
