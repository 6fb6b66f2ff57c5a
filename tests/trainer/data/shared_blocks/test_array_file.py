"""Arrays come back from a file as they were, of any type and length, and stay when it is removed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainer.data.shared_blocks.array_file import file_size, map_arrays, write_arrays

TYPES = ("uint16", "uint32", "int8", "int32", "int64", "bool")


@given(st.lists(st.tuples(st.sampled_from(TYPES), st.integers(0, 200)), min_size=1, max_size=8))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arrays_come_back(tmp_path: Path, wanted: list[tuple[str, int]]) -> None:
    arrays = {f"array {i}": np.arange(n).astype(kind) for i, (kind, n) in enumerate(wanted)}
    path = tmp_path / "arrays"
    write_arrays(str(path), arrays)
    assert path.stat().st_size == file_size(arrays)

    found = map_arrays(str(path))
    path.unlink()
    assert list(found) == list(arrays)
    for name, array in found.items():
        assert array.dtype == arrays[name].dtype and array.tolist() == arrays[name].tolist()
        assert not array.flags.writeable


def test_there_must_be_a_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        map_arrays(str(tmp_path / "none"))


def test_maps_hold_no_descriptors_and_end_with_their_arrays(tmp_path: Path) -> None:
    """Hundreds of shards are in memory at once, and a process has 1,024 descriptors unless told otherwise."""
    path = tmp_path / "arrays"
    write_arrays(str(path), {"ids": np.arange(100)})

    def descriptors() -> int:
        # Threads of earlier tests may close descriptors of other files at the same time.
        opened = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
        return opened.count(str(path.resolve()))

    def maps() -> int:
        return Path("/proc/self/maps").read_text().count(str(path))

    with path.open():
        assert descriptors() == 1
    mapped = [map_arrays(str(path)) for _ in range(50)]
    assert descriptors() == 0 and maps() == 50
    assert mapped[-1]["ids"].sum() == 4950
    mapped.clear()
    assert maps() == 0


@pytest.mark.parametrize("content", [b"", b"12345678", (1000).to_bytes(8, "little") + b'{"ids"'])
def test_a_file_that_is_not_whole_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "arrays"
    path.write_bytes(content)
    with pytest.raises(ValueError):
        map_arrays(str(path))
