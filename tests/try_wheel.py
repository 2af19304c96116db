"""Tries the built wheel as a new user would: `make wheel`.

A new virtual environment gets the package from the wheel and, through a .pth file, what it depends
on from this one; our checkout is on no path. Everything runs in an empty folder. PyTorch would
otherwise be downloaded for each try. With --download all dependencies are installed anew.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import urllib.request
import venv
from pathlib import Path

API = """
from importlib.resources import files
import cc_train, sys
from cc_prep import datasets
from cc_train import Captioner, score
assert {root!r} not in cc_train.__file__, cc_train.__file__
examples = files("cc_train") / "serve" / "examples"
pair = examples / "scene1_before.jpg", examples / "scene1_after.jpg"
captioner = Captioner.from_pretrained("captioner-mini")
before = captioner(*pair)
folder = captioner.save_pretrained("saved")
assert Captioner.from_pretrained("saved")(*pair) == before
print(score(["a b c d"], [["a b c d"]], measures=["CIDEr", "BLEU-4"]).corpus)
assert "ray" not in sys.modules
print(before.text)
"""


# Ray gives its own processes 30 s to start, which a machine that does much else takes longer for.
AGAIN, TRIES = "Ray did not start", 4


class Tried:
    """The new environment and its empty folder."""

    def __init__(self, path: Path, wheel: Path, download: bool) -> None:
        self.bin, self.folder = path / "env/bin", path / "work"
        self.folder.mkdir()
        venv.create(path / "env", with_pip=download)
        if download:
            constraints = Path("constraints.txt").absolute()
            with_extras = f"{wheel}[serve,synth]"
            self.run("python", "-m", "pip", "install", "--quiet", "-c", constraints, with_extras)
            return
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python")]
        # Compiled when it is imported: most of the modules are not.
        install = ["install", "--quiet", "--no-deps", "--no-compile", wheel]
        subprocess.run([*pip, *install], check=True)
        [site] = (path / "env/lib").glob("python*/site-packages")
        # Lines of .pth files in that folder, such as that of our checkout, are not followed.
        (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")

    def run(self, program: str, *arguments: object) -> str:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        for _ in range(TRIES):
            done = subprocess.run(
                [str(self.bin / program), *map(str, arguments)],
                cwd=self.folder, env=environment, capture_output=True, text=True, check=False,
            )  # fmt: skip
            if AGAIN not in done.stderr:
                break
        words = " ".join(map(str, arguments))
        assert done.returncode == 0, f"{program} {words}: {done.stderr}{done.stdout}"
        shown = "the API" if program == "python" else words
        print(f"{program} {shown}: {(done.stdout.strip().splitlines() or [''])[-1][:100]}")
        return done.stdout


def try_first_steps(tried: Tried) -> None:
    """Captions by API and by the command, of the package's captioner saved; the page."""
    caption = tried.run("python", "-c", API.format(root=str(Path.cwd()))).splitlines()[-1]
    [site] = tried.bin.parent.glob("lib/python*/site-packages")
    scene = site / "cc_train/serve/examples/scene1"
    images = (f"{scene}_before.jpg", f"{scene}_after.jpg")
    assert "What it cannot do" in (tried.folder / "saved/README.md").read_text()
    assert tried.run("cc-train", "caption", "saved", *images).split("\t")[0].strip() == caption
    try_page(tried)


def try_all(tried: Tried) -> None:
    """What README and docs tell a new user to do."""
    try_first_steps(tried)
    tried.run("cc-train", "export", "captioner-mini", "mine", "--license", "mit")
    tried.run("cc-train", "compare", "--dataset", "clevr")
    pairs = {"image_id": "a", "caption": "a cube moved"}
    (tried.folder / "theirs.json").write_text(json.dumps([pairs]))
    (tried.folder / "references.json").write_text('{"a": ["a cube moved"]}')
    tried.run("cc-train", "evaluate", "--predictions", "theirs.json", "--references",
              "references.json")  # fmt: skip
    tried.run("cc-prep", "synth", "data/synth", "--scenes", 4, "--size", 64)
    tried.run("cc-prep", "inspect", "synth", "--root", "data/synth")
    tried.run("cc-prep", "build", "synth", "--root", "data/synth", "--out", "out",
              "--set", "image_size=64", "--set", "interpolate.method=crossfade")  # fmt: skip
    for command in ("verify", "stats", "report", "card"):
        tried.run("cc-prep", command, "out")
    shards = ("--shards", "out/shards/*.tar")
    tried.run("cc-train", "caption", "mine", *shards, "--limit", 1)
    tried.run("cc-train", "evaluate", "mine", *shards)
    tried.run("cc-train", "report", "mine", *shards)


def try_page(tried: Tried) -> None:
    """`cc-train serve` answers with its page, from the wheel's files."""
    command = [str(tried.bin / "cc-train"), "serve", "--port", "0"]
    with subprocess.Popen(command, cwd=tried.folder, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = re.search(r"http://[\d.]+:\d+", server.stdout.readline())
            assert address is not None
            with urllib.request.urlopen(address[0]) as answer:
                page = answer.read().decode()
            assert "<html" in page
            print(f"cc-train serve: a page of {len(page):,} characters at {address[0]}")
        finally:
            server.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--download", action="store_true", help="install all dependencies anew")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try_all(Tried(Path(folder), options.wheel.absolute(), options.download))
    print("the wheel does what the docs say")


if __name__ == "__main__":
    main()
