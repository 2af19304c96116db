"""The same shards by other versions of Ray: `python -m tests.faults.ray_versions 2.56.0 2.58.0`.

Fetches each version beside the installed one, so it stands apart from the tests, which need none.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from cc_prep.synth import dataset
from tests import weight_factory
from tests.behaviour.test_build_is_exact import digests
from tests.conftest import BIN

OLDEST = "2.56.0"  # that pyproject.toml allows


def main() -> None:
    """Prints whether each version's bytes are those of the installed one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = dataset.Settings(seed=5, size=64, samples=4, truth=True)
        list(dataset.make(str(folder / "synth"), 6, settings))
        options = weight_factory.build_options(folder, folder / "synth", 4)
        expected = built(folder / "here", options, None)
        for version in sys.argv[1:] or [OLDEST]:
            path = folder / version
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
            subprocess.run([*pip, str(path), f"ray=={version}"], check=True)
            actual = built(folder / f"out-{version}", options, path)
            print(f"ray {version}: {'the same bytes' if actual == expected else 'OTHER BYTES'}")


def built(out: Path, options: list[str], ray: Path | None) -> dict[str, str]:
    """Digests of the shards of a job that finds its Ray at `ray`."""
    environment = dict(os.environ)
    if ray is not None:
        environment["PYTHONPATH"] = str(ray)
        code = "import ray; print(ray.__file__)"
        output = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
        assert output.startswith(str(ray)), output
    command = [str(BIN / "cc-prep"), "build", "synth", "--out", str(out), *options]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return digests(out, "shards")


if __name__ == "__main__":
    main()
