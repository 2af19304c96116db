"""The frozen networks before the encoder: located by name, copied into the run, never trained.

The VQGAN made the shards' tokens, and the backbone, if one is used, made their features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save

from cc_prep import weights
from cc_prep.errors import UserError
from cc_prep.formats.tar import DamagedShard
from cc_prep.models.vqgan import VQGAN
from cc_prep.weights import networks
from cc_train.data import feature_statistics, shard_index
from cc_train.data.collate import Reads
from cc_train.data.shard_index import Entry
from cc_train.data.split import Split
from cc_train.layers import frozen_backbone, named_weights
from cc_train.layers.feature_grid import Pooling
from cc_train.layers.frozen_backbone import BackboneSpec
from cc_train.systems.procap.frame_features import BackboneFeatures, FrameFeatures

FILE = "vqgan.safetensors"
ADVICE = "Give shards that `cc-prep build` wrote"


def check(data: Split) -> None:
    """Raises UserError if not all samples hold tokens of the same VQGAN."""
    first = data.first
    required = ("tokenizer", "tokenizer_sha256", "height", "width", "frames")
    if any(first.get(name) is None for name in required):
        raise UserError(
            "the shards hold no tokens", "Build them with tokenize.weights, such as vqgan-mini"
        )
    used = [*data.train, *data.valid]
    shard_index.require_tokenizer(used, first["tokenizer_sha256"], first["tokenizer"])


def about(made_with: Mapping[str, Any], features: FrameFeatures) -> dict[str, Any]:
    """The networks, for a run's settings: the VQGAN, named by `made_with`, and the backbone."""
    vqgan = {name: made_with[name] for name in ("tokenizer", "tokenizer_sha256")}
    seen = features.backbone
    if seen is None:
        return vqgan
    more = {"tokens": list(seen.grid), "pooling": seen.pooling}
    return {**vqgan, "backbone": {**seen.frozen.spec.to_json(), **more}}


def find(data: Split, file: str | None) -> VQGAN:
    """The VQGAN that made the shards' tokens.

    Args:
        file: Its weights, if they have no name of their own. If `tokenize.config` dropped attention
            of that file, the samples say so, and it is dropped here too.

    Raises:
        UserError: For another one.
    """
    check(data)
    made_with, digest = str(data.first["tokenizer"]), data.first["tokenizer_sha256"]
    if file is None and not weights.is_known(made_with):
        raise UserError(
            f"the tokens were made with {made_with}, which is a file of somebody's",
            "Name that file with --set vqgan=FILE",
        )
    located = weights.locate(file or made_with)
    if located.sha256 == digest:
        network = networks.vqgan(file or made_with)[0]
        return network
    shard, config = _tokenizer_config(data.train)
    if config.get("sha256") == located.sha256:
        try:
            network, located, unused = networks.vqgan(file or made_with, {"ddconfig": config})
        except UserError:  # it speaks of a setting of cc-prep, or of the weights, which are right
            raise UserError(
                f"{shard}: a sample's {networks.TOKENIZER_CONFIG} does not fit the VQGAN",
                shard_index.ADVICE,
            ) from None
        if networks.tokenizer_digest(network, located, unused) == digest:
            return network
    raise UserError(
        f"the tokens were made with {made_with}, not with {located.name}: their digests differ",
        "Name the file that they were made with: --set vqgan=FILE",
    )


def _tokenizer_config(entries: Sequence[Entry]) -> tuple[str, dict[str, Any]]:
    """The first readable sample's shard and `tokenizer_config`, which the index does not hold.

    The second is empty where the sample has none, and both where no sample can be read.
    """
    for entry in entries:
        try:
            config = entry.read().meta.get(networks.TOKENIZER_CONFIG)
        except (DamagedShard, FileNotFoundError):
            continue  # training counts it, and ends if there are too many
        return entry.shard, config if isinstance(config, dict) else {}
    return "", {}


def grid(first: dict[str, Any], vqgan: VQGAN) -> tuple[int, int]:
    """Rows and columns of a frame's tokens."""
    factor = vqgan.config.factor
    return int(first["height"]) // factor, int(first["width"]) // factor


def refuse_of_features(kind: Reads, backbone: str | None, pooling: Pooling | None) -> None:
    """Refuses settings of features where the encoder sees other frames; see `refuse_unread`."""
    own = None if pooling == "unshuffle" else pooling  # the default of both stages
    unread = {} if kind == "features" else {"backbone_weights": backbone, "feature_pooling": own}
    what = f"frames={kind} reads no features of a backbone"
    refuse_unread(unread, what, "Set frames=features, or leave {key} out")


def refuse_unread(values: Mapping[str, str | None], reason: str, remedy: str) -> None:
    """Refuses settings that name what this training does not read.

    Args:
        values: The settings by key; None where one is not set.
        reason: Why they are not read.
        remedy: What to do, with {key} for the key.

    Raises:
        UserError: A setting has a value.
    """
    for key, value in values.items():
        if value is not None:
            raise UserError(f"{key}: {reason}", remedy.format(key=key))


def find_features(
    data: Split,
    kind: Reads,
    vqgan: str | None,
    backbone: str | None = None,
    pooling: Pooling = "unshuffle",
    *,
    targets: bool = True,
    reference_quirks: bool = False,
    cache_mb: int = 0,
) -> FrameFeatures:
    """The encoder's input networks: those that made the shards. Raises UserError.

    Args:
        vqgan, backbone: Files of weights that have no name of their own.
        targets: False if tokens are not learned; then samples with features need no tokens, and
            vqgan determines the grid of the features.
        reference_quirks, cache_mb: See `FrameFeatures`.
    """
    if not targets and kind == "features" and vqgan is not None:
        codec = networks.vqgan(vqgan)[0]
    else:
        codec = find(data, vqgan)
    if kind != "features":
        return FrameFeatures(codec, kind, reference_quirks, cache_mb)
    spec = BackboneSpec.of(feature_statistics.first_features(data.train))
    seen = BackboneFeatures(frozen_backbone.find(spec, backbone), grid(data.first, codec), pooling)
    return FrameFeatures(codec, kind, reference_quirks, cache_mb, seen)


def files(vqgan: VQGAN, backbone: BackboneFeatures | None = None) -> dict[str, bytes]:
    """The networks as files of a run, so that the run is complete."""
    tensors = {name: t.contiguous() for name, t in vqgan.state_dict().items()}
    more = {} if backbone is None else backbone.frozen.files()
    return {FILE: save(tensors), **more}


def by_name(run: Path, settings: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The files of a run whose networks the package provides by name: see `named_weights`."""
    files: dict[str, dict[str, str]] = {}
    name = str(settings.get("tokenizer"))
    if weights.is_known(name) and (run / FILE).exists():
        network, located, _ = networks.vqgan(name)
        files |= named_weights.named(run / FILE, network, located)
    if "backbone" in settings:
        files |= frozen_backbone.by_name(run, BackboneSpec.of_json(settings["backbone"]))
    return files


def read(
    run: Path, settings: Mapping[str, Any], kind: Reads, quirks: bool, cache_mb: int = 0
) -> FrameFeatures:
    """The frozen networks of a run with these settings. Raises UserError.

    Args:
        kind, quirks, cache_mb: See `FrameFeatures`.
    """
    located = named_weights.of(settings, FILE)
    path = run / FILE if located is None else located.path
    if not path.exists():
        raise UserError(f"{path}: not there", "Give the --out of a training")
    tensors = {name: t.float() for name, t in weights.read_tensors(path).items()}
    network, _ = VQGAN.from_tensors(tensors)
    if kind != "features":
        return FrameFeatures(network, kind, quirks, cache_mb).eval()
    about_backbone = settings["backbone"]
    backbone = frozen_backbone.read(run, BackboneSpec.of_json(about_backbone), settings)
    rows, columns = about_backbone["tokens"]
    seen = BackboneFeatures(backbone, (rows, columns), about_backbone["pooling"])
    return FrameFeatures(network, kind, quirks, cache_mb, seen).eval()
