"""Does a stage 1 show more of a change than its own input? A probe of few labels tells.

    python benchmarks/stage1_probe.py --shards 'out/gate/shards/*.tar' --run runs/stage1-0 \
        [--run runs/stage1-1]... [--labels 50 --labels 100 --labels 300] [--draws 10]

The shards hold facts, and what the encoder sees; no stage 1 was trained on their scenes. Linear
probes of so many labelled scenes read what differs between before and after, and are measured on
half of the scenes: changed or not (area under the curve), and of changed pairs the type, the place
(right to a tenth of the image) and the attributes of the object, in %. They read the encoder's
states as stage 2 has them; its surprise, which is how unlikely it finds each token of an end given
the rest; and the input alone, which both have to beat. Beside each figure is its gain over the
input, with the 95 % interval over tested and labelled scenes. Runs are seeds of one setting; of
several, the figures are means, and the interval of the gain is that of the seeds. --untrained also
measures the networks of the runs before any training.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import torch
from lib import tables
from lib.measuring import report

from cc_prep.devices import keep_freed_memory
from cc_train.data import shard_index
from cc_train.evaluation.few_label_probe import COUNTS, DRAWS, FIGURES, Figure
from cc_train.layers import mimetic
from cc_train.systems.procap import stage1, stage1_probe
from cc_train.systems.procap.procedure_encoder import ProcedureEncoder
from cc_train.systems.procap.stage1_probe import ProbedPairs

Figures = dict[str, dict[int, dict[str, Figure]]]


@click.command()
@click.option("--shards", multiple=True, required=True)
@click.option("--run", "runs", multiple=True, required=True, type=click.Path(path_type=Path))
@click.option("--labels", multiple=True, default=COUNTS, show_default=True, help="In scenes.")
@click.option("--draws", default=DRAWS, show_default=True, help="Of labelled scenes.")
@click.option("--untrained", is_flag=True, help="Also measure the networks before training.")
def main(
    shards: tuple[str, ...],
    runs: tuple[Path, ...],
    labels: tuple[int, ...],
    draws: int,
    untrained: bool,
) -> None:
    """Prints what can be read of each network of stage 1."""
    torch.set_num_threads(1)
    keep_freed_memory()
    began = time.process_time()
    encoders = [stage1.read_encoder(run) for run in runs]
    features = stage1.read_features(runs[0], encoders[0][1])
    pairs = ProbedPairs.read(shard_index.read(shards), features)
    print(f"{len(pairs.ends)} pairs", flush=True)
    measured = {"trained": [stage1_probe.measure(one, pairs, labels, draws) for one, _ in encoders]}
    if untrained:
        starts = [_untrained(*one, seed) for seed, one in enumerate(encoders)]
        measured["untrained"] = [stage1_probe.measure(one, pairs, labels, draws) for one in starts]
    for title, figures in measured.items():
        print(f"\n{title}, {len(figures)} seeds\n{table_of(figures)}")
    seconds = time.process_time() - began
    print(f"\n{seconds:.0f} s of a core")
    lines = {title: [stage1_probe.logged(one) for one in some] for title, some in measured.items()}
    report("stage1_probe", {"pairs": len(pairs.ends), "draws": draws, **lines})


def table_of(seeds: Sequence[Figures]) -> str:
    """Figures and gains of every reading and number of labelled scenes, in %, as Markdown."""
    lines = ["| reading | labelled | " + " | ".join(FIGURES) + " |", "|---" * 6 + "|"]
    for name, of_counts in seeds[0].items():
        for count in of_counts:
            cells = [cell([one[name][count][figure] for one in seeds]) for figure in FIGURES]
            lines.append(f"| {name} | {count} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cell(seeds: Sequence[Figure]) -> str:
    """`81.2 (+1.3: +0.2 … +2.4)`: the mean in %, its gain over the input, and that's interval."""
    value = 100 * statistics.fmean(one.value for one in seeds)
    gains = [100 * one.gain for one in seeds]
    mean, half = tables.interval(gains)
    low, high = (100 * bound for bound in seeds[0].gain_interval)
    if half is not None:
        low, high = mean - half, mean + half
    return f"{value:.1f} ({mean:+.1f}: {low:+.1f} … {high:+.1f})"


def _untrained(trained: ProcedureEncoder, settings: dict[str, Any], seed: int) -> ProcedureEncoder:
    """The network of a run before training, with the statistics of its features."""
    torch.manual_seed(seed)
    network = stage1.Network(**settings["network"])
    encoder = ProcedureEncoder(trained.config, network.position_std)
    if network.sinusoidal_init:
        encoder.target_pos_emb.init_sinusoidal()
    if network.mimetic:
        mimetic.start(encoder.transformer)
    if encoder.standardise is not None and trained.standardise is not None:
        encoder.standardise.load_state_dict(trained.standardise.state_dict())
    return encoder.eval()


if __name__ == "__main__":
    main()
