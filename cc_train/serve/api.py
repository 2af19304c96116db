"""The HTTP API of `cc-train serve` for programs: what a request asks for, and its answer.

`page/openapi.json` describes it. A pair is `before` and `after`: encoded images in base64 in JSON,
or files of a form (multipart/form-data).
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import python_multipart
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from cc_prep import strict_json
from cc_prep.errors import RejectedPair, UserError
from cc_prep.media import images
from cc_train import caption_rows
from cc_train.captioner import Caption
from cc_train.data import image_pairs
from cc_train.data.image_pairs import Sized
from cc_train.pretrained import Captioner
from cc_train.serve.caption_service import MAX_BEAMS

JSON, FORM = "application/json", "multipart/form-data"
MAX_PAIRS = 32  # of a batch
PART = 1_000_000  # bytes of a form that are parsed at once
SIDES = ("before", "after")
OPTIONS = ("beams", "mask")

_log = logging.getLogger("python_multipart")  # what others send is not the terminal's business
_log.addHandler(logging.NullHandler())
_log.propagate = False


def caption(captioner: Captioner, content_type: str, body: bytes | bytearray) -> dict[str, Any]:
    """The answer to a request for the caption of one pair.

    Args:
        content_type: The header of this name: JSON or FORM.

    Raises:
        UserError: For a body that is not as `page/openapi.json` describes it.
    """
    is_form = content_type.partition(";")[0].strip().lower() == FORM
    content = _form(content_type, body) if is_form else _object(body)
    _check_names(content, (*SIDES, *OPTIONS))
    beams, with_mask = _beams(content), _with_mask(content)
    before, after = (_decoded(content, side) for side in SIDES)
    return _answer(captioner, captioner(before, after, beams=beams), with_mask)


def captions(captioner: Captioner, content_type: str, body: bytes | bytearray) -> dict[str, Any]:
    """The answer to a request for the captions of a batch of pairs, which is JSON.

    A pair that cannot be captioned has an error in its place.

    Raises:
        UserError: As `caption` does.
    """
    content = _object(body)
    _check_names(content, ("pairs", *OPTIONS))
    pairs = content.get("pairs")
    if not isinstance(pairs, list) or not 1 <= len(pairs) <= MAX_PAIRS:
        raise UserError("no list of pairs", f"Give 1 to {MAX_PAIRS} of them")
    beams, with_mask = _beams(content), _with_mask(content)
    small = [_small(pair, captioner.inputs.size) for pair in pairs]
    captioned = iter(captioner.of_sized([one for one in small if isinstance(one, Sized)], beams))
    return {
        "captions": [
            _answer(captioner, next(captioned), with_mask)
            if isinstance(one, Sized)
            else {"error": str(one)}
            for one in small
        ]
    }


def _small(pair: object, size: tuple[int, int]) -> Sized | UserError:
    """A pair of a batch in the size of the captioner, or why it is none.

    So only one pair at a time is held as large as it was sent.
    """
    try:
        if not isinstance(pair, dict):
            raise UserError("a pair is no object", "Give before and after")
        _check_names(pair, SIDES)
        before, after = (_decoded(pair, side) for side in SIDES)
        return image_pairs.sized(before, after, size)
    except UserError as error:
        return error


def _answer(captioner: Captioner, one: Caption, with_mask: bool) -> dict[str, Any]:
    answer = caption_rows.row(one, captioner.inputs.mask_classes)
    if with_mask and one.mask is not None:
        answer["mask"] = base64.b64encode(images.encode_image(one.mask, "png", 0)).decode()
    return answer


def _object(body: bytes | bytearray) -> dict[str, Any]:
    try:
        content = strict_json.loads(body)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise UserError("no JSON object", "Send one, or a form")
    return content


def _form(content_type: str, body: bytes | bytearray) -> dict[str, Any]:
    """The parts of a form by name: bytes of files, and the texts of options as JSON values."""
    parts: dict[str, Any] = {}
    ends: list[bool] = []

    def keep(part: Any, value: bytes | None) -> None:
        name = (part.field_name or b"").decode("ascii", "replace")
        if name not in (*SIDES, *OPTIONS) or name in parts:
            raise UserError(f"the form has {name[:50]!r} besides", f"Give one each of {_listed()}")
        parts[name] = value

    def keep_file(file: Any) -> None:
        file.file_object.seek(0)
        keep(file, file.file_object.read())

    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise UserError("a form without a boundary", "Let your HTTP library make it")
    try:
        parser = python_multipart.FormParser(
            FORM,
            on_field=lambda field: keep(field, field.value),
            on_file=keep_file,
            on_end=lambda: ends.append(True),
            boundary=boundary,
            config={"MAX_MEMORY_FILE_SIZE": len(body) + 1},  # nothing goes to a disk
        )
        for begin in range(0, len(body), PART):
            parser.write(bytes(body[begin : begin + PART]))
        parser.finalize()
    except FormParserError:
        ends.clear()
    if not ends:
        raise UserError("no whole form", "Let your HTTP library make it")
    for name in OPTIONS:
        if name in parts:
            try:
                parts[name] = strict_json.loads(parts[name] or b"")
            except (ValueError, RecursionError):
                parts[name] = None
    return parts


def _check_names(content: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Raises UserError for a name that is not known: an option in a typo would be ignored."""
    for name in content:
        if name not in known:
            raise UserError(f"{name[:50]!r} is not known", f"Known: {', '.join(known)}")


def _beams(content: Mapping[str, Any]) -> int:
    beams = content.get("beams", 1)
    if not isinstance(beams, int) or isinstance(beams, bool) or not 1 <= beams <= MAX_BEAMS:
        raise UserError("beams is no number of beams", f"Give 1 to {MAX_BEAMS}")
    return beams


def _with_mask(content: Mapping[str, Any]) -> bool:
    with_mask = content.get("mask", False)
    if not isinstance(with_mask, bool):
        raise UserError("mask is not true or false", "Give one of them")
    return with_mask


def _decoded(content: Mapping[str, Any], side: str) -> np.ndarray:
    """An image, uint8 [H, W, 3] RGB."""
    data = content.get(side)
    if isinstance(data, str):
        try:
            data = base64.b64decode(data, validate=True)
        except ValueError:  # binascii.Error, or text that is not ASCII
            raise UserError(f"{side} is not base64", "Encode the bytes of its file") from None
    if not isinstance(data, bytes):
        raise UserError(f"no image {side}", "Give before and after")
    try:
        return images.decode(data, f"the image {side}")
    except RejectedPair as error:
        raise UserError(error.detail, error.remedy or "Give two images") from None


def _listed() -> str:
    return ", ".join((*SIDES, *OPTIONS))
