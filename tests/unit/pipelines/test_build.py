"""What `build` takes from another OUT, and whether it runs a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from cc_prep import manifest
from cc_prep.errors import UserError
from cc_prep.formats import provenance, training_shards
from pipelines import job_weights
from tests import weight_factory
from tests.conftest import Command

PLAIN = [
    *("image_size=64", "interpolate.method=crossfade", "interpolate.depth=0"),
    *("score.weights=none", "keyframes.k=0", "tokenize.weights=none"),
]


def test_found_changes_are_taken_from_an_out_without_sequences(
    tmp_path: Path, synth_root: Path, prepare: Command
) -> None:
    """Keeps away: found changes that no shards can take in, where others stand in their OUT."""
    settings = [part for value in PLAIN for part in ("--set", value)]
    data = ("synth", "--root", synth_root, "--limit", 2, "--split", "train", *settings)
    done = prepare("changes", *data, "--out", tmp_path / "found")
    assert done.returncode == 0, done.stderr
    done = prepare("build", *data, "--from", tmp_path / "found", "--out", tmp_path / "new")
    assert done.returncode == 0, done.stderr
    [shard] = (tmp_path / "new/shards").glob("train-*.tar")
    assert all("regions" in sample.meta for sample in training_shards.read(str(shard)))
    done = prepare("build", *data, "--from", tmp_path / "new", "--out", tmp_path / "other")
    assert done.returncode == 2
    assert "no sequences and no found changes in it" in done.stderr


def test_features_of_a_folder_are_recorded_without_its_place(
    tmp_path: Path, synth_root: Path, prepare: Command
) -> None:
    """Keeps away: a job that cannot resume where the folder has moved, and paths in shards."""
    weight_factory.write_backbone(tmp_path / "tiny", "dinov2")
    data = ("synth", "--root", synth_root, "--limit", 2, "--split", "train", "--out", tmp_path)
    chosen = [*PLAIN, "features.backbone=hf:{}", "features.input_size=[42, 56]"]
    settings = [part for value in chosen for part in ("--set", value)]
    done = prepare("build", *data, *[str(one).format(tmp_path / "tiny") for one in settings])
    assert done.returncode == 0, done.stderr
    [shard] = (tmp_path / "shards").glob("train-*.tar")
    for sample in training_shards.read(str(shard)):
        assert sample.features is not None
        assert sample.features.backbone == "hf:dinov2"
        assert sample.features.values.shape == (2, 32, 3, 4)
        assert sample.features.preprocessing == weight_factory.preprocessing((42, 56))
        assert str(tmp_path) not in str(sample.meta)
    [name] = (provenance.read(str(tmp_path / "shards")) or {})["weights"]
    assert name.startswith("tiny@")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "tiny").rename(tmp_path / "elsewhere/tiny")
    elsewhere = [str(one).format(tmp_path / "elsewhere/tiny") for one in settings]
    done = prepare("build", *data, *elsewhere)
    assert done.returncode == 0, done.stderr
    assert "1, 0 of them in this run" in done.stdout


@pytest.mark.parametrize(
    ("overrides", "makes", "runs"),
    [
        ((), {"interpolate"}, False),
        (("interpolate.method=rife",), {"interpolate"}, True),
        (("interpolate.method=rife",), set(), False),  # of sequences that are there
        ((), {"interpolate", "score"}, True),
        (("tokenize.weights=vqgan",), set(), True),
        (("features.backbone=resnet101",), set(), True),
        (("features.backbone=resnet101", "features.folder=feats"), set(), False),
    ],
)
def test_whether_a_network_runs(overrides: tuple[str, ...], makes: set[str], runs: bool) -> None:
    """Keeps away: shards of images alone that wait for a GPU and then use one core."""
    settings = manifest.load("synth", [*PLAIN, *overrides], None)
    assert job_weights.runs_in_build(settings, frozenset(makes)) is runs


def test_all_missing_files_are_named_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: one missing file a run, and nowhere the variable that says where it is."""
    monkeypatch.chdir(tmp_path)
    for name in ("VFIFORMER", "CLIP4IDC", "VQGAN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VQGAN_CONFIG", "gone.yaml")
    settings = manifest.load("paper/procap_clevr", ["score.weights=other.bin"])
    steps = ("interpolate", "score", "tokenize", "features")
    with pytest.raises(UserError) as caught:
        job_weights.check_files(settings, steps)
    assert caught.value.what.endswith(
        "4 files are not there: interpolate.weights models/net_220.pth, score.weights other.bin, "
        "tokenize.weights models/clevr_epoch=000035.ckpt, tokenize.config gone.yaml"
    )
    assert caught.value.remedy.endswith(
        "by --set KEY=FILE or in the environment: VFIFORMER, VQGAN, VQGAN_CONFIG"
    )
    with pytest.raises(UserError, match=r"a file is not there: score\.weights other\.bin\. Put it"):
        job_weights.check_files(settings, ["score"])
    for name in ("models/clevr_epoch=000035.ckpt", "gone.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    job_weights.check_files(settings, ["tokenize"])
    # A word is the name of weights, and the list of these is what helps there.
    job_weights.check_files(manifest.load("clevr", ["interpolate.weights=rife-v9"]), steps)
