"""Which settings decide bytes: contents and digests, and not where files lie."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cc_prep import manifest
from cc_prep.console import on_stderr
from cc_prep.datasets import exclusions
from cc_prep.errors import UserError
from cc_prep.formats import provenance
from cc_prep.formats.tar import VERSIONS
from cc_prep.manifest import Manifest
from pipelines import fingerprint, job, jobs
from tests import weight_factory

DDCONFIG = {"resolution": 16, "attn_resolutions": [4], "ch": 32}


@pytest.fixture
def vqgan(tmp_path: Path) -> Path:
    return weight_factory.write_vqgan(tmp_path / "a.safetensors")


def settings(*overrides: str) -> Manifest:
    return manifest.load("synth", overrides, "data")


def fingerprint_of(*overrides: str) -> dict[str, object]:
    configured = fingerprint.with_config_content(settings(*overrides))
    return fingerprint.recorded_settings(configured, fingerprint.TRAINING_SHARD_KEYS)


def config(path: Path, **ddconfig: object) -> str:
    path.parent.mkdir(exist_ok=True)
    params = {"ddconfig": {**DDCONFIG, **ddconfig}, "n_embed": 64, "lossconfig": {"target": "x"}}
    path.write_text(json.dumps({"model": {"params": params}}))
    return f"tokenize.config={path}"


def test_the_content_of_a_config_counts_and_not_its_place(tmp_path: Path) -> None:
    """Keeps away: tokens made with and without attention in one folder."""
    first = fingerprint_of(config(tmp_path / "one.yaml"))
    assert first["tokenize"]["config"] == {"ddconfig": DDCONFIG, "n_embed": 64}
    assert first == fingerprint_of(config(tmp_path / "elsewhere/two.yaml"))
    edited = fingerprint_of(config(tmp_path / "one.yaml", attn_resolutions=[8]))
    assert provenance.differences(first, edited) == [
        "tokenize.config.ddconfig.attn_resolutions: [4] → [8]"
    ]
    assert json.loads(json.dumps(first)) == first


def test_workers_get_the_content(tmp_path: Path) -> None:
    override = config(tmp_path / "one.yaml")
    absolute = fingerprint.with_absolute_paths(fingerprint.with_config_content(settings(override)))
    (tmp_path / "one.yaml").unlink()
    assert absolute.tokenize.config == {"ddconfig": DDCONFIG, "n_embed": 64}
    with pytest.raises(UserError, match=r"one\.yaml"):
        fingerprint.with_config_content(settings(override))


def test_weights_may_be_moved(tmp_path: Path, vqgan: Path) -> None:
    first = fingerprint_of(f"tokenize.weights={vqgan}")
    assert str(tmp_path) not in json.dumps(first)
    (tmp_path / "other").mkdir()
    moved = shutil.move(vqgan, tmp_path / "other" / vqgan.name)
    assert fingerprint_of(f"tokenize.weights={moved}") == first
    weight_factory.write_vqgan(tmp_path / "other" / vqgan.name, seed=1)
    assert fingerprint_of(f"tokenize.weights={moved}") != first
    assert fingerprint_of()["tokenize"]["weights"] == "vqgan-mini"


def test_where_weights_lay_is_noted(vqgan: Path) -> None:
    """What rebuilds frames from tokens finds the file again."""
    dataset = settings(f"tokenize.weights={vqgan}")
    name = fingerprint.recorded_settings(dataset, ["tokenize"])["tokenize"]["weights"]
    files = fingerprint.weight_files(dataset, [name, "rife-v4.0"])
    assert files == {name: str(vqgan)}
    assert provenance.weights_at({"weight_files": files}, name) == str(vqgan)
    assert provenance.weights_at({}, "vqgan-mini") == "vqgan-mini"
    assert fingerprint.weight_files(dataset, ["rife-v4.0"]) == {}


def test_what_is_stored_needs_no_weights_here(tmp_path: Path, vqgan: Path) -> None:
    """A file that made stored sequences is known by its name where it is not on this machine."""
    weights = f"interpolate.weights={vqgan}"
    record = {
        "format": "cc-sequences", "format_version": VERSIONS["cc-sequences"],
        "settings": fingerprint.recorded_settings(settings(weights), fingerprint.SEQUENCE_KEYS),
    }  # fmt: skip
    provenance.write(str(tmp_path), record)
    whole = fingerprint.continue_from(settings(weights), str(tmp_path))
    vqgan.unlink()
    continued = fingerprint.continue_from(settings(weights), str(tmp_path))
    keys = fingerprint.TRAINING_SHARD_KEYS
    assert (
        fingerprint.recorded_settings(continued, keys)["interpolate"]
        == record["settings"]["interpolate"]
    )
    assert whole.interpolate.weights == str(vqgan)
    with pytest.raises(UserError, match="made with other settings"):
        fingerprint.continue_from(settings("interpolate.weights=/x/b.safetensors"), str(tmp_path))


@pytest.mark.parametrize("key", fingerprint.PAIR_FILES)
def test_folders_of_other_pairs_are_not_continued(tmp_path: Path, key: str) -> None:
    """Keeps away: shards without the excluded pairs whose provenance names no exclusion."""
    exclusions.write(str(tmp_path / "exclude"), [])
    (tmp_path / "split").write_text(json.dumps({"about": {"seed": 7}, "splits": {}}))
    name = {"split": "split_file", "exclude": "exclude"}[key]
    chosen, plain = settings(f"{name}={tmp_path / key}"), settings()
    for made_with, now in ((chosen, plain), (plain, chosen)):
        record = {
            "format": "cc-sequences", "format_version": VERSIONS["cc-sequences"],
            "settings": fingerprint.recorded_settings(made_with, fingerprint.PLAN_KEYS),
        }  # fmt: skip
        provenance.write(str(tmp_path), record)
        fingerprint.continue_from(made_with, str(tmp_path), fingerprint.PLAN_KEYS)
        with pytest.raises(UserError, match=rf"made with other settings \({key}[:.]"):
            fingerprint.continue_from(now, str(tmp_path), fingerprint.PLAN_KEYS)


def test_other_settings_are_refused_before_the_data_is_read(tmp_path: Path, vqgan: Path) -> None:
    """Keeps away: 4,000 pairs that are listed, and torch imported, to refuse another image_size."""
    made_with = settings(f"tokenize.weights={vqgan}")
    record = {
        "format": "cc-training-shards", "format_version": VERSIONS["cc-training-shards"],
        "settings": fingerprint.recorded_settings(made_with, fingerprint.TRAINING_SHARD_KEYS),
    }  # fmt: skip
    out = tmp_path / "out"
    provenance.write(str(out / "shards"), record)
    for other in ("image_size=96", "interpolate.depth=1", "keyframes.k=1"):
        chosen = manifest.load("synth", [f"tokenize.weights={vqgan}", other], str(tmp_path))
        request = job.Request(chosen, str(out), ["val"], None, job.Options(), on_stderr())
        with pytest.raises(UserError, match=rf"with other settings \({other.partition('=')[0]}"):
            jobs.run("build", request)  # else: there are no such data
    # Weights may come from what is stored.
    for other in ("tokenize.weights=none", "interpolate.weights=imported"):
        moved = settings(f"tokenize.weights={vqgan}", other)
        fingerprint.check_early(moved, str(out / "shards"), fingerprint.TRAINING_SHARD_KEYS)
    # So may the depth of what others interpolated.
    imported = fingerprint.for_imported_sequences(made_with, 2)
    record["settings"] = fingerprint.recorded_settings(imported, fingerprint.TRAINING_SHARD_KEYS)
    provenance.write(str(out / "shards"), record)
    moved = settings(f"tokenize.weights={vqgan}", "interpolate.weights=imported")
    fingerprint.check_early(moved, str(out / "shards"), fingerprint.TRAINING_SHARD_KEYS)


def test_a_folder_of_features_may_be_given_in_two_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a job that does not go on because the same path was typed in another way."""
    monkeypatch.chdir(tmp_path)
    by_name = fingerprint_of("features.folder=ff")
    fingerprint.check_same_settings(
        "out", by_name, fingerprint_of(f"features.folder={tmp_path}/ff")
    )
    with pytest.raises(UserError, match=r"features\.folder"):
        fingerprint.check_same_settings("out", by_name, fingerprint_of("features.folder=gg"))


def test_folders_of_features_with_one_relative_path_are_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: features of two folders in one shard, since both are called `ff` from where the
    command ran; and a job that is refused when it is resumed from elsewhere."""
    recorded = {}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        recorded[name] = fingerprint_of("features.folder=ff")
    with pytest.raises(UserError, match=r"features\.folder: .*/a/ff → .*/b/ff"):
        fingerprint.check_same_settings("out", recorded["a"], recorded["b"])
    again = fingerprint_of(f"features.folder={tmp_path}/a/ff")
    fingerprint.check_same_settings("out", recorded["a"], again)
