"""The frames that a captioner imagines: what they are decoded from, the command, the report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from cc_prep.media import images
from cc_prep.settings import build
from cc_prep.steps.tokenization import images_of, indices_of
from cc_train import loading
from cc_train.data import image_pairs
from cc_train.evaluation import evaluation, shard_items
from cc_train.evaluation.captions import metrics
from cc_train.report import page
from cc_train.systems.procap import stage1, stage2
from cc_train.training.task import Task, TrainingRequest
from tests import shard_factory
from tests.commands import cc_train
from tests.unit.cc_train.systems.test_stage2 import write_run

CODE = 5  # what the head of the runs below says everywhere between before and after
K = 3
SIDE = shard_factory.GRID[0] * shard_factory.FACTOR


def task_of(folder: Path, system: str, init: Path | None = None, **values: object) -> Task:
    shards, vqgan = shard_factory.write_tokens(folder, 2, images=True)
    recipe = {"stage1": stage1, "stage2": stage2}[system]
    own = {"loop": {"batch_size": 1, "device": "cpu", "epochs": 1}, **values}
    if init is None:  # which brings its own
        own["vqgan"] = str(vqgan)
    settings = build(recipe.Settings, own, "test", "docs")  # type: ignore[attr-defined]
    request = TrainingRequest([shards], [], folder / system, init, console=Console(quiet=True))
    task: Task = recipe.prepare(settings, request)  # type: ignore[attr-defined]
    return task


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stage 1 whose head always says CODE, a captioner after it, and two images."""
    path = tmp_path_factory.mktemp("imagining")
    network = {"width": 64, "layers": 1, "text_length": 4}
    first = task_of(path, "stage1", network=network, keyframes={"strategy": "uniform", "k": 2})
    head = first.objective.network.to_logits
    with torch.no_grad():
        head[0].bias.fill_(0.5)  # as after a training
        head[1].weight.zero_()
        head[1].bias.copy_(torch.eye(len(head[1].bias))[CODE])
    about = {"frames": "tokens", "reference_quirks": False}
    init = write_run(path / "1", "stage1", first, {**about, "network": network})
    silent = {"text": "none", "losses": {"align": 0}, "keyframes": {"strategy": "uniform", "k": 2}}
    wordless = task_of(path, "stage1", network=network, **silent)
    wordless.objective.network.load_state_dict(
        {n: t for n, t in first.objective.network.state_dict().items() if n != "text_emb.weight"},
        strict=False,
    )
    write_run(path / "wordless", "stage1", wordless, {**about, **silent, "network": network})
    decoder = {"width": 16, "heads": 2, "hidden": 16, "layers": 1, "length": 8}
    quirks = {"reference_quirks": False}
    sizes = {"queries": {"k": K, "kind": "shared"}, "decoder": {**decoder, **quirks}, **quirks}
    sizes["comparison"] = None
    second = task_of(path, "stage2", init, **sizes)
    write_run(path / "2", "stage2", second, sizes)
    alone = task_of(path, "stage2", network=network, **sizes)
    write_run(path / "alone", "stage2", alone, sizes)
    rng = np.random.default_rng(0)
    for name in ("before", "after"):
        noise = rng.integers(0, 256, (16, 16, 3)).astype(np.uint8)
        (path / f"{name}.png").write_bytes(images.encode_image(noise, "png", 0))
    return path


def pixels(folder: Path) -> torch.Tensor:
    pair = (folder / "before.png", folder / "after.png")
    return torch.from_numpy(image_pairs.stack([pair], (SIDE, SIDE)))


def test_frames_come_from_the_head_and_the_vqgan(folder: Path) -> None:
    """Both ends are the images' tokens, and all between them is what the head says."""
    model = loading.load(folder / "2/run")
    drawn = model.imagine(pixels(folder))  # type: ignore[attr-defined]
    assert drawn.shape == (1, K + 2, SIDE, SIDE, 3)
    vqgan = model.features.vqgan  # type: ignore[attr-defined]
    floats = pixels(folder)[0].movedim(-1, 1).float() / 255
    codes = torch.full((K, *shard_factory.GRID), CODE)
    with torch.inference_mode():
        ends = images_of(vqgan, indices_of(vqgan, floats))
        expected = torch.cat((ends[:1], images_of(vqgan, codes), ends[1:]))
    as_bytes = (expected.movedim(1, -1) * 255).round().to(torch.uint8)
    assert torch.equal(drawn[0], as_bytes)
    assert not torch.equal(drawn[0, 0], drawn[0, 1])


def test_stage1_imagines_by_itself(folder: Path) -> None:
    drawn = stage1.imagine(folder / "1/run", (folder / "before.png", folder / "after.png"), "a b")
    assert drawn.shape == (4, SIDE, SIDE, 3)
    of_stage2 = loading.load(folder / "2/run").imagine(pixels(folder))  # type: ignore[attr-defined]
    assert np.array_equal(drawn[[0, 1, 3]], of_stage2[0, [0, 1, -1]].numpy())


def test_stage1_imagines_without_words(folder: Path) -> None:
    """Keeps away: a traceback for a caption, where stage 1 was trained with none."""
    run, pair = folder / "wordless/run", (folder / "before.png", folder / "after.png")
    assert np.array_equal(stage1.imagine(run, pair, "a b"), stage1.imagine(run, pair, ""))


def test_the_command(folder: Path, tmp_path: Path) -> None:
    pair = (folder / "before.png", folder / "after.png")
    out = tmp_path / "strip.png"
    done = cc_train("imagine", folder / "2/run", *pair, "--out", out, "--stage1", folder / "1/run")
    assert (done.returncode, done.stderr) == (0, "")
    picture = images.read(str(out))
    scale = 20  # so that 8 px become 160
    columns, gap = K + 4, 4
    assert picture.shape[:2] == (scale * (2 * SIDE + gap), scale * (columns * SIDE + gap * (K + 3)))
    before = pixels(folder)[0, 0].numpy().repeat(scale, 0).repeat(scale, 1)
    assert np.array_equal(picture[: scale * SIDE, : scale * SIDE], before)


def test_true_frames_are_the_last_row(folder: Path, tmp_path: Path) -> None:
    pair, out = (folder / "before.png", folder / "after.png"), tmp_path / "strip.png"
    truth = [argument for _ in range(K) for argument in ("--truth", pair[1])]
    done = cc_train("imagine", folder / "2/run", *pair, "--out", out, *truth)
    assert (done.returncode, done.stderr) == (0, "")
    row = images.read(str(out))[20 * (SIDE + 4) :: 20, ::20]  # enlarged to 160 px
    ends = [np.asarray(end) for end in pixels(folder)[0]]
    for number, expected in enumerate([ends[0], ends[0], *[ends[1]] * (K + 2)]):
        left = number * (SIDE + 4)
        assert np.array_equal(row[:, left : left + SIDE], expected), number


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("alone/run", "before.png", "after.png", "--out", "a.png"), "imagines no frames"),
        (("1/run", "before.png", "after.png", "--out", "a.png"), "a run of stage1 is no captioner"),
        (("2/run", "before.png", "after.png", "--out", "a.mp4"), "--out a.mp4: no picture"),
        (("2/run", "before.png", "none.png", "--out", "a.png"), "none.png"),
        (
            ("2/run", "before.png", "after.png", "--out", "a.png", "--stage1", "2/run"),
            "--stage1 2/run: a run of stage2. Give a run of stage 1",
        ),
        (
            ("2/run", "before.png", "after.png", "--out", "a.png", "--truth", "before.png"),
            f"--truth: given 1 times, and the captioner imagines {K} frames. Give it once for each",
        ),
    ],
)
def test_mistakes_are_one_line(
    folder: Path, arguments: tuple[str, ...], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: noise of an untrained head that passes for imagination; and tracebacks."""
    monkeypatch.chdir(folder)
    done = cc_train("imagine", *arguments)
    assert done.returncode == 2
    assert line in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (folder / "a.png").exists()


def test_the_report_shows_them(folder: Path, tmp_path: Path) -> None:
    run = folder / "2/run"
    shards = f"{folder}/train-*.tar"
    items = shard_items.captioned([shards])[1]
    captions = {item.id: "a caption" for item in items}
    scores = evaluation.evaluate(items, captions, metrics.PLAIN)
    evaluation.write(tmp_path / "evaluation", scores, items, captions)
    page.write(str(run), str(tmp_path / "r.html"), [shards], str(tmp_path / "evaluation"))
    text = (tmp_path / "r.html").read_text()
    assert text.count('alt="imagined frame') == 4 * (K + 2)  # of two scenes of two pairs
    assert "Signature: <code>pairs:4|refs:4-" in text
