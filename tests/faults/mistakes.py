"""Users' mistakes and the line that each gets: the rows of messages.md.

`python -m tests.faults.mistakes` prints the table anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import torch
from PIL import Image

from tests import commands, run_factory, vlm_factory, weight_factory
from tests.commands import Done

FAST = "--set interpolate.method=crossfade --set image_size=32"
UNAIDED = (
    "cc-train mllm --shards out/shards/*.tar --out new --set model.weights=internvl "
    "--set attention.where=none --set entity.source=none"
)

# In a folder with: `data`, six rendered scenes; `out`, their sequences, scores and shards; `found`,
# their found changes; `run`, a stage 1; `internvl`, a small InternVL; `own`, tables of pairs; and
# some files that are not what their names say. spaCy is not installed.
MISTAKES = (
    # data sets and manifests
    "cc-prep interpolate clever --out new",
    "cc-prep interpolate clevr --root nowhere --out new",
    "cc-prep interpolate mine.yaml --out new",
    "cc-prep interpolate broken.yaml --out new",
    "cc-prep interpolate object.yaml --out new",
    "cc-prep interpolate typo.yaml --out new",
    "cc-prep inspect range.yaml",
    "cc-prep interpolate unset.yaml --out new",
    "cc-prep interpolate latin.yaml --out new",
    "cc-prep inspect synth --root data.zip",
    "cc-prep inspect spot --root data",
    "cc-prep inspect video --root data",
    "cc-prep interpolate synth --root data --out new --split tests",
    "cc-prep interpolate synth --root data --out new --set interpolate.dept=2",
    "cc-prep interpolate synth --root data --out new --set interpolate.depth=9",
    "cc-prep interpolate synth --root data --out new --set interpolate",
    "cc-prep interpolate synth --root data --out new --set name.first=a",
    "cc-prep inspect own --root own/columns",
    "cc-prep inspect own --root own/empty",
    "cc-prep inspect own --root own/kind",
    "cc-prep inspect own --root own/outside",
    "cc-prep inspect own --root own/two",
    "cc-prep inspect own --root own/json",
    "cc-prep inspect synth --root data --reason contradiction",
    "cc-prep init a.b --root data",
    "cc-prep init mine --root empty",
    "cc-prep init clevr --root data",
    "cc-prep init mine --root own/columns",
    "cc-prep init mine --root own/images",
    "cc-prep inspect own --root own/images --set table.file=list.csv "
    '--set table.columns={"before":image,"after":image2}',
    "cc-prep split clevr --root data",
    "cc-prep split own --root own/good --shares train",
    "cc-prep split own --root own/good --write",
    "cc-prep inspect own --root own/split --set split_file=splits.json --set splits=[train]",
    # weights
    "cc-prep interpolate synth --root data --out new --set interpolate.weights=rife-v9",
    "cc-prep interpolate synth --root data --out new --set interpolate.weights=foreign.pt",
    "cc-prep interpolate synth --root data --out new --set interpolate.weights=text.pt",
    "cc-prep interpolate synth --root data --out new "
    "--set interpolate.method=vfiformer --set interpolate.weights=rife-v4.0",
    "cc-prep interpolate synth --root data --out new "
    "--set interpolate.method=vfiformer --set interpolate.weights=foreign.pt",
    "cc-prep build synth --root data --out new --set tokenize.weights=foreign.pt",
    "cc-prep weights fetch rife-v5",
    # jobs and folders
    "cc-prep score-frames synth --root data --out new",
    "cc-prep changes synth --root data --out new --set changes.segmenter=sam",
    "cc-prep changes synth --root data --out new "
    "--set changes.segmenter=sam --set changes.weights=nowhere",
    "cc-prep entities synth --root data --out new",
    "cc-prep entities synth --root data --out found",
    "cc-prep build synth --root data --out new --from nowhere",
    "cc-prep build synth --root data --out new --set image_size=30",
    "cc-prep interpolate synth --root data --out out --set interpolate.codec=jpg",
    "cc-prep interpolate synth --root data --out file",
    "cc-prep interpolate synth --root data --out new --workers 1000",
    "cc-prep build synth --root data --out new --device gpu",
    "cc-prep interpolate synth --root data --out nostore://bucket/out",
    "cc-prep verify nowhere",
    "cc-prep stats data",
    "cc-prep report empty",
    "cc-prep status new",
    "cc-prep synth data --seed 99",
    # training
    "cc-train stage1 --shards nowhere-*.tar --out new",
    "cc-train stage1 --shards out/scores/train-000000.parquet --out new",
    "cc-train stage1 --shards cut.tar --out new",
    "cc-train stage1 --shards out/shards/*.tar --out new --set loop.learnig_rate=1",
    "cc-train stage1 --shards out/shards/*.tar --out new --set loop.batch_size=0",
    "cc-train stage1 --shards out/shards/*.tar --out new --config clever",
    "cc-train stage1 --shards out/shards/*.tar --out a --set vqgan=VQGAN "
    "--set loop.global_batch_size=4 --set loop.grad_accum_steps=2",
    "cc-train stage1 --shards out/shards/*.tar --out new --set loop.device=cuda --set vqgan=VQGAN",
    "cc-train stage1 --shards out/shards/*.tar --out run --set network.layers=2 --set vqgan=VQGAN",
    "cc-train stage2 --shards out/shards/*.tar --out new --init nowhere",
    "cc-train stage2 --shards out/shards/*.tar --out new --init foreign.pt",
    "cc-train vqgan --shards out/scores/train-000000.parquet --out new",
    "cc-train mllm --shards out/shards/*.tar --out new",
    "cc-train mllm --shards out/shards/*.tar --out new --set model.weights=nowhere",
    "cc-train mllm --shards out/shards/*.tar --out new --set model.weights=internvl "
    "--set model.family=gpt",
    "cc-train mllm --shards out/shards/*.tar --out new --set model.weights=internvl "
    "--set model.checkpointing=reentrant",
    "cc-train mllm --shards out/shards/*.tar --out new --set model.weights=internvl",
    "cc-train mllm --shards out/shards/*.tar --out new --set model.weights=internvl "
    "--set attention.where=none",
    f"{UNAIDED} --set prompt.text=<IMG_CONTEXT>",
    f"{UNAIDED} --set generation.max_new_tokens=40000",
    # captions
    "cc-train evaluate nowhere --shards out/shards/*.tar",
    "cc-train evaluate --predictions text.pt --references text.pt",
    "cc-train evaluate --predictions predictions.json --references nowhere.json",
    "cc-train evaluate --predictions predictions.json --references nowhere.json --protocol coco",
    "cc-train evaluate --predictions predictions.json --references nowhere.json --metric rouge",
    "cc-train evaluate --predictions predictions.json --references nowhere.json --metric BERTScore",
    "cc-train evaluate --predictions predictions.json --references nowhere.json --out .",
    "cc-train evaluate --predictions predictions.json --references nowhere.json --judge m",
    "cc-train judge-check --judge m --judge-url http://127.0.0.1:1/v1 --out new",
    "cc-train judge-check --judge m --judge-url http://127.0.0.1:1/v1 --out new --judge-prompt a",
    "cc-train baseline --model nowhere --shards out/shards/*.tar --out new",
    "cc-train baseline --model empty --shards out/shards/*.tar --out new",
    "cc-train baseline --model m --url localhost:8000 --shards out/shards/*.tar --out new",
    "cc-train baseline --model m --url http://127.0.0.1:1/v1 --shards out/shards/*.tar --out new",
    "cc-train baseline --model m --threads 4 --shards out/shards/*.tar --out new",
    "cc-train baseline --model m --url http://h/v1 --shots 2 --shards out/shards/*.tar --out new",
    "cc-train compare",
    "cc-train imagine run a.png b.png --out strip.png",
    "cc-train serve nowhere",
    "cc-train serve --pairs own",
    "cc-train serve --port 0 --token secret",
    "cc-train export captioner-mini new --onnx --data x",
    "cc-prep export coco own --root own/good --out new",
    "cc-train caption run a.png b.png",
    "cc-train caption nowhere a.png b.png",
    "cc-train caption captioner_mini a.png b.png",
    "cc-train caption --pairs nowhere.csv",
    "cc-train caption --pairs own/columns/pairs.csv",
    "cc-train caption small.png wide.png",
    "cc-train caption clip.mp4 small.png",
    "cc-train caption run small.png",
    "cc-train caption --url http://127.0.0.1:1/v1 small.png wide.png",
    "cc-train caption --model m small.png wide.png",
    "cc-train caption run --url http://h/v1 --model m small.png wide.png",
    "cc-train export run new",
    "cc-train export captioner-mini empty",
    "cc-prep card empty",
    "cc-train report empty",
    "cc-train import-procap foreign.pt --out new",
)


def prepare(folder: Path, synth_root: Path, prep: Callable[..., Done]) -> None:
    """Fills the folder that the mistakes are made in."""
    (folder / "data").symlink_to(synth_root)
    for name in ("weights", "empty", "own"):
        (folder / name).mkdir()
    pattern = run_factory.build(folder / "out", folder / "weights", synth_root, prep)
    small = [*weight_factory.settings(folder / "weights"), "image_size=32", "interpolate.depth=2"]
    small += ["interpolate.method=crossfade", "shards.pairs_per_shard=3"]
    options = [part for value in small for part in ("--set", value)]
    for step in ("interpolate", "score-frames"):
        done = prep(step, "synth", "--root", synth_root, "--out", folder / "out", *options)
        assert done.returncode == 0, done.stderr
    folders = ("--root", synth_root, "--out", folder / "found")
    done = prep("changes", "synth", *folders, *FAST.split())
    assert done.returncode == 0, done.stderr
    done = run_factory.train("stage1", folder / "weights", pattern, folder / "run", "--steps", "2")
    assert done.returncode == 0, done.stderr
    shard = (folder / "out/shards/train-000000.tar").read_bytes()
    (folder / "cut.tar").write_bytes(shard[: len(shard) // 2])
    vlm_factory.save(folder, "internvl")
    torch.save({"other.weight": torch.ones(3)}, folder / "foreign.pt")
    texts = {
        "text.pt": "hello", "file": "", "data.zip": "", "predictions.json": "[]",
        "broken.yaml": "name: [", "object.yaml": "name: !!python/object/apply:os.system [ls]",
        "typo.yaml": "layuot: table\nroot: data\nlayout: table",
        "range.yaml": "layout: table\nroot: data\nimage_size: 4",
        "unset.yaml": "layout: table\nroot: ${NO_SUCH_VARIABLE}",
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text)
    for name, width in (("small.png", 32), ("wide.png", 64)):
        Image.new("RGB", (width, 32)).save(folder / name)
    (folder / "latin.yaml").write_bytes("name: caf\xe9".encode("latin1"))
    tables = {
        "columns/pairs.csv": "vorher,nachher\na,b\n", "empty/pairs.csv": "before,after\n",
        "images/list.csv": "image1,image2\na.png,b.png\n",
        "kind/pairs.csv": "before,after,kind\na,b,maybe\n",
        "outside/pairs.csv": "before,after\n../../a.png,b.png\n",
        "two/pairs.csv": "before,after\na,b\n", "two/pairs.jsonl": '{"before": "a"}',
        "json/pairs.jsonl": '{"before": ', "good/pairs.csv": "before,after\na,b\n",
        "split/pairs.csv": "before,after,id\na,b,1\nc,d,2\n",
        "split/splits.json": '{"splits": {"train": ["1"], "test": ["2"]}}',
    }  # fmt: skip
    for name, text in tables.items():
        (folder / "own" / name).parent.mkdir(exist_ok=True)
        (folder / "own" / name).write_text(text)


def line_of(command: str) -> str:
    """What the command, given in the folder that `prepare` filled, says on standard error."""
    program, *arguments = command.replace("VQGAN", "weights/vqgan-test.safetensors").split()
    run = {"cc-prep": commands.cc_prep, "cc-train": commands.cc_train}[program]
    jobs = ("interpolate", "build", "score-frames", "changes", "entities")
    small = arguments[0] in jobs and "weights" not in command and "image_size" not in command
    with mock.patch.dict(sys.modules, {"spacy": None}), commands.without_ray():
        done = run(*arguments, *(FAST.split() if small else []))
    left = [name for name in ("new", "a", "found/region_features") if Path(name).exists()]
    for name in left:  # so that the next command does not find it
        shutil.rmtree(name) if Path(name).is_dir() else Path(name).unlink()
    assert done.returncode == 2, f"{command}: {done.returncode}: {done.stdout}{done.stderr}"
    *others, last = done.stderr.strip().splitlines()
    assert "Traceback" not in done.stderr
    assert not others or program == "cc-train", f"{command}: {others}"  # which tells what it reads
    assert last.startswith(f"{program}: "), f"{command}: {last}"
    assert not left, f"{command} left {left} behind"
    return last


def row(command: str, line: str) -> str:
    """A row of the table."""
    message = line.partition(": ")[2].replace("|", "\\|")
    for folder in (Path.cwd(), commands.ROOT):
        message = message.replace(f"{folder}/", "")
    return f"| `{command}` | {message} |"


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """The folder as the current one."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def main() -> None:
    """Prints the table."""
    from cc_prep.synth import dataset

    with tempfile.TemporaryDirectory() as name, commands.without_ray():
        root = Path(name, "synth")
        list(dataset.make(str(root), 6, dataset.Settings(seed=5, size=64, samples=4, truth=True)))
        path = Path(name, "here")
        path.mkdir()
        prepare(path, root, commands.cc_prep)
        with inside(path):
            for command in MISTAKES:
                try:
                    print(row(command, line_of(command)))
                except AssertionError as error:
                    print(json.dumps(str(error)))


if __name__ == "__main__":
    main()
