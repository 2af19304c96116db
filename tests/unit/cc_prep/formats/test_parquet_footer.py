"""The counts of a Parquet file's footer, whole and damaged."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cc_prep.formats import parquet_footer, tables
from cc_prep.formats.tar import DamagedShard

ROWS = [{"id": f"{n}", "captions": ["a", "b"] * (n % 3), "score": n / 3} for n in range(40)]


def table(**options: object) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), buffer, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("options", [{}, {"row_group_size": 7, "compression": "zstd"}])
def test_values_are_counted_as_pyarrow_counts_them(options: dict[str, object]) -> None:
    data = table(**options)
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    expected = sum(
        metadata.row_group(group).column(column).num_values
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
    )
    assert parquet_footer.count_values(data) == expected


@pytest.mark.parametrize("data", [b"", b"PAR1", b"\xff\xff\xff\xffPAR1", b"\0\0\0\0PAR1"])
def test_what_has_no_footer_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="footer"):
        parquet_footer.count_values(data)


FLIP_EACH_BYTE = """
import sys
from tests.unit.cc_prep.formats import test_parquet_footer
test_parquet_footer.read_each_damaged(open(sys.argv[1], "rb").read())
"""


def read_each_damaged(data: bytes) -> None:
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for place in range(start, len(data) - 8):
        for bit in (1, 4, 32):
            damaged = data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]
            try:
                tables.read_rows(damaged, None, "damaged")
            except DamagedShard:
                continue


def test_a_flipped_bit_of_the_footer_ends_no_process(tmp_path: Path) -> None:
    """Keeps away: pyarrow's `column()`, whose C++ exception nobody catches (1 flip in 130)."""
    path = tmp_path / "table.parquet"
    path.write_bytes(table())
    command = [sys.executable, "-c", FLIP_EACH_BYTE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
