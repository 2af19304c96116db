"""The fused job against three jobs with files between them, and one worker against two.

    python benchmarks/bench_job.py [--pairs 64] [--repeats 5]

Frames of real videos as PNG files of 480×320, at 224 px with the shipped weights, on a Ray that
runs already. One worker of two threads makes training shards of pairs in one stream, or by
`interpolate`, `score-frames` and `build`, which write and read sequences and scores. Then one and
two workers of one thread each: what these take is held against the model of `cluster.py`, which
then says what GPUs would do.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click
from lib.cluster import (
    Cluster,
    job_seconds,
    measured,
    on_gpus,
    seconds_of_clevr_change,
    tera_flop_a_pair,
)
from lib.jobs import forget, job, ready
from lib.measuring import report, turns

ONE_THREAD = tuple(
    part for step in ("interpolate", "score", "tokenize") for part in ("--set", f"{step}.threads=1")
)

WORKERS = {"one": 1, "two": 2}


@click.command()
@click.option("--pairs", default=64, show_default=True)
@click.option("--repeats", default=5, show_default=True)
def main(pairs: int, repeats: int) -> None:
    """Measures pairs a second."""
    one, two = (("--limit", str(pairs), "--workers", count) for count in ("1", "2"))
    jobs = ["interpolate", "score-frames", "build"]
    with ready(pairs) as folder:
        seconds = turns(
            {
                "fused": partial(steps, folder, ["build"], *one),
                "three": partial(steps, folder, jobs, *one),
                "one": partial(steps, folder, ["build"], *one, *ONE_THREAD),
                "two": partial(steps, folder, ["build"], *two, *ONE_THREAD),
            },
            repeats,
        )
        costs = measured(folder / "pairs", pairs)
        starts = {
            way: turns({way: partial(steps, folder, ["build"], *few(way))}, repeats)[way]
            - costs.total
            for way in WORKERS
        }
    fused, scaling = seconds["three"] / seconds["fused"], seconds["one"] / seconds["two"]
    rates = {way: pairs / duration for way, duration in seconds.items()}
    print(f"fused {rates['fused']:.2f} pairs/s, three jobs {rates['three']:.2f}: × {fused:.2f}")
    print(f"one worker {rates['one']:.2f} pairs/s, two {rates['two']:.2f}: × {scaling:.2f}")
    parts = ", ".join(f"{name} {1e3 * duration:.0f} ms" for name, duration in vars(costs).items())
    print(f"a pair, one thread: {parts}")
    model = {}
    for way, workers in WORKERS.items():
        model[way] = pairs / job_seconds(costs, starts[way], pairs, workers)
        print(f"{way}: a start of {starts[way]:.1f} s; the model says {model[way]:.2f} pairs/s, "
              f"measured {rates[way]:.2f}")  # fmt: skip
    gpus = clusters(costs.rest)
    report(
        "job",
        {
            "pairs": pairs,
            "pairs_a_second": rates,
            "fused_ratio": fused,
            "scaling_ratio": scaling,
            "starts": starts,
            "costs": vars(costs),
            "model": model,
            "gpus": gpus,
        },
    )


def few(way: str) -> list[str]:
    """Arguments of a job with a pair for each worker."""
    count = str(WORKERS[way])
    return ["--limit", count, "--workers", count, "--set", "shards.pairs_per_shard=1", *ONE_THREAD]


def clusters(rest: float) -> dict[str, dict[str, float]]:
    """What the model says of clusters; nothing of it is measured."""
    rates = {}
    for gpus in (1, 8, 64):
        for overlaps in (True, False):
            parts = on_gpus(rest, gpus, Cluster(), overlaps)
            least = min(parts, key=lambda part: parts[part])
            seconds = seconds_of_clevr_change(parts[least], gpus)
            print(
                f"{gpus} GPUs, reading {'meanwhile' if overlaps else 'in turn'}: "
                f"{parts[least]:,.0f} pairs/s ({least} first), "
                f"CLEVR-Change in {seconds / 60:.1f} min"
            )
            rates[f"{gpus} {'overlapped' if overlaps else 'in turn'}"] = parts
    print(", ".join(f"{n} {v:.3f} TFLOP a pair" for n, v in tera_flop_a_pair().items()))
    return rates


def steps(folder: Path, names: list[str], *arguments: str) -> None:
    """The steps, one after the other, from nothing."""
    forget(folder, "out")
    for name in names:
        job(folder, "out", name, *arguments)


if __name__ == "__main__":
    main()
