"""How many objects keep their looks when a VQGAN has encoded and decoded the image.

    python benchmarks/kept_attributes.py --weights vqgan-mini [--weights FILE] [--captioner RUN] \
        [--scenes 100] [--size 112] [--out out/bench/looks]

Captions of rendered scenes are about colours, shapes, materials and sizes, so a VQGAN that loses
them makes a captioner on its tokens wrong. The attributes are read at the objects' true places by
the classifier within a pair captioner (default: captioner-mini), which was trained on renders. The
first row is what it reads off the renders themselves. Larger images are shrunk to the captioner's
size before they are read. The scenes are rendered from a seed that no shipped network has seen.
"""

from __future__ import annotations

from collections.abc import Callable

import click
import cv2
import numpy as np
import torch
from lib import rendered
from lib.measuring import report

from cc_prep.media import images as image_files
from cc_prep.records import ImagePair, ObjectAttributes
from cc_prep.steps.tokenization import Tokenizer
from cc_prep.weights import networks
from cc_train import loading
from cc_train.data.supervision import SOLIDS
from cc_train.systems.pair.captioner import PairCaptioner

SEED = 995


@click.command()
@click.option("--weights", "names", multiple=True, default=["vqgan-mini"], show_default=True)
@click.option("--captioner", default="captioner-mini", show_default=True)
@click.option("--scenes", default=100, show_default=True)
@click.option("--size", default=112, show_default=True, help="Of the images, in px.")
@click.option("--out", default="out/bench/looks", show_default=True)
def main(names: tuple[str, ...], captioner: str, scenes: int, size: int, out: str) -> None:
    """Prints the shares of looks that are read right."""
    root = f"{out}/{size}"
    rendered.make(root, scenes, SEED, size)
    reader = loading.load(captioner)
    assert isinstance(reader, PairCaptioner), "give a run of cc-train pair"
    pairs = list(rendered.changed(root))
    rows = {"renders": measure(reader, pairs, root, lambda image: image)}
    for name in names:
        tokenizer = Tokenizer(networks.vqgan(name)[0])

        def rebuilt(image: np.ndarray, tokenizer: Tokenizer = tokenizer) -> np.ndarray:
            frames: np.ndarray = tokenizer.reconstruct(tokenizer(image[None]))
            return frames[0]

        rows[name] = measure(reader, pairs, root, rebuilt)
    for name, row in rows.items():
        print(f"{name}: " + ", ".join(f"{what} {value:.1f}" for what, value in row.items()))
    report(f"kept_attributes_{size}", {"size": size, "scenes": scenes, **rows})


def measure(
    reader: PairCaptioner,
    pairs: list[ImagePair],
    root: str,
    way: Callable[[np.ndarray], np.ndarray],
) -> dict[str, float]:
    """Shares of right looks in %, and the mean PSNR in dB, of the images that a way gives.

    Without PSNR where the images are as they were.
    """
    right, objects, psnr = torch.zeros(len(SOLIDS.attributes)), 0, list[float]()
    for pair in pairs:
        assert pair.facts is not None
        ends = (
            (pair.before, pair.facts.objects_before),
            (pair.after, pair.facts.objects_after),
        )
        for path, attributes in ends:
            image = image_files.read(f"{root}/{path}", None)
            output = way(image)
            error = np.square(image.astype(float) - output.astype(float)).mean()
            if error:
                psnr.append(10 * np.log10(255**2 / error))
            right += correct(reader, output, attributes)
            objects += len(attributes)
    shares = 100 * right / max(1, objects)
    row = dict(zip(SOLIDS.attributes, shares.tolist(), strict=True))
    return {**row, "PSNR": float(np.mean(psnr))} if psnr else row


@torch.inference_mode()
def correct(
    reader: PairCaptioner, image: np.ndarray, attributes: tuple[ObjectAttributes, ...]
) -> torch.Tensor:
    """How many objects have each of LOOKS read right in an image uint8 [H, W, 3]."""
    height, width = reader.inputs.size
    small = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    features = reader.features(torch.from_numpy(small)[None, None])[0]
    seen = reader.encoder.images(features).expand(len(attributes), -1, -1, -1)
    places = torch.tensor([one.location for one in attributes])
    logits = reader.encoder.attributes_at(seen, places).split(SOLIDS.attribute_classes, dim=1)
    guessed = torch.stack([part.argmax(1) for part in logits], dim=1)
    return (guessed == torch.tensor([SOLIDS.classes_of_object(one) for one in attributes])).sum(0)


if __name__ == "__main__":
    main()
