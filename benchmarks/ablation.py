"""The ablation of the two stages on rendered scenes, and of the number of queries.

    python benchmarks/ablation.py --out out/ablation [--jobs 2] [--table docs/results.md]

Renders scenes and builds shards where OUT has none, trains what is not trained yet (all steps can
be stopped and go on), evaluates on the test split and writes the table. Beside it stand the best
constant caption and the paper's figures.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console

from cc_train import captioner as captioners
from cc_train import configs
from cc_train.data import shard_index
from cc_train.evaluation import evaluation
from cc_train.evaluation.captions import coco, scorer
from cc_train.evaluation.captions.coco import STILL
from cc_train.evaluation.predict import predict
from cc_train.systems.procap.stage1 import Settings

BIN = Path(sys.executable).parent
SIZE = 112
# A camera on a tripod that somebody brushed against. With CLEVR-Change's jitter (1.0) only 27 % of
# the 7 × 7 tokens of an unchanged pair stay as they are, with this 74 %.
JITTER = 0.1
# One sentence a pair; six varied ones were not tried again with the encoder at a tenth of the rate.
WORDING = "plain"
CANDIDATES = 40  # constant captions that are tried
REPEATS = 5


@dataclass(frozen=True)
class Variant:
    """A way to train stage 2. paper: its CIDEr on CLEVR-Change, and words a second."""

    name: str
    k: int
    stage1: bool
    paper: float
    words: int | None = None


VARIANTS = (
    Variant("neither", 0, False, 108.4),
    Variant("stage 1 alone", 0, True, 112.7),
    Variant("queries alone, k = 1", 1, False, 106.2),
    Variant("both, k = 1", 1, True, 128.5, 766),
    Variant("both, k = 2", 2, True, 135.6, 699),
    Variant("both, k = 4", 4, True, 128.7, 461),
)


@click.command()
@click.option("--out", required=True)
@click.option("--scenes", default=3000, show_default=True)
@click.option("--steps", type=int, help="Of either stage; default: the manifest's.")
@click.option("--jobs", default=2, show_default=True, help="Trainings at once, a thread each.")
@click.option("--table", help="Where the Markdown goes; default: OUT/results.md.")
def main(out: str, scenes: int, steps: int | None, jobs: int, table: str | None) -> None:
    """Runs the whole ablation and writes its table."""
    torch.set_num_threads(1)
    folder = Path(out)
    prepare(folder, scenes)
    began = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        stage1 = pool.submit(train, folder, "stage1", "stage1", steps, [])
        futures = {
            variant: pool.submit(train_variant, folder, variant, stage1, steps)
            # Those without a stage 1 need not wait for it; then the paper's choice.
            for variant in sorted(VARIANTS, key=lambda v: (v.stage1, v.k != 2, v.k))
        }
        runs = [futures[variant].result() for variant in VARIANTS]
    minutes = (time.monotonic() - began) / 60
    rows = [measure(folder, run) for run in runs]
    constant = best_constant(folder)
    write(folder, table, rows, constant, minutes)


def prepare(folder: Path, scenes: int) -> None:
    """Scenes and shards, where they are not there yet."""
    provenance = folder / "shards" / "provenance.json"
    if provenance.exists() and json.loads(provenance.read_text())["complete"]:
        return
    run(
        "cc-prep", "synth", folder / "scenes", "--scenes", scenes, "--seed", 2000, "--size", SIZE,
        "--jitter", JITTER, "--wording", WORDING,
    )  # fmt: skip
    run(
        "cc-prep", "build", "synth", "--root", folder / "scenes", "--out", folder,
        "--set", f"image_size={SIZE}", *(
            option for step in ("interpolate", "score", "tokenize")
            for option in ("--set", f"{step}.threads=1")
        ),
    )  # fmt: skip


def train_variant(folder: Path, variant: Variant, stage1: Future[Path], steps: int | None) -> Path:
    """Trains stage 2 of a variant; its run."""
    name = variant.name.replace(" ", "-").replace(",", "").replace("=", "").replace("--", "-")
    settings = [f"queries.k={variant.k}"]
    options: list[object] = ["--init", stage1.result()] if variant.stage1 else []
    if not variant.stage1:
        stage1_settings = configs.load(Settings, "stage1", "synth", [], Console(stderr=True))
        settings += [
            f"network={stage1_settings.network.model_dump_json()}",
            f"frames={stage1_settings.frames}",
        ]
    return train(
        folder, "stage2", name, steps, [*options, *(p for s in settings for p in ("--set", s))]
    )


def train(folder: Path, stage: str, name: str, steps: int | None, options: list[object]) -> Path:
    """Trains a stage with the manifest's settings; its run."""
    shards = folder / "shards"
    run_folder = folder / "runs" / name
    run(
        "cc-train", stage, "--config", "synth", "--shards", shards / "train-*.tar",
        "--valid", shards / "val-*.tar", "--out", run_folder, "--set", "loop.threads=1", *options,
        *(["--steps", steps] if steps else []),
        log=folder / "runs" / f"{name}.log",
    )  # fmt: skip
    return run_folder


def measure(folder: Path, run_folder: Path) -> dict[str, Any]:
    """Scores of a run on the test split, and its words a second."""
    run(
        "cc-train", "evaluate", run_folder, "--shards", folder / "shards" / "test-*.tar",
        log=folder / "runs" / "evaluate.log",
    )  # fmt: skip
    scores = json.loads((run_folder / "evaluation" / "scores.json").read_text())
    items = run_folder / "evaluation" / "items.jsonl"
    return {
        **scores,
        "told": balanced_accuracy([json.loads(line) for line in items.read_text().splitlines()]),
        "words": words_a_second(run_folder, folder),
    }


def balanced_accuracy(rows: list[dict[str, Any]]) -> float:
    """Of changed and of unchanged pairs, the share whose caption says which it is; their mean.

    CIDEr cannot say it of unchanged pairs alone: what all references share weighs nothing in it.
    """
    still = {caption for row in rows if STILL in row["groups"] for caption in row["references"]}
    hits = {
        kind: [(r["caption"] in still) == kind for r in rows if (STILL in r["groups"]) == kind]
        for kind in (True, False)
    }
    return sum(sum(part) / len(part) for part in hits.values()) / 2


def words_a_second(run_folder: Path, folder: Path) -> float:
    """Words of greedy captions a second, images encoded from tokens; the best of some passes."""
    captioner = captioners.load(run_folder)
    entries = shard_index.read([str(folder / "shards" / "test-*.tar")])[:256]
    best = 0.0
    for _ in range(REPEATS):
        began = time.monotonic()
        texts = [caption.text for _, caption in predict(captioner, entries)]
        words = sum(len(text.split()) for text in texts)
        best = max(best, words / (time.monotonic() - began))
    return best


def best_constant(folder: Path) -> dict[str, Any]:
    """The training caption that does best on the validation split if said of every pair."""
    captions = Counter(
        str(c)
        for meta in shard_index.metas(shard_index.read([str(folder / "shards" / "train-*.tar")]))
        for c in meta["captions"]
    )
    items = {}
    for split in ("val", "test"):
        entries = shard_index.read([str(folder / "shards" / f"{split}-*.tar")])
        items[split] = coco.items(shard_index.metas(entries))
    references = {item.id: item.references for item in items["val"]}
    ranked = [caption for caption, _ in captions.most_common(CANDIDATES)]

    def validation_cider(caption: str) -> float:
        return scorer.corpus_cider(references, dict.fromkeys(references, caption))

    best = max(ranked, key=validation_cider)
    scores = evaluation.evaluate(items["test"], {item.id: best for item in items["test"]})
    rows = [{**item.__dict__, "caption": best} for item in items["test"]]
    return {"caption": best, "told": balanced_accuracy(rows), **scores.figures()}


def write(
    folder: Path,
    table: str | None,
    rows: list[dict[str, Any]],
    constant: dict[str, Any],
    minutes: float,
) -> None:
    """The table in Markdown, and all figures as JSON."""
    figures = {v.name: row for v, row in zip(VARIANTS, rows, strict=True)}
    (folder / "results.json").write_text(
        json.dumps({**figures, "constant": constant, "minutes": minutes}, indent=1)
    )
    lines = [
        "| | CIDEr | changed pairs | told apart | BLEU-4 | same when swapped | words/s "
        "| paper's CIDEr | paper's words/s |",
        "|---|---|---|---|---|---|---|---|---|",
        _line(f"“{constant['caption']}” of all", constant, "", ""),
    ]
    for variant in VARIANTS:
        row = figures[variant.name]
        lines.append(_line(variant.name, row, f"{variant.paper}", f"{variant.words or ''}"))
    text = "\n".join(lines)
    print(text)
    target = Path(table) if table else folder / "results.md"
    if table and target.exists():
        head, _, rest = target.read_text().partition("<!-- ablation -->\n")
        tail = rest.partition("<!-- end -->")[2]
        text = f"{head}<!-- ablation -->\n{text}\n<!-- end -->{tail}".rstrip()
    target.write_text(text + "\n")


def _line(name: str, row: dict[str, Any], paper: str, words: str) -> str:
    groups = row["groups"]
    values = [groups[g]["CIDEr"] for g in ("total", "semantic change")]
    balanced = f"{100 * row['told']:.0f} %"
    same = f"{100 * row['swapped']['same']:.0f} %" if row.get("swapped") else ""
    speed = f"{row['words']:,.0f}" if "words" in row else ""
    cells = [name, *(f"{v:.1f}" for v in values), balanced, f"{groups['total']['BLEU-4']:.1f}"]
    return "| " + " | ".join([*cells, same, speed, paper, words]) + " |"


def run(program: str, *arguments: object, log: Path | None = None) -> None:
    """Runs one of our commands, one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [str(BIN / program), *map(str, arguments)]
    if log is None:
        subprocess.run(command, check=True, env=environment)
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        process = subprocess.run(command, check=False, env=environment, stdout=file, stderr=file)
    if process.returncode:
        sys.exit(f"{' '.join(command)}\nfailed; see {log}")


if __name__ == "__main__":
    main()
