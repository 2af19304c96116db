"""Whether the pixels of a JPEG are those that were stored, as far as its code tells.

Pillow shows what libjpeg makes up for a damaged scan, and drops the warning. A scan has no
checksum: damage is seen where the code breaks off, has no meaning, or ends at another place than
the image; and as a hole, since no picture is coded as so many zeros.
"""

from __future__ import annotations

import re
import struct

import simplejpeg

START, END = b"\xff\xd8\xff", b"\xff\xd9"
CORRUPT = "Corrupt JPEG data: "  # libjpeg's other warnings are of metadata
EXTRANEOUS = re.compile(r"(\d+) extraneous bytes before marker 0xd9")  # that of the image's end
HOLE = bytes(64)
BASELINE, TABLES, SCAN = (0xC0, 0xC1), 0xC4, 0xDA  # markers
END_OF_BLOCK = 0  # the symbol of a code


def find(data: bytes) -> str | None:
    """What is wrong with a JPEG that can be decoded; None if nothing is, and for other files."""
    if not data.startswith(START):
        return None
    return _warning(data) or ("a hole of zeros" if _has_hole(data) else None)


def _warning(data: bytes) -> str | None:
    """What libjpeg says of pixels that it had to make up.

    Only the code is decoded: the image is asked for at an eighth of its size.
    """
    try:
        form = simplejpeg.decode_jpeg_header(data)[2]
        simplejpeg.decode_jpeg(
            data + END,  # the last warning is told, and none is to be of an end that is missing
            "CMYK" if form in ("CMYK", "YCCK") else "GRAY",
            min_height=1,
            min_width=1,
            strict=True,
        )
    except ValueError as error:
        warning = str(error)
        extraneous = EXTRANEOUS.search(warning)
        is_padded = extraneous is not None and _is_padding(data, int(extraneous[1]))
        if warning.startswith(CORRUPT) and not is_padded:
            return warning.removeprefix(CORRUPT)
    return None


def _is_padding(data: bytes, count: int) -> bool:
    """Whether so many bytes before the end are all the same, as some cameras fill them up."""
    end = data.rfind(END)
    return end >= count and len(set(data[end - count : end])) == 1


def _has_hole(data: bytes) -> bool:
    """Whether the scan of a baseline JPEG has a run of zeros that no picture has.

    Zeros repeat the first symbol of the code of coefficients. Where that is the end of a block, a
    flat picture is coded so.
    """
    if HOLE not in data:
        return False
    is_baseline, first_symbols, at = False, {}, 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], struct.unpack_from(">H", data, at + 2)[0]
        segment = data[at + 4 : at + 2 + length]
        at += 2 + length
        if marker in BASELINE:
            is_baseline = True
        elif marker == TABLES:
            while len(segment) > 17:
                table, counts = segment[0], segment[1:17]
                first_symbols[table] = segment[17]
                segment = segment[17 + sum(counts) :]
        elif marker == SCAN and len(segment) > 2:
            coefficients = 0x10 | (segment[2] & 0x0F)  # the table of the first component
            scan = data[at : data.find(END, at)].rstrip(b"\0")
            is_flat = first_symbols.get(coefficients, END_OF_BLOCK) == END_OF_BLOCK
            return is_baseline and not is_flat and HOLE in scan
    return False
