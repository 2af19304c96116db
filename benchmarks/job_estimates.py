"""Estimates of `cc-prep … --dry-run` beside what the jobs take: three jobs of different kinds.

    python benchmarks/job_estimates.py [--pairs 80]

Frames of real videos as PNG files of 480×320. The first job interpolates them with RIFE and makes
scores and tokens, the second makes features alone, and the third scores the frames of sequences.
Each command runs in a process of its own, as a user starts it. The estimate is that of the dry run,
which tries some pairs; the time is that of the whole command, with the start of Ray. What the job
itself said after its first shard is printed too.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
from lib.jobs import LAYOUT, NAME, make_pairs
from lib.measuring import report

UNITS = {"s": 1, "min": 60, "h": 3600, "days": 86400}
FEATURES = (
    "features.backbone=efficientnet-lite0-x2", "interpolate.method=crossfade",
    "interpolate.depth=0", "score.weights=none", "keyframes.k=0", "tokenize.weights=none",
)  # fmt: skip
SECONDS = r"about ([\d.,]+) (s|min|h|days)"


@click.command()
@click.option("--pairs", default=80, show_default=True)
def main(pairs: int) -> None:
    """Prints estimate and time of each job, in seconds."""
    figures = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_pairs(folder, pairs)
        jobs = {
            "tokens": ("build", f"{folder}/tokens", ()),
            "features": ("build", f"{folder}/features", FEATURES),
            "sequences": ("interpolate", f"{folder}/scores", ()),
            "scores": ("score-frames", f"{folder}/scores", ()),
        }
        for kind, (step, out, settings) in jobs.items():
            plan, _ = command(folder, step, out, settings, "--dry-run")
            output, seconds = command(folder, step, out, settings)
            estimate = in_seconds(re.search(rf"^time +{SECONDS}", plan, re.M))
            later = in_seconds(re.search(rf"^after the first shard: {SECONDS}", output, re.M))
            figures[kind] = {"estimate": estimate, "seconds": seconds, "ratio": estimate / seconds}
            print(
                f"{kind}: estimate {estimate:.0f} s, the job took {seconds:.0f} s "
                f"(× {estimate / seconds:.2f}); after the first shard {later:.0f} s were left"
            )
    report("job_estimates", figures)


def command(
    folder: Path, step: str, out: str, settings: tuple[str, ...], *more: str
) -> tuple[str, float]:
    """What a command of `cc-prep` printed, and its seconds."""
    values = (LAYOUT, "shards.pairs_per_shard=8", *settings)
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", "from pipelines.cli import main; main()", step, NAME,
         "--root", f"{folder}/pairs",
         "--out", out, *(part for value in values for part in ("--set", value)), *more],
        capture_output=True, text=True,
    )  # fmt: skip
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout + done.stderr, seconds


def in_seconds(found: re.Match[str] | None) -> float:
    """The seconds of an estimate; no number where there is none."""
    return float(found[1].replace(",", "")) * UNITS[found[2]] if found else float("nan")


if __name__ == "__main__":
    main()
