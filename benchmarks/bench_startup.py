"""How long `--help` takes: it imports neither torch nor Ray, which the alternative does.

    python benchmarks/bench_startup.py [--repeats 9]

The alternative is what a command line pays that imports what it may need at its top.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
from lib.measuring import report, turns

BIN = Path(sys.executable).parent


@click.command()
@click.option("--repeats", default=9, show_default=True)
def main(repeats: int) -> None:
    """Measures seconds."""
    seconds = turns(
        {
            "cc-prep": lambda: run(str(BIN / "cc-prep"), "--help"),
            "cc-train": lambda: run(str(BIN / "cc-train"), "--help"),
            "eager": lambda: run(sys.executable, "-c", "import ray, torch, click"),
        },
        repeats,
    )
    ratio = seconds["eager"] / max(seconds["cc-prep"], seconds["cc-train"])
    print(f"cc-prep {seconds['cc-prep']:.2f} s, cc-train {seconds['cc-train']:.2f} s, "
          f"with torch and Ray {seconds['eager']:.2f} s: × {ratio:.1f}")  # fmt: skip
    report("startup", {**seconds, "ratio": ratio})


def run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
