"""Damaged input of every parser: refused by an error of ours, whatever the bytes.

`TRIES=2000 make faults ARGS='-k fuzz -s'` says how many inputs each parser was given.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faults import fuzz_targets, tries

FEW = 25
TOKENS = (
    b"NaN", b"null", b"-1", b"1e999", b"[[[[", b"{}", b'""', b"\0", b"\xff\xfe", b"9" * 30,
    b"../", b"/etc/passwd", b"true", b"!!python/object/apply:os.system", b"&a", b"*a", b"\r\n",
)  # fmt: skip
SIMPLE = (
    "sequence shard", "training shard", "shard index of members", "scores", "index of samples",
    "rejects", "manifest", "override", "settings", "provenance", "done file", "image",
    "image of a shard", "weights as .pt", "weights as safetensors", "ProCap's scores",
    "ProCap's sequences", "ProCap's checkpoints", "predictions", "references", "a table as parquet",
    "a table as JSON lines", "vocabulary", "checkpoint's state",
)  # fmt: skip
PLACES = st.floats(0, 1, exclude_max=True)
CHANGES = st.one_of(
    st.tuples(st.just("flip"), PLACES, st.integers(1, 255)),
    st.tuples(st.just("cut"), PLACES, st.none()),
    st.tuples(st.just("insert"), PLACES, st.sampled_from(TOKENS) | st.binary(max_size=8)),
    st.tuples(st.just("overwrite"), PLACES, st.sampled_from(TOKENS) | st.binary(max_size=8)),
    st.tuples(st.just("double"), PLACES, st.integers(1, 64)),
    st.tuples(st.just("drop"), PLACES, st.integers(1, 64)),
)


def damaged(data: bytes, changes: list[tuple[str, float, object]]) -> bytes:
    for how, place, what in changes:
        at = int(place * len(data))
        head, tail = data[:at], data[at:]
        if how == "flip" and tail:
            data = head + bytes([tail[0] ^ int(what)]) + tail[1:]  # type: ignore[call-overload]
        elif how == "cut":
            data = head
        elif isinstance(what, bytes):
            data = head + what + (tail if how == "insert" else tail[len(what) :])
        elif how == "double":
            data = head + tail[: int(what)] + tail  # type: ignore[call-overload]
        elif how == "drop":
            data = head + tail[int(what) :]  # type: ignore[call-overload]
    return data


def fuzz(target: fuzz_targets.Target, folder: Path) -> int:
    """Gives the parser damaged files; how many."""
    path = folder / target.name
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0

    @settings(
        max_examples=tries(FEW),
        database=None,
        derandomize=tries(FEW) == FEW,  # in the tests always the same ones
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(CHANGES, min_size=1, max_size=5))
    def run(changes: list[tuple[str, float, object]]) -> None:
        nonlocal count
        count += 1
        path.write_bytes(damaged(target.seed, changes))
        with contextlib.suppress(*fuzz_targets.REFUSALS):
            target.parse(path)

    try:
        run()
    finally:
        path.write_bytes(target.seed)
    return count


@pytest.fixture(scope="module")
def simple(tmp_path_factory: pytest.TempPathFactory) -> dict[str, fuzz_targets.Target]:
    return fuzz_targets.simple(tmp_path_factory.mktemp("seeds"))


def test_all_parsers_are_tried(simple: dict[str, fuzz_targets.Target]) -> None:
    assert simple.keys() == set(SIMPLE)


@pytest.mark.parametrize("name", SIMPLE)
def test_parser(tmp_path: Path, simple: dict[str, fuzz_targets.Target], name: str) -> None:
    path = tmp_path / simple[name].name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(simple[name].seed)
    simple[name].parse(path)  # what is right is read
    print(f"{name}: {fuzz(simple[name], tmp_path)} inputs")


def test_readers_of_data_sets(tmp_path: Path) -> None:
    targets = fuzz_targets.of_datasets(tmp_path)
    assert len({name.partition(":")[0] for name in targets}) >= 5
    for name, target in targets.items():
        target.parse(Path(target.name))
        print(f"{name}: {fuzz(target, tmp_path)} inputs")
