r"""Makes docs/images/strip.jpg, the README's picture, from what `make demo` left.

    .venv/bin/python docs/strip.py out/demo \
        synth-train-000001-change synth-train-000006-change video-train-bikes_000056-change
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

from cc_prep.formats import sequences

GAP_PX = 4
SIDE_PX = 150


def strip(demo: Path, key: str) -> np.ndarray:
    """The frames of one sequence side by side, uint8 [SIDE_PX, W, 3]."""
    for shard in sorted(demo.glob("*/sequences/*.tar")):
        for sample in sequences.read(str(shard)):
            if sample.key == key:
                gap = np.full((SIDE_PX, GAP_PX, 3), 255, np.uint8)
                cells: list[np.ndarray] = []
                for frame in sample.frames():
                    small = Image.fromarray(np.ascontiguousarray(frame)).resize((SIDE_PX, SIDE_PX))
                    cells += [np.asarray(small), gap]
                return np.concatenate(cells[:-1], axis=1)
    raise SystemExit(f"no {key} below {demo}")


def main() -> None:
    """Stacks the strips of the keys given."""
    demo, *keys = sys.argv[1:]
    rows: list[np.ndarray] = []
    for key in keys:
        row = strip(Path(demo), key)
        rows += [row, np.full((2 * GAP_PX, row.shape[1], 3), 255, np.uint8)]
    Image.fromarray(np.concatenate(rows[:-1])).save("docs/images/strip.jpg", quality=88)


if __name__ == "__main__":
    main()
