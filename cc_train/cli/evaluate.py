"""Commands of `cc-train` that score and show scores: evaluate, judge-check, compare, …"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cc_prep.errors import UserError
from cc_prep.terminal import echo
from cc_train.cli.options import (
    SHARDS,
    beams_option,
    decode_option,
    device_option,
    json_scores_option,
    judge_options,
    protocol_option,
    shards_option,
    words_option,
)

if TYPE_CHECKING:
    from cc_prep.unspaced import Words
    from cc_train.evaluation.captions.coco import Item
    from cc_train.evaluation.captions.learned import Measure
    from cc_train.evaluation.evaluation import Evaluation
    from cc_train.evaluation.judging.judge_captions import Bench, Options

CONSENSUS = "consensus"  # of --decode
FEW = 3  # pairs that a note names


@click.command()
@click.argument("run", required=False)
@shards_option("Training shards of the split")
@click.option(
    "--predictions",
    multiple=True,
    metavar="FILE|DIR",
    help="Score these predictions, of any system, in place of RUN's (repeatable).",
)
@click.option("--references", metavar="FILE", help="References for --predictions: COCO or JSON.")
@click.option(
    "--swapped", metavar="FILE", help="Predictions for the same pairs with their images swapped."
)
@click.option("--types", metavar="FILE", help="Types of change for --predictions: {type: [ids]}.")
@click.option(
    "--facts", metavar="FILE", help="What truly changed: the facts.json of a rendered data set."
)
@click.option(
    "--predicted-only", is_flag=True, help="Leave out pairs without a prediction, as COCO does."
)
@protocol_option
@words_option
@click.option(
    "--metric",
    "learned",
    multiple=True,
    metavar="NAME[=FOLDER]",
    help="Also score by a network: Similarity, of sentences; BERTScore=FOLDER or CLIPScore=FOLDER, "
    "a folder of transformers (repeatable).",
)
@click.option(
    "--mask-predictions",
    metavar="DIR",
    help="Score the masks in this folder (PNGs of class ids), of any system.",
)
@click.option("--mask-references", metavar="DIR", help="The true masks, with the same file names.")
@click.option(
    "--classes",
    type=click.IntRange(2, 255),
    help="Number of mask classes, including the unchanged class; default: 2 or 3, inferred from "
    "the pixel values.",
)
@click.option(
    "--out",
    metavar="DIR",
    help="The folder that is written; default: RUN/evaluation, or NAME.evaluation for predictions "
    "and for a captioner of the package or the hub.",
)
@judge_options(required=False)
@click.option(
    "--differences",
    metavar="FILE",
    help="With --judge: all that differs in each pair, {id: [difference, …]}.",
)
@click.option(
    "--judge-check",
    metavar="DIR",
    help="The folder of a judge-check of this judge, whose error is then shown.",
)
@beams_option
@decode_option
@device_option
@json_scores_option
def evaluate(
    *,
    run: str | None,
    shards: tuple[str, ...],
    predictions: tuple[str, ...],
    references: str | None,
    swapped: str | None,
    types: str | None,
    facts: str | None,
    predicted_only: bool,
    protocol: str | None,
    words: Words | None,
    learned: tuple[str, ...],
    mask_predictions: str | None,
    mask_references: str | None,
    classes: int | None,
    out: str | None,
    beams: int,
    decode: str,
    device: str,
    as_json: bool,
    **judge: Any,
) -> None:
    """Scores RUN's captions, or any system's, against references.

    Computes BLEU-1..4, METEOR, ROUGE-L, CIDEr, S*m and SPICE for all pairs, for the changed and the
    unchanged ones, and for each type of change; SPICE needs Java. Predictions are always written.
    For rendered pairs, what the captions state is checked first: changed or not, type of change,
    attributes of the object. Their shards hold the facts; with --references, give --facts.
    --predictions takes COCO's results, {id: caption}, and the files of SCORER, CLIP4IDC and ProCap.
    The last line is the signature of the scores: scores with different signatures are not
    comparable. Masks are written and scored too where captioner and shards have them;
    --mask-predictions scores the masks of any system. With --judge a language model is also asked
    whether the captions are right (docs/judging.md).

    \b
    Examples:
      cc-train evaluate out/clevr/stage2 --shards 'out/clevr/shards/test-*.tar'
      cc-train evaluate --predictions theirs.json --references test.json --out theirs
      cc-train evaluate --predictions theirs.json --references test.json \\
          --facts data/synth/facts.json
      cc-train evaluate --predictions theirs.json --references spot.json --protocol spot-single
      cc-train evaluate --mask-predictions theirs --mask-references labels --classes 3
      cc-train evaluate --predictions theirs.json --references test.json \\
          --judge gpt-oss-120b --judge-url http://localhost:8000/v1
    """
    of_run = run is not None or shards
    of_references = references is not None or types is not None or predicted_only
    of_references = of_references or swapped is not None
    of_captions = bool(facts or protocol or words or learned)
    of_captions = of_captions or any(value not in (None, ()) for value in judge.values())
    if mask_predictions is not None or mask_references is not None or classes is not None:
        if of_run or predictions or of_references or of_captions:
            raise UserError("masks and captions are both to be scored", "Score one at a time")
        if mask_predictions is None or mask_references is None:
            raise UserError(
                "--mask-predictions and --mask-references belong together", "Give both folders"
            )
        evaluate_masks(mask_predictions, mask_references, classes, out, as_json)
        return
    if protocol is not None:
        from cc_train.evaluation import protocols

        protocols.get(protocol)
    bench = _bench(**judge)
    if predictions:
        if run is not None or (references is None) == (not shards):
            raise UserError(
                "--predictions needs either --references or --shards, and no RUN",
                "Use, for example, cc-train evaluate --predictions FILE --references FILE",
            )
        evaluate_predictions(
            predictions,
            references,
            shards,
            out,
            as_json,
            types=types,
            facts=facts,
            predicted_only=predicted_only,
            protocol=protocol,
            words=words,
            learned=learned,
            device=device,
            swapped=swapped,
            bench=bench,
        )
        return
    if run is None or not shards:
        raise UserError("nothing is given to score", "Give RUN and --shards, or --predictions")
    if of_references:
        raise UserError(
            "--references, --types, --swapped and --predicted-only are of --predictions",
            "Leave them out: a run is scored against the captions of its --shards",
        )
    evaluate_run(
        run,
        shards,
        out,
        as_json,
        facts=facts,
        protocol=protocol,
        words=words,
        learned=learned,
        beams=beams,
        decode=decode,
        device=device,
        bench=bench,
    )


def _bench(
    judge: str | None, judge_url: str | None, differences: str | None, **options: Any
) -> Bench | None:
    """The judge of the options; None where none is named. Raises UserError."""
    if judge is None or judge_url is None:
        given = {"judge": judge, "judge_url": judge_url, "differences": differences, **options}
        names = [name for name, value in given.items() if value not in (None, ())]
        if names:
            option = f"--{names[0].replace('_', '-')}"
            raise UserError(
                f"{option} needs a judge and its server", "Give --judge MODEL and --judge-url URL"
            )
        return None
    from cc_train.evaluation.judging import judge_captions

    return judge_captions.prepared(_options(judge, judge_url, differences=differences, **options))


def _options(
    model: str,
    url: str,
    *,
    judge_protocol: str | None,
    judge_prompt: str | None,
    judge_set: Sequence[str],
    judge_threads: int | None,
    judge_seed: int | None,
    judge_key_variable: str | None,
    differences: str | None = None,
    judge_check: str | None = None,
) -> Options:
    from cc_train.evaluation.judging import protocols
    from cc_train.evaluation.judging.judge_captions import Options

    return Options(
        model,
        url,
        judge_protocol or protocols.OURS,
        judge_prompt,
        judge_set,
        judge_key_variable,
        judge_threads or 1,
        judge_seed or 0,
        differences,
        judge_check,
    )


def evaluate_run(
    run: str,
    shards: tuple[str, ...],
    out: str | None,
    as_json: bool,
    *,
    facts: str | None,
    protocol: str | None,
    words: Words | None,
    learned: tuple[str, ...],
    beams: int,
    decode: str,
    device: str,
    bench: Bench | None = None,
) -> None:
    """Captions the samples of shards and scores the captions; writes RUN/evaluation by default.

    Args:
        facts: A file of what truly changed, in place of the facts that the samples hold.
        words: How captions are split; None for the way of the run's training.
        learned: Measures by networks, as `captions.learned` names them.
        beams: 1 is greedy.
        decode: `consensus` chooses the caption of several beams by their agreement.
        bench: The judge that is asked as well.

    Raises:
        UserError: Run and shards do not fit, or are not what `protocol` asks for.
        JobFailed: The judge's server fails.
    """
    from cc_prep.console import on_stderr
    from cc_prep.storage import outputs
    from cc_train import loading
    from cc_train.data import shard_index, split
    from cc_train.decoding import consensus
    from cc_train.evaluation import protocols, score_captioner, shard_items
    from cc_train.evaluation.rendered import fact_scores
    from cc_train.runs import run_folder, stored_run
    from cc_train.sharing import hub
    from cc_train.training.settings import pick_device

    if decode == CONSENSUS:
        consensus.require_beams(beams)
    path = Path(out or run_folder.default_evaluation(run))
    outputs.check_folder(str(path))
    entries, items = shard_items.captioned(shards)
    items = fact_scores.with_facts(items, facts) if facts else items
    stored = stored_run.read(hub.locate(run))
    chosen = split.is_validated_on(stored.settings, shard_index.read(shards))
    if protocol is not None:
        protocols.require_said(protocol, chosen)
    measures = named_measures(learned, device, shards)
    captioner = loading.of_run(stored, run, pick_device(device))
    if decode == CONSENSUS:
        captioner = consensus.Consensus(captioner)
    scores, captions = score_captioner.score(
        captioner,
        entries,
        items,
        beams,
        on_stderr(),
        path=path,
        protocol=protocol,
        words=words or stored.words,
        learned=measures,
    )
    scores = replace(
        scores,
        step=stored.step,
        decode=decode,
        chosen_on=chosen,
        weights=stored.sha256,
        trained_on=run_folder.trained_on(stored.folder, [entry.key for entry in entries]),
    )
    _finish(scores, path, items, captions, (), bench, as_json)


def evaluate_predictions(
    files: tuple[str, ...],
    references: str | None,
    shards: tuple[str, ...],
    out: str | None,
    as_json: bool,
    *,
    types: str | None,
    facts: str | None,
    predicted_only: bool,
    protocol: str | None,
    words: Words | None,
    learned: tuple[str, ...],
    device: str,
    swapped: str | None = None,
    bench: Bench | None = None,
) -> None:
    """Scores the predictions in files; writes NAME.evaluation, of the first one, by default.

    Args:
        references: The file that they are scored against; None for the captions of `shards`.
        types: A file of types of change.
        facts: A file of what truly changed.
        predicted_only: Leave out pairs without a prediction.
        words: How captions are split.
        learned: Measures by networks, as `captions.learned` names them.
        swapped: Predictions of the swapped pairs.
        bench: The judge that is asked as well.

    Raises:
        UserError: The files do not fit, or are not what `protocol` asks for.
        JobFailed: The judge's server fails.
    """
    from cc_prep.storage import outputs
    from cc_prep.words import counted
    from cc_train.evaluation import evaluation, signature
    from cc_train.evaluation.captions import coco

    path = Path(out or f"{files[0].rstrip('/')}.evaluation")
    outputs.check_folder(str(path))
    coco.check_apart(path, [*files, *filter(None, [references, swapped])])
    measures = named_measures(learned, device, shards)
    predicted = coco.read_predictions(files)
    items, uncaptioned = _references(references, shards, types, facts)
    captions, kept = coco.matched(predicted, items, predicted_only, uncaptioned)
    if len(kept) < len(items):
        without = counted(len(items) - len(kept), "pair")
        echo(f"left out: {without} without a prediction", err=True)
    if len(captions) < len(predicted):
        surplus = counted(len(predicted) - len(captions), "prediction")
        echo(f"left out: {surplus} of pairs without captions", err=True)
    scores = evaluation.evaluate(
        kept,
        captions,
        protocol=protocol,
        subset=signature.PREDICTED if len(kept) < len(items) else signature.ALL,
        words=words or "treebank",
        learned=measures,
    )
    if swapped is not None:
        reverse, _ = coco.matched(coco.read_predictions([swapped]), kept, uncaptioned=uncaptioned)
        check = evaluation.swap_check(kept, captions, reverse, words or "treebank")
        scores = replace(scores, swapped=check, swapped_captions=reverse)
    _finish(scores, path, kept, captions, uncaptioned, bench, as_json)


def named_measures(options: Sequence[str], device: str, shards: Sequence[str]) -> Sequence[Measure]:
    """The measures by networks that options name, of pairs of shards. Raises UserError."""
    if not options:
        return ()
    from cc_train.data import shard_index
    from cc_train.evaluation.captions import learned
    from cc_train.training.settings import pick_device

    entries = shard_index.read(shards) if shards else ()
    return learned.named(options, pick_device(device), entries)


def _references(
    file: str | None, shards: tuple[str, ...], types: str | None, facts: str | None
) -> tuple[Sequence[Item], Sequence[Item]]:
    """The pairs that have captions, and those that have none. Raises UserError."""
    from cc_prep.words import counted
    from cc_train.evaluation.captions import coco

    if file is None:
        from cc_train.evaluation import shard_items

        _, items, uncaptioned = shard_items.with_uncaptioned(shards)
    else:
        items, uncaptioned = coco.read_references(file), coco.read_uncaptioned(file)
        blank = coco.blank_references(file)
        if blank:
            named = ", ".join(list(dict.fromkeys(blank))[:FEW])
            count = counted(len(blank), "blank reference")
            echo(f"{count}, scored as the official scorer does, such as of {named}", err=True)
    if types:
        items = coco.with_types(items, types)
        without = sum(item.groups == (coco.CHANGE,) for item in items)
        if without:
            echo(f"{types}: no type of {without} changed pairs", err=True)
    if facts:
        from cc_train.evaluation.rendered import fact_scores

        items = fact_scores.with_facts(items, facts)
    return items, uncaptioned


def evaluate_masks(
    predictions: str, references: str, classes: int | None, out: str | None, as_json: bool
) -> None:
    """Scores the masks in a folder against those in another; writes nothing by default.

    Args:
        classes: See `cc_train.evaluation.masks.files.score`.

    Raises:
        UserError: The masks do not fit, or `out` holds other scores.
    """
    from cc_prep import storage
    from cc_prep.storage import outputs
    from cc_train.evaluation import evaluation
    from cc_train.evaluation.masks import files, segmentation

    path = None
    if out is not None:
        outputs.check_folder(out)
        path = str(Path(out) / evaluation.SCORES)
        if storage.exists(path) and not _holds_masks_alone(path):
            raise UserError(f"{path}: not the scores of masks", "Give another --out")
    scores = files.score(predictions, references, classes)
    if path is not None:
        storage.write_json(path, {"masks": scores.to_json()})
    echo(json.dumps(scores.to_json(), indent=2) if as_json else segmentation.table(scores))


def _holds_masks_alone(path: str) -> bool:
    """Whether a file of scores may be replaced by those of masks: it has none of captions."""
    from cc_prep import storage

    try:
        scores = storage.read_json(path)
    except ValueError:
        return False
    return isinstance(scores, dict) and scores.keys() == {"masks"}


def _finish(
    scores: Evaluation,
    path: Path,
    items: Sequence[Item],
    captions: Mapping[str, str],
    uncaptioned: Sequence[Item],
    bench: Bench | None,
    as_json: bool,
) -> None:
    """Writes and prints an evaluation, with what a judge says if one is to be asked."""
    from cc_train.evaluation import evaluation

    evaluation.write(path, scores, items, captions, uncaptioned)  # there whatever the judge does
    if bench is not None:
        from cc_prep.console import on_stderr
        from cc_train.evaluation.judging import judge_captions

        scores = judge_captions.judged(
            bench, scores, items, captions, scores.swapped_captions, path, on_stderr()
        )
        evaluation.write(path, scores, items, captions, uncaptioned)
    echo(json.dumps(scores.to_json(), indent=2) if as_json else evaluation.table(scores))
    echo(f"files: {path}", err=True)


@click.command("judge-check")
@judge_options(required=True)
@shards_option("Shards of rendered or composed pairs; default: rendered scenes are drawn")
@click.option(
    "--pairs",
    type=click.IntRange(1),
    default=40,
    show_default=True,
    help="Number of pairs, half of them unchanged where scenes are drawn.",
)
@click.option("--out", required=True, metavar="DIR", help="The folder that is written.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def judge_check(
    *,
    judge: str,
    judge_url: str,
    shards: tuple[str, ...],
    pairs: int,
    out: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Measures how often a judge of captions errs.

    It is asked about captions whose truth is known, of rendered scenes or of the pairs of --shards:
    right ones, one word wrong, another object, another change, nothing changed, order swapped. The
    error of each kind is printed and written. Answers are stored as they arrive, and the same
    command resumes. Give the folder to `cc-train evaluate --judge-check`.

    \b
    Example:
      cc-train judge-check --judge gpt-oss-120b --judge-url http://localhost:8000/v1 --out judge
    """
    from cc_prep.console import on_stderr
    from cc_prep.storage import outputs
    from cc_train.evaluation.judging import check, judge_captions

    outputs.check_folder(out)
    bench = judge_captions.prepared(_options(judge, judge_url, **options))
    known = judge_captions.pairs_with_facts(shards, pairs, bench.protocol.seed)
    result = check.run(
        bench.judge,
        bench.protocol,
        known,
        Path(out),
        on_stderr(),
        threads=bench.threads,
        seed=bench.protocol.seed,
    )
    echo(json.dumps(result.to_json(), indent=2) if as_json else check.table(result))
    echo(f"files: {out}", err=True)


@click.command()
@click.argument("paths", nargs=-1, metavar="[RUN…]")
@click.option(
    "--dataset", metavar="NAME", help="Add published figures of this data set: clevr, spot, …"
)
@click.option("--mixed", is_flag=True, help="Do not refuse scores with different signatures.")
@click.option("--out", metavar="FILE", help="Also write an HTML page, with bars.")
@click.option("--latex", is_flag=True, help="Print LaTeX tables (package booktabs).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compare(**options: Any) -> None:
    """Prints the scores of runs and evaluations side by side.

    Scores with different signatures are refused. For runs that were scored on the same pairs as the
    first one, the gain in CIDEr over the first is printed, with an interval; for rendered pairs
    also how many more captions are exactly right. NAME=RUN,RUN,… names several runs of one system:
    mean, standard deviation, and an interval over pairs and runs are printed. --dataset adds the
    figures that papers report (docs/published.md).

    \b
    Examples:
      cc-train compare runs/a runs/b theirs.json.evaluation --dataset clevr --out compare.html
      cc-train compare procap=runs/a0,runs/a1,runs/a2 scorer=runs/b0,runs/b1,runs/b2 --latex
      cc-train compare --dataset spot --latex
    """
    from cc_train.report.comparison import compare

    compare(**options)


@click.command()
@click.argument("run")
@click.option(
    "--out",
    metavar="FILE",
    help="The page that is written; default: RUN/report.html, or NAME.report.html in the current "
    "folder for a captioner of the package or the hub.",
)
@shards_option("Shards whose samples are shown")
@click.option(
    "--evaluation",
    metavar="DIR",
    help="A folder that `cc-train evaluate --out` wrote; default: RUN/evaluation, or "
    "NAME.evaluation for a captioner of the package or the hub.",
)
def report(run: str, out: str | None, shards: tuple[str, ...], evaluation: str | None) -> None:
    """Writes an HTML page about a run.

    It shows curves, reconstructions, and captions beside their references.

    \b
    Example:
      cc-train report out/clevr/stage2 --shards 'out/clevr/shards/test-*.tar'
    """
    from cc_train.report import write

    echo(write(run, out, shards, evaluation))


@click.command()
@shards_option("Training shards of the split", required=True)
@click.option(
    "--model",
    required=True,
    metavar="FOLDER|NAME",
    help="A local folder; with --url, the name of a model of the server.",
)
@click.option("--url", metavar="URL", help="An OpenAI-compatible server: http://localhost:8000/v1.")
@click.option("--out", required=True, metavar="DIR", help="The folder that is written.")
@click.option(
    "--prompt",
    metavar="TEXT",
    help="The question; default: that of the data set in cc_train/baselines/prompts.yaml.",
)
@click.option(
    "--examples",
    multiple=True,
    metavar="SHARDS",
    help=f"Training shards, of which some pairs are shown with their captions first: {SHARDS}.",
)
@click.option(
    "--shots", type=click.IntRange(1), help="With --examples: how many pairs [default: 4]."
)
@click.option(
    "--swapped", is_flag=True, help="Also ask about the changed pairs in the other order."
)
@click.option(
    "--plain",
    is_flag=True,
    help="Score answers without “Answer:” and the like, bold marks and list marks.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="A decoding parameter, such as max_tokens=50; null omits it from the request "
    "(repeatable).",
)
@click.option(
    "--key-variable",
    metavar="NAME",
    help="With --url: the environment variable that holds the key [default: OPENAI_API_KEY].",
)
@click.option(
    "--requests-per-minute",
    type=click.FloatRange(0, min_open=True),
    help="With --url: maximum number of requests per minute.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 64),
    help="With --url: number of requests at a time [default: 1].",
)
@click.option(
    "--tries",
    type=click.IntRange(1),
    help="With --url: attempts per request before the run ends [default: 8].",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    help="With --url: seconds without a byte before a request counts as failed [default: 600].",
)
@click.option(
    "--no-probe",
    is_flag=True,
    help="With --url: do not look first whether the model sees two images, in their order.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    help="For a local model: pairs per batch [default: 1].",
)
@device_option
@click.option(
    "--precision",
    type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
    default="auto",
    show_default=True,
    help="For a local model; auto: bfloat16 on a GPU, float32 on a CPU.",
)
@click.option(
    "--cache",
    metavar="DIR",
    help="Folder of stored answers, another one for each server; default: OUT/answers.",
)
@click.option(
    "--limit", type=click.IntRange(1), help="Ask about at most this many samples, for a trial."
)
@protocol_option
@words_option
@json_scores_option
def baseline(**options: Any) -> None:
    """Asks a multi-modal LLM what changed, and scores that.

    Nothing is trained. The model is a local folder (transformers, extra [mllm]), or a model of an
    OpenAI-compatible server; it gets both images of every pair. The question depends on the data
    set. OUT gets the files of `cc-train evaluate`, so `cc-train compare` shows them beside trained
    captioners.

    Answers are stored as they arrive. The same command resumes a run that was killed, and does not
    ask again what was answered.

    \b
    Examples:
      cc-train baseline --model /models/Qwen2.5-VL-3B-Instruct \\
          --shards 'out/spot/shards/test-*.tar' --out out/spot/qwen
      cc-train baseline --url http://localhost:8000/v1 --model some-vl-model --threads 8 \\
          --shards 'out/spot/shards/test-*.tar' --out out/spot/some-vl-model
    """
    from cc_train.baselines.run import baseline

    baseline(**options)
