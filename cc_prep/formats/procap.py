"""ProCap's own files: sequences as HDF5, scores as JSON.

CLEVR-Change   sc_videos.h5 and nsc_videos.h5 (with and without semantic change), keys `000123.png`;
               clevr_similarity_scores.json, {key: {"sc_sim_matrixes": …, "nsc_sim_matrixes": …}}
others         <name>_videos.h5 and <name>_similarity_scores.json; keys are ids in data sets that
               ProCap knows, and our keys in all others, whose splits may number their pairs alike

A dataset of an HDF5 file is uint8 [F, 3, H, W], RGB; matrices are {"bef_inter_sim": lists of shape
[captions, F], "inter_aft_sim": …}.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np

from cc_prep import storage
from cc_prep.errors import Reason, RejectedPair, UserError, first_line
from cc_prep.records import CHANGE, NO_CHANGE, FrameScores, are_scores

CLEVR_LAYOUT = "clevr_change"
KNOWN_LAYOUTS = (CLEVR_LAYOUT, "spot_the_diff", "image_editing")
MATRICES = ("bef_inter_sim", "inter_aft_sim")


class Named(Protocol):
    """A pair or a sequence: what its name in ProCap's files depends on."""

    @property
    def id(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def key(self) -> str: ...


class Names:
    """What ProCap calls things of a data set."""

    def __init__(self, name: str, layout: str) -> None:
        self.clevr, self.known = layout == CLEVR_LAYOUT, layout in KNOWN_LAYOUTS
        self.prefix = "clevr" if self.clevr else name

    def videos(self, kind: str) -> str:
        """The HDF5 file that holds pairs of a kind."""
        if not self.clevr:
            return f"{self.prefix}_videos.h5"
        return "nsc_videos.h5" if kind == NO_CHANGE else "sc_videos.h5"

    def key(self, one: Named) -> str:
        """A pair's name in the files."""
        if self.clevr:
            return f"{one.id}.png"
        return one.id if self.known else one.key

    def key_in(self, entries: Container[str], one: Named) -> str:
        """The same, or the id where a file of others has that."""
        key = self.key(one)
        return one.id if key not in entries and one.id in entries else key

    @property
    def scores(self) -> str:
        """The JSON file."""
        return f"{self.prefix}_similarity_scores.json"

    @property
    def files(self) -> list[str]:
        """All of them."""
        return [*dict.fromkeys(map(self.videos, (CHANGE, NO_CHANGE))), self.scores]

    def part(self, kind: str) -> str | None:
        """The name under which a pair's matrices are below its key; None: directly below."""
        if not self.clevr:
            return None
        return "nsc_sim_matrixes" if kind == NO_CHANGE else "sc_sim_matrixes"


def _opened(path: Path) -> h5py.File:
    storage.open_read(str(path)).close()  # HDF5 would wait for a pipe's other end
    return h5py.File(path, "r")


class Videos:
    """The HDF5 files of a folder, opened when first asked for."""

    def __init__(self, folder: str, names: Names) -> None:
        self.folder, self.names = Path(folder), names
        self.files: dict[str, h5py.File] = {}

    def frames(self, one: Named) -> np.ndarray:
        """uint8 [F, H, W, 3].

        Raises:
            RejectedPair: For a pair that is not there or no sequence.
        """
        key, file = self.names.key(one), self.names.videos(one.kind)
        try:
            if file not in self.files:
                self.files[file] = _opened(self.folder / file)
            key = self.names.key_in(self.files[file], one)
            dataset = self.files[file][key]
            shape: tuple[int, ...] = getattr(dataset, "shape", ())
            if len(shape) != 4 or shape[1] != 3 or dataset.dtype != np.uint8 or shape[0] < 3:
                raise RejectedPair(
                    Reason.UNREADABLE_SEQUENCE, f"{file}[{key}] is {shape}, not uint8 [F, 3, H, W]"
                )
            pixels: np.ndarray = dataset[()]
        except KeyError:
            raise RejectedPair(Reason.MISSING_IMAGE, f"{file} has no {key}") from None
        except (OSError, RuntimeError) as error:  # h5py raises either for a damaged file
            raise RejectedPair(Reason.UNREADABLE_SEQUENCE, f"{file}: {first_line(error)}") from None
        return np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))

    def count(self, kind: str) -> int:
        """Frames of a sequence of that kind, 0 where the file is not there. Raises UserError."""
        path = self.folder / self.names.videos(kind)
        if not path.exists():
            return 0
        try:
            with _opened(path) as file:
                return int(next(iter(file.values())).shape[0])
        except (OSError, RuntimeError, LookupError, StopIteration, AttributeError) as error:
            raise UserError(
                f"{path}: no HDF5 file of sequences ({type(error).__name__})", "Fetch it again"
            ) from None

    def check_names(self, pairs: Iterable[Named]) -> None:
        """Raises UserError for a file of others that has one sequence by the id of two pairs."""
        path = self.folder / self.names.videos(CHANGE)
        if self.names.known or not path.exists():
            return
        with _opened(path) as file:
            entries = set(file)
        by_name: dict[str, str] = {}
        for one in pairs:
            name = self.names.key_in(entries, one)
            other = by_name.setdefault(name, one.key)
            if other != one.key:
                raise UserError(
                    f"{path}: {name} is the id of two pairs, {other} and {one.key}",
                    "Name the sequences there by these keys, or import each split's own file "
                    "with --split",
                )


def read_scores(folder: str, names: Names) -> dict[str, Any]:
    """The JSON file's content. Raises UserError; FileNotFoundError where there is none."""
    path = Path(folder) / names.scores
    try:
        by_id = storage.read_json(str(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: {error}", "Fetch it again") from None
    if not isinstance(by_id, dict):
        raise UserError(f"{path}: no object of scores by pair", "Fetch it again")
    return by_id


def scores_of(
    by_id: dict[str, Any], names: Names, one: Named, captions: tuple[str, ...], frames: int
) -> FrameScores:
    """A pair's scores.

    Raises:
        RejectedPair: Where they are not `[captions][frames]`.
    """
    key, part = names.key_in(by_id, one), names.part(one.kind)
    entry = by_id.get(key)
    if part is not None and isinstance(entry, dict):
        entry = entry.get(part)
    nothing = np.zeros(0, np.float32)
    try:
        with np.errstate(over="ignore"):  # 1e300 is infinite, which is refused below
            rows = [np.array(entry[name], np.float32) for name in MATRICES]  # type: ignore[index]
    except (KeyError, TypeError, ValueError):
        raise RejectedPair(
            Reason.UNREADABLE_SEQUENCE, f"{names.scores} has no matrices of {key}"
        ) from None
    if not captions:  # lists without a row do not tell how many frames there are
        rows = [row.reshape(0, frames) if not row.size else row for row in rows]
    if any(row.shape != (len(captions), frames) for row in rows):
        raise RejectedPair(
            Reason.UNREADABLE_SEQUENCE,
            f"{names.scores}: {key} has {rows[0].shape}, not {len(captions)} captions × "
            f"{frames} frames",
        )
    if not all(map(are_scores, rows)):
        raise RejectedPair(
            Reason.UNREADABLE_SEQUENCE, f"{names.scores}: {key}: a score is no finite number"
        )
    return FrameScores(captions, rows[0], rows[1], nothing, nothing)


class Exporter:
    """Writes ProCap's files into a folder; made by `exporting`."""

    def __init__(self, folder: Path, names: Names) -> None:
        self.folder, self.names = folder, names
        self.files: dict[str, h5py.File] = {}
        self.scores: dict[str, Any] = {}

    def add_frames(self, one: Named, frames: np.ndarray) -> None:
        """A sequence, uint8 [F, H, W, 3].

        Raises:
            UserError: If there is one of its name.
        """
        name = self.names.videos(one.kind)
        if name not in self.files:
            self.files[name] = h5py.File(self.folder / name, "w")
        pixels = np.ascontiguousarray(frames.transpose(0, 3, 1, 2))
        if self.names.key(one) in self.files[name]:
            raise UserError(
                f"two pairs are called {self.names.key(one)} in {name}",
                "Interpolate each split into an --out of its own, and export each",
            )
        self.files[name].create_dataset(self.names.key(one), data=pixels, compression="gzip")

    def add_scores(self, one: Named, scores: FrameScores) -> None:
        """A sequence's scores."""
        matrices = {
            "bef_inter_sim": scores.bef_inter_sim.tolist(),
            "inter_aft_sim": scores.inter_aft_sim.tolist(),
        }
        part = self.names.part(one.kind)
        if part is None:
            self.scores[self.names.key(one)] = matrices
        else:
            self.scores.setdefault(self.names.key(one), {})[part] = matrices

    def close(self) -> None:
        for file in self.files.values():
            file.close()


@contextmanager
def exporting(folder: str, names: Names) -> Iterator[Exporter]:
    """Files that appear in `folder` under their names only when all are complete."""
    storage.remove_temporaries(folder, storage.A_DAY)
    with storage.write_folder(folder) as temporary:
        exporter = Exporter(temporary, names)
        try:
            yield exporter
        finally:
            exporter.close()
        if exporter.scores:
            text = json.dumps(exporter.scores, sort_keys=True)
            (temporary / names.scores).write_text(text, encoding="utf-8")
        written = {path.name for path in temporary.iterdir()}
        refuse_others(folder, [name for name in names.files if name not in written])


def refuse_others(folder: str, names: Iterable[str]) -> None:
    """Raises UserError if `folder` has files of another export, which would mix with these."""
    others = [name for name in names if (Path(folder) / name).exists()]
    if others:
        raise UserError(
            f"{folder} has {', '.join(others)} of another export, which this one would not replace",
            "Remove them, or give another --out",
        )
