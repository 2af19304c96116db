"""The fused job against three jobs with files between them, and one worker against two.

    python benchmarks/bench_job.py [--pairs 64] [--repeats 5]

Real videos at 224 px with the shipped weights, on a Ray that runs already. One worker of two
threads makes training shards of pairs in one stream, or by `interpolate`, `score-frames` and
`build`, which write and read sequences and scores. Then one and two workers of one thread each:
what these take is held against the model of `cluster.py`, which then says what GPUs would do.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click
from cluster import PAIRS_OF_CLEVR_CHANGE, Cluster, job_seconds, measured, on_gpus, tera_flop_a_pair
from jobs import forget, job, ready
from measuring import report, turns

# Seconds a pair outside RIFE with PNG files (`bench_interpolate.py`); videos are looked through.
REST_WITH_PNG = 0.030
ONE_THREAD = tuple(
    part for step in ("interpolate", "score", "tokenize") for part in ("--set", f"{step}.threads=1")
)


@click.command()
@click.option("--pairs", default=64, show_default=True)
@click.option("--repeats", default=5, show_default=True)
def main(pairs: int, repeats: int) -> None:
    """Measures pairs a second."""
    one, two = (("--limit", str(pairs), "--workers", count) for count in ("1", "2"))
    jobs = ["interpolate", "score-frames", "build"]
    with ready() as folder:
        seconds = turns(
            {
                "fused": partial(steps, folder, ["build"], *one),
                "three": partial(steps, folder, jobs, *one),
                "one": partial(steps, folder, ["build"], *one, *ONE_THREAD),
                "two": partial(steps, folder, ["build"], *two, *ONE_THREAD),
            },
            repeats,
        )
        alone = ("--limit", "1", "--workers", "1", *ONE_THREAD)
        costs = measured(folder / "videos", pairs)
        first = turns({"one": partial(steps, folder, ["build"], *alone)}, repeats)["one"]
    fused, scaling = seconds["three"] / seconds["fused"], seconds["one"] / seconds["two"]
    rates = {way: pairs / took for way, took in seconds.items()}
    print(f"fused {rates['fused']:.2f} pairs/s, three jobs {rates['three']:.2f}: × {fused:.2f}")
    print(f"one worker {rates['one']:.2f} pairs/s, two {rates['two']:.2f}: × {scaling:.2f}")
    start, model = first - costs.total, {}
    print(
        "a pair, one thread: "
        + ", ".join(f"{n} {1e3 * t:.0f} ms" for n, t in vars(costs).items())
        + f"; a job's start {start:.1f} s"
    )
    for workers, way in ((1, "one"), (2, "two")):
        model[way] = pairs / job_seconds(costs, start, pairs, workers)
        print(f"{way}: the model says {model[way]:.2f} pairs/s, measured {rates[way]:.2f}")
    gpus = clusters(REST_WITH_PNG)
    report(
        "job",
        {
            "pairs": pairs,
            **rates,
            "fused": fused,
            "scaling": scaling,
            "start": start,
            "costs": vars(costs),
            "model": model,
            "gpus": gpus,
        },
    )


def clusters(rest: float) -> dict[str, dict[str, float]]:
    """What the model says of clusters; nothing of it is measured."""
    found = {}
    for gpus in (1, 8, 64):
        for each in (1, 2):
            parts = on_gpus(rest, gpus, Cluster(), each)
            least = min(parts, key=lambda part: parts[part])
            print(
                f"{gpus} GPUs, {each} workers a GPU: {parts[least]:,.0f} pairs/s ({least} first), "
                f"CLEVR-Change in {PAIRS_OF_CLEVR_CHANGE / parts[least] / 60:.1f} min"
            )
            found[f"{gpus} × {each}"] = parts
    print(", ".join(f"{n} {v:.3f} TFLOP a pair" for n, v in tera_flop_a_pair().items()))
    return found


def steps(folder: Path, names: list[str], *given: str) -> None:
    """The steps, one after the other, from nothing."""
    forget(folder, "out")
    for name in names:
        job(folder, "out", name, *given)


if __name__ == "__main__":
    main()
