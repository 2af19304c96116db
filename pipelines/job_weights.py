"""The weights that each network of a job needs: found, checked, and known by their SHA-256.

All functions return SHA-256 by name, and raise UserError for settings or files that do not fit.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from rich.console import Console

from cc_prep import extras, storage, weights
from cc_prep.errors import UserError
from cc_prep.manifest import NONE, Features, Manifest, variable_of
from cc_prep.steps import interpolate
from cc_prep.weights.folders import locate_folder

# Keys that may name files: section and key.
FILES = (
    ("interpolate", "weights"), ("score", "weights"), ("tokenize", "weights"),
    ("tokenize", "config"), ("features", "weights"),
)  # fmt: skip


def check_files(manifest: Manifest, steps: Collection[str]) -> None:
    """Raises UserError that names all local files which steps need and which are not there.

    Args:
        steps: Sections of the manifest.
    """
    runs = {*steps}
    if not interpolate.has_weights(manifest.interpolate):
        runs.discard("interpolate")
    if manifest.features.backbone == NONE:
        runs.discard("features")
    missing, variables = [], []
    for section, key in FILES:
        file = getattr(getattr(manifest, section), key)
        # Another word is the name of weights, which is checked where these are located.
        has_form = isinstance(file, str) and ("/" in file or Path(file).suffix[1:].isalpha())
        if section in runs and has_form and not storage.exists(storage.with_home(file)):
            missing.append(f"{section}.{key} {file}")
            variables.append(variable_of(manifest.source, f"{section}.{key}", file))
    if missing:
        are, them, they_are = (
            ("a file is", "it", "it is")
            if len(missing) == 1
            else (f"{len(missing)} files are", "them", "they are")
        )
        named = ", ".join(filter(None, variables))
        raise UserError(
            f"{manifest.source}: {are} not there: {', '.join(missing)}",
            f"Put {them} there, or say where {they_are} by --set KEY=FILE"
            + (f" or in the environment: {named}" if named else ""),
        )


def of_interpolator(manifest: Manifest) -> dict[str, str]:
    """SHA-256 of the interpolator's weights by name, fetched and checked. Raises UserError."""
    settings = manifest.interpolate
    if settings.method == "imported":
        raise UserError(
            "interpolate.method=imported: those sequences are not made here",
            "Run: cc-prep import procap",
        )
    if not interpolate.has_weights(settings):
        return {}
    is_named = weights.is_known(settings.weights)
    if is_named and settings.weights not in interpolate.NAMED_WEIGHTS.get(settings.method, ()):
        raise UserError(
            f"interpolate.method={settings.method} takes no weights named {settings.weights}",
            "Set interpolate.weights to a local file of its tensors (docs/interpolation.md)",
        )
    file = weights.locate(settings.weights)
    if not is_named:  # those have a digest to be known by
        weights.build(file, lambda tensors: interpolate.make(settings, tensors, "cpu"))
    return {file.name: file.sha256}


def of_scorer(manifest: Manifest) -> dict[str, str]:
    """SHA-256 of the scorer's weights by name, read and checked. Raises UserError."""
    if manifest.score.weights == NONE:
        raise UserError("score.weights is none: nothing is scored", "Set score.weights")
    from cc_prep.weights import networks  # which brings torch

    _, file = networks.clip4idc(manifest.score.weights, manifest.score.intra_layers)
    return {file.name: file.sha256}


def of_tokenizer(manifest: Manifest, console: Console) -> dict[str, str]:
    """SHA-256 of the tokenizer's weights by name; empty if no tokens are made."""
    if manifest.tokenize.weights == NONE:
        return {}
    from cc_prep.weights import networks

    network, tokenizer, unused = networks.vqgan(manifest.tokenize.weights, manifest.tokenize.config)
    factor = network.config.factor
    if manifest.image_size is not None and manifest.image_size % factor:
        raise UserError(
            f"image_size ({manifest.image_size}) is not divisible by the token size ({factor} px)",
            f"Set image_size={max(1, round(manifest.image_size / factor)) * factor}",
        )
    if unused:
        examples = ", ".join(unused[:3]) + (", …" if len(unused) > 3 else "")
        console.print(f"{tokenizer.name}: {len(unused)} tensors are not used ({examples})")
    return {tokenizer.name: tokenizer.sha256}


def of_features(manifest: Manifest) -> dict[str, str]:
    """SHA-256 of the backbone's weights by name; empty if no features are made."""
    settings = manifest.features
    if settings.backbone == NONE:
        if settings.folder is not None:
            raise UserError(
                "features.folder is set, but not what network the features are of",
                "Set features.backbone, such as resnet101",
            )
        return {}
    if settings.folder is not None:
        return _imported_features(settings)
    from cc_prep.models import backbones
    from cc_prep.weights import networks

    network, file = networks.features_backbone(settings)
    multiple = backbones.multiple(settings.backbone, network)
    if manifest.image_size is not None and manifest.image_size % multiple:
        raise UserError(
            f"image_size ({manifest.image_size}) is not divisible by {multiple} px, as "
            f"{settings.backbone} needs it",
            f"Set image_size={max(1, round(manifest.image_size / multiple)) * multiple}",
        )
    return {file.name: file.sha256}


def _imported_features(settings: Features) -> dict[str, str]:
    """SHA-256, by name, of the weights that made imported features, if they are known."""
    assert settings.folder is not None
    if settings.frames != "ends":
        raise UserError(
            f"features.folder has features of before and after, not of {settings.frames}",
            "Set features.frames=ends, or leave features.folder out",
        )
    if settings.mirrored:
        raise UserError(
            "features.folder has no features of mirrored images",
            "Set features.mirrored=false, or leave features.folder out",
        )
    if not storage.is_folder(settings.folder):
        raise UserError(f"features.folder {settings.folder}: no such folder", "Check the path")
    if settings.weights is None:
        return {}
    from cc_prep.weights import networks

    file = networks.backbone(settings.backbone, settings.weights)[1]
    return {file.name: file.sha256}


def of_segmenter(manifest: Manifest) -> dict[str, str]:
    """SHA-256 of the segmenter's weights by name; empty without SAM.

    Raises UserError, also if a package is missing that the workers need.
    """
    settings = manifest.changes
    extras.require("sklearn", "cc-prep changes")
    if settings.segmenter != "sam":
        if settings.weights is not None:
            raise UserError(
                f"changes.segmenter {settings.segmenter} takes no weights",
                "Set changes.segmenter=sam, or leave changes.weights out",
            )
        return {}
    if settings.weights is None:
        raise UserError(
            "changes.segmenter sam needs weights",
            "Set changes.weights to a local folder of SAM as transformers saves it, or "
            "changes.segmenter=fill",
        )
    extras.require("transformers", "changes.segmenter sam")
    folder = locate_folder(settings.weights, "sam")
    return {folder.name: folder.sha256}


def of_regions(manifest: Manifest) -> dict[str, str]:
    """SHA-256, by name, of the network that encodes regions; empty with `lab`.

    Raises UserError, also if a package is missing that the network needs.
    """
    settings = manifest.entities
    if settings.retriever == "clip":
        if settings.weights is None:
            raise UserError(
                "entities.retriever clip needs weights",
                "Set entities.weights to a local folder of CLIP as transformers saves it, or "
                "entities.retriever=neighbours",
            )
        extras.require("transformers", "entities.retriever clip")
        folder = locate_folder(settings.weights, "clip")
        return {folder.name: folder.sha256}
    if settings.weights is not None:
        raise UserError(
            "entities.retriever neighbours takes no weights",
            "Set entities.retriever=clip, or leave entities.weights out",
        )
    if settings.features == "lab":
        return {}
    file = weights.locate(settings.features)
    return {file.name: file.sha256}


def runs_in_build(manifest: Manifest, makes: frozenset[str]) -> bool:
    """Whether a network runs, for the steps that are done here, the tokens or the features."""
    features = manifest.features
    return (
        "score" in makes
        or ("interpolate" in makes and interpolate.has_weights(manifest.interpolate))
        or manifest.tokenize.weights != NONE
        or (features.backbone != NONE and features.folder is None)
    )
