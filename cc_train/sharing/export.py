"""`cc-train export`: a trained network in small, with a card that says how good it is.

Weights become float16. A captioner becomes a folder that is used like a run:

    DIR/model.safetensors   the best network, with the settings in the file's metadata
    DIR/settings.json       the same settings
    DIR/<file> …            what the network needs besides, such as vocabulary.json
    DIR/README.md           the card
    DIR/evaluation/         scores and predictions, where it was measured

The settings name files of the machine of the training, without their folders.
Any other network becomes one file, with its card beside it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from cc_prep import storage
from cc_prep.console import on_stderr
from cc_prep.errors import UserError
from cc_prep.formats.tar import DamagedShard
from cc_prep.storage import outputs
from cc_train import calibration, loading, systems
from cc_train.captioner import CaptionModel, EncoderDecoder
from cc_train.data import shard_index
from cc_train.data.sequence_index import expand, read_index
from cc_train.data.shard_index import Entry
from cc_train.evaluation import calibrating, evaluation, score_captioner, shard_items
from cc_train.layers import frozen_backbone, named_weights
from cc_train.runs import checkpoints, run_folder, stored_run
from cc_train.runs.portable_settings import portable
from cc_train.runs.stored_run import Run
from cc_train.sharing import hub, model_card

EXPORTED = 0  # the step of a captioner that is exported, as `cc-train evaluate` of it says
COMPARED = 10  # pairs of one key in two lists of shards, which are read to see if they are the same


@dataclass(frozen=True)
class Details:
    """What an export takes besides the run.

    Attributes:
        shards: Samples that training did not see, to measure on.
        calibrate: Others, of rendered pairs, by which a captioner's captions get a confidence.
        licence: Of the weights, an SPDX identifier.
        data: In words, what it was trained on.
        by_name: Leave out the frozen networks that come with the package.
    """

    shards: Sequence[str] = ()
    calibrate: Sequence[str] = ()
    licence: str | None = None
    data: str | None = None
    by_name: bool = False


def export(run: str | Path, out: Path, details: Details = Details()) -> list[Path]:
    """Exports the best network of a run; the folder, or the file and its card. Raises UserError."""
    outputs.check_folder(str(out.parent), "")
    stored = stored_run.read(hub.locate(str(run)))
    recipe = systems.recipe(stored.system)
    if hasattr(recipe, "load"):
        if details == Details():
            return [save(stored.folder, out)]
        return [_captioner(stored, out, details)]
    if details.by_name:
        raise UserError(f"{run}: a run of {stored.system} is one file", "Leave out --by-name")
    if details.calibrate:
        raise UserError(f"{run}: a run of {stored.system} is no captioner", "Leave out --calibrate")
    if not hasattr(recipe, "card"):
        raise UserError(f"{run}: a run of {stored.system} is not exported", "Give another run")
    if not details.shards:
        raise UserError(f"a {stored.system} is measured when exported", "Give --shards, held out")
    return _network(stored, recipe, out, details)


def save(folder: Path, out: Path) -> Path:
    """The captioner of a run's or an exported folder as the folder `out`, not measured again.

    An exported folder keeps its evaluation and its card, whose examples name the new folder, and
    whose scores become those of an evaluation since.

    Raises:
        UserError: If `out` is there already, and for scores that are not known to be those of these
            weights.
    """
    stored = stored_run.read(folder)
    card, earlier = folder / model_card.NAME, folder / run_folder.EVALUATION
    if not (_is_exported(folder) and card.is_file()):
        return _captioner(stored, out, Details())
    _check_earlier_scores(stored)
    with _folder(out) as target:
        for file in (checkpoints.MODEL, run_folder.SETTINGS, *_files(stored)):
            shutil.copyfile(folder / file, target / file)
        _take_along(folder, target)
        text = card.read_text(encoding="utf-8")
        if (earlier / evaluation.SCORES).exists():
            shutil.copytree(earlier, target / run_folder.EVALUATION)
            text = model_card.with_scores(text, model_card.measured(earlier))
        text = model_card.with_path(text, out.name)
        storage.write_bytes(str(target / model_card.NAME), text.encode())
    return out


def _network(stored: Run, recipe: Any, out: Path, details: Details) -> list[Path]:
    """One file and its card; neither gets its name before the other one is ready too."""
    samples = read_index(details.shards)
    tensors = recipe.compact(stored.tensors) if hasattr(recipe, "compact") else stored.tensors
    out.parent.mkdir(parents=True, exist_ok=True)
    file, card = (out.parent / f"{out.name}{ending}" for ending in (".safetensors", ".md"))
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        small = Path(folder) / file.name
        _write_model(tensors, stored.settings, small)
        about = recipe.card(small, samples)
        about["measured_on"] += _held_out(stored, about.pop("keys"))
        written = replace(stored, tensors=tensors)
        text = model_card.of_network(written, small, out.name, about, details.licence, details.data)
        small.replace(file)
    storage.write_bytes(str(card), text.encode())
    return [file, card]


def _held_out(stored: Run, keys: Sequence[str]) -> str:
    """The end of "On … pairs": whether the run was trained on the samples of these keys."""
    count = _say_trained_on(stored, keys, on_stderr())
    if count:
        return f". {evaluation.of_training(count, len(keys))}"
    if (stored.folder / run_folder.KEYS).exists():
        return " that training did not see."
    return ". The run does not say whether it was trained on them."


def _captioner(stored: Run, out: Path, details: Details) -> Path:
    """A folder with the network, what it needs besides, and the card."""
    settings = {**stored.settings, **(_by_name(stored) if details.by_name else {})}
    if not details.shards:
        _check_earlier_scores(stored)
    with _folder(out) as folder:
        for file in settings.get("files", []):
            _copy_small(stored.folder / file, folder / file)
        _take_along(stored.folder, folder)
        captioner = _loaded(stored, settings, folder)
        constant = None
        if details.calibrate:
            settings["calibration"] = _calibration(stored, captioner, details)
            constant = settings["calibration"]["right"]
            captioner = _loaded(stored, settings, folder)
        scores = _measured(stored, captioner, folder, details, constant)
        small = replace(stored, settings=settings)
        text = model_card.of_captioner(
            small, folder, out.name, scores, details.licence, details.data
        )
        storage.write_bytes(str(folder / model_card.NAME), text.encode())
    return out


def _calibration(stored: Run, captioner: CaptionModel, details: Details) -> dict[str, Any]:
    """What the settings of an exported captioner say of its confidence. Raises UserError."""
    if not isinstance(captioner, EncoderDecoder):
        raise UserError(
            f"{stored.folder}: a captioner of {stored.system} shows no confidence",
            "Leave out --calibrate",
        )
    entries = shard_index.read(details.calibrate)
    if details.shards:
        _check_apart(details.shards, details.calibrate)
        _check_other_pairs(shard_index.read(details.shards), entries)
    count = run_folder.trained_on(stored.folder, [entry.key for entry in entries])
    known = {"pairs": len(entries), "trained_on": count} if count else {}
    if count:
        note = calibration.of_training(count, len(entries))
        on_stderr().print(note)
    return {**calibrating.fit(captioner, details.calibrate).to_json(), **known}


def _measured(
    stored: Run,
    captioner: CaptionModel,
    folder: Path,
    details: Details,
    constant: float | None = None,
) -> model_card.Measured:
    """Scores on the shards, or without any those of an earlier `cc-train evaluate RUN`.

    Args:
        constant: The share of right captions by which a confidence was calibrated; None without.
    """
    path = folder / run_folder.EVALUATION
    if not details.shards:
        earlier = stored.folder / run_folder.EVALUATION
        if (earlier / evaluation.SCORES).exists():
            shutil.copytree(earlier, path)
            _say_exported(path / evaluation.SCORES, stored, folder)
        return model_card.measured(path)
    entries, items = shard_items.captioned(details.shards)
    console = on_stderr()
    scores, captions = score_captioner.score(
        captioner, entries, items, 1, console, words=stored.words
    )
    trained_on = _say_trained_on(stored, [entry.key for entry in entries], console)
    scores = replace(scores, trained_on=trained_on, **_exported(folder))
    evaluation.write(path, scores, items, captions)
    words = model_card.measured(path, entries)
    if constant is not None and scores.rendered is not None:
        words.measures.update(calibrating.measured(captioner, details.shards, constant))
    return words


def _exported(folder: Path) -> dict[str, Any]:
    """How the scores of an exported captioner name it."""
    return {"step": EXPORTED, "weights": storage.sha256(folder / checkpoints.MODEL)}


def _say_exported(file: Path, stored: Run, folder: Path) -> None:
    """Scores of the checkpoint of a training become those of what is exported of it.

    They keep the digest of the weights that captioned, which were not yet rounded.
    """
    scores = storage.read_json(str(file))
    if not _is_exported(stored.folder):
        scores[model_card.UNROUNDED] = scores.get("weights")
    storage.write_json(str(file), {**scores, **_exported(folder)})


def _is_exported(folder: Path) -> bool:
    """Whether the network of a folder was exported, so that its weights are float16."""
    return (folder / checkpoints.MODEL).is_file()


def _say_trained_on(stored: Run, keys: Sequence[str], console: Console) -> int:
    """How many of the samples that an export is measured on the run was trained on."""
    count = run_folder.trained_on(stored.folder, keys)
    if count:
        console.print(evaluation.of_training(count, len(keys)))
    return count


def _check_earlier_scores(stored: Run) -> None:
    """Raises UserError for scores that are not known to be of the best checkpoint of a run."""
    earlier, step = stored.folder / run_folder.EVALUATION, stored.step
    if not (earlier / evaluation.SCORES).exists():
        return
    model_card.measured(earlier)  # raises for what is damaged
    scores = storage.read_json(str(earlier / evaluation.SCORES))
    scored = run_folder.scored_instead(stored.folder, step, scores)
    if scored is not None:
        raise UserError(
            f"{earlier}: scores of {scored}, and the best checkpoint is that of step {step:,}",
            f"Evaluate again, give --shards, or remove {earlier}",
        )


@contextmanager
def _folder(out: Path) -> Iterator[Path]:
    """A folder that appears under its name only when it is complete. Raises UserError."""
    if out.exists():
        raise UserError(f"{out}: already exists", "Give another folder, or remove it")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as temporary:
        folder = Path(temporary) / out.name
        folder.mkdir()
        yield folder
        folder.replace(out)


def _files(stored: Run) -> list[str]:
    """Names of the files that the network needs besides its tensors."""
    return list(stored.settings.get("files", []))


def _by_name(stored: Run) -> dict[str, Any]:
    """The settings of an export without the frozen networks that have a name. Raises UserError."""
    recipe = systems.recipe(stored.system)
    if not hasattr(recipe, "by_name"):
        raise UserError(
            f"{stored.folder}: a run of {stored.system} keeps its frozen networks",
            "Leave out --by-name",
        )
    named = recipe.by_name(stored)
    if not named:
        raise UserError(
            f"{stored.folder}: none of its files is a network that the package has by name",
            "Leave out --by-name",
        )
    return {
        "files": [file for file in _files(stored) if file not in named],
        named_weights.KEY: {**stored.settings.get(named_weights.KEY, {}), **named},
    }


def _take_along(source: Path, target: Path) -> None:
    """Copies what a packed captioner brings for people."""
    for path in (source / name for name in run_folder.FOR_PEOPLE):
        if path.is_dir():
            shutil.copytree(path, target / path.name)
        elif path.exists():
            shutil.copyfile(path, target / path.name)


def _copy_small(source: Path, target: Path) -> None:
    """Copies a file that the network needs besides; the weights of a frozen backbone as float16."""
    if source.name == frozen_backbone.FILE:
        with safe_open(source, "pt") as file:
            metadata = file.metadata()  # the sizes of a library's backbone
        save_file(_halved(load_file(source)), target, metadata)
        target.chmod(0o644)
    else:
        shutil.copyfile(source, target)


def _check_apart(shards: Sequence[str], calibrate: Sequence[str]) -> None:
    """Raises UserError if a file is to be calibrated and measured on."""
    shared = set(expand(shards)) & set(expand(calibrate))
    if shared:
        raise UserError(
            f"{min(shared)} is in --shards and in --calibrate", "Measure on other pairs"
        )


def _check_other_pairs(shards: Sequence[Entry], calibrate: Sequence[Entry]) -> None:
    """Raises UserError for pairs that are to be calibrated and measured on, whatever their files.

    Rendered scenes are numbered whatever their seed, so of pairs of one key a few are compared.
    """
    measured = {entry.key: entry for entry in shards}
    shared = [(measured[one.key], one) for one in calibrate if one.key in measured]
    same = [one.key for other, one in shared[:COMPARED] if _stored(other) == _stored(one)]
    if same:
        raise UserError(
            f"the pair {same[0]} is in --shards and in --calibrate", "Measure on other pairs"
        )


def _stored(entry: Entry) -> tuple[dict[int, bytes], bytes, bytes]:
    """What a shard holds of the images of a pair. Raises UserError."""
    try:
        sample = entry.read()
    except (DamagedShard, FileNotFoundError) as error:
        raise UserError(f"{entry.shard}: {error}", shard_index.ADVICE) from None
    features = b"" if sample.features is None else sample.features.values.tobytes()
    return sample.images, sample.tokens.tobytes(), features


def _loaded(stored: Run, settings: Mapping[str, Any], folder: Path) -> CaptionModel:
    """The captioner that a folder holds, with these settings.

    They are written without folders, of which the captioner may need one here: that of its language
    model.
    """
    _write_model(stored.tensors, settings, folder / checkpoints.MODEL)
    storage.write_json(str(folder / run_folder.SETTINGS), portable(settings))
    return loading.of_run(replace(stored_run.read(folder), settings=dict(settings)), folder)


def _write_model(tensors: Mapping[str, Tensor], settings: Mapping[str, Any], file: Path) -> None:
    """Tensors as float16, with the settings, without folders, in the file's metadata."""
    text = json.dumps(portable(settings), sort_keys=True)
    save_file(_halved(tensors), file, metadata={"settings": text})
    file.chmod(0o644)


def _halved(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as float16 where they are floating point."""
    return {n: (t.half() if t.is_floating_point() else t).contiguous() for n, t in tensors.items()}
