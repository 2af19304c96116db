"""A manifest: everything a run depends on, read from YAML and checked before any work.

`load("clevr", ["interpolate.depth=2"])` finds `manifests/clevr.yaml` below the current folder, or
the one that came with the package, or takes a path. Every mistake is a `UserError` that names
file, key and remedy.

A relative `root` or `exclude` is relative to the folder of the file. What the command line or the
environment says is relative to the current folder. A manifest of the package counts as one in
`manifests/` of the current folder.
"""

from __future__ import annotations

import difflib
import os
import re
import warnings
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from cc_prep import caption_normalization, settings, storage, text_files
from cc_prep.errors import UserError
from cc_prep.records import Side
from cc_prep.settings import Section

# A path or URL that a user writes, `~` included.
Place = Annotated[str, AfterValidator(storage.with_home)]
Positive = Annotated[int, Field(ge=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
# One value of a mask or several: a number, or a colour.
MaskValue = Annotated[int, Field(ge=0, le=255)] | Annotated[str, Field(pattern=r"^#[0-9a-f]{6}$")]
BACKBONES = (
    "none",
    "efficientnet-lite0",
    "efficientnet-lite0-x2",
    "nanodet",
    "resnet101",
    "vqgan",
)
JOIN = "+"  # between the names of backbones whose features are joined
# What the name of a library's backbone begins with, in settings, shards and runs.
TIMM, HF = "timm:", "hf:"
# What may be black and white in an image, see `ImageValues`.
Scale = Literal["dtype", "percentile", "per_band"]
SCALES = get_args(Scale)
# What a table says of a pair, by the names of its columns.
Column = Literal[
    "before", "after", "caption", "captions", "id", "split", "kind", "change_type", "mask",
    "mask_before", "mask_after",
]  # fmt: skip
COLUMNS = get_args(Column)
MAX_CLASSES = 254  # of change: a mask has 8 bits
MaskValues = Annotated[
    tuple[MaskValue, ...],
    BeforeValidator(lambda value: tuple(value) if isinstance(value, list | tuple) else (value,)),
]
# By which rule keyframes are chosen, see `cc_prep.steps.score`.
Strategy = Literal["confidence", "top", "uniform", "random", "visual"]
PATHS = ("root", "exclude")  # keys whose value is relative to the file
NONE = "none"  # in place of weights: the step is left out
TRUTH = "truth"  # the method that takes the true frames of a rendered scene or a video
IMPORTED = "imported"  # in place of weights: of what other code made
Filter = Literal["bicubic", "bilinear", "opencv-cubic"]


class Video(Section):
    """How the `video` layout makes pairs: frames `gap` apart, a new pair every `stride` frames."""

    gap: Positive = 8
    stride: Positive = 8
    max_pairs_per_video: Positive | None = None


class ImageValues(Section):
    """Which values of images become red, green and blue, what is black and what white, and how
    images come to their size.

    Attributes:
        bands: One for grey, or three for red, green and blue, counted from 1; null takes the one or
            the three that an image has.
        scale: `dtype`, from 0 to the largest value of the type; two numbers, black and white;
            `percentile`, from the 2nd to the 98th percentile of both images of a pair; `per_band`,
            the same for each band by itself.
        filter: Pillow's `bicubic` or `bilinear`, which average what they make smaller, or
            `opencv-cubic`, OpenCV's INTER_CUBIC, which does not.
        resize: `before`, so that all steps see images of `image_size`; or `after`, so that frames
            are interpolated between images of their own size, and then resized.
    """

    bands: Annotated[tuple[Positive, ...], Field(strict=False)] | None = None
    scale: Scale | Annotated[tuple[Finite, Finite], Field(strict=False)] = "dtype"
    filter: Filter = "bicubic"
    resize: Literal["before", "after"] = "before"

    @field_validator("bands")
    @classmethod
    def _grey_or_colours(cls, bands: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if bands is not None and len(bands) not in (1, 3):
            raise ValueError("one or three numbers")
        return bands

    @field_validator("scale", mode="before")
    @classmethod
    def _known(cls, scale: Any) -> Any:
        if isinstance(scale, str) and scale in SCALES:
            return scale
        numbers = scale if isinstance(scale, list | tuple) else ()
        if [type(one) in (int, float) for one in numbers] != [True, True] or not (
            numbers[0] < numbers[1]
        ):
            raise ValueError(f"one of {', '.join(SCALES)}, or black and white as [low, high]")
        return scale


with warnings.catch_warnings():
    # pydantic warns of a key `register`, since the class of its classes has a method called so.
    warnings.simplefilter("ignore", UserWarning)

    class Pairs(Section):
        """What is done where the two images of a pair do not lie on each other.

        Attributes:
            register: The motion by which the image after is moved onto the one before.
            resize: Of two sizes the larger one is resized to the smaller.
        """

        register: Literal["none", "translation", "affine", "homography"] = "none"
        resize: bool = False


class Rasters(Section):
    """How the `rasters` layout cuts scenes into tiles.

    Attributes:
        tile: Px of a side.
        overlap: Px that neighbours share.
        unchanged: The caption of tiles of which a file of captions says nothing; null leaves such
            tiles out.
    """

    tile: Annotated[int, Field(ge=16, le=8192)] = 256
    overlap: Annotated[int, Field(ge=0)] = 32
    unchanged: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _advances(self) -> Rasters:
        if self.overlap > self.tile // 2:
            raise ValueError("overlap: at most half of tile")
        return self


class Captions(Section):
    """How sentences become captions.

    Attributes:
        mark_unchanged: A pair without a mark of its own, all captions of which say that nothing
            changed, is one without change.
    """

    join: bool = False
    mark_unchanged: bool = False
    normalise: Annotated[tuple[caption_normalization.Step, ...], Field(strict=False)] = ()


class Table(Section):
    """The table of the `table` layout.

    Attributes:
        file: If it is not `pairs.*` in the root. `{split}` is replaced by the split, and `*` in the
            name stands for any text: several files are one table.
        folder: To which names of images are relative, below the root; may hold `{split}`.
        columns: What the table calls its columns, by the name that is read, or where in a row the
            value is: `image[0]`, `conversations[1].value`, `sentences[].raw`. null: not read.
        rows: Only rows are read in which these columns match these regular expressions.
    """

    file: Place | None = None
    folder: str = ""
    columns: dict[Column, str | None] = Field(default_factory=dict)
    rows: dict[str, str] = Field(default_factory=dict)

    @field_validator("rows")
    @classmethod
    def _patterns(cls, rows: dict[str, str]) -> dict[str, str]:
        for pattern in rows.values():
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression ({error})") from None
        return rows

    @model_validator(mode="after")
    def _folder_of_split(self) -> Table:
        if "{split}" in self.folder and "{split}" not in (self.file or ""):
            raise ValueError("folder: {split} is the split in the name of file, which has none")
        return self


class Levir(Section):
    """Files and folders of the `levir_cc` layout; `{split}` is replaced by the split.

    Attributes:
        captions: null: there are none, and each image before has a pair.
        mask, mask_before, mask_after: Optional folders; null for none.
    """

    captions: str | None = "LevirCCcaptions.json"
    before: str = "images/{split}/A"
    after: str = "images/{split}/B"
    mask: str | None = "images/{split}/label"
    mask_before: str | None = None
    mask_after: str | None = None


class Masks(Section):
    """What the pixels of masks mean.

    Attributes:
        classes: The values of each class by its name: numbers of 0 to 255, or colours as `#rrggbb`.
            The order of the names is that of the class ids. Without classes each value but 0 is
            `change`.
        unchanged: The values of what did not change.
        land_cover: mask_before and mask_after are maps of what covers the ground; where both have
            the same class, nothing changed.
    """

    classes: dict[str, MaskValues] = Field(default_factory=dict)
    unchanged: MaskValues = (0,)
    land_cover: bool = False

    @model_validator(mode="after")
    def _one_kind_of_value(self) -> Masks:
        listed = [value for values in (*self.classes.values(), self.unchanged) for value in values]
        if self.classes and len({isinstance(value, str) for value in listed}) > 1:
            raise ValueError("classes and unchanged are numbers, or all of them are colours")
        if len(set(listed)) < len(listed):
            raise ValueError("two classes have the same value")
        if len(self.classes) > MAX_CLASSES:
            raise ValueError(f"more than {MAX_CLASSES} classes")
        if not self.classes and (self.land_cover or self.unchanged != (0,)):
            raise ValueError("unchanged and land_cover say nothing without classes")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes 1 … K."""
        return tuple(self.classes) or ("change",)

    @property
    def values(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """(pixel, class id); none without classes."""
        if not self.classes:
            return ()
        ids = ((0, self.unchanged), *enumerate(self.classes.values(), 1))
        return tuple((_pixel(value), number) for number, values in ids for value in values)


def _pixel(value: int | str) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,)
    return tuple(int(value[start : start + 2], 16) for start in (1, 3, 5))


class Interpolate(Section):
    """How frames are interpolated; every key changes the bytes that are written."""

    method: Literal[
        "rife", "vfiformer", "vfiformer-small", "dis", "crossfade", "truth", "imported"
    ] = "rife"  # fmt: skip
    weights: str = "rife-v4.0"
    depth: Annotated[int, Field(ge=0, le=6)] = 3
    pad_multiple: Annotated[int, Field(ge=32, multiple_of=32)] = 32
    padding_mode: Literal["zeros", "replicate"] = "zeros"
    refine: bool = False
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    threads: Positive = 2
    tf32: bool = False
    pairs_per_batch: Positive | None = None
    codec: Literal["png", "jpg", "webp"] = "png"
    quality: Annotated[int, Field(ge=1, le=100)] = 95
    keep_truth: bool = True


class Score(Section):
    """How frames are scored; with the weights `none` they are not."""

    weights: str = "clip4idc-mini"
    intra_layers: Positive | None = None
    threads: Positive = 2
    tf32: bool = False


class Keyframes(Section):
    """Which frames are key, and which are stored as images; needs no new scores."""

    strategy: Strategy = "confidence"
    k: Annotated[int, Field(ge=0)] = 2
    threshold: Annotated[float, Field(ge=0)] | None = None
    images: Literal["keyframes", "all", "none"] = "keyframes"
    quality: Annotated[int, Field(ge=1, le=100)] = 95


class Tokenize(Section):
    """How frames become tokens; with the weights `none` they do not.

    Attributes:
        config: A YAML file, or its content.
    """

    weights: str = "vqgan-mini"
    config: str | dict[str, Any] | None = None
    threads: Positive = 2
    tf32: bool = False


class Features(Section):
    """Features of a frozen backbone, stored in the training shards.

    Attributes:
        backbone: One of BACKBONES, several of them joined by `+`, `timm:NAME` or `hf:FOLDER`.
        weights: A name or a file; null takes the backbone's own.
        layers: Of a library's backbone: numbers of the layers whose features are joined.
        input_size: Of a library's backbone: px to which images are resized, a side or height and
            width; null leaves them as they are.
        frames: Whose features are stored.
        precision: In which the values are stored.
        mirrored: Whether features of the mirrored images are stored too, for trainings that see
            some scenes mirrored.
        folder: Of features that others computed, a file an image, which are read in place of a
            backbone; `weights` is then the file that they are of.
    """

    backbone: str = "none"
    weights: str | None = None
    layers: Annotated[tuple[int, ...], Field(min_length=1, strict=False)] = (-1,)
    input_size: Side | Annotated[tuple[Side, Side], Field(strict=False)] | None = None
    frames: Literal["ends", "keyframes", "all"] = "ends"
    precision: Literal["float16", "float32"] = "float16"
    mirrored: bool = False
    folder: Place | None = None
    threads: Positive = 2
    tf32: bool = False

    @model_validator(mode="before")
    @classmethod
    def _folder_as_weights(cls, values: Any) -> Any:
        """`hf:FOLDER` becomes the backbone `hf:` with the weights FOLDER."""
        backbone = values.get("backbone") if isinstance(values, dict) else None
        if not isinstance(backbone, str) or not backbone.startswith(HF) or backbone == HF:
            return values
        if values.get("weights") is not None:
            raise ValueError("backbone names the folder of its weights: leave out weights")
        return {**values, "backbone": HF, "weights": backbone.removeprefix(HF)}

    @field_validator("backbone")
    @classmethod
    def _known(cls, backbone: str) -> str:
        if not backbone.startswith((TIMM, HF)):
            parts = backbone.split(JOIN)
            known = BACKBONES[1:] if len(parts) > 1 else BACKBONES
            if not all(part in known for part in parts):
                listed = ", ".join(BACKBONES)
                raise ValueError(f"one of {listed}, some of them as a+b, timm:NAME and hf:FOLDER")
        return backbone

    @model_validator(mode="after")
    def _consistent(self) -> Features:
        if not self.backbone.startswith((TIMM, HF)):
            if (self.layers, self.input_size) != ((-1,), None):
                raise ValueError("layers and input_size are for timm:NAME and hf:FOLDER alone")
        elif self.folder is not None:
            raise ValueError(f"folder: features of {self.backbone} are not read from one")
        elif self.weights is None:
            raise ValueError(f"weights: {self.backbone} needs them, from this machine")
        return self

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of `input_size`."""
        return (self.input_size,) * 2 if isinstance(self.input_size, int) else self.input_size


class Changes(Section):
    """How changed places are found without the truth (`cc-prep changes`).

    Attributes:
        delta: Of 255 levels of Lab.
        relative: Of the largest differences in a cluster.
        tolerance: Px that an edge may have moved.
        blur: Sigma in px, of the plain difference.
        eps, min_samples, cell: Of DBSCAN, in px.
        min_area: Px of a cluster, up to 224 × 224 px.
        top: At most so many regions.
        tau: From 0 to 1.
        most_share: Of the image; if more is marked, nothing is.
    """

    delta: Annotated[float, Field(ge=0, le=255)] = 20.0
    relative: Annotated[float, Field(ge=0, le=1)] = 0.4
    tolerance: Annotated[int, Field(ge=0, le=32)] = 3
    blur: Annotated[float, Field(ge=0, le=16)] = 1.0
    eps: Annotated[float, Field(gt=0)] = 3.0
    min_samples: Positive = 10
    cell: Positive = 2
    min_area: Positive = 20
    top: Positive | None = 20
    segmenter: Literal["fill", "sam", "none"] = "fill"
    weights: str | None = None
    tau: Annotated[float, Field(ge=0, le=1)] = 0.5
    most_share: Annotated[float, Field(gt=0, le=1)] = 0.6
    threads: Positive = 2

    @model_validator(mode="after")
    def _cells_have_neighbours(self) -> Changes:
        if self.cell > self.eps:
            raise ValueError("cell is larger than eps: no two cells would ever be neighbours")
        return self


class Entities(Section):
    """How noun phrases are found for changed places (`cc-prep entities`).

    Attributes:
        weights: CLIP's folder.
        features: The vectors by which neighbours are compared.
        min_count: The least number of training pairs whose captions have a phrase.
        k: Number of phrases of each region.
        regions: Largest number of regions of a pair.
        neighbours, temperature: Of the vote.
        view, grow: The view of a region that CLIP sees.
        template: Of CLIP's texts.
    """

    retriever: Literal["neighbours", "clip"] = "neighbours"
    weights: str | None = None
    features: Literal["efficientnet-lite0", "lab"] = "efficientnet-lite0"
    min_count: Positive = 2
    k: Positive = 5
    regions: Positive = 3
    neighbours: Positive = 16
    temperature: Annotated[float, Field(gt=0)] = 0.05
    view: Literal["dimmed", "crop", "masked"] = "dimmed"
    grow: Annotated[float, Field(ge=0)] = 0.2
    template: Annotated[str, Field(pattern=r"\{\}")] = "a photo of a {}"
    threads: Positive = 2


class Shards(Section):
    """How pairs are grouped into shards.

    Attributes:
        pairs_per_shard: Pairs of a shard, but for the last one of a split.
        max_mb: Fewer pairs where a training shard of so many is estimated to have more MB.
    """

    pairs_per_shard: Positive = 256
    max_mb: Positive | None = None
    shuffle_seed: int | None = 0


class Manifest(Section):
    """A data set and the settings of every step."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]
    layout: Literal[
        "clevr_change", "clevr_dc", "spot_the_diff", "image_editing", "levir_cc", "table",
        "folders", "video", "rasters",
    ]  # fmt: skip
    root: Place
    splits: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] = ("train", "val", "test")
    split_file: Place | None = None
    # The provenance records the digest of its content.
    exclude: Place | None = Field(default=None, exclude=True)
    # Whether a data set may name images elsewhere: what is no word of the user is not trusted.
    outside_root: bool = Field(default=False, exclude=True)
    image_size: Annotated[int, Field(ge=16, le=8192)] | None = 224
    image: ImageValues = ImageValues()
    pairs: Pairs = Pairs()
    video: Video = Video()
    rasters: Rasters = Rasters()
    captions: Captions = Captions()
    table: Table = Table()
    levir: Levir = Levir()
    masks: Masks = Masks()
    interpolate: Interpolate = Interpolate()
    score: Score = Score()
    keyframes: Keyframes = Keyframes()
    tokenize: Tokenize = Tokenize()
    features: Features = Features()
    changes: Changes = Changes()
    entities: Entities = Entities()
    shards: Shards = Shards()
    # The trainer's part, a section for each system: it changes no prepared byte, and `cc-train`
    # alone knows its keys.
    train: dict[str, Any] = Field(default_factory=dict, exclude=True)
    source: str = Field(default="", exclude=True)

    @model_validator(mode="after")
    def _truth_fits(self) -> Manifest:
        if self.interpolate.method == TRUTH and self.pairs.register != "none":
            raise ValueError("pairs.register moves an image, and interpolate.method=truth does not")
        return self

    @field_validator("splits")
    @classmethod
    def _plain_splits(cls, splits: tuple[str, ...]) -> tuple[str, ...]:
        for split in splits:
            if not re.fullmatch(r"[A-Za-z0-9_]+", split):
                raise ValueError(f"{split!r}: a split is named in letters, digits and _")
        if len(set(splits)) < len(splits):
            raise ValueError("a split is named twice")
        if len({split.casefold() for split in splits}) < len(splits):
            # Their files would be the same ones on macOS and Windows.
            raise ValueError("two splits differ in small and capital letters alone")
        return splits


def load(
    dataset: str,
    overrides: Sequence[str] = (),
    root: str | None = None,
    *,
    other_names: Sequence[str] = (),
) -> Manifest:
    """The manifest of `dataset` (a name or a YAML file) with `key=value` overrides applied.

    Raises UserError.
    """
    source, folder, text = _find(dataset, other_names)
    return build(text, source, overrides, root, folder=folder)


def build(
    text: str,
    source: str,
    overrides: Sequence[str] = (),
    root: str | None = None,
    *,
    folder: str = "",
) -> Manifest:
    """The manifest that a YAML text describes.

    Raises UserError.

    Args:
        source: Names it in messages.
        folder: What its relative paths are relative to.
    """
    written = settings.read(text, source)
    values = settings.expand(written, source)
    for key in PATHS:
        if isinstance(values.get(key), str) and not settings.begins_with_environment(written[key]):
            values[key] = _from_current_folder(values[key], folder)
    settings.override(values, overrides)
    if root is not None:
        values["root"] = root
    values.setdefault("name", Path(source).stem)
    return settings.build(
        Manifest, {**values, "source": source}, source, "manifests/README.md", overrides
    )


def _from_current_folder(path: str, folder: str) -> str:
    """A path that a manifest in `folder` names, from the current folder."""
    if "://" in path or path.startswith("~"):
        return path
    return os.path.normpath(os.path.join(folder, path))


def as_written(path: str, folder: str) -> str:
    """A path from the current folder as a manifest in `folder` has to name it."""
    if "://" in path or path.startswith("~") or os.path.isabs(path):
        return path
    return os.path.relpath(path, folder)


def text_of(dataset: str) -> str:
    """The YAML text of the manifest of `dataset`. Raises UserError."""
    return _find(dataset)[2]


def variable_of(source: str, key: str, value: str) -> str | None:
    """The environment variable by which a manifest's file gives a dotted key this value, if any."""
    try:
        written: Any = settings.read(text_of(source), source)
    except UserError:  # the text of a manifest need not lie in a file
        return None
    for part in key.split("."):
        written = written.get(part) if isinstance(written, dict) else None
    match = settings.VARIABLE.fullmatch(written) if isinstance(written, str) else None
    if match is None or value != (os.environ.get(match["name"]) or match["default"]):
        return None
    return match["name"]


def is_packaged(dataset: str) -> bool:
    """Whether `dataset` names a manifest of the package, and none of the current folder."""
    own = dataset.endswith((".yaml", ".yml")) or Path(f"manifests/{dataset}.yaml").is_file()
    return not own and dataset in packaged()


def names() -> list[str]:
    """Names of the manifests that can be given as DATASET."""
    return sorted(_names(Path("manifests")) | packaged())


def packaged() -> set[str]:
    """Names of the manifests that come with the package."""
    return _names(_packaged())


def _names(folder: Any) -> set[str]:
    """Those of its manifests, and of `paper/` in it: `clevr`, `paper/procap_clevr`."""
    return {
        f"{prefix}{path.name[:-5]}"
        for prefix, inner in (("", folder), ("paper/", folder / "paper"))
        if inner.is_dir()
        for path in inner.iterdir()
        if path.name.endswith(".yaml")
    }


def _packaged() -> Any:
    return resources.files("manifests")


def _find(dataset: str, other_names: Sequence[str] = ()) -> tuple[str, str, str]:
    """A manifest's file, the folder to which its paths are relative, and its text."""
    if dataset.endswith((".yaml", ".yml")):
        candidates: list[Any] = [Path(dataset)]
        folder = os.path.dirname(dataset)
    else:
        candidates = [Path("manifests") / f"{dataset}.yaml", _packaged() / f"{dataset}.yaml"]
        folder = os.path.dirname(f"manifests/{dataset}")
    for candidate in candidates:
        if candidate.is_file():
            source = str(candidate)
            return source, folder, text_files.decode(storage.read_bytes(source), source)
    known = [*names(), *other_names]
    near = difflib.get_close_matches(dataset, known, 1)
    remedy = f'Did you mean "{near[0]}"?' if near else f"Known: {', '.join(known)}, or a YAML file"
    raise UserError(f"no manifest {candidates[0]}", remedy)
