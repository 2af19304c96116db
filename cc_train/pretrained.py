"""A trained captioner in a user's hands: `Captioner.from_pretrained(path)(before, after)`."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import overload

import numpy as np
import PIL.Image
import torch

from cc_prep.errors import JobFailed, UserError
from cc_train import doubt, loading
from cc_train.captioner import Caption, CaptionModel, EncoderDecoder, Inputs
from cc_train.data import image_pairs
from cc_train.data.image_pairs import Image, Reading, Scale, Sized
from cc_train.runs import stored_run
from cc_train.sharing import export, hub
from cc_train.training.settings import pick_device

Pair = tuple[Image, Image]
BATCH_DIMENSIONS = 5  # of an array of pairs


class Captioner:
    """A trained captioner: two images in, a sentence out.

    Args:
        model: The captioner itself, which takes tensors (`cc_train.captioner.CaptionModel`).
        folder: Where its files are.
    """

    def __init__(self, model: CaptionModel, folder: Path) -> None:
        self.model, self.folder = model, folder

    @classmethod
    def from_pretrained(
        cls, path: str | os.PathLike[str], *, device: str = "auto", revision: str | None = None
    ) -> Captioner:
        """The captioner at `path`.

        Args:
            path: The folder of a training run, a folder that `cc-train export` wrote, the name of a
                captioner that comes with the package (`captioner-mini`), or an id on the Hugging
                Face hub (`OWNER/NAME`; extra `[hub]`).
            device: `cpu`, `cuda`, or `auto`, which takes a GPU where there is one.
            revision: A branch, tag or commit on the hub, for an id alone.

        Raises:
            UserError: For a path that is none of these, is damaged, or is no captioner's, for a
                revision of what is no id, and for an id without a network unless it was fetched
                before.
        """
        folder = hub.locate(os.fspath(path), revision)
        return cls(loading.of_run(stored_run.read(folder), path, pick_device(device)), folder)

    def __repr__(self) -> str:
        height, width = self.inputs.size
        name, kind = hub.name_of(str(self.folder)), type(self.model).__name__
        return f"<Captioner {name}: {kind}, {width}×{height} px, {self.device}>"

    def save_pretrained(self, folder: str | os.PathLike[str]) -> Path:
        """Writes the captioner as `cc-train export` does, without measuring it; the folder.

        Raises:
            UserError: If the folder already exists, and where the run has scores that are not known
                to be those of its best checkpoint.
        """
        return export.save(self.folder, Path(folder))

    def push_to_hub(self, repo_id: str, *, private: bool = False) -> str:
        """Uploads the captioner to the Hugging Face hub (extra `[hub]`); its address.

        Args:
            repo_id: `OWNER/NAME`; the repository is made where there is none.
            private: Whether it is seen by its owner alone.

        Raises:
            UserError: Where the hub cannot be reached or refuses it, with `private` for a
                repository that is there and public, and as `save_pretrained` does.
        """
        with tempfile.TemporaryDirectory() as temporary:
            folder = self.save_pretrained(Path(temporary) / repo_id.rpartition("/")[2])
            return hub.upload(folder, repo_id, private=private)

    @property
    def inputs(self) -> Inputs:
        """The size of its images, and what it reads of a training shard's sample."""
        return self.model.inputs

    @property
    def device(self) -> torch.device:
        """The device that holds its weights."""
        return self.model.device

    @overload
    def __call__(
        self,
        before: Image,
        after: Image,
        /,
        *,
        beams: int = 1,
        bands: Sequence[int] | None = None,
        scale: Scale = "dtype",
        register: str = "none",
        resize: bool = False,
    ) -> Caption: ...

    @overload
    def __call__(
        self,
        pairs: Iterable[Pair],
        /,
        *,
        beams: int = 1,
        batch_size: int = 32,
        bands: Sequence[int] | None = None,
        scale: Scale = "dtype",
        register: str = "none",
        resize: bool = False,
    ) -> list[Caption]: ...

    def __call__(
        self,
        before: Image | Iterable[Pair],
        after: Image | None = None,
        /,
        *,
        beams: int = 1,
        batch_size: int = 32,
        bands: Sequence[int] | None = None,
        scale: Scale = "dtype",
        register: str = "none",
        resize: bool = False,
    ) -> Caption | list[Caption]:
        """The caption of a pair, or the captions of a list of pairs, in their order.

        Of two equal images it says that they are equal, and with a confidence below 5 %, or less
        than 75 % that could be compared, that it is not sure, and why. `Caption.raw` then has the
        captioner's sentence.

        Args:
            before, after: Images as `cc_train.data.image_pairs.Image` has them: paths, URLs, arrays
                [H, W, 3] RGB, [H, W] grey or [H, W, bands], PIL images. Both images of a pair have
                one size, unless `resize` is given; they are resized to `inputs.size`. In place of
                both, `before` may be pairs: a list or any iterable of (before, after), such as
                `zip(befores, afters)`, of which one batch is read at a time, or an array
                [B, 2, H, W, 3].
            beams: 1 is greedy; more fills `Caption.beams`, and gives no confidence, which is that
                of greedy sentences.
            batch_size: Pairs that go through the network at once. A mask, where the system gives
                one, has `inputs.size`.
            bands: The number of one band for grey, or of those of red, green and blue, from 1.
            scale: What is black and white, as `image.scale` of a manifest: "dtype", "percentile",
                "per_band", or two numbers.
            register: The motion by which the image after is moved onto the one before, as
                `pairs.register` of a manifest: "translation", "affine" or "homography".
            resize: Whether the larger of two images is resized to the smaller.

        Raises:
            UserError: For what is no image or would be one grey, for a pair whose images differ in
                size or cannot be registered, and for numbers below 1.
        """
        for name, number in (("beams", beams), ("batch_size", batch_size)):
            if number < 1:
                raise UserError(f"{name}={number}", "Give 1 or more")
        reading = Reading.of(bands, scale, register, resize)
        if after is not None:
            return self._captions([(before, after)], beams, reading)[0]  # type: ignore[list-item]
        pairs = _each(before)
        batches = iter(lambda: list(itertools.islice(pairs, batch_size)), [])
        return [caption for batch in batches for caption in self._captions(batch, beams, reading)]

    def caption_each(
        self,
        pairs: Sequence[Pair],
        /,
        *,
        beams: int = 1,
        bands: Sequence[int] | None = None,
        scale: Scale = "dtype",
        register: str = "none",
        resize: bool = False,
    ) -> list[Caption | UserError | JobFailed]:
        """The captions of one batch of pairs, in their order, and the error of each other pair.

        An error of one pair is returned in that pair's place, and the others have captions. For the
        arguments see `__call__`.
        """
        reading = Reading.of(bands, scale, register, resize)
        batch: list[Sized | UserError | JobFailed] = []
        for pair in pairs:
            try:
                batch.append(image_pairs.sized(*pair, self.inputs.size, reading))
            except (UserError, JobFailed) as error:  # the second of a store that does not answer
                batch.append(error)
        captions = iter(self.of_sized([one for one in batch if isinstance(one, Sized)], beams))
        return [next(captions) if isinstance(one, Sized) else one for one in batch]

    def _captions(self, pairs: Sequence[Pair], beams: int, reading: Reading) -> list[Caption]:
        size = self.inputs.size
        return self.of_sized([image_pairs.sized(*pair, size, reading) for pair in pairs], beams)

    def of_sized(self, pairs: Sequence[Sized], beams: int = 1) -> list[Caption]:
        """What a user is told of one batch of pairs that were read in the size of `inputs`."""
        if not pairs:
            return []
        pixels = torch.from_numpy(np.stack([pair.pixels for pair in pairs]))
        captions = self.model.caption(pixels.to(self.device), beams)
        calibration = self.model.calibration if isinstance(self.model, EncoderDecoder) else None
        return [
            doubt.told(caption, pair.are_equal, calibration, pair.compared)
            for caption, pair in zip(captions, pairs, strict=True)
        ]


def _each(pairs: object) -> Iterator[Pair]:
    """Pairs, each known to be two of something; all of a list are, before the first is read.

    Raises:
        UserError: For what is no list of pairs, and while others are read.
    """
    is_image = isinstance(pairs, str | os.PathLike | PIL.Image.Image)
    is_image |= isinstance(pairs, np.ndarray) and pairs.ndim != BATCH_DIMENSIONS
    if is_image or not isinstance(pairs, Iterable):
        raise _no_pairs()
    each = map(_pair, pairs)
    return iter(list(each)) if isinstance(pairs, Sequence) else each


def _pair(pair: object) -> Pair:
    if not isinstance(pair, list | tuple | np.ndarray) or len(pair) != 2:
        raise _no_pairs()
    return pair[0], pair[1]


def _no_pairs() -> UserError:
    return UserError(
        "one image, or no list of pairs", "Give before and after, or [(before, after)]"
    )
