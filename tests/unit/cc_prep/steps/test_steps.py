"""The work of a step on some pairs: sizes, truth, masks and rejections, in the order given."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cc_prep import manifest, weights
from cc_prep.devices import use, use_threads
from cc_prep.errors import Reason, RejectedPair, UserError
from cc_prep.media import images
from cc_prep.records import FrameSequence, ImagePair
from cc_prep.steps.build import Build
from cc_prep.steps.interpolate import Interpolate, check_truth
from pipelines.fingerprint import with_absolute_paths
from tests import weight_factory


@pytest.fixture
def root(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for name, size in {"a": (40, 30), "b": (40, 30), "c": (51, 33), "d": (51, 33)}.items():
        pixels = rng.integers(0, 256, (size[1], size[0], 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    Image.new("L", (40, 30), 255).save(tmp_path / "mask.png")
    return tmp_path


def step(root: Path, *overrides: str) -> Interpolate:
    settings = ["interpolate.method=crossfade", "interpolate.depth=2", *overrides]
    return Interpolate(manifest.load("synth", settings, str(root)), {}, "cpu")


def sequences(one: Interpolate, pairs: list[ImagePair]) -> list[FrameSequence | RejectedPair]:
    return one.compute(pairs, one.read(pairs))


def pair(before: str, after: str, **more: object) -> ImagePair:
    return ImagePair("d", "s", before + after, "change", f"{before}.png", f"{after}.png", **more)  # type: ignore[arg-type]


def meta(members: dict[str, bytes]) -> dict:
    return json.loads(members["json"])


def test_sizes_mix_in_a_batch_and_odd_ones_are_kept(root: Path) -> None:
    """Keeps away: images of two sizes stacked, results handed to the wrong pair."""
    native = step(root, "image_size=null")
    pairs = [pair("a", "b"), pair("c", "d"), pair("a", "c"), pair("none", "b"), pair("b", "a")]
    results = native(pairs)
    sizes = [(meta(m)["width"], meta(m)["height"]) for m in results if isinstance(m, dict)]
    assert sizes == [(40, 30), (51, 33), (40, 30)]
    assert [meta(m)["id"] for m in results if isinstance(m, dict)] == ["ab", "cd", "ba"]
    assert [r.reason for r in results if isinstance(r, RejectedPair)] == [
        Reason.SIZES_DIFFER,
        Reason.MISSING_IMAGE,
    ]
    assert results[2].message.startswith("40×30 and 51×33 px. Set image_size to resize both, or ")


def test_resized_pairs_need_no_equal_sizes(root: Path) -> None:
    members = step(root, "image_size=32")([pair("a", "c")])[0]
    assert (meta(members)["width"], meta(members)["frames"]) == (32, 5)


def test_frames_are_resized_after_they_were_interpolated(root: Path) -> None:
    """As ProCap's training does, which reads frames of the size of the images.

    Keeps away: a setting without effect, and masks and true frames of another size.
    """
    Image.new("L", (51, 33), 255).save(root / "wide.png")
    full = pair("c", "d", truth=((0.5, "a.png"),), mask="wide.png")
    settings = ["image.filter=bilinear", "image.resize=after"]
    [late] = sequences(step(root, "image_size=32", *settings), [full])
    [native] = sequences(step(root, "image_size=null"), [replace(full, truth=())])
    assert isinstance(late, FrameSequence)
    assert isinstance(native, FrameSequence)
    expected = [
        np.asarray(Image.fromarray(frame).resize((32, 32), Image.Resampling.BILINEAR))
        for frame in native.frames
    ]
    assert np.array_equal(late.frames, np.stack(expected))
    assert late.truth[2].shape == (32, 32, 3)
    assert late.mask is not None
    assert late.mask.shape == (32, 32)
    [apart] = sequences(step(root, "image_size=32", *settings), [pair("a", "c")])
    assert isinstance(apart, RejectedPair)
    assert apart.reason is Reason.SIZES_DIFFER


def test_truth_stands_at_its_frame(root: Path) -> None:
    full = pair("a", "b", truth=((0.25, "c.png"), (0.3, "c.png"), (0.75, "d.png")), mask="mask.png")
    members = step(root, "image_size=32")([full])[0]
    assert [name for name in members if name[0] != "f"] == [
        "json",
        "t01.png",
        "t03.png",
        "mask.png",
    ]
    plain = step(root, "image_size=32", "interpolate.keep_truth=false")([full])[0]
    assert [name for name in plain if name[0] != "f"] == ["json"]


def test_true_frames_are_the_sequence(root: Path) -> None:
    """In the order of their times, those of other times left out; and none is stored twice."""
    truth = ((0.75, "b.png"), (0.25, "c.png"), (0.3, "none.png"), (0.5, "d.png"))
    full = pair("a", "b", truth=truth, mask="mask.png")
    true_frames = step(root, "image_size=32", "interpolate.method=truth")
    [sequence] = sequences(true_frames, [full])
    assert isinstance(sequence, FrameSequence)
    expected = [images.read(str(root / f"{name}.png"), 32) for name in "acdbb"]
    assert np.array_equal(sequence.frames, np.stack(expected))
    assert sequence.truth == {}
    assert sequence.mask is not None
    [missing] = sequences(true_frames, [pair("a", "b", truth=((0.25, "none.png"),))])
    assert isinstance(missing, RejectedPair)
    assert missing.reason is Reason.MISSING_IMAGE


def test_data_without_true_frames_is_named() -> None:
    every_second = pair("a", "b", truth=((0.5, "c.png"),))
    check_truth(every_second, 1)
    with pytest.raises(UserError, match=r"no true frame at the time 0\.25"):
        check_truth(every_second, 2)


def test_masks_have_the_size_of_their_frames(root: Path) -> None:
    """Keeps away: a mask of 34 × 22 beside frames of 51 × 33, which `verify` calls damage."""
    Image.new("L", (34, 22), 255).save(root / "small.png")
    odd = pair("c", "d", mask="small.png")
    for size, shape in (("null", (33, 51)), ("32", (32, 32))):
        [sequence] = sequences(step(root, f"image_size={size}"), [odd])
        assert isinstance(sequence, FrameSequence)
        assert sequence.mask is not None
        assert sequence.mask.shape == sequence.frames.shape[1:3] == shape
        assert (sequence.mask == 1).all()
        assert sequence.mask_before is sequence.mask_after is None


def test_missing_truth_rejects_the_pair_alone(root: Path) -> None:
    results = step(root)([pair("a", "b", truth=((0.5, "none.png"),)), pair("a", "b")])
    assert isinstance(results[0], RejectedPair)
    assert results[0].reason is Reason.MISSING_IMAGE
    assert isinstance(results[1], dict)


def test_truth_of_another_size_rejects_the_pair(root: Path) -> None:
    """Keeps away: sequences whose truth no report can compare with them."""
    [outcome] = step(root, "image_size=null")([pair("a", "b", truth=((0.5, "c.png"),))])
    assert isinstance(outcome, RejectedPair)
    assert outcome.reason is Reason.SIZES_DIFFER


def test_workers_get_absolute_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a relative --root that a node of a cluster looks for in its own folder."""
    monkeypatch.chdir(tmp_path)
    settings = ["interpolate.weights=mine.pkl"]
    absolute = with_absolute_paths(manifest.load("synth", settings, "data"))
    assert absolute.root == str(tmp_path / "data")
    assert absolute.interpolate.weights == str(tmp_path / "mine.pkl")
    named = with_absolute_paths(manifest.load("synth", root="s3://bucket/data"))
    assert (named.root, named.interpolate.weights) == ("s3://bucket/data", "rife-v4.0")


def test_bytes_do_not_name_the_machines_folders(root: Path) -> None:
    """Keeps away: other bytes because the data lies elsewhere."""
    members = step(root)([pair("a", "b")])[0]
    assert meta(members)["before"] == "a.png"
    assert str(root).encode() not in members["json"]


def test_training_shards_need_no_truth(root: Path) -> None:
    """Keeps away: true frames that are read and thrown away, and whose damage rejects a pair."""
    settings = ["interpolate.method=crossfade", "interpolate.depth=2", "image_size=32"]
    settings += ["score.weights=none", "keyframes.k=0", "tokenize.weights=none"]
    build = Build(
        manifest.load("synth", settings, str(root)), {}, frozenset({"interpolate"}), "none", "cpu"
    )
    full = pair("a", "b", truth=((0.5, "none.png"),))
    [members] = build([full])
    assert not isinstance(members, RejectedPair)


@pytest.mark.parametrize("dropped", [False, True])
def test_a_tokenizer_is_told_by_its_attention_too(root: Path, dropped: bool) -> None:
    """Keeps away: one digest of two networks, so that a training takes the other one silently.
    Without a configuration, or with one that drops nothing, it is the file's own digest."""
    file = weight_factory.write_vqgan(root / "vqgan.safetensors", attention=(2,))
    located = weights.locate(str(file))
    config = {"ddconfig": {"resolution": 64, "attn_resolutions": [] if dropped else [16]}}
    settings = ["interpolate.method=crossfade", "interpolate.depth=1", "image_size=32"]
    settings += ["score.weights=none", "keyframes.k=0", f"tokenize.weights={file}"]
    metas = []
    for more in ([], [f"tokenize.config={json.dumps(config)}"]):
        build = Build(
            manifest.load("synth", [*settings, *more], str(root)),
            {located.name: located.sha256}, frozenset({"interpolate"}), "none", "cpu",
        )  # fmt: skip
        [members] = build([pair("a", "b")])
        assert isinstance(members, dict)
        metas.append(meta(members))
    plain, configured = metas
    assert plain["tokenizer_sha256"] == located.sha256
    assert "tokenizer_config" not in plain
    if dropped:
        assert configured.pop("tokenizer_sha256") != plain.pop("tokenizer_sha256")
        expected = {"sha256": located.sha256, **config["ddconfig"]}
        assert configured.pop("tokenizer_config") == expected
    assert configured == plain


def test_float32_is_float32_on_a_gpu() -> None:
    """Keeps away: convolutions in TF32, torch's own choice, whose frames differ from a CPU's."""
    import torch

    torch.backends.cudnn.allow_tf32 = True
    use_threads(torch.get_num_threads())
    assert torch.backends.cudnn.allow_tf32 is False
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize(("device", "allowed"), [("cuda", True), ("cpu", False)])
def test_tf32_is_a_setting_of_gpus(device: str, allowed: bool) -> None:
    """Keeps away: full-size networks at an eighth of a GPU's speed, and no setting against it; or
    one that also makes a CPU round."""
    import torch

    settings = manifest.load("synth", ["tokenize.tf32=true"], root="/x")
    use(settings.tokenize, device)
    try:
        assert torch.backends.cudnn.allow_tf32 is allowed
        assert (torch.get_float32_matmul_precision() == "high") is allowed
    finally:
        use(settings.score, device)
    assert torch.backends.cudnn.allow_tf32 is False


def test_frames_of_a_shard_are_expected_in_their_order(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: half a video decoded for each frame, because its pairs are shuffled."""
    video = ImagePair("d", "s", "v", "change", "v.mp4#frame=8", "v.mp4#frame=0",
                      truth=((0.5, "v.mp4#frame=4"),))  # fmt: skip
    plain = step(root)
    for method, truth in ((plain, [4]), (step(root, "interpolate.keep_truth=false"), [])):
        expected: list[str] = []
        monkeypatch.setattr(method.video_frames, "expect", expected.extend)
        method.prefetch([pair("a", "b"), video])
        assert expected == [f"{root}/v.mp4#frame={number}" for number in (8, 0, *truth)]
    read: list[tuple[str, int | None]] = []
    frame = np.zeros((8, 8, 3), np.uint8)
    monkeypatch.setattr(
        plain.video_frames, "read", lambda path, size: [frame, read.append((path, size))][0]
    )
    plain._images(["v.mp4#frame=8"])
    assert read == [(f"{root}/v.mp4#frame=8", plain.manifest.image_size)]
